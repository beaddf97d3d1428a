"""Merging three metaranges: what has to change in the destination, and which paths conflict. Writes nothing.

A pure function of base, source, destination and strategy, path by path, as far as whole ranges do not decide it. Only
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
the repository and of the merge. On an engine the walk is cut into stretches of paths that share nothing: a stretch ends
where a range ends in base and source alike. The plan is the one that a single walk gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.base import Engine, TaskRows, first_of_each, from_ipc, to_ipc
from lakeops.model.arrow import ENTRY_SCHEMA, STAGED_SCHEMA, array, from_numpy, in_one, no_rows, to_numpy
from lakeops.model.errors import Transient
from lakeops.model.records import ChangeType, Strategy, Summary
from lakeops.ranges.diff import (
    CHANGE_TYPES,
    DIFF_SCHEMA,
    IDENTITY_COLUMNS,
    SKETCH_COLUMNS,
    DiffBatch,
    DifferingRows,
    diff,
    diff_batches,
    summary,
)
from lakeops.ranges.digest import Positions, same_identity
from lakeops.ranges.metarange import Delta, Metarange
from lakeops.ranges.range_file import RangeFile
from lakeops.ranges.range_merge import Mask, RangeMerge, Sides, merge_ranges, with_delta_of
from lakeops.ranges.read import RangeReader
from lakeops.ranges.rewrite import RANGE_SECONDS
from lakeops.store.base import ObjectStore

_READING = 2
"""Ranges that are read and compared in the time that one is rewritten."""


@dataclass(frozen=True)
class MergePlan:
    """The plan of a merge.

    Attributes:
        changes: what to apply to ``onto``, ``STAGED_SCHEMA``.
        conflicts: every conflicting path, in order. Always empty with a strategy.
        summary: how many paths of the destination the merge adds, removes and changes.
        onto: the destination with the source's ranges where those decide it, itself where none do.
        exchanged: the delta from the destination to ``onto``. None where nobody has a list of it.
    """

    changes: pa.Table
    conflicts: list[str]
    summary: Summary
    onto: Metarange
    exchanged: Delta | None = None

    @property
    def result(self) -> Metarange | None:
        """The merged metarange where ranges that exist already make it up: nothing to apply."""
        return None if self.changes.num_rows or self.conflicts else self.onto


def plan_merge(
    reader: RangeReader,
    base: Metarange,
    source: Metarange,
    dest: Metarange,
    strategy: Strategy | None,
    *,
    engine: Engine | None = None,
) -> MergePlan:
    """The plan of merging ``source`` into ``dest``, worked out where ``engine`` says, in process by default.

    A revert is the same call with the reverted commit as base and its parent as source. A cherry-pick has the picked
    commit's parent as base.
    """
    merged = merge_ranges(base, source, dest)
    # With a list of what differs only the destination's ranges are opened, and what was exchanged is counted here.
    listed = source.delta_since(base) is not None
    differing = len(merged.rest[1]) if listed else sum(map(len, (*merged.taken, *merged.rest)))
    if listed and merged.ours is not None:
        differing = 0  # lists of both sides tell everything
    if engine is not None:
        engine = engine.for_work(differing / _READING * RANGE_SECONDS)
    if engine is None or engine.in_process or not differing:
        plan = merge_paths(reader, *merged.rest, merged.dest, strategy, merged.ours)
        changed = summary(reader, *merged.taken) + plan.summary
        return replace(plan, summary=changed, exchanged=merged.exchanged)
    return _plan_in_parts(reader, merged, strategy, engine, differing, listed)


def merge_paths(
    reader: RangeReader,
    base: Metarange,
    source: Metarange,
    dest: Metarange,
    strategy: Strategy | None,
    ours: Delta | None = None,
) -> MergePlan:
    """The plan of a merge, from the paths that the source changed; of the destination only ranges near them matter.

    With ``ours``, the delta from the base to the destination, none of the destination's ranges is opened.
    """
    walk = MergeWalk(reader, base, source, dest, strategy, ours=ours)
    changes: list[pa.Table] = [no_rows(STAGED_SCHEMA)]
    conflicts: list[str] = []
    counts = np.zeros(3, np.int64)
    for decided in walk.decisions():
        changes.append(decided.changes())
        conflicts += decided.paths.filter(from_numpy(decided.conflict)).to_pylist()
        dead, present = decided.right[decided.take] < 0, decided.present[decided.take]
        counts += [(~dead & ~present).sum(), (dead & present).sum(), (~dead & present).sum()]
    return MergePlan(pa.concat_tables(changes), conflicts, Summary(*counts.tolist()), dest)


# --- path by path ---


@dataclass(frozen=True)
class States:
    """For each path whether the destination is as the base, is as the source, and has it at all."""

    like_base: Mask
    like_source: Mask
    present: Mask


@dataclass(frozen=True)
class ChangedPaths:
    """The paths of a batch of what the source changed, in order.

    Attributes:
        batch: the differing rows of base (left) and source (right).
        paths: the paths.
        left: each path's row in the base, -1 where it is absent.
        right: each path's row in the source, likewise.
    """

    batch: DiffBatch
    paths: pa.Array
    left: Positions
    right: Positions

    @classmethod
    def of(cls, batch: DiffBatch) -> ChangedPaths:
        """All paths of a batch."""
        left = np.concatenate([np.full(len(batch.added), -1), batch.removed, batch.pairs[0]])
        right = np.concatenate([batch.added, np.full(len(batch.removed), -1), batch.pairs[1]])
        in_left = batch.left.table.column("path").take(from_numpy(left, left < 0))
        in_right = batch.right.table.column("path").take(from_numpy(right, right < 0))
        paths = in_one(pc.coalesce(in_left, in_right))
        order = pc.sort_indices(paths)
        return cls(batch, paths.take(order), left[to_numpy(order)], right[to_numpy(order)])

    def at(self, rows: Positions) -> ChangedPaths:
        """Some of the paths, by ascending numbers."""
        return ChangedPaths(self.batch, self.paths.take(from_numpy(rows)), self.left[rows], self.right[rows])


def states(file: RangeFile, changed: ChangedPaths) -> States:
    """The states of some paths that would be in one range of the destination."""
    none = np.zeros(len(changed.paths), np.bool_)
    found = States(none, none.copy(), none.copy())
    sides = (
        (changed.batch.left, changed.left, found.like_base),
        (changed.batch.right, changed.right, found.like_source),
    )
    for side, rows, like in sides:
        asked = np.flatnonzero((rows >= 0) & ~found.present)
        known = asked[to_numpy(pc.is_in(side.digests(rows[asked]), value_set=file.digests))]
        like[known] = found.present[known] = True
    rest = np.flatnonzero(~found.present)
    if len(rest):  # what digests do not tell
        unknown = changed.at(rest)
        places = file.find(unknown.paths)
        found.present[rest] = places >= 0
        found.like_base[rest] = like_base = _equal(file, places, changed.batch.left, unknown.left)
        # Base and source differ at every path here, so a state of the base is none of the source.
        other = np.flatnonzero(~like_base)
        found.like_source[rest[other]] = _equal(file, places[other], changed.batch.right, unknown.right[other])
    return found


def listed_states(ours: Delta, changed: ChangedPaths) -> States:
    """The states of some paths of the destination, by the delta from the base to it. Nothing is opened."""
    paths, left, right = changed.paths, changed.left, changed.right
    places = pc.index_in(paths, value_set=ours.after.column("path"))
    own = to_numpy(pc.is_valid(places))
    touched = own | to_numpy(pc.is_in(paths, value_set=ours.before.column("path")))
    like_source: Mask = touched & ~own & (right < 0)
    both = np.flatnonzero(own & (right >= 0))
    if len(both):
        mine = ours.after.select(IDENTITY_COLUMNS).take(places.take(from_numpy(both)))
        like_source[both] = same_identity(mine, changed.batch.right.rows(right[both], IDENTITY_COLUMNS))
    return States(~touched, like_source, np.where(touched, own, left >= 0))


def _equal(file: RangeFile, places: Positions, side: DifferingRows, rows: Positions) -> Mask:
    """For each path whether the destination's state, at ``places``, is a side's, at ``rows``; -1 is absent."""
    equal: Mask = (places < 0) & (rows < 0)
    both = np.flatnonzero((places >= 0) & (rows >= 0))
    if len(both):
        equal[both] = same_identity(file.take(places[both], IDENTITY_COLUMNS), side.rows(rows[both], IDENTITY_COLUMNS))
    return equal


@dataclass(frozen=True)
class DecidedPaths(ChangedPaths):
    """The decisions about some paths that the source changed. A later one's paths all come after an earlier one's.

    Attributes:
        take: whether the destination gets the source's state.
        conflict: whether nobody can tell what it should get.
        own: whether the destination has a state that is neither the base's nor the source's.
        present: whether the destination has the path.
    """

    take: Mask
    conflict: Mask
    own: Mask
    present: Mask

    def changes(self) -> pa.Table:
        """The source's states that the destination gets: ``STAGED_SCHEMA``."""
        rows = self.right[self.take]
        dead = rows < 0
        source = self.batch.right.table.select(STAGED_SCHEMA.names[2:]).take(from_numpy(rows, dead))
        paths = self.paths.filter(from_numpy(self.take))
        return pa.table([paths, from_numpy(dead), *source.columns], schema=STAGED_SCHEMA)


