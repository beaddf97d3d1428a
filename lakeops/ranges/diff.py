"""The difference of two metaranges: stretches of paths, their rows, and changes that stream.

Cost follows the ranges that differ, not the repository. Ranges with equal ids hold equal rows at equal paths, so they
are left out unread on both sides. Of the others the rows that one side alone has are read, a stretch of paths at a
time, and paired by path. Most stretches hold a few such rows, so those of several are handed on in one step. Memory
holds the stretches that are being read, and what differs. A path whose identity is the same on both sides is no
difference, whatever became of its address or time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import ENTRY_SCHEMA, RANGE_SCHEMA, array, from_numpy, in_one, no_rows, to_numpy
from lakeops.model.records import Change, ChangeType, Summary
from lakeops.ranges.changelist import ChangeList
from lakeops.ranges.digest import Positions, same_labels, symmetric_difference
from lakeops.ranges.file import RangeFile
from lakeops.ranges.metarange import Metarange, RangeRow
from lakeops.ranges.read import RangeReader

Columns: TypeAlias = tuple[list[str], list[str]]


@dataclass(frozen=True)
class RowSpan:
    """Rows ``[start, stop)`` of an open range."""

    file: RangeFile
    start: int
    stop: int

    @property
    def digests(self) -> pa.Array:
        """The entry digests of its rows."""
        return self.file.digests.slice(self.start, self.stop - self.start)


@dataclass(frozen=True)
class DifferingRows:
    """Rows that the other side does not share, in path order, and some of their columns.

    ``sources`` say where the rows are in their files. There are none where the table holds all that anybody asks for.
    """

    table: pa.Table
    sources: tuple[_SourceRows, ...] = ()

    @classmethod
    def of(cls, span: RowSpan | None, which: Positions | None, columns: list[str]) -> DifferingRows:
        """Some rows of a span by their numbers in it, all of them by default. No rows where this side has nothing."""
        if span is None:
            return cls(no_rows(RANGE_SCHEMA).select(columns))
        numbers = span.start + (np.arange(span.stop - span.start) if which is None else which)
        return cls(span.file.take(numbers, columns), (_SourceRows(span.file, numbers),))

    @classmethod
    def together(cls, some: Sequence[DifferingRows]) -> DifferingRows:
        """The rows of neighbouring spans as one set."""
        table = pa.concat_tables([one.table for one in some]).combine_chunks()
        return cls(table, tuple(source for one in some for source in one.sources))

    def under(self, prefix: str) -> DifferingRows:
        """The rows of one span whose path starts with ``prefix``."""
        if not prefix or not self.sources:
            return self
        under = pc.starts_with(self.table.column("path"), prefix)
        source = self.sources[0]
        return DifferingRows(self.table.filter(under), (_SourceRows(source.file, source.numbers[to_numpy(under)]),))

    @property
    def row(self) -> RangeRow | None:
        """The range that those of one span are rows of. None where this side has nothing."""
        return self.sources[0].file.row if self.sources else None

    def rows(self, which: Positions, columns: list[str]) -> pa.Table:
        """Some columns of some of the rows, by ascending numbers. Columns that were left out before are read now."""
        missing = [name for name in columns if name not in self.table.column_names]
        known = self.table.select([name for name in columns if name not in missing]).take(from_numpy(which))
        if not missing:
            return known
        read = [source.file.take(numbers, missing) for source, numbers in self._by_source(which)]
        rest = pa.concat_tables([no_rows(RANGE_SCHEMA).select(missing), *read]).combine_chunks()
        return pa.table([(rest if name in missing else known).column(name) for name in columns], columns)

    def digests(self, which: Positions) -> pa.Array:
        """The entry digests of some of the rows, by ascending numbers."""
        if not self.sources and "digest" in self.table.column_names:
            return in_one(self.table.column("digest").take(from_numpy(which)))
        parts = [source.file.digests.take(from_numpy(numbers)) for source, numbers in self._by_source(which)]
        return pa.concat_arrays([no_rows(RANGE_SCHEMA).column("digest").combine_chunks(), *parts])

    def _by_source(self, which: Positions) -> Iterator[tuple[_SourceRows, Positions]]:
        """For each file that some of the rows are in the numbers of these rows there."""
        done = 0
        for source in self.sources:
            stop = done + len(source.numbers)
            low, high = np.searchsorted(which, (done, stop)).tolist()
            if low < high:
                yield source, source.numbers[which[low:high] - done]
            done = stop


@dataclass(frozen=True)
class _SourceRows:
    """Rows of one file, by their numbers."""

    file: RangeFile
    numbers: Positions


Pair: TypeAlias = tuple[DifferingRows, DifferingRows]


def differing_rows(left: RowSpan | None, right: RowSpan | None, columns: Columns) -> Pair:
    """The rows of each span that the other one does not share, addresses and times included.

    Args:
        left: one stretch of paths before. None where there is nothing.
        right: the same stretch after.
        columns: what the left and the right rows hold.
    """
    if left is None or right is None:
        return DifferingRows.of(left, None, columns[0]), DifferingRows.of(right, None, columns[1])
    only_left, only_right = symmetric_difference(left.digests, right.digests)
    return DifferingRows.of(left, only_left, columns[0]), DifferingRows.of(right, only_right, columns[1])


def stretches(
    reader: RangeReader, left: Metarange, right: Metarange, prefix: str = ""
) -> Iterator[tuple[RowSpan | None, RowSpan | None]]:
    """Parts of both sides over the same stretch of paths, in order, each at most one range long.

    Ranges that both sides have are left out, and those without paths under ``prefix``.
    """
    one, other = (_Side(reader, *sides, prefix) for sides in ((left, right), (right, left)))
    while one.file is not None or other.file is not None:
        if one.file is None or other.file is None:
            frontier = (one if other.file is None else other).last
        else:
            frontier = min(one.last, other.last)
        yield one.cut(frontier), other.cut(frontier)


class _Side:
    """One side's differing ranges, passed through in order."""

    def __init__(self, reader: RangeReader, own: Metarange, other: Metarange, prefix: str) -> None:
        start, stop = own.overlapping(prefix)
        chosen = own.without(other)
        self._files = reader.open_each(own, chosen[(chosen >= start) & (chosen < stop)])
        self._start = 0

    @cached_property
    def file(self) -> RangeFile | None:
        """The open range. None at the end. The first is waited for once both sides have asked for theirs."""
        return next(self._files, None)

    @property
    def last(self) -> str:
        """The last path of the open range."""
        return self.file.row.last_path if self.file else ""

    def cut(self, path: str) -> RowSpan | None:
        """Pass the rows up to and including ``path``, which does not come after the open range's last."""
        if self.file is None:
            return None
        file, start = self.file, self._start
        if path == file.row.last_path:
            self.file, self._start = next(self._files, None), 0
            return RowSpan(file, start, file.row.count)
        if path < file.row.first_path:
            return None
        self._start = file.first_at(path.encode() + b"\0")
        return RowSpan(file, start, self._start)


