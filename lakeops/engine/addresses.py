"""Which objects of the namespace physical addresses mean, by the column, and those that ranges refer to.

One object has many spellings: relative, as a URL, as a URL with other characters percent-encoded, through a link to
the directory. All of them come out as the one that a listing gives. What lies elsewhere is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrays import in_one
from lakeops.model.errors import InvalidUri
from lakeops.ranges.file import fetch_range
from lakeops.ranges.metarange import Metarange, RangeRow
from lakeops.store import layout
from lakeops.store.base import ObjectStore
from lakeops.store.location import relative_directory, split_address

_ABSOLUTE = r"^[a-z][a-z0-9+.-]*://"
_DIRECTORY = r"[^/]*$"
_BLOCK = 8_192
"""Addresses that are decoded at a time: few enough to stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Ranges whose addresses are wanted."""

    index: int
    rows: tuple[RangeRow, ...]


def read_tasks(ranges: pa.Table, group: int) -> Iterator[ReadTask]:
    """Tasks that read all of these ranges (``METARANGE_SCHEMA``), so many a task."""
    metarange = Metarange(ranges)
    for index, start in enumerate(range(0, len(metarange), group)):
        yield ReadTask(index, tuple(metarange.rows(start, min(start + group, len(metarange)))))


def referenced_by(row: RangeRow, store: ObjectStore) -> pa.Array:
    """The addresses in the namespace that a range refers to, in any order: ``large_string``.

    The whole file is read and verified. Raises ``Corrupted`` or ``ObjectNotFound``.
    """
    blocks = fetch_range(store, row).addresses(_BLOCK)
    return managed(store.url, pa.chunked_array(blocks, pa.large_string())).cast(pa.large_string())


def managed(namespace: str, addresses: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The addresses that lie in the namespace, relative to it, in any order and with repetitions.

    Args:
        namespace: the store's URL.
        addresses: ``string`` or ``large_string``, relative or absolute.
    """
    addresses = in_one(addresses)
    if pc.all(pc.starts_with(addresses, layout.DATA)).as_py():
        return addresses
    addresses = addresses.cast(pa.string())
    absolute = pc.match_substring_regex(addresses, _ABSOLUTE)
    far, root = addresses.filter(absolute), namespace + "/"
    inside = pc.starts_with(far, root)
    parts = [addresses.filter(pc.invert(absolute))]
    if namespace.startswith("file://"):
        parts.append(_files(namespace, far.filter(pc.starts_with(far, "file://"))))
    else:
        parts.append(pc.utf8_slice_codeunits(far.filter(inside), len(root)))
    return pa.concat_arrays(parts)


def _files(namespace: str, addresses: pa.Array) -> pa.Array:
    """Relative addresses of ``file://`` addresses. Each directory is looked at once, since links may lead anywhere."""
    folders = pc.replace_substring_regex(addresses, _DIRECTORY, "").dictionary_encode()
    below = [_below(namespace, folder) for folder in folders.dictionary.to_pylist()]
    inside = pa.array([place is not None for place in below], pa.bool_()).take(folders.indices)
    return pa.array(
        [
            f"{place}{split_address(address)[1]}"
            for address, place in zip(
                addresses.filter(inside).to_pylist(),
                pa.array(below, pa.string()).take(folders.indices.filter(inside)).to_pylist(),
                strict=True,
            )
            if not address.endswith("/")
        ],
        pa.string(),
    )


def _below(namespace: str, folder: str) -> str | None:
    """Where a directory lies in the namespace (empty or ending in a slash). None when it lies elsewhere."""
    try:
        return relative_directory(namespace, folder)
    except InvalidUri:
        return None
