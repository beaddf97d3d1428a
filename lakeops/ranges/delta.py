"""What differs between two metaranges, range by range: the walk under diff and merge.

Ranges with equal ids hold equal rows at equal paths, so they are left out unread on both sides. The others are walked
in path order, one open range a side; of those, row groups with equal digests are left out unread in turn, and of the
rest only the digest column is decoded whole. Memory holds a few ranges whatever the size of the repository, even when
no two ranges line up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.align import Positions, unshared
from lakeops.ranges.digest import digest_words, same_identity
from lakeops.ranges.file import RangeFile
from lakeops.ranges.metarange import Metarange, RangeRow
from lakeops.ranges.prefetch import prefetched
from lakeops.ranges.read import RangeReader

IDENTITY_COLUMNS = ["path", "checksum", "size_bytes", "content_type", "metadata"]
SKETCH_COLUMNS = ["path", "checksum", "size_bytes"]

Identities = Callable[[Positions], pa.Table]
"""Gives the identity columns of some rows of a side, by ascending numbers."""


@dataclass(frozen=True)
class Delta:
    """The differing rows of one stretch of paths; a later delta's paths all come after an earlier one's.

    ``left`` and ``right`` hold candidate rows in path order. ``removed`` and ``added`` number the rows of ``left``
    and ``right`` whose path the other side does not have; ``pairs`` those of one path whose identities differ.
    ``left_identities`` and ``right_identities`` read what the tables leave out.
    """

    left: pa.Table
    right: pa.Table
    removed: Positions
    added: Positions
    pairs: tuple[Positions, Positions]
    left_identities: Identities
    right_identities: Identities

    @property
    def total(self) -> int:
        """How many paths differ."""
        return len(self.removed) + len(self.added) + len(self.pairs[0])


def deltas(
    reader: RangeReader,
    left: Metarange,
    right: Metarange,
    *,
    columns: tuple[list[str], list[str]] = (SKETCH_COLUMNS, SKETCH_COLUMNS),
    prefix: str = "",
) -> Iterator[Delta]:
    """Everything that differs under ``prefix``, in path order; none of the deltas is empty.

    Args:
        reader: the namespace of both.
        left: before.
        right: after.
        columns: what the left and the right rows hold, at least ``SKETCH_COLUMNS``. The rest of an identity is read
            later, where checksums and sizes are equal.
        prefix: leave out paths that do not start with it.
    """
    for old, new in candidates(reader, left, right, columns=columns, prefix=prefix):
        delta = matched(old.table, new.table, old.identities, new.identities)
        if delta.total:
            yield delta


def candidates(
    reader: RangeReader, left: Metarange, right: Metarange, *, columns: tuple[list[str], list[str]], prefix: str = ""
) -> Iterator[_Pair]:
    """The rows that the sides do not share in whole, addresses and times included, a stretch of paths at a time.

    Args:
        reader: the namespace of both.
        left: before.
        right: after.
        columns: what the left and the right rows hold; with a prefix at least ``path``.
        prefix: leave out paths that do not start with it.
    """

    def read(parts: tuple[_Part | None, _Part | None]) -> _Pair:
        old, new = _unshared(*parts, columns)
        return old.under(prefix), new.under(prefix)

    sides = [_Side(reader, one, other, prefix) for one, other in ((left, right), (right, left))]
    yield from prefetched(read, _stretches(*sides))


@dataclass(frozen=True)
class _Part:
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

    def read(self, columns: list[str], without: frozenset[bytes] = frozenset()) -> tuple[Positions, pa.Table]:
        """The numbers of its rows, and some columns of them; whole row groups with these digests are left out."""
        first = int(np.searchsorted(self.file.starts, self.start, side="right")) - 1
        last = int(np.searchsorted(self.file.starts, self.stop))
        left_out = {self.whole[digest] for digest in without}
        groups = [index for index in range(first, last) if index not in left_out]
        numbers, table = self.file.read_groups(groups, columns)
        low, high = np.searchsorted(numbers, (self.start, self.stop)).tolist()
        return numbers[low:high], table.slice(low, high - low)


@dataclass(frozen=True)
class Candidates:
    """Rows of one part that the other side does not share: their numbers in the file, and some of their columns.

    An equal row may be among them where the sides part, never the other way round.
    """

    part: _Part | None
    numbers: Positions
    table: pa.Table

    @classmethod
    def alone(cls, part: _Part | None, columns: list[str]) -> Candidates:
        """All rows of a part, which the other side has nothing beside; none where this side has nothing."""
        if part is None:
            return cls(part, np.zeros(0, np.int64), RANGE_SCHEMA.empty_table().select(columns))
        return cls(part, *part.read(columns))

    def chosen(self, rows: Positions, columns: list[str]) -> Candidates:
        """Some of the rows, and fewer columns."""
        return Candidates(self.part, self.numbers[rows], self.table.select(columns).take(pa.array(rows)))

    def under(self, prefix: str) -> Candidates:
        """Those whose path starts with ``prefix``."""
        if not prefix:
            return self
        under = pc.starts_with(self.table.column("path"), prefix)
        return Candidates(self.part, self.numbers[under.to_numpy()], self.table.filter(under))

    @property
    def row(self) -> RangeRow | None:
        """The range that they are rows of; None where this side has nothing."""
        return self.part.file.row if self.part is not None else None

    def identities(self, rows: Positions) -> pa.Table:
        """The columns that make up the identity of some of the rows; read now, where they were left out before."""
        if self.part is None or "metadata" in self.table.column_names:
            return self.table.take(pa.array(rows))
        return self.part.file.take(self.numbers[rows], IDENTITY_COLUMNS)


class _Side:
    """One side's differing ranges, passed through in order."""

    def __init__(self, reader: RangeReader, own: Metarange, other: Metarange, prefix: str) -> None:
        start, stop = own.overlapping(prefix)
        chosen = own.without(other)
        chosen = chosen[(chosen >= start) & (chosen < stop)]
        self._files = prefetched(reader.open, (own.row(int(index)) for index in chosen))
        self._start = 0
        self.file = next(self._files, None)

    @property
    def last(self) -> str:
        """The last path of the open range."""
        return self.file.row.last_path if self.file else ""

    def cut(self, path: str) -> _Part | None:
        """Pass the rows up to and including ``path``, which does not come after the open range's last."""
        if self.file is None:
            return None
        file, start = self.file, self._start
        if path == file.row.last_path:
            self.file, self._start = next(self._files, None), 0
            return _Part(file, start, file.row.count)
        if path < file.row.first_path:
            return None
        self._start = file.first_at(path.encode() + b"\0")
        return _Part(file, start, self._start)


