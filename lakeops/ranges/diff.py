"""The difference of two metaranges: aligned ranges of paths, their rows, and changes that stream.

Cost follows the ranges that differ, not the repository. Ranges with equal ids hold equal rows at equal paths, so they
are left out unread on both sides. Of the others the rows that one side alone has are read, a stretch of paths at a
time, and paired by path. Most ranges hold a few such rows, so those of several are handed on in one step. Memory
holds the ranges that are being read, and what differs. A path whose identity is the same on both sides is no
difference, whatever became of its address or time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import ENTRY_SCHEMA, RANGE_SCHEMA, array, from_numpy, in_one, no_rows, to_numpy
from lakeops.model.caching import cached_property
from lakeops.model.records import Change, ChangeType, Summary
from lakeops.ranges.digest import IDENTITY_COLUMNS, Positions, same_labels
from lakeops.ranges.metarange import Metarange, RangeRow, SortedPaths, without
from lakeops.ranges.range_file import RangeFile
from lakeops.ranges.read import RangeReader

Columns: TypeAlias = tuple[list[str], list[str]]

SKETCH_COLUMNS = ["path", "size_bytes"]

MOST_TOGETHER = 16
"""Stretches whose differences are handed on in one step."""
_MANY_ROWS = 8_192


@dataclass(frozen=True)
class RowSpan:
    """Rows ``[start, stop)`` of an open range."""

    file: RangeFile
    start: int
    stop: int


@dataclass(frozen=True)
class DifferingRows:
    """Rows that the other side does not share, in path order, and some of their columns.

    ``sources`` are the files that the rows are in, with their numbers there. There are none where the table holds all
    that anybody asks for.
    """

    table: pa.Table
    sources: tuple[tuple[RangeFile, Positions], ...] = ()

    @classmethod
    def of(cls, span: RowSpan | None, other: RowSpan | None, columns: list[str], prefix: str = "") -> DifferingRows:
        """The rows of a span under ``prefix`` that the other span does not share. None where a side has nothing."""
        if span is None:
            return cls(no_rows(RANGE_SCHEMA).select(columns))
        numbers = np.arange(span.start, span.stop)
        if other is not None:
            theirs = other.file.digests.slice(other.start, other.stop - other.start)
            numbers = span.start + without(span.file.digests.slice(span.start, len(numbers)), theirs)
        table = span.file.take(numbers, columns)
        if prefix:
            under = pc.starts_with(table.column("path"), prefix)
            table, numbers = table.filter(under), numbers[to_numpy(under)]
        return cls(table, ((span.file, numbers),))

    def rows(self, which: Positions, columns: list[str]) -> pa.Table:
        """Some columns of some of the rows, by ascending numbers. Columns that were left out before are read now."""
        missing = [name for name in columns if name not in self.table.column_names]
        known = self.table.select([name for name in columns if name not in missing]).take(from_numpy(which))
        if not missing:
            return known
        read = [file.take(numbers, missing) for file, numbers in self._by_file(which)]
        rest = pa.concat_tables([no_rows(RANGE_SCHEMA).select(missing), *read]).combine_chunks()
        return pa.table([(rest if name in missing else known).column(name) for name in columns], columns)

    def digests(self, which: Positions) -> pa.Array:
        """The entry digests of some of the rows, by ascending numbers."""
        if not self.sources and "digest" in self.table.column_names:
            return in_one(self.table.column("digest").take(from_numpy(which)))
        parts = [file.digests.take(from_numpy(numbers)) for file, numbers in self._by_file(which)]
        return pa.concat_arrays([no_rows(RANGE_SCHEMA).column("digest").combine_chunks(), *parts])

    def _by_file(self, which: Positions) -> Iterator[tuple[RangeFile, Positions]]:
        """The files that some of the rows are in, with the numbers of these rows there."""
        done = 0
        for file, numbers in self.sources:
            stop = done + len(numbers)
            low, high = np.searchsorted(which, (done, stop)).tolist()
            if low < high:
                yield file, numbers[which[low:high] - done]
            done = stop


def aligned_ranges(
    reader: RangeReader, left: Metarange, right: Metarange, prefix: str = ""
) -> Iterator[tuple[RowSpan | None, RowSpan | None]]:
    """Parts of both sides over the same stretch of paths, in order, each at most one range long.

    Ranges that both sides have are left out, and those without paths under ``prefix``.
    """
    one, other = _Side(reader, left, right, prefix), _Side(reader, right, left, prefix)
    while files := [*filter(None, (one.file, other.file))]:
        frontier = min(files[0].row.last_path, files[-1].row.last_path)
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

    def cut(self, path: str) -> RowSpan | None:
        """Pass the rows up to and including ``path``, which does not come after the open range's last."""
        if self.file is None or path < self.file.row.first_path:
            return None
        file, start = self.file, self._start
        if path == file.row.last_path:
            self.file, self._start = next(self._files, None), 0
            return RowSpan(file, start, file.row.count)
        self._start = SortedPaths(file.paths).first_at(path.encode() + b"\0")
        return RowSpan(file, start, self._start)


