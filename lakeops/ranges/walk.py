"""The walk of a merge: path by path, in order, what the destination gets of what the source changed.

A merge and the preview of a merge both use this walk. It holds a few ranges at a time, whatever the size of the
repository and of the merge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrays import from_numpy, in_one, to_numpy
from lakeops.model.changes import Strategy
from lakeops.model.schema import ENTRY_SCHEMA, STAGED_SCHEMA
from lakeops.ranges.changelist import ChangeList
from lakeops.ranges.delta import IDENTITY_COLUMNS, SKETCH_COLUMNS, Delta, DifferingRows, deltas
from lakeops.ranges.digest import Positions, contains, same_identity
from lakeops.ranges.file import RangeFile
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class States:
    """For each path whether the destination is as the base, is as the source, and has it at all."""

    like_base: Mask
    like_source: Mask
    present: Mask


def states(file: RangeFile, paths: pa.Array, delta: Delta, left: Positions, right: Positions) -> States:
    """The states of some ascending paths that would be in a range of the destination.

    Args:
        file: the range.
        paths: some of those that differ between base and source.
        delta: what differs between base (left) and source (right).
        left: each path's row in the base, -1 where it is absent.
        right: the same of the source.
    """
    none = np.zeros(len(paths), np.bool_)
    found = States(none, none.copy(), none.copy())
    for side, rows, like in ((delta.left, left, found.like_base), (delta.right, right, found.like_source)):
        asked = np.flatnonzero((rows >= 0) & ~found.present)
        settled = asked[contains(file.digests, side.digests(rows[asked]))]
        like[settled] = found.present[settled] = True
    rest = np.flatnonzero(~found.present)
    if len(rest):
        _search(file, paths, delta, (left, right), rest, found)
    return found


def listed_states(ours: ChangeList, paths: pa.Array, delta: Delta, left: Positions, right: Positions) -> States:
    """The states of some ascending paths of the destination, from a list of the rows that it changes in the base.

    The other arguments are as in ``states``. Nothing is opened.
    """
    places = _rows_at(ours.after, paths)
    own = to_numpy(pc.is_valid(places))
    changed = own | to_numpy(pc.is_in(paths, value_set=ours.before.column("path")))
    like_source: Mask = changed & ~own & (right < 0)
    both = np.flatnonzero(own & (right >= 0))
    if len(both):
        mine = ours.after.select(IDENTITY_COLUMNS).take(places.take(from_numpy(both)))
        like_source[both] = same_identity(mine, delta.right.rows(right[both], IDENTITY_COLUMNS))
    return States(~changed, like_source, np.where(changed, own, left >= 0))


def _rows_at(table: pa.Table, paths: pa.Array) -> pa.Array:
    """The row of each path in a table, null for those that it does not have."""
    return pc.index_in(paths, value_set=table.column("path"))


def _search(
    file: RangeFile, paths: pa.Array, delta: Delta, sides: tuple[Positions, Positions], rest: Positions, known: States
) -> None:
    """The states of paths that digests did not settle."""
    here, places = file.find(paths.take(from_numpy(rest)))
    known.present[rest] = here
    left, right = (rows[rest] for rows in sides)
    like_base = _equal(file, places, delta.left, left)
    known.like_base[rest] = like_base
    # Base and source differ at every path here, so what is as the base is not as the source.
    other = np.flatnonzero(~like_base)
    known.like_source[rest[other]] = _equal(file, places[other], delta.right, right[other])


def _equal(file: RangeFile, places: Positions, side: DifferingRows, rows: Positions) -> Mask:
    """Whether what the destination has at ``places`` is what a side has at ``rows``; -1 is absent."""
    equal: Mask = (places < 0) & (rows < 0)
    both = np.flatnonzero((places >= 0) & (rows >= 0))
    if len(both):
        equal[both] = same_identity(file.take(places[both], IDENTITY_COLUMNS), side.rows(rows[both], IDENTITY_COLUMNS))
    return equal


@dataclass(frozen=True)
class Decided:
    """What a merge makes of some paths that the source changed. A later one's paths all come after an earlier one's.

    Attributes:
        delta: what the source changed.
        paths: the paths, in order.
        left: each path's row in the base, -1 where it is absent.
        right: the same of the source.
        take: whether the destination gets the source's state.
        conflict: whether nobody can tell what it should get.
        own: whether the destination has a state that is neither the base's nor the source's.
        present: whether the destination has the path.
    """

    delta: Delta
    paths: pa.Array
    left: Positions
    right: Positions
    take: Mask
    conflict: Mask
    own: Mask
    present: Mask

    @property
    def conflicts(self) -> pa.Array:
        """The paths that conflict."""
        return self.paths.filter(from_numpy(self.conflict))

    @property
    def settled(self) -> int:
        """How many conflicts a strategy settled."""
        return int((self.own & ~self.conflict).sum())

    def counts(self) -> Positions:
        """How many paths of the destination are added, removed and changed."""
        dead, there = self.right[self.take] < 0, self.present[self.take]
        return np.array([(~dead & ~there).sum(), (dead & there).sum(), (~dead & there).sum()], np.int64)

    def changes(self) -> pa.Table:
        """The source's states that the destination gets: ``STAGED_SCHEMA``."""
        rows = self.right[self.take]
        dead = rows < 0
        numbers = from_numpy(rows, dead)
        columns = [self.delta.right.table.column(name).take(numbers) for name in STAGED_SCHEMA.names[2:]]
        return pa.table([self.paths.filter(from_numpy(self.take)), from_numpy(dead), *columns], schema=STAGED_SCHEMA)