class MergeWalk:
    """Decides path by path, in order, what a merge does.

    Args:
        reader: the namespace.
        base: what both sides come from.
        source: what is merged.
        dest: what it is merged into.
        strategy: the side that resolves conflicts, if one does.
        columns: what is read of the source's rows.
        ours: the delta from the base to the destination, where there is one. The destination is not opened then.
    """

    def __init__(
        self,
        reader: RangeReader,
        base: Metarange,
        source: Metarange,
        dest: Metarange,
        strategy: Strategy | None,
        columns: Sequence[str] = tuple(ENTRY_SCHEMA.names),
        ours: Delta | None = None,
    ) -> None:
        self._reader = reader
        self._sides = base, source
        self._dest = dest
        self._strategy = strategy
        self._columns = list(columns)
        self._ours = ours
        self._open: tuple[int, RangeFile] | None = None
        self._coming = self._ask_ahead() if reader.store.remote and ours is None else iter(())

    def decisions(self, prefix: str = "") -> Iterator[DecidedPaths]:
        """The decisions about the paths under ``prefix`` that the source changed. Reads as it is consumed."""
        columns = (SKETCH_COLUMNS, self._columns)
        for batch in diff_batches(self._reader, *self._sides, columns=columns, prefix=prefix):
            changed = ChangedPaths.of(batch)
            found = self._states(changed) if self._ours is None else listed_states(self._ours, changed)
            own = ~found.like_base & ~found.like_source
            take = found.like_base & ~found.like_source
            if self._strategy is Strategy.SOURCE_WINS:
                take |= own
            conflict = own if self._strategy is None else np.zeros_like(own)
            sides = changed.paths, changed.left, changed.right
            yield DecidedPaths(batch, *sides, take, conflict, own, found.present)

    def sizes(self, paths: pa.Array) -> Positions:
        """The sizes of objects that the destination alone has, by ascending paths."""
        if self._ours is not None:
            after = self._ours.after
            return to_numpy(after.column("size_bytes").take(pc.index_in(paths, value_set=after.column("path"))))
        owner = self._dest.search(paths)
        found = np.zeros(len(paths), np.int64)
        for number in np.unique(owner).tolist():
            here = np.flatnonzero(owner == number)
            file = self._file(number)
            places = file.find(paths.take(from_numpy(here)))
            found[here] = to_numpy(file.take(places, ["size_bytes"]).column(0))
        return found

    def _states(self, changed: ChangedPaths) -> States:
        """The states of some paths, from whole ranges as far as these tell."""
        paths, left, right = changed.paths, changed.left, changed.right
        owner = self._dest.holding(paths)
        inside = owner >= 0
        like_base, like_source = ~inside & (left < 0), ~inside & (right < 0)
        present = np.zeros(len(paths), np.bool_)
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
            return states(file, changed.at(here))

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
        """A range of the destination. The next batch may begin in the one that this one ended in."""
        if self._open is None or self._open[0] != number:
            asked = next((file for other, file in self._coming if other == number), None)
            self._open = number, asked or self._reader.open(self._dest.row(number))
        return self._open[1]

    def _ask_ahead(self) -> Iterator[tuple[int, RangeFile]]:
        """The ranges of the destination that will be looked at, as far as whole ranges tell, by their numbers."""
        base, source = self._sides
        near = self._dest.meets(base.only(base.without(source))) | self._dest.meets(source.only(source.without(base)))
        numbers = np.flatnonzero(near & ~self._as_base & ~self._as_source)
        return zip(numbers.tolist(), self._reader.open_each(self._dest, numbers), strict=True)


