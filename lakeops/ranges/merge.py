"""Merging three metaranges: what has to change in the destination, and which paths conflict.

A pure function of base, source, destination and strategy, path by path, as far as whole ranges do not settle it. Only
ranges that the source changed are opened, and of the destination only those that base and source both do not have. A
side that has a list of what it changes in the base is not opened at all.
Equal means equal identity at one path. An absent path is a state like any other.

=====  ======  =====  ========  ==================================
base   source  dest   result
=====  ======  =====  ========  ==================================
A      A       any    dest      the source did not change the path
A      B       A      source
A      B       B      dest      both made the same change
A      B       C      conflict
=====  ======  =====  ========  ==================================

A, B and C are different states, any of them may be "absent".

A merge and the preview of a merge share one walk, path by path. It holds a few ranges at a time, whatever the size of
the repository and of the merge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import ENTRY_SCHEMA, STAGED_SCHEMA, array, from_numpy, in_one, no_rows, to_numpy
from lakeops.model.records import ChangeType, Strategy, Summary
from lakeops.ranges.changelist import ChangeList
from lakeops.ranges.diff import (
    CHANGE_TYPES,
    DIFF_SCHEMA,
    IDENTITY_COLUMNS,
    SKETCH_COLUMNS,
    Delta,
    DifferingRows,
    deltas,
    diff,
    summary,
)
from lakeops.ranges.digest import Positions, contains, same_identity
from lakeops.ranges.file import RangeFile
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.ranges.rewrite import total
from lakeops.ranges.splice import Splicing, splice

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
class DecidedPaths:
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

    def decisions(self, prefix: str = "") -> Iterator[DecidedPaths]:
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

    def _decide(self, delta: Delta) -> DecidedPaths:
        paths, left, right = _sides(delta)
        found = self._states(delta, paths, left, right)
        own = ~found.like_base & ~found.like_source
        take = found.like_base & ~found.like_source
        if self._strategy is Strategy.SOURCE_WINS:
            take |= own
        conflict = own if self._strategy is None else np.zeros_like(own)
        return DecidedPaths(delta, paths, left, right, take, conflict, own, found.present)

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


@dataclass(frozen=True)
class MergePlan:
    """What a merge will do.

    Attributes:
        changes: what to apply to ``onto``, ``STAGED_SCHEMA``.
        conflicts: every conflicting path, in order. Always empty with a strategy.
        settled: how many conflicts the strategy settled.
        summary: how many paths of the destination the merge adds, removes and changes.
        onto: the destination with the source's ranges where those settle it, itself where none do.
        opened: how many ranges of the destination had to be opened.
        exchanged: the rows that ``onto`` changes in the destination. None where nobody has a list of them.
    """

    changes: pa.Table
    conflicts: list[str]
    settled: int
    summary: Summary
    onto: Metarange
    opened: int = 0
    exchanged: ChangeList | None = None

    @property
    def result(self) -> Metarange | None:
        """The merged metarange where ranges that exist already make it up: nothing to apply."""
        return None if self.changes.num_rows or self.conflicts else self.onto


def three_way(
    reader: RangeReader, base: Metarange, source: Metarange, dest: Metarange, strategy: Strategy | None
) -> MergePlan:
    """What merging ``source`` into ``dest`` takes. Writes nothing.

    A revert is the same call with the reverted commit as base and its parent as source. A cherry-pick has the picked
    commit's parent as base.
    """
    return planned(reader, splice(base, source, dest), strategy)


def planned(reader: RangeReader, splicing: Splicing, strategy: Strategy | None) -> MergePlan:
    """The plan of a merge from what whole ranges settle of it and what paths do."""
    plan = by_path(reader, *splicing.rest, splicing.dest, strategy, splicing.ours)
    changed = total((summary(reader, *splicing.taken), plan.summary))
    return replace(plan, summary=changed, exchanged=splicing.exchanged)


def by_path(
    reader: RangeReader,
    base: Metarange,
    source: Metarange,
    dest: Metarange,
    strategy: Strategy | None,
    ours: ChangeList | None = None,
) -> MergePlan:
    """The plan of a merge, from the paths that the source changed; of the destination only ranges near them matter.

    With ``ours``, which lists the rows that the destination changes in the base, none of its ranges is opened.
    """
    walk = MergeWalk(reader, base, source, dest, strategy, ours=ours)
    changes: list[pa.Table] = [no_rows(STAGED_SCHEMA)]
    conflicts: list[str] = []
    counts = np.zeros(3, np.int64)
    settled = 0
    for decided in walk.decisions():
        changes.append(decided.changes())
        conflicts += decided.conflicts.to_pylist()
        counts += decided.counts()
        settled += decided.settled
    return MergePlan(pa.concat_tables(changes), conflicts, settled, Summary(*counts.tolist()), dest, walk.opened)


_TYPES = (*CHANGE_TYPES, ChangeType.CONFLICT)
_ADDED, _REMOVED, _CHANGED, _CONFLICT = range(4)


def foretold(
    reader: RangeReader,
    base: Metarange,
    source: Metarange,
    dest: Metarange,
    strategy: Strategy | None,
    *,
    prefix: str = "",
) -> Iterator[pa.Table]:
    """What merging ``source`` into ``dest`` would change in it, and the conflicts that would keep it from happening.

    Tables of ``DIFF_SCHEMA`` in path order, none empty. The type of a conflict is ``conflict``. The rows without
    conflicts are the difference between the destination before and after. A conflict's size is that of the source's
    object, or of the destination's where the source has none.

    Args:
        reader: the namespace.
        base: what both sides come from.
        source: what would be merged.
        dest: what it would be merged into.
        strategy: the side that settles conflicts, if one does. There are no conflicts then.
        prefix: leave out paths that do not start with it.
    """
    splicing = splice(base, source, dest)
    if splicing.settled:
        yield from diff(reader, *splicing.taken, prefix=prefix)
        return
    walk = MergeWalk(reader, base, source, dest, strategy, columns=SKETCH_COLUMNS, ours=splicing.ours)
    for decided in walk.decisions(prefix):
        shown = np.flatnonzero(decided.take | decided.conflict)
        if len(shown):
            kinds = pa.DictionaryArray.from_arrays(
                from_numpy(_kinds(decided)[shown].astype(np.int8)), array([str(kind) for kind in _TYPES], pa.string())
            )
            sizes = from_numpy(_sizes(walk, decided, shown))
            yield pa.table([kinds, decided.paths.take(from_numpy(shown)), sizes], schema=DIFF_SCHEMA)


def _kinds(decided: DecidedPaths) -> Positions:
    """What happens to each path of the destination that anything happens to, as a number of ``_TYPES``."""
    kinds = np.where(decided.present, _CHANGED, _ADDED)
    kinds[decided.right < 0] = _REMOVED
    kinds[decided.conflict] = _CONFLICT
    return kinds


def _sizes(walk: MergeWalk, decided: DecidedPaths, shown: Positions) -> Positions:
    """The sizes of the source's objects at some of the paths, or of the destination's where the source has none."""
    left, right = decided.left[shown], decided.right[shown]
    own = decided.own[shown]
    sizes = np.zeros(len(shown), np.int64)
    new = right >= 0
    sizes[new] = to_numpy(decided.delta.right.table.column("size_bytes"))[right[new]]
    # What the destination has unchanged is as large as in the base.
    kept = ~new & ~own
    sizes[kept] = to_numpy(decided.delta.left.table.column("size_bytes"))[left[kept]]
    changed = ~new & own
    if changed.any():
        sizes[changed] = walk.sizes(decided.paths.take(from_numpy(shown[changed])))
    return sizes
