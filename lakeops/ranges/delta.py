"""What differs between two metaranges, range by range: the walk under diff and merge.

Ranges with equal ids hold equal rows at equal paths, so they are left out unread on both sides; of the others the rows
that one side alone has are read, a stretch of paths at a time, and paired by path. Most stretches hold a few such rows,
so those of several are handed on in one step. Memory holds the stretches that are being read, and what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrays import from_numpy, no_rows, to_numpy
from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.align import Positions, unshared
from lakeops.ranges.changelist import ChangeList
from lakeops.ranges.digest import Digests, digest_words, same_labels
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

    @cached_property
    def whole(self) -> dict[bytes, int]:
        """The row groups that lie in it whole, by their digests."""
        first = int(np.searchsorted(self.file.starts, self.start))
        last = int(np.searchsorted(self.file.starts, self.stop, side="right")) - 1
        return {self.file.marks[index].digest: index for index in range(first, last)}

    def read(self, columns: list[str]) -> pa.Table:
        """Some columns of all of its rows."""
        groups = self._groups()
        return self.file.read_groups(groups, columns)[1][self._numbers(groups)[1]]

    def release(self) -> None:
        """Forget the bytes of row groups that no later part of the range has rows of."""
        self.file.release(int(np.searchsorted(self.file.starts, self.stop, side="right")) - 1)

    def digests(self, without: frozenset[bytes] = frozenset()) -> tuple[Positions, Digests]:
        """The numbers of its rows, and their digests. Whole row groups with these digests are left out."""
        groups = self._groups(without)
        numbers, inside = self._numbers(groups)
        return numbers, self.file.digests(groups)[inside]

    def _groups(self, without: frozenset[bytes] = frozenset()) -> list[int]:
        first = int(np.searchsorted(self.file.starts, self.start, side="right")) - 1
        last = int(np.searchsorted(self.file.starts, self.stop))
        left_out = {self.whole[digest] for digest in without}
        return [index for index in range(first, last) if index not in left_out]

    def _numbers(self, groups: list[int]) -> tuple[Positions, slice]:
        """The numbers of its rows in some row groups, and which of all rows of the row groups they are."""
        numbers = self.file.numbers(groups)
        inside = slice(*np.searchsorted(numbers, (self.start, self.stop)).tolist())
        return numbers[inside], inside


@dataclass(frozen=True)
class Candidates:
    """Rows that the other side does not share, in path order, and some of their columns.

    An equal row may be among them where the sides part, never the other way round. ``pieces`` say where the rows are
    in their files. There are none where the table holds all that anybody asks for.
    """

    table: pa.Table
    pieces: tuple[_Piece, ...] = ()

    @classmethod
    def alone(cls, part: RowSpan | None, columns: list[str]) -> Candidates:
        """All rows of a part, which the other side has nothing beside. None where this side has nothing."""
        if part is None:
            return cls(no_rows(RANGE_SCHEMA).select(columns))
        return cls(part.read(columns), (_Piece(part, *part.digests()),))

    @classmethod
    def together(cls, some: Sequence[Candidates]) -> Candidates:
        """Those of neighbouring stretches as one."""
        table = pa.concat_tables([one.table for one in some]).combine_chunks()
        return cls(table, tuple(piece for one in some for piece in one.pieces))

    def under(self, prefix: str) -> Candidates:
        """Those of one part whose path starts with ``prefix``."""
        if not prefix or not self.pieces:
            return self
        under = pc.starts_with(self.table.column("path"), prefix)
        return Candidates(self.table.filter(under), (self.pieces[0].only(np.flatnonzero(to_numpy(under))),))

    @property
    def row(self) -> RangeRow | None:
        """The range that those of one part are rows of. None where this side has nothing."""
        return self.pieces[0].part.file.row if self.pieces else None

    def rows(self, which: Positions, columns: list[str]) -> pa.Table:
        """Some columns of some of the rows, by ascending numbers. Columns that were left out before are read now."""
        missing = [name for name in columns if name not in self.table.column_names]
        known = self.table.select([name for name in columns if name not in missing]).take(from_numpy(which))
        if not missing:
            return known
        read = [piece.part.file.take(numbers, missing) for piece, numbers in self._rows_by_piece(which)]
        rest = pa.concat_tables([no_rows(RANGE_SCHEMA).select(missing), *read]).combine_chunks()
        return pa.table([(rest if name in missing else known).column(name) for name in columns], columns)

    def digests(self, which: Positions) -> Digests:
        """The entry digests of some of the rows, by ascending numbers."""
        return self._digests[which]

    def group_digests(self, which: Positions) -> npt.NDArray[np.object_]:
        """The digest of the row group that holds each of some of the rows, by ascending numbers: 32 raw bytes."""
        return np.concatenate(
            [np.zeros(0, object), *(piece.group_digests(rows) for piece, rows in self._rows_by_piece(which))]
        )

    @cached_property
    def groups(self) -> frozenset[bytes]:
        """The digests of all row groups of the ranges that they are rows of."""
        return frozenset(mark.digest for piece in self.pieces for mark in piece.part.file.marks)

    @cached_property
    def _digests(self) -> Digests:
        if not self.pieces and "digest" in self.table.column_names:
            return digest_words(self.table.column("digest"))
        return np.concatenate([np.zeros((0, 2), np.uint64), *(piece.words for piece in self.pieces)])

    def _rows_by_piece(self, which: Positions) -> Iterator[tuple[_Piece, Positions]]:
        """For each piece that some of the rows are in the numbers of these rows in its file."""
        done = 0
        for piece in self.pieces:
            stop = done + len(piece.numbers)
            low, high = np.searchsorted(which, (done, stop)).tolist()
            if low < high:
                yield piece, piece.numbers[which[low:high] - done]
            done = stop


@dataclass(frozen=True)
class _Piece:
    """Rows of one part: their numbers in the file, and their digests."""

    part: RowSpan
    numbers: Positions
    words: Digests

    def group_digests(self, numbers: Positions) -> npt.NDArray[np.object_]:
        """The digest of the row group that holds each of some rows of the file."""
        file = self.part.file
        digests = np.array([mark.digest for mark in file.marks], object)
        return digests[np.searchsorted(file.starts, numbers, side="right") - 1]

    def only(self, which: Positions) -> _Piece:
        """Some of the rows."""
        return _Piece(self.part, self.numbers[which], self.words[which])


Pair: TypeAlias = tuple[Candidates, Candidates]


def compared(left: RowSpan | None, right: RowSpan | None, columns: Columns) -> Pair:
    """The rows of each part that the other one does not share, addresses and times included.

    Args:
        left: one stretch of paths before. None where there is nothing.
        right: the same stretch after.
        columns: what the left and the right rows hold.
    """
    if left is None or right is None:
        return Candidates.alone(left, columns[0]), Candidates.alone(right, columns[1])
    shared = frozenset(left.whole.keys() & right.whole.keys())
    (in_left, old), (in_right, new) = left.digests(shared), right.digests(shared)
    only_old, only_new = unshared(old, new)
    sides = (
        _Piece(left, in_left[only_old], old[only_old]),
        _Piece(right, in_right[only_new], new[only_new]),
    )
    one, other = (
        Candidates(side.part.file.take(side.numbers, wanted), (side,))
        for side, wanted in zip(sides, columns, strict=True)
    )
    return one, other


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

    ``left`` and ``right`` hold candidate rows in path order. ``removed`` and ``added`` number the rows of ``left``
    and ``right`` whose path the other side does not have. ``pairs`` those of one path whose identities differ.
    """

    left: Candidates
    right: Candidates
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

    def read(parts: tuple[RowSpan | None, RowSpan | None]) -> Delta:
        delta = matched(*_candidates(parts, columns, prefix))
        _release(parts)
        return delta

    found = reader.ahead(read, stretches(reader, left, right, prefix))
    yield from _join_small(delta for delta in found if delta.total)