# --- the preview ---


_TYPES = (*CHANGE_TYPES, ChangeType.CONFLICT)
_ADDED, _REMOVED, _CHANGED, _CONFLICT = range(4)


def preview(
    reader: RangeReader,
    base: Metarange,
    source: Metarange,
    dest: Metarange,
    strategy: Strategy | None,
    *,
    prefix: str = "",
) -> Iterator[pa.Table]:
    """The changes that merging ``source`` into ``dest`` would make, and the conflicts that would prevent it.

    Tables of ``DIFF_SCHEMA`` in path order, none empty. The type of a conflict is ``conflict``. The rows without
    conflicts are the difference between the destination before and after. A conflict's size is that of the source's
    object, or of the destination's where the source has none.

    Args:
        reader: the namespace.
        base: what both sides come from.
        source: what would be merged.
        dest: what it would be merged into.
        strategy: the side that resolves conflicts, if one does. There are no conflicts then.
        prefix: leave out paths that do not start with it.
    """
    merged = merge_ranges(base, source, dest)
    if merged.complete:
        yield from diff(reader, *merged.taken, prefix=prefix)
        return
    walk = MergeWalk(reader, base, source, dest, strategy, columns=SKETCH_COLUMNS, ours=merged.ours)
    for decided in walk.decisions(prefix):
        shown = np.flatnonzero(decided.take | decided.conflict)
        if not len(shown):
            continue
        kinds = np.where(decided.present, _CHANGED, _ADDED)
        kinds[decided.right < 0] = _REMOVED
        kinds[decided.conflict] = _CONFLICT
        names = array([str(kind) for kind in _TYPES], pa.string())
        types = pa.DictionaryArray.from_arrays(from_numpy(kinds[shown].astype(np.int8)), names)
        paths, sizes = decided.paths.take(from_numpy(shown)), from_numpy(_sizes(walk, decided, shown))
        yield pa.table([types, paths, sizes], schema=DIFF_SCHEMA)