class MergeWalk:
    """Decides path by path, in order, what a merge does. ``opened`` counts ranges of the destination.

    Args:
        reader: the namespace.
        base: what both sides come from.
        source: what is merged.
        dest: what it is merged into.
        strategy: the side that settles conflicts, if one does.
        columns: what is read of the source's rows.
        ours: the rows that the destination changes in the base, where there is a list of them. It is not opened then.
    """

    def __init__(
        self,
        reader: RangeReader,
        base: Metarange,
        source: Metarange,
        dest: Metarange,
        strategy: Strategy | None,
        columns: Sequence[str] = tuple(ENTRY_SCHEMA.names),
        ours: ChangeList | None = None,
    ) -> None:
        self.opened: int = 0
        self._reader = reader
        self._sides = base, source
        self._dest = dest
        self._strategy = strategy
        self._columns = list(columns)
        self._ours = ours
        self._open: tuple[int, RangeFile] | None = None
        self._coming = self._ask_ahead() if reader.store.remote and ours is None else iter(())

    def decisions(self, prefix: str = "") -> Iterator[Decided]:
        """What becomes of the paths under ``prefix`` that the source changed. Reads as it is consumed."""
        base, source = self._sides
        for delta in deltas(self._reader, base, source, columns=(SKETCH_COLUMNS, self._columns), prefix=prefix):
            yield self._decide(delta)

    def sizes(self, paths: pa.Array) -> Positions:
        """The sizes of objects that the destination alone has, by ascending paths."""
        if self._ours is not None:
            after = self._ours.after
            return to_numpy(after.column("size_bytes").take(_rows_at(after, paths)))
        owner = to_numpy(pc.search_sorted(self._dest.table.column("last_path"), paths)).astype(np.int64)
        found = np.zeros(len(paths), np.int64)
        for number in np.unique(owner).tolist():
            here = np.flatnonzero(owner == number)
            _, rows = self._file(number).rows_at(paths.take(from_numpy(here)), ["size_bytes"])
            found[here] = to_numpy(rows.column(0))
        return found

    def _decide(self, delta: Delta) -> Decided:
        paths, left, right = _sides(delta)
        found = self._states(delta, paths, left, right)
        own = ~found.like_base & ~found.like_source
        take = found.like_base & ~found.like_source
        if self._strategy is Strategy.SOURCE_WINS:
            take |= own
        conflict = own if self._strategy is None else np.zeros_like(own)
        return Decided(delta, paths, left, right, take, conflict, own, found.present)

    def _states(self, delta: Delta, paths: pa.Array, left: Positions, right: Positions) -> States:
        """For each path whether the destination is as the base, is as the source, and has it at all."""
        if self._ours is not None:
            return listed_states(self._ours, paths, delta, left, right)
        total = len(paths)
        owner = to_numpy(pc.search_sorted(self._dest.table.column("last_path"), paths)).astype(np.int64)
        inside = owner < len(self._dest)
        firsts = self._dest.table.column("first_path").take(from_numpy(owner[inside]))
        inside[inside] = to_numpy(pc.less_equal(firsts, paths.filter(from_numpy(inside))))
        like_base, like_source = ~inside & (left < 0), ~inside & (right < 0)
        present = np.zeros(total, np.bool_)
        known = np.flatnonzero(inside)
        by_base, by_source = self._as_base[owner[known]], self._as_source[owner[known]]
        # A range that base or source has too holds their state of every path within it.
        like_base[known[by_base]] = True
        present[known[by_base]] = left[known[by_base]] >= 0
        only_source = known[by_source & ~by_base]
        like_source[only_source] = True
        present[only_source] = right[only_source] >= 0
        unknown = known[~by_base & ~by_source]
        numbers, starts = np.unique(owner[unknown], return_index=True)
        parts = np.split(unknown, starts)[1:]

        def look(range_and_rows: tuple[RangeFile, Positions]) -> States:
            file, here = range_and_rows
            return states(file, paths.take(from_numpy(here)), delta, left[here], right[here])

        looks = self._reader.ahead(look, zip(map(self._file, numbers.tolist()), parts, strict=True))
        for here, found in zip(parts, looks, strict=True):
            like_base[here], like_source[here], present[here] = found.like_base, found.like_source, found.present
        return States(like_base, like_source, present)

    @cached_property
    def _as_base(self) -> Mask:
        return self._dest.shared(self._sides[0])

    @cached_property
    def _as_source(self) -> Mask:
        return self._dest.shared(self._sides[1])

    def _file(self, number: int) -> RangeFile:
        """A range of the destination. The next delta may begin in the one that this one ended in."""
        if self._open is None or self._open[0] != number:
            asked = next((file for other, file in self._coming if other == number), None)
            self._open = number, asked or self._reader.open(self._dest.row(number))
            self.opened += 1
        return self._open[1]

    def _ask_ahead(self) -> Iterator[tuple[int, RangeFile]]:
        """The ranges of the destination that will be looked at, as far as whole ranges tell, by their numbers."""
        base, source = self._sides
        changed = [side.only(side.without(other)) for side, other in ((base, source), (source, base))]
        near = self._dest.meets(changed[0]) | self._dest.meets(changed[1])
        numbers = np.flatnonzero(near & ~self._as_base & ~self._as_source)
        return zip(numbers.tolist(), self._reader.open_each(self._dest, numbers), strict=True)


def paths_of(delta: Delta) -> pa.Array:
    """The paths that differ, in order."""
    return _sides(delta)[0]


def _sides(delta: Delta) -> tuple[pa.Array, Positions, Positions]:
    """The delta's paths in order, and each one's row on both sides: -1 where a side does not have it."""
    left = np.concatenate([np.full(len(delta.added), -1), delta.removed, delta.pairs[0]])
    right = np.concatenate([delta.added, np.full(len(delta.removed), -1), delta.pairs[1]])
    in_left = from_numpy(left, left < 0)
    in_right = from_numpy(right, right < 0)
    sides = ((delta.left, in_left), (delta.right, in_right))
    paths = in_one(pc.coalesce(*(side.table.column("path").take(rows) for side, rows in sides)))
    order = pc.sort_indices(paths)
    return paths.take(order), left[to_numpy(order)], right[to_numpy(order)]
