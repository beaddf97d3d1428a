"""Stretches of open ranges, and those of their rows that the other side does not share.

Two parts are held against each other by digests alone: first those of whole row groups, which the footers say, then
those of entries. What is decoded are row groups with rows that are left over, and of those the columns that are asked
for; the other columns are read when somebody wants them, which for most rows is never.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.align import Positions, unshared
from lakeops.ranges.digest import Digests
from lakeops.ranges.file import RangeFile
from lakeops.ranges.metarange import RangeRow

Columns: TypeAlias = tuple[list[str], list[str]]


@dataclass(frozen=True)
class Part:
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
        """The numbers of its rows, and their digests; whole row groups with these digests are left out."""
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
    in their files; there are none where the table holds all that anybody asks for.
    """

    table: pa.Table
    pieces: tuple[_Piece, ...] = ()

    @classmethod
    def alone(cls, part: Part | None, columns: list[str]) -> Candidates:
        """All rows of a part, which the other side has nothing beside; none where this side has nothing."""
        if part is None:
            return cls(RANGE_SCHEMA.empty_table().select(columns))
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
        return Candidates(self.table.filter(under), (self.pieces[0].only(np.flatnonzero(under.to_numpy())),))

    @property
    def row(self) -> RangeRow | None:
        """The range that those of one part are rows of; None where this side has nothing."""
        return self.pieces[0].part.file.row if self.pieces else None

    def rows(self, which: Positions, columns: list[str]) -> pa.Table:
        """Some columns of some of the rows, by ascending numbers; columns that were left out before are read now."""
        missing = [name for name in columns if name not in self.table.column_names]
        known = self.table.select([name for name in columns if name not in missing]).take(pa.array(which))
        if not missing:
            return known
        read = [piece.part.file.take(numbers, missing) for piece, numbers in self._owned(which)]
        rest = pa.concat_tables([RANGE_SCHEMA.empty_table().select(missing), *read]).combine_chunks()
        return pa.table([(rest if name in missing else known).column(name) for name in columns], columns)

    def digests(self, which: Positions) -> Digests:
        """The entry digests of some of the rows, by ascending numbers."""
        return self._digests[which]

    def group_digests(self, which: Positions) -> npt.NDArray[np.object_]:
        """The digest of the row group that holds each of some of the rows, by ascending numbers: 32 raw bytes."""
        return np.concatenate([np.zeros(0, object), *(piece.group_digests(rows) for piece, rows in self._owned(which))])

    @cached_property
    def groups(self) -> frozenset[bytes]:
        """The digests of all row groups of the ranges that they are rows of."""
        return frozenset(mark.digest for piece in self.pieces for mark in piece.part.file.marks)

    @cached_property
    def _digests(self) -> Digests:
        return np.concatenate([np.zeros((0, 2), np.uint64), *(piece.words for piece in self.pieces)])

    def _owned(self, which: Positions) -> Iterator[tuple[_Piece, Positions]]:
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

    part: Part
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


def compared(left: Part | None, right: Part | None, columns: Columns) -> Pair:
    """The rows of each part that the other one does not share, addresses and times included.

    Args:
        left: one stretch of paths before; None where there is nothing.
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