def _sizes(walk: MergeWalk, decided: DecidedPaths, shown: Positions) -> Positions:
    """The sizes of the source's objects at some of the paths, or of the destination's where the source has none."""
    left, right = decided.left[shown], decided.right[shown]
    own = decided.own[shown]
    sizes = np.zeros(len(shown), np.int64)
    new = right >= 0
    sizes[new] = to_numpy(decided.batch.right.table.column("size_bytes"))[right[new]]
    # An object that the destination has unchanged is as large as in the base.
    kept = ~new & ~own
    sizes[kept] = to_numpy(decided.batch.left.table.column("size_bytes"))[left[kept]]
    changed = ~new & own
    if changed.any():
        sizes[changed] = walk.sizes(decided.paths.take(from_numpy(shown[changed])))
    return sizes


# --- on an engine ---


@dataclass(frozen=True, slots=True)
class MergeTask:
    """One stretch of paths: the ranges of each side there, as Arrow IPC streams of metarange rows.

    Without a destination all that is asked is how much differs between base and source. ``listed`` are the rows that
    differ, before and after, where there is a list of them.
    """

    index: int
    base: bytes
    source: bytes
    dest: bytes | None
    strategy: Strategy | None
    listed: tuple[TaskRows, TaskRows] | None = None


@dataclass(frozen=True, slots=True)
class MergedStretch:
    """The plan of one stretch, its changes as an Arrow IPC stream."""

    index: int
    changes: bytes
    conflicts: tuple[str, ...]
    summary: Summary