IDENTITY_COLUMNS = ["checksum", "size_bytes", "content_type", "metadata"]
SKETCH_COLUMNS = ["path", "size_bytes"]

MOST_TOGETHER = 16
"""Stretches whose differences are handed on in one step."""
_MANY_ROWS = 8_192


@dataclass(frozen=True)
class Delta:
    """The differing rows of some stretches of paths. A later delta's paths all come after an earlier one's.

    ``left`` and ``right`` hold rows in path order. ``removed`` and ``added`` number the rows of ``left``
    and ``right`` whose path the other side does not have. ``pairs`` those of one path whose identities differ.
    """

    left: DifferingRows
    right: DifferingRows
    removed: Positions
    added: Positions
    pairs: tuple[Positions, Positions]

    @property
    def total(self) -> int:
        """How many paths differ."""
        return len(self.removed) + len(self.added) + len(self.pairs[0])


def deltas(
    reader: RangeReader,
    left: Metarange,
    right: Metarange,
    *,
    columns: Columns = (SKETCH_COLUMNS, SKETCH_COLUMNS),
    prefix: str = "",
) -> Iterator[Delta]:
    """Everything that differs under ``prefix``, in path order. None of the deltas is empty.

    Opens nothing where one side has a list of what it changed in the other.

    Args:
        reader: the namespace of both.
        left: before.
        right: after.
        columns: what the left and the right rows hold, at least ``SKETCH_COLUMNS``. The rest of an identity is read
            later, where sizes are equal.
        prefix: leave out paths that do not start with it.
    """
    listed = right.changes_since(left)
    if listed is not None:
        yield from _of_list(listed.under(prefix))
        return

    def read(spans: tuple[RowSpan | None, RowSpan | None]) -> Delta:
        left, right = differing_rows(*spans, columns)
        return pair_by_path(left.under(prefix), right.under(prefix))

    found = reader.ahead(read, stretches(reader, left, right, prefix))
    yield from _join_small(delta for delta in found if delta.total)


