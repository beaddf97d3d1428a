"""Entries of what lies in a bucket or directory already, from listings of it: checked, uncopied, built into ranges.

A part of the source is a task for any engine. Workers list it, check it, and write its ranges, so the driver holds
nothing of them but their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import starmap

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.base import Engine, LocalEngine
from lakeops.model.arrow import ENTRY_SCHEMA, array, no_metadata, scalar, text
from lakeops.model.clock import Ids
from lakeops.model.errors import InvalidInput, InvalidPath
from lakeops.model.names import MAX_PATH_BYTES, flaw
from lakeops.model.records import DEFAULT_CONTENT_TYPE, Split
from lakeops.model.sanitising import excerpt
from lakeops.ops.files import clone_state_among
from lakeops.ranges.apply import MetarangeBuilder
from lakeops.ranges.build import build
from lakeops.ranges.chunker import Chunker
from lakeops.ranges.metarange import Metarange, RangeRow
from lakeops.ranges.range_file import RangeWriter
from lakeops.ranges.validation import check_entries, joined
from lakeops.store import layout
from lakeops.store.base import Listing, ObjectStore
from lakeops.store.disk_cache import background_writes
from lakeops.store.listing import gathered

_BATCH = 50_000
"""Entries that are worked on at a time. Directories of any size are put together to about this many."""
_SHOWN = 3


def entries(listings: Iterable[Listing], source: str, folder: str, *, skip_special: bool = False) -> Iterator[pa.Table]:
    """The objects of a source, as ``ENTRY_SCHEMA`` in path order. Their paths begin with ``folder``.

    Raises ``InvalidPath`` for names that cannot be paths, and for own files of clones unless ``skip_special`` leaves
    them out; ``InvalidInput`` for a size or time that cannot be recorded.
    """
    for batch in gathered(listings, _BATCH):
        keys = array(batch.keys, pa.string())
        _check_claims(keys, source)
        paths = pc.binary_join_element_wise(text(folder), keys, text(""))
        _check_paths(paths, source)
        rows = len(keys)
        columns = {
            "path": paths,
            "physical_address": joined(source, keys),
            "checksum": array(batch.marks, pa.string()),
            "size_bytes": array(batch.sizes, pa.int64()),
            "mtime": array(batch.mtimes, pa.int64()),
            "content_type": pa.repeat(text(DEFAULT_CONTENT_TYPE), rows),
            "metadata": no_metadata(rows),
        }
        table = pa.table(columns, schema=ENTRY_SCHEMA)
        check_entries(table)
        own = _clone_state(keys, source, skip_special=skip_special)
        yield table.filter(pc.invert(pc.is_in(keys, value_set=own))) if len(own) else table


def _check_claims(keys: pa.Array, source: str) -> None:
    """Refuse a source with the claim of a repository in it: what lies there is managed by another lake."""
    claims = keys.filter(pc.match_substring_regex(keys, rf"(^|/){re.escape(layout.CLAIM)}$"))
    if len(claims):
        raise InvalidInput(
            f"{excerpt(source)} holds the storage namespace of a repository, {excerpt(claims[0].as_py())}: its objects "
            "live no longer than that repository needs them; import from elsewhere. Nothing was published"
        )


def _clone_state(keys: pa.Array, source: str, *, skip_special: bool) -> pa.Array:
    """The keys of a clone's own files. Raises ``InvalidPath`` unless they are left out."""
    found = clone_state_among(keys)
    if found and not skip_special:
        raise InvalidPath(
            f"{excerpt(source)} holds the own files of a clone, such as {excerpt(found[0])}; remove them, or leave "
            "them out with --skip-special. Nothing was published"
        )
    return array(found, pa.string())


def _check_paths(paths: pa.Array, source: str) -> None:
    long = pc.greater(pc.binary_length(paths), scalar(MAX_PATH_BYTES, pa.int32()))
    bad = pc.or_(long, pc.match_substring(paths, "\0"))
    if not pc.any(bad).as_py():
        return
    named = paths.filter(bad).to_pylist()
    shown = "; ".join(f"{excerpt(path)} {flaw(path, at_most=MAX_PATH_BYTES)}" for path in named[:_SHOWN])
    more = "; ..." if len(named) > _SHOWN else ""
    raise InvalidPath(f"names in {excerpt(source)} cannot be object paths: {shown}{more}; nothing was published")


@dataclass(frozen=True, slots=True)
class PartTask:
    """The part of a source behind the key ``after``, up to ``until``. ``attempt`` and ``known`` are as of ``build``."""

    source: ObjectStore
    folder: str
    after: str
    until: str
    skip_special: bool
    split: Split
    attempt: str
    known: tuple[RangeRow, ...]


def build_part(task: PartTask, store: ObjectStore) -> list[RangeRow]:
    """List the task's part, check it, and write its ranges. Safe to run any number of times."""
    skip = task.skip_special
    listings = task.source.scan(after=task.after, until=task.until, skip_special=skip)
    tables = entries(listings, task.source.url, task.folder, skip_special=skip)
    with background_writes(store) as writer:
        found = build(writer, tables, task.split, task.attempt + Ids().new(), engine=LocalEngine(1), known=task.known)
    return [*found.rows(0, len(found))]


def build_in_parts(
    engine: Engine, store: ObjectStore, whole: PartTask, on_progress: Callable[[int], None]
) -> Metarange | None:
    """The metarange of the rest of a source, listed and written in parts on an engine. None where it has no borders.

    Each part is built from nothing, so the ranges at its borders are cut anew.
    """
    parts = engine.parts(whole.source, whole.after)
    if len(parts) == 1:
        return None

    def task(after: str, until: str) -> PartTask:
        first, last = whole.folder + after, whole.folder + until
        known = (row for row in whole.known if row.last_path > first and (not until or row.first_path <= last))
        return replace(whole, after=after, until=until, known=tuple(known))

    built, done = dict[int, list[RangeRow]](), 0
    for number, rows in engine.run(build_part, starmap(task, parts), store):
        built[number] = rows
        done += sum(row.count for row in rows)
        on_progress(done)
    building = MetarangeBuilder(Chunker(whole.split), RangeWriter(store, whole.attempt + Ids().new()))
    *before, last = [built[number] for number in sorted(built) if built[number]] or [[]]
    for rows in before:
        building.put(tuple(rows[:-1]))
        building.cut_anew(rows[-1])  # it ended for want of more
    building.put(tuple(last))
    return building.finish()