_Pair: TypeAlias = tuple[Candidates, Candidates]


def _stretches(left: _Side, right: _Side) -> Iterator[tuple[_Part | None, _Part | None]]:
    """Parts of both sides over the same stretch of paths, in order, each at most one range long."""
    while left.file is not None or right.file is not None:
        if left.file is None or right.file is None:
            frontier = (left if right.file is None else right).last
        else:
            frontier = min(left.last, right.last)
        yield left.cut(frontier), right.cut(frontier)


def _unshared(left: _Part | None, right: _Part | None, columns: tuple[list[str], list[str]]) -> _Pair:
    """The rows of each part that the other one does not share."""
    if left is None or right is None:
        return Candidates.alone(left, columns[0]), Candidates.alone(right, columns[1])
    shared = frozenset(left.whole.keys() & right.whole.keys())
    sides = [
        Candidates(part, *part.read(list(dict.fromkeys([*wanted, "digest"])), shared))
        for part, wanted in zip((left, right), columns, strict=True)
    ]
    old, new = (digest_words(side.table.column("digest")) for side in sides)
    only_old, only_new = unshared(old, new)
    return sides[0].chosen(only_old, columns[0]), sides[1].chosen(only_new, columns[1])


def matched(left: pa.Table, right: pa.Table, left_identities: Identities, right_identities: Identities) -> Delta:
    """Candidate rows of both sides, paired by path; pairs of one identity are no difference.

    Args:
        left: rows with at least path, checksum and size, in path order.
        right: the same of the other side.
        left_identities: reads the identities of some rows of the left, for pairs of one checksum and size.
        right_identities: the same of the right.
    """
    partner = pc.index_in(left.column("path"), value_set=right.column("path"))
    paired = np.flatnonzero(pc.is_valid(partner).to_numpy())
    partners = pc.drop_null(partner).to_numpy().astype(np.int64)
    removed = np.setdiff1d(np.arange(left.num_rows), paired, assume_unique=True)
    added = np.setdiff1d(np.arange(right.num_rows), partners, assume_unique=True)
    differ = np.zeros(len(paired), np.bool_)
    for name in ("checksum", "size_bytes"):
        old, new = left.column(name).take(pa.array(paired)), right.column(name).take(pa.array(partners))
        differ |= pc.not_equal(old, new).to_numpy()
    alike = np.flatnonzero(~differ)
    if len(alike):
        differ[alike] = ~same_identity(left_identities(paired[alike]), right_identities(partners[alike]))
    return Delta(left, right, removed, added, (paired[differ], partners[differ]), left_identities, right_identities)
