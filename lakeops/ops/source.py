"""Where objects are imported from: which places may be, and what lies there as entries.

Nothing is copied and nothing is read: an entry keeps the full URL of its object, and as checksum the store's own mark
(the ETag on S3; on local disks a change mark, see ``docs/adr/0010-change-marks.md``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.errors import InvalidInput, InvalidPath
from lakeops.model.names import MAX_PATH_BYTES
from lakeops.model.records import DEFAULT_CONTENT_TYPE
from lakeops.model.schema import ENTRY_SCHEMA, METADATA_TYPE
from lakeops.model.text import excerpt, flaw
from lakeops.ops.addresses import joined
from lakeops.ops.bounds import check_numbers
from lakeops.ops.context import Context
from lakeops.ops.overlap import check_source_apart
from lakeops.store import layout
from lakeops.store.base import Listing
from lakeops.store.location import parse_location

_BATCH = 50_000
"""Entries that are worked on at a time; directories of any size are put together to about this many."""
_SHOWN = 3


def check_source(ctx: Context, url: str) -> str:
    """The source's URL in its one spelling, when nothing there is managed by a repository.

    An object inside a repository's namespace lives as long as that repository refers to it: another reference to it,
    from an import, would not keep it from garbage collection.

    Raises:
        InvalidUri: it is not a location.
        InvalidInput: it and a repository's namespace overlap.
    """
    source = parse_location(url).url
    check_source_apart(ctx.catalog, ctx.stores, source, ctx.repository)
    return source


def entries(listings: Iterable[Listing], source: str, folder: str) -> Iterator[pa.Table]:
    """What lies at a source, as ``ENTRY_SCHEMA`` in path order.

    Args:
        listings: a scan of the source.
        source: its URL.
        folder: what the objects' paths begin with.

    Raises:
        InvalidPath: some names cannot be paths behind ``folder``; the first of them are named.
        InvalidInput: an object has a size or time that cannot be recorded.
    """
    for batch in _gathered(listings):
        keys = pa.array(batch.keys, pa.string())
        _check_claims(keys, source)
        paths = pc.binary_join_element_wise(folder, keys, "")
        _check_paths(paths, source)
        rows = len(keys)
        columns = {
            "path": paths,
            "physical_address": joined(source, keys),
            "checksum": pa.array(batch.marks, pa.string()),
            "size_bytes": pa.array(batch.sizes, pa.int64()),
            "mtime": pa.array(batch.mtimes, pa.int64()),
            "content_type": pa.repeat(pa.scalar(DEFAULT_CONTENT_TYPE), rows),
            "metadata": pa.repeat(pa.scalar([], METADATA_TYPE), rows),
        }
        table = pa.table(columns, schema=ENTRY_SCHEMA)
        check_numbers(table)
        yield table


def _gathered(listings: Iterable[Listing]) -> Iterator[Listing]:
    """The same objects in batches of a size that is worth a column."""
    keys: list[str] = []
    sizes: list[int] = []
    mtimes: list[int] = []
    marks: list[str] = []
    for listing in listings:
        keys += listing.keys
        sizes += listing.sizes
        mtimes += listing.mtimes
        marks += listing.marks
        if len(keys) >= _BATCH:
            yield Listing(keys, sizes, mtimes, marks)
            keys, sizes, mtimes, marks = [], [], [], []
    if keys:
        yield Listing(keys, sizes, mtimes, marks)


def _check_claims(keys: pa.Array, source: str) -> None:
    """Refuse a source with the claim of a repository in it: what lies there is managed by another lake."""
    claims = keys.filter(pc.match_substring_regex(keys, rf"(^|/){re.escape(layout.CLAIM)}$"))
    if len(claims):
        raise InvalidInput(
            f"{excerpt(source)} holds the storage namespace of a repository, {excerpt(claims[0].as_py())}: its objects "
            "live no longer than that repository needs them; import from elsewhere. Nothing was published"
        )


def _check_paths(paths: pa.Array, source: str) -> None:
    bad = pc.or_(pc.greater(pc.binary_length(paths), MAX_PATH_BYTES), pc.match_substring(paths, "\0"))
    if not pc.any(bad).as_py():
        return
    named = paths.filter(bad).to_pylist()
    shown = "; ".join(f"{excerpt(path)} {flaw(path, at_most=MAX_PATH_BYTES)}" for path in named[:_SHOWN])
    more = "; ..." if len(named) > _SHOWN else ""
    raise InvalidPath(f"names in {excerpt(source)} cannot be object paths: {shown}{more}; nothing was published")
