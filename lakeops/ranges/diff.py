"""The difference of two metaranges as rows that stream.

Cost follows the ranges that differ, not the repository. A path whose identity is the same on both sides is no
difference, whatever became of its address or time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrays import array, from_numpy, in_one, to_numpy
from lakeops.model.changes import Change, ChangeType, Summary
from lakeops.model.schema import ENTRY_SCHEMA, RANGE_SCHEMA
from lakeops.ranges.delta import (
    IDENTITY_COLUMNS,
    SKETCH_COLUMNS,
    Delta,
    DifferingRows,
    deltas,
    diff_rows,
    pair_by_path,
)
from lakeops.ranges.digest import Positions
from lakeops.ranges.file import RangeFile
from lakeops.ranges.metarange import Metarange, RangeRow
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
"""One differing path a row. ``size_bytes`` is the new object's, or the removed one's."""

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


def each_change(tables: Iterable[pa.Table]) -> Iterator[Change]:
    """The rows of a diff as records, made as they are asked for: who takes a page pays for little more."""
    for table in tables:
        for start in range(0, table.num_rows, _RECORDS):
            yield from changes(table.slice(start, _RECORDS))


_RECORDS = 500


def written(reader: RangeReader, left: Metarange, right: Metarange) -> Iterator[pa.Array]:
    """The paths where ``right`` has an object that ``left`` does not have there, some at a time, in no order."""
    columns = [*SKETCH_COLUMNS, "checksum"]  # most objects that differ differ in it, if not in their sizes
    for delta in deltas(reader, left, right, columns=(columns, columns)):
        chosen = from_numpy(np.concatenate([delta.added, delta.pairs[1]]))
        yield in_one(delta.right.table.column("path").take(chosen))


def summary(reader: RangeReader, left: Metarange, right: Metarange) -> Summary:
    """How many paths were added, removed and changed from ``left`` to ``right``."""
    added = removed = changed = 0
    for delta in deltas(reader, left, right):
        added += len(delta.added)
        removed += len(delta.removed)
        changed += len(delta.pairs[0])
    return Summary(added, removed, changed)


@dataclass(frozen=True)
class WholeRange:
    """A range that came or went as a whole, all of it in one folder: it need not be read to be counted.

    Attributes:
        type: whether it came or went.
        folder: what its paths begin with, up to a slash.
        count: how many objects it has.
        size_bytes: the sum of their sizes.
    """

    type: ChangeType
    folder: str
    count: int
    size_bytes: int


def whole_ranges(
    left: Metarange, right: Metarange, prefix: str = ""
) -> tuple[list[WholeRange], tuple[Metarange, Metarange]]:
    """The ranges of one side that the other side has nothing beside, as far as they lie in one folder.

    Also given are the ranges of both sides that have to be read for the rest of what differs under ``prefix``.
    """
    found: list[WholeRange] = []
    rest: list[Metarange] = []
    gone, new = left.only(left.without(right)), right.only(right.without(left))
    for own, other, kind in ((gone, new, ChangeType.REMOVED), (new, gone, ChangeType.ADDED)):
        read = own.meets(other)
        names = ("first_path", "last_path", "count", "bytes")
        columns = [own.table.column(name).to_pylist() for name in names]
        for number, (first, last, count, size) in enumerate(zip(*columns, strict=True)):
            folder = first[: first.find("/", len(prefix)) + 1]
            if not read[number] and folder and first.startswith(prefix) and last.startswith(folder):
                found.append(WholeRange(kind, folder, count, size))
            else:
                read[number] = True
        rest.append(own.only(np.flatnonzero(read)))
    return found, (rest[0], rest[1])


def batch(delta: Delta, *, rows: bool = False) -> pa.Table:
    """A delta as one table of a diff, in path order."""
    sizes = [len(delta.added), len(delta.removed), len(delta.pairs[0])]
    parts = ((delta.right, delta.added), (delta.left, delta.removed), (delta.right, delta.pairs[1]))
    sketch = pa.concat_tables([side.table.select(SKETCH_COLUMNS).take(from_numpy(chosen)) for side, chosen in parts])
    kinds = pa.DictionaryArray.from_arrays(
        from_numpy(np.repeat(np.arange(3, dtype=np.int8), sizes)),
        array([str(kind) for kind in CHANGE_TYPES], pa.string()),
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
    taken = pa.table(table.columns, schema=nullable).take(from_numpy(rows, rows < 0))
    arrays = list(map(in_one, taken.columns))
    return pa.StructArray.from_arrays(arrays, fields=list(ROW_TYPE), mask=from_numpy(rows < 0))


_AT_ONCE = 50_000


def staged_changes(reader: RangeReader, base: Metarange, staged: pa.Table) -> Iterator[pa.Table]:
    """The staged rows that really change something, in path order: tables of ``DIFF_SCHEMA``, none empty.

    Opens the ranges that staged paths fall in, a few ahead. Writing what is already there and deleting what is not
    are no changes.

    Args:
        reader: the namespace.
        base: the head's metarange.
        staged: ``STAGED_SCHEMA``, paths strictly ascending.
    """
    if not staged.num_rows:
        return
    owners = base.route(staged.column("path")) if len(base) else np.zeros(staged.num_rows, np.int64)
    touched, starts = np.unique(owners, return_index=True)
    stops = [*starts[1:].tolist(), staged.num_rows]
    files = reader.open_each(base, touched if len(base) else touched[:0])
    for start, stop in zip(starts.tolist(), stops, strict=True):
        file = next(files, None)
        for begin in range(start, stop, _AT_ONCE):
            delta = _changes_over(file, staged.slice(begin, min(_AT_ONCE, stop - begin)))
            if delta.total:
                yield batch(delta)


def _changes_over(file: RangeFile | None, staged: pa.Table) -> Delta:
    """What staged rows change over the range that their paths fall in (None: there is no range)."""
    columns = ["path", *IDENTITY_COLUMNS]
    # What is no tombstone holds no nulls.
    schema = pa.schema([ENTRY_SCHEMA.field(name) for name in columns])
    after = staged.filter(pc.invert(staged.column("tombstone"))).select(columns).cast(schema)
    before = after.slice(0, 0)
    if file is not None:
        before = file.rows_at(staged.column("path"), columns)[1]
    return pair_by_path(DifferingRows(before), DifferingRows(after))


NEEDED_SCHEMA = pa.schema([ENTRY_SCHEMA.field(name) for name in ("physical_address", "checksum", "size_bytes", "path")])
"""One object a row. ``path`` is one of its paths in this range, the first where the object is new. Addresses are as the
ranges hold them: relative to the namespace, absolute for imported objects."""

_OBJECT = NEEDED_SCHEMA.names[:3]


@dataclass(frozen=True)
class NeededOfRange:
    """What one range needs: ``NEEDED_SCHEMA``, in path order, no object twice. Possibly no rows at all."""

    row: RangeRow
    objects: pa.Table


def needed(
    reader: RangeReader, wanted: Metarange, known: Metarange, *, proved: Iterable[bytes] = ()
) -> Iterator[NeededOfRange]:
    """The objects that ``wanted`` needs and ``known`` does not, range by range, in path order.

    Every range that ``known`` lacks and that is not proved is given once, and opened once. Of ``known`` only those
    ranges are opened that ``wanted`` lacks and whose paths overlap one of these.

    Args:
        reader: the namespace of both.
        wanted: what has to be there.
        known: what is there already. ``Metarange.empty()`` for nothing.
        proved: ids (32 bytes) of ranges whose objects are known to be there.
    """
    missing = wanted.only(wanted.without(known))
    if ids := list(proved):
        proven = pc.is_in(missing.table.column("id"), value_set=array(ids, pa.binary(32)))
        missing = Metarange(missing.table.filter(pc.invert(proven)))
    others = known.only(known.without(wanted))
    others = others.only(np.flatnonzero(others.meets(missing)))
    pairs = diff_rows(reader, others, missing, columns=(["physical_address"], NEEDED_SCHEMA.names))
    for row, parts in groupby(pairs, key=lambda pair: pair[1].row):
        if row is not None:
            yield NeededOfRange(row, _objects(pa.concat_tables([_moved_rows(*pair) for pair in parts])))


def _moved_rows(old: DifferingRows, new: DifferingRows) -> pa.Table:
    """The new rows whose object is not among the old ones of this stretch."""
    same = pc.is_in(new.table.column("physical_address"), value_set=old.table.column("physical_address"))
    return new.table.filter(pc.invert(same))


def _objects(rows: pa.Table) -> pa.Table:
    """One row an object: the first."""
    sides = [in_one(rows.column(name)).dictionary_encode() for name in _OBJECT]
    if len(sides[0].dictionary) < rows.num_rows:  # an address comes twice
        codes = np.column_stack([to_numpy(side.indices) for side in sides])
        rows = rows.take(from_numpy(np.sort(np.unique(codes, axis=0, return_index=True)[1])))
    return rows.select(NEEDED_SCHEMA.names).cast(NEEDED_SCHEMA)