def _of_list(listed: ChangeList) -> Iterator[Delta]:
    delta = pair_by_path(DifferingRows(listed.before), DifferingRows(listed.after))
    if delta.total:
        yield delta


def diff_rows(reader: RangeReader, left: Metarange, right: Metarange, *, columns: Columns) -> Iterator[Pair]:
    """The rows that the sides do not share in whole, addresses and times included, a stretch of paths at a time.

    Args:
        reader: the namespace of both.
        left: before.
        right: after.
        columns: what the left and the right rows hold.
    """
    yield from reader.ahead(lambda spans: differing_rows(*spans, columns), stretches(reader, left, right))


def pair_by_path(left: DifferingRows, right: DifferingRows) -> Delta:
    """Differing rows of both sides, paired by path. Pairs of one identity are no difference.

    Both hold at least ``SKETCH_COLUMNS``. What else identities are made of is read as far as it matters.
    """
    partner = pc.index_in(left.table.column("path"), value_set=right.table.column("path"))
    paired = np.flatnonzero(to_numpy(pc.is_valid(partner)))
    partners = to_numpy(pc.drop_null(partner)).astype(np.int64)
    differ = _sizes(left)[paired] != _sizes(right)[partners]
    alike = np.flatnonzero(~differ)
    if len(alike):
        old, new = (side.rows(rows[alike], ["checksum"]) for side, rows in ((left, paired), (right, partners)))
        differ[alike] = to_numpy(pc.not_equal(old.column(0), new.column(0)))
        alike = alike[~differ[alike]]
    if len(alike):
        labels = ["content_type", "metadata"]
        old, new = (side.rows(rows[alike], labels) for side, rows in ((left, paired), (right, partners)))
        differ[alike] = ~same_labels(old, new)
    return Delta(
        left, right, _other_rows(left, paired), _other_rows(right, partners), (paired[differ], partners[differ])
    )


def _sizes(side: DifferingRows) -> Positions:
    return to_numpy(side.table.column("size_bytes"))


def _other_rows(side: DifferingRows, rows: Positions) -> Positions:
    """The other rows of a side."""
    others = np.ones(side.table.num_rows, np.bool_)
    others[rows] = False
    return np.flatnonzero(others)


def _join_small(some: Iterable[Delta]) -> Iterator[Delta]:
    """Neighbouring deltas as one, more of them the longer the walk goes on, as long as they hold few rows."""
    held: list[Delta] = []
    most = 1
    for delta in some:
        held.append(delta)
        if len(held) == most or sum(one.total for one in held) > _MANY_ROWS:
            yield _joined(held)
            held, most = [], min(2 * most, MOST_TOGETHER)
    if held:
        yield _joined(held)


def _joined(some: list[Delta]) -> Delta:
    if len(some) == 1:
        return some[0]
    left, right = (
        DifferingRows.together([one.left for one in some]),
        DifferingRows.together([one.right for one in some]),
    )
    before, after = (_starts(side) for side in ([one.left for one in some], [one.right for one in some]))
    return Delta(
        left,
        right,
        _shift_rows([one.removed for one in some], before),
        _shift_rows([one.added for one in some], after),
        (_shift_rows([one.pairs[0] for one in some], before), _shift_rows([one.pairs[1] for one in some], after)),
    )


def _starts(sides: list[DifferingRows]) -> list[int]:
    """Where the rows of each one begin among all of them."""
    return list(accumulate((side.table.num_rows for side in sides), initial=0))[:-1]


def _shift_rows(rows: list[Positions], starts: list[int]) -> Positions:
    return np.concatenate([one + start for one, start in zip(rows, starts, strict=True)])


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
"""``DIFF_SCHEMA`` with the rows of both sides: null where a side does not have the path."""


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
