"""Rows as records: what a lookup or a listing hands to people.

Whole columns become Python values at once, and nearly all rows have no user metadata, so none is parsed for them: a
page is a matter of hundreds of microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa

from lakeops.model.records import Entry
from lakeops.model.schema import ENTRY_SCHEMA, maker

_entry = maker(Entry)
*_PLAIN, _METADATA = ENTRY_SCHEMA.names


def entries(table: pa.Table) -> list[Entry]:
    """Rows as records. For small slices only: a page, not a repository."""
    plain = (table.column(name).to_pylist() for name in _PLAIN)
    maps = chain.from_iterable(map(_maps, table.column(_METADATA).chunks))
    return list(map(_entry, *plain, maps))


class Records:
    """The rows of a table as records, one at a time: a few microseconds each.

    Args:
        table: at least the columns of ``ENTRY_SCHEMA``.
    """

    def __init__(self, table: pa.Table) -> None:
        self._plain: list[Any] = [table.column(name).combine_chunks() for name in _PLAIN]
        self._metadata: Any = table.column(_METADATA).combine_chunks()
        self._bounds = self._metadata.offsets.to_numpy()

    def __getitem__(self, row: int) -> Entry:
        metadata = dict(self._metadata[row].as_py()) if self._bounds[row] < self._bounds[row + 1] else {}
        return _entry(*(column[row].as_py() for column in self._plain), metadata)


def _maps(array: pa.MapArray) -> Iterator[dict[str, str]]:
    bounds: list[int] = array.offsets.to_pylist()
    first, size = bounds[0], bounds[-1] - bounds[0]
    keys, values = (column.slice(first, size).to_pylist() for column in (array.keys, array.items))
    for start, end in pairwise(bounds):
        here = slice(start - first, end - first)
        yield dict(zip(keys[here], values[here], strict=True)) if start < end else {}