def _of_list(listed: ChangeList) -> Iterator[Delta]:
    delta = matched(Candidates(listed.before), Candidates(listed.after))
    if delta.total:
        yield delta


def candidates(
    reader: RangeReader, left: Metarange, right: Metarange, *, columns: Columns, prefix: str = ""
) -> Iterator[Pair]:
    """The rows that the sides do not share in whole, addresses and times included, a stretch of paths at a time.

    Args:
        reader: the namespace of both.
        left: before.
        right: after.
        columns: what the left and the right rows hold; with a prefix at least ``path``.
        prefix: leave out paths that do not start with it.
    """

    def read(parts: tuple[RowSpan | None, RowSpan | None]) -> Pair:
        pair = _candidates(parts, columns, prefix)
        _release(parts)
        return pair

    yield from reader.ahead(read, stretches(reader, left, right, prefix))


def _candidates(parts: tuple[RowSpan | None, RowSpan | None], columns: Columns, prefix: str) -> Pair:
    old, new = compared(*parts, columns)
    return old.under(prefix), new.under(prefix)


def _release(parts: tuple[RowSpan | None, RowSpan | None]) -> None:
    for part in parts:
        if part is not None:
            part.release()


def matched(left: Candidates, right: Candidates) -> Delta:
    """Candidate rows of both sides, paired by path. Pairs of one identity are no difference.

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


def _sizes(side: Candidates) -> Positions:
    return to_numpy(side.table.column("size_bytes"))


def _other_rows(side: Candidates, rows: Positions) -> Positions:
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
    left, right = Candidates.together([one.left for one in some]), Candidates.together([one.right for one in some])
    before, after = (_starts(side) for side in ([one.left for one in some], [one.right for one in some]))
    return Delta(
        left,
        right,
        _shift_rows([one.removed for one in some], before),
        _shift_rows([one.added for one in some], after),
        (_shift_rows([one.pairs[0] for one in some], before), _shift_rows([one.pairs[1] for one in some], after)),
    )


def _starts(sides: list[Candidates]) -> list[int]:
    """Where the rows of each one begin among all of them."""
    return list(accumulate((side.table.num_rows for side in sides), initial=0))[:-1]


def _shift_rows(rows: list[Positions], starts: list[int]) -> Positions:
    return np.concatenate([one + start for one, start in zip(rows, starts, strict=True)])