@dataclass(frozen=True)
class DiffBatch:
    """The differing rows of some ranges of paths. A later batch's paths all come after an earlier one's.

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
        """The number of paths that differ."""
        return len(self.removed) + len(self.added) + len(self.pairs[0])

    @property
    def rows(self) -> tuple[pa.Table, pa.Table]:
        """The rows that ``left`` and ``right`` have at the paths that differ, in no order."""
        left, right = np.concatenate([self.removed, self.pairs[0]]), np.concatenate([self.added, self.pairs[1]])
        return self.left.table.take(from_numpy(left)), self.right.table.take(from_numpy(right))


def diff_batches(
    reader: RangeReader,
    left: Metarange,
    right: Metarange,
    *,
    columns: Columns = (SKETCH_COLUMNS, SKETCH_COLUMNS),
    prefix: str = "",
) -> Iterator[DiffBatch]:
    """All that differs under ``prefix``, in path order. None of the batches is empty.

    Opens nothing where one side has a list of what it changed in the other. The left and the right rows hold the
    ``columns``, at least ``SKETCH_COLUMNS``. The rest of an identity is read later, where sizes are equal.
    """
    delta = right.delta_since(left)
    if delta is not None:
        before, after = delta.rows
        if prefix:
            before, after = (side.filter(pc.starts_with(side.column("path"), prefix)) for side in (before, after))
        whole = pair_by_path(DifferingRows(before), DifferingRows(after))
        if whole.total:
            yield whole
        return

    def read(spans: tuple[RowSpan | None, RowSpan | None]) -> DiffBatch:
        left = DifferingRows.of(*spans, columns[0], prefix)
        return pair_by_path(left, DifferingRows.of(*spans[::-1], columns[1], prefix))

    held: list[DiffBatch] = []
    most = 1  # more at a time the longer the walk goes on, as long as they hold few rows
    for batch in reader.ahead(read, aligned_ranges(reader, left, right, prefix)):
        if not batch.total:
            continue
        held.append(batch)
        if len(held) == most or sum(one.total for one in held) > _MANY_ROWS:
            yield _joined(held)
            held, most = [], min(2 * most, MOST_TOGETHER)
    if held:
        yield _joined(held)


def pair_by_path(left: DifferingRows, right: DifferingRows) -> DiffBatch:
    """Differing rows of both sides, paired by path. Pairs of one identity are no difference.

    Both hold at least ``SKETCH_COLUMNS``. Other columns of the identities are read as far as they matter.
    """
    partner = pc.index_in(left.table.column("path"), value_set=right.table.column("path"))
    paired = np.flatnonzero(to_numpy(pc.is_valid(partner)))
    partners = to_numpy(pc.drop_null(partner)).astype(np.int64)
    size, other_size = to_numpy(left.table.column("size_bytes")), to_numpy(right.table.column("size_bytes"))
    differ = size[paired] != other_size[partners]
    alike = np.flatnonzero(~differ)
    if len(alike):
        old, new = left.rows(paired[alike], ["checksum"]), right.rows(partners[alike], ["checksum"])
        differ[alike] = to_numpy(pc.not_equal(old.column(0), new.column(0)))
        alike = alike[~differ[alike]]
    if len(alike):
        labels = ["content_type", "metadata"]
        differ[alike] = ~same_labels(left.rows(paired[alike], labels), right.rows(partners[alike], labels))
    removed, added = np.ones(left.table.num_rows, np.bool_), np.ones(right.table.num_rows, np.bool_)
    removed[paired], added[partners] = False, False
    pairs = paired[differ], partners[differ]
    return DiffBatch(left, right, np.flatnonzero(removed), np.flatnonzero(added), pairs)


def _joined(some: list[DiffBatch]) -> DiffBatch:
    if len(some) == 1:
        return some[0]
    sides, starts = [], []
    for parts in ([one.left for one in some], [one.right for one in some]):
        table = pa.concat_tables([part.table for part in parts]).combine_chunks()
        sides.append(DifferingRows(table, tuple(source for part in parts for source in part.sources)))
        starts.append(np.cumsum([0, *[part.table.num_rows for part in parts[:-1]]]))

    def shifted(numbers: list[Positions], side: int) -> Positions:
        return np.concatenate([rows + start for rows, start in zip(numbers, starts[side], strict=True)])

    pairs = shifted([one.pairs[0] for one in some], 0), shifted([one.pairs[1] for one in some], 1)
    removed, added = shifted([one.removed for one in some], 0), shifted([one.added for one in some], 1)
    return DiffBatch(sides[0], sides[1], removed, added, pairs)


CHANGE_TYPES = (ChangeType.ADDED, ChangeType.REMOVED, ChangeType.CHANGED)
DIFF_SCHEMA = pa.schema(
    [
        pa.field("type", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
    ]
)
"""One differing path a row. ``size_bytes`` is the new object's, or the removed one's."""


def diff(reader: RangeReader, left: Metarange, right: Metarange, *, prefix: str = "") -> Iterator[pa.Table]:
    """The changes under ``prefix`` from ``left`` to ``right``, in path order: tables of ``DIFF_SCHEMA``, none empty."""
    for batch in diff_batches(reader, left, right, prefix=prefix):
        yield diff_table(batch)


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
    for batch in diff_batches(reader, left, right, columns=(columns, columns)):
        chosen = from_numpy(np.concatenate([batch.added, batch.pairs[1]]))
        yield in_one(batch.right.table.column("path").take(chosen))


def summary(reader: RangeReader, left: Metarange, right: Metarange) -> Summary:
    """The numbers of paths that were added, removed and changed from ``left`` to ``right``."""
    total = Summary()
    for batch in diff_batches(reader, left, right):
        total += Summary(len(batch.added), len(batch.removed), len(batch.pairs[0]))
    return total


@dataclass(frozen=True)
class WholeRange:
    """A range that came or went as a whole, all of it in one folder: it need not be read to be counted."""

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


def diff_table(batch: DiffBatch) -> pa.Table:
    """A batch as a table of a diff (``DIFF_SCHEMA``), in path order."""
    sizes = [len(batch.added), len(batch.removed), len(batch.pairs[0])]
    parts = ((batch.right, batch.added), (batch.left, batch.removed), (batch.right, batch.pairs[1]))
    sketch = pa.concat_tables([side.table.select(SKETCH_COLUMNS).take(from_numpy(chosen)) for side, chosen in parts])
    names = array([str(kind) for kind in CHANGE_TYPES], pa.string())
    kinds = pa.DictionaryArray.from_arrays(from_numpy(np.repeat(np.arange(3, dtype=np.int8), sizes)), names)
    table = pa.table([kinds, sketch.column("path"), sketch.column("size_bytes")], schema=DIFF_SCHEMA)
    return table.take(pc.sort_indices(table.column("path")))


_AT_ONCE = 50_000


def staged_changes(reader: RangeReader, base: Metarange, staged: pa.Table) -> Iterator[pa.Table]:
    """The staged rows (``STAGED_SCHEMA``, paths strictly ascending) that really change something in ``base``.

    Tables of ``DIFF_SCHEMA`` in path order, none empty. Opens the ranges that staged paths fall in, a few ahead.
    Writing what is already there and deleting what is not are no changes.
    """
    if not staged.num_rows:
        return
    owners = base.route(staged.column("path")) if len(base) else np.zeros(staged.num_rows, np.int64)
    touched, starts = np.unique(owners, return_index=True)
    stops = [*starts[1:].tolist(), staged.num_rows]
    files = reader.open_each(base, touched if len(base) else touched[:0])
    columns = ["path", *IDENTITY_COLUMNS]
    schema = pa.schema([ENTRY_SCHEMA.field(name) for name in columns])  # rows without tombstone hold no nulls
    for start, stop in zip(starts.tolist(), stops, strict=True):
        file = next(files, None)
        for begin in range(start, stop, _AT_ONCE):
            part = staged.slice(begin, min(_AT_ONCE, stop - begin))
            after = part.filter(pc.invert(part.column("tombstone"))).select(columns).cast(schema)
            before = after.slice(0, 0)
            if file is not None:
                found = file.find(part.column("path"))
                before = file.take(found[found >= 0], columns)
            batch = pair_by_path(DifferingRows(before), DifferingRows(after))
            if batch.total:
                yield diff_table(batch)


NEEDED_SCHEMA = pa.schema([ENTRY_SCHEMA.field(name) for name in ("physical_address", "checksum", "size_bytes", "path")])
"""One object a row. ``path`` is one of its paths in this range, the first where the object is new. Addresses are as the
ranges hold them: relative to the namespace, absolute for imported objects."""


def needed(reader: RangeReader, wanted: Metarange, known: Metarange) -> Iterator[tuple[RangeRow, pa.Table]]:
    """The objects that ``wanted`` needs and ``known`` does not, range by range, in path order, none twice in a range.

    Every range that ``known`` lacks is given once, and opened once. Of ``known`` only those ranges are opened that
    ``wanted`` lacks and whose paths overlap one of these.
    """
    missing = wanted.only(wanted.without(known))
    others = known.only(known.without(wanted))
    others = others.only(np.flatnonzero(others.meets(missing)))
    columns = NEEDED_SCHEMA.names

    def read(spans: tuple[RowSpan | None, RowSpan | None]) -> tuple[RangeRow | None, pa.Table]:
        """The range of a stretch, and its rows whose object is not among the old ones of this stretch."""
        old, new = DifferingRows.of(*spans, ["physical_address"]), DifferingRows.of(*spans[::-1], columns)
        same = pc.is_in(new.table.column("physical_address"), value_set=old.table.column("physical_address"))
        return None if spans[1] is None else spans[1].file.row, new.table.filter(pc.invert(same))

    found = reader.ahead(read, aligned_ranges(reader, others, missing))
    for row, parts in groupby(found, key=lambda part: part[0]):
        if row is not None:
            yield row, _objects(pa.concat_tables([table for _, table in parts]))


def _objects(rows: pa.Table) -> pa.Table:
    """The first row of each object."""
    sides = [in_one(rows.column(name)).dictionary_encode() for name in NEEDED_SCHEMA.names[:3]]
    if len(sides[0].dictionary) < rows.num_rows:  # an address comes twice
        codes = np.column_stack([to_numpy(side.indices) for side in sides])
        rows = rows.take(from_numpy(np.sort(np.unique(codes, axis=0, return_index=True)[1])))
    return rows.select(NEEDED_SCHEMA.names).cast(NEEDED_SCHEMA)
