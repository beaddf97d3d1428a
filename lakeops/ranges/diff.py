"""The difference of two metaranges as rows that stream.

Cost follows the ranges that differ, not the repository; a path whose identity is the same on both sides is no
difference, whatever became of its address or time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.records import Change, ChangeType, Summary
from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.align import Positions
from lakeops.ranges.delta import SKETCH_COLUMNS, Delta, deltas
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader

CHANGE_TYPES = (ChangeType.ADDED, ChangeType.REMOVED, ChangeType.CHANGED)
ROW_TYPE = pa.struct([field.with_nullable(True) for field in RANGE_SCHEMA])
DIFF_SCHEMA = pa.schema(
    [
        pa.field("type", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
    ]
)
"""One differing path a row; ``size_bytes`` is the new object's, or the removed one's."""

ROWS_SCHEMA = DIFF_SCHEMA.append(pa.field("left", ROW_TYPE)).append(pa.field("right", ROW_TYPE))
"""The same with both sides' rows: null where a side does not have the path."""


def diff(
    reader: RangeReader, left: Metarange, right: Metarange, *, rows: bool = False, prefix: str = ""
) -> Iterator[pa.Table]:
    """What changed from ``left`` to ``right``, in path order: tables of ``DIFF_SCHEMA``, none empty.

    Args:
        reader: the namespace of both.
        left: before.
        right: after.
        rows: give each side's whole row as well (``ROWS_SCHEMA``).
        prefix: leave out paths that do not start with it.
    """
    columns = RANGE_SCHEMA.names if rows else SKETCH_COLUMNS
    for delta in deltas(reader, left, right, columns=(columns, columns), prefix=prefix):
        yield batch(delta, rows=rows)


def changes(table: pa.Table) -> list[Change]:
    """One batch of a diff as records."""
    columns = (table.column(name).to_pylist() for name in DIFF_SCHEMA.names)
    return [Change(ChangeType(kind), path, size) for kind, path, size in zip(*columns, strict=True)]


def summary(reader: RangeReader, left: Metarange, right: Metarange) -> Summary:
    """How many paths were added, removed and changed from ``left`` to ``right``."""
    added = removed = changed = 0
    for delta in deltas(reader, left, right):
        added += len(delta.added)
        removed += len(delta.removed)
        changed += len(delta.pairs[0])
    return Summary(added, removed, changed)


def batch(delta: Delta, *, rows: bool = False) -> pa.Table:
    """A delta as one table of a diff, in path order."""
    sizes = [len(delta.added), len(delta.removed), len(delta.pairs[0])]
    parts = ((delta.right, delta.added), (delta.left, delta.removed), (delta.right, delta.pairs[1]))
    sketch = pa.concat_tables([side.table.select(SKETCH_COLUMNS).take(pa.array(chosen)) for side, chosen in parts])
    kinds = pa.DictionaryArray.from_arrays(
        pa.array(np.repeat(np.arange(3), sizes), pa.int8()), pa.array([str(kind) for kind in CHANGE_TYPES])
    )
    columns = {"type": kinds, **{name: sketch.column(name) for name in SKETCH_COLUMNS}}
    if rows:
        left = np.concatenate([np.full(sizes[0], -1), delta.removed, delta.pairs[0]])
        right = np.concatenate([delta.added, np.full(sizes[1], -1), delta.pairs[1]])
        columns |= {"left": _struct(delta.left.table, left), "right": _struct(delta.right.table, right)}
    table = pa.table(columns, schema=ROWS_SCHEMA if rows else DIFF_SCHEMA)
    return table.take(pc.sort_indices(table.column("path")))


def _struct(table: pa.Table, rows: Positions) -> pa.Array:
    """Rows by number as one column; -1 gives null."""
    nullable = pa.schema([field.with_nullable(True) for field in table.schema])
    taken = pa.table(table.columns, schema=nullable).take(pa.array(rows, pa.int64(), mask=rows < 0))
    arrays = [column.combine_chunks() for column in taken.columns]
    return pa.StructArray.from_arrays(arrays, fields=list(ROW_TYPE), mask=pa.array(rows < 0))