def merge_stretch(task: MergeTask, store: ObjectStore) -> MergedStretch:
    """Plan the merge of one stretch. Reads only."""
    reader = RangeReader(store)
    base, source = Metarange(from_ipc(task.base)), Metarange(from_ipc(task.source))
    if task.listed is not None:
        source = source.with_delta(Delta.of(base.id, *[side.table for side in task.listed]))
    if task.dest is None:
        nothing = to_ipc(no_rows(STAGED_SCHEMA))
        return MergedStretch(task.index, nothing, (), summary(reader, base, source))
    plan = merge_paths(reader, base, source, Metarange(from_ipc(task.dest)), task.strategy)
    return MergedStretch(task.index, to_ipc(plan.changes), tuple(plan.conflicts), plan.summary)


def _plan_in_parts(
    reader: RangeReader, merged: RangeMerge, strategy: Strategy | None, engine: Engine, differing: int, listed: bool
) -> MergePlan:
    """The plan of what ranges do not decide, worked out by an engine in stretches."""
    group = engine.group(max(1, differing // _READING)) * _READING
    parts = [*_parts(*merged.rest, merged.dest, group)]
    if not listed:
        parts += _parts(*merged.taken, None, group)
    tasks = []
    for number, ((old, new), dest) in enumerate(parts):
        delta = new.delta_since(old)
        rows = None if delta is None else (TaskRows(delta.before), TaskRows(delta.after))
        here = None if dest is None else to_ipc(dest.table)
        tasks.append(MergeTask(number, to_ipc(old.table), to_ipc(new.table), here, strategy, rows))
    results = sorted(first_of_each(engine.run(merge_stretch, tasks, reader.store)), key=lambda one: one.index)
    if len(results) != len(tasks):
        raise Transient(
            f"the engine ({engine.name}) gave back {len(results)} of {len(tasks)} parts of a merge; try again"
        )
    summaries = [one.summary for one in results]
    if listed:
        summaries.append(summary(reader, *merged.taken))
    return MergePlan(
        pa.concat_tables([from_ipc(one.changes) for one in results]),
        [path for one in results for path in one.conflicts],
        sum(summaries, Summary()),
        merged.dest,
        merged.exchanged,
    )


def _parts(
    old: Metarange, new: Metarange, dest: Metarange | None, group: int
) -> Iterator[tuple[Sides, Metarange | None]]:
    """About ``group`` differing ranges of base and source at a time, and the destination's beside them."""
    delta = new.delta_since(old)
    # A stretch may end where a range ends on both sides. Most ends are shared, because they are cut by the paths.
    place = pc.index_in(old.table.column("last_path"), value_set=new.table.column("last_path"))
    ends = np.flatnonzero(to_numpy(pc.is_valid(place)))
    shared = (np.column_stack([ends, to_numpy(pc.drop_null(place)).astype(np.int64)]) + 1).tolist()
    everything = [len(old), len(new)]
    done = [0, 0]
    for stops in [*shared, everything]:
        if (stops != everything and sum(stops) - sum(done) < group) or done == everything:
            continue
        before, after = (
            Metarange(side.between(start, stop)) for side, start, stop in zip((old, new), done, stops, strict=True)
        )
        if len(before) or len(after):
            yield with_delta_of(delta, before, after), None if dest is None else _beside(dest, before, after)
        done = stops


def _beside(dest: Metarange, *sides: Metarange) -> Metarange:
    """The destination's ranges among which a path of one of the sides would be."""
    firsts = [side.first_paths[0] for side in sides if len(side)]
    lasts = [side.last_paths[len(side) - 1] for side in sides if len(side)]
    start, stop = dest.find(min(firsts)), dest.find_start(max(lasts) + b"\0")
    return Metarange(dest.between(start, max(start, stop)))
