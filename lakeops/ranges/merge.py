"""Merging three metaranges: what has to change in the destination, and which paths conflict.

The plan is a pure function of base, source, destination and strategy, path by path, as far as whole ranges do not
decide it. Only ranges that the source changed are opened, and of the destination only those that base and source both
do not have. A side that has a list of what it changes in the base is not opened at all.
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
the repository and of the merge. ``apply_plan`` writes what a plan says.

Bases of criss-cross histories are merged into one. A path on which they conflict gets a state that no object can have,
so that a merge over it conflicts there unless both sides agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.base import Engine, LocalEngine, TaskRows
from lakeops.model.arrow import ENTRY_SCHEMA, STAGED_SCHEMA, array, from_numpy, in_one, no_rows, to_numpy
from lakeops.model.caching import cached_property
from lakeops.model.records import ChangeType, Progress, Split, Strategy, Summary, quiet
from lakeops.ranges.apply import Applied, apply
from lakeops.ranges.diff import DIFF_SCHEMA, SKETCH_COLUMNS, DiffBatch, diff, diff_batches, summary
from lakeops.ranges.digest import IDENTITY_COLUMNS, Positions, same_identity
from lakeops.ranges.metarange import Delta, Metarange
from lakeops.ranges.range_file import RangeFile
from lakeops.ranges.range_merge import Mask, merge_ranges
from lakeops.ranges.read import RangeReader
from lakeops.ranges.rewrite import RANGE_SECONDS
from lakeops.store.base import ObjectStore


@dataclass(frozen=True)
class MergePlan:
    """The plan of a merge: ``changes`` to apply to ``onto``, and every conflicting path, in order.

    ``onto`` is the destination with the source's ranges where those decide it, and ``exchanged`` the delta from the
    destination to that, None where nobody has a list of it. ``summary`` counts what the whole merge does. ``settled``
    are the paths that a strategy decided.
    """

    changes: pa.Table
    conflicts: list[str]
    summary: Summary
    onto: Metarange
    exchanged: Delta | None
    settled: pa.ChunkedArray


def plan_merge(
    reader: RangeReader,
    base: Metarange,
    source: Metarange,
    dest: Metarange,
    strategy: Strategy | None,
    *,
    engine: Engine | None = None,
) -> MergePlan:
    """The plan of merging ``source`` into ``dest``: by ranges where these decide it, elsewhere path by path.

    A revert is the same call with the reverted commit as base and its parent as source. A cherry-pick has the picked
    commit's parent as base. On an ``engine`` that is not in process tasks plan parts of it.
    """
    merged = merge_ranges(base, source, dest)
    ranges = sum(map(len, (*merged.rest, *merged.taken)))
    place = engine and engine.for_work(ranges * RANGE_SECONDS)
    if place is None or place.in_process or merged.rest[1].delta is not None:
        walk = MergeWalk(reader, *merged.rest, merged.dest, strategy, ours=merged.ours)
        plans = [_NOTHING if merged.complete else _walked(walk)]
        counted = summary(reader, *merged.taken)
    else:
        near = merged.dest.only(np.flatnonzero(np.logical_or(*map(merged.dest.meets, merged.rest))))
        group, work = place.group(ranges), partial(plan_part, strategy=strategy)
        found = dict(place.run(work, _parts(*merged.rest, near, group), reader.store))
        plans = [_NOTHING, *(plan for _, plan in sorted(found.items()))]
        taken = place.run(count_part, _parts(*merged.taken, near, group), reader.store)
        counted = sum((one for _, one in taken), Summary())
    changes, conflicts, counts, settled = zip(*plans, strict=True)
    everything, total, paths = pa.concat_tables(changes), sum(counts, counted), pa.chunked_array(settled)
    return MergePlan(everything, [*chain(*conflicts)], total, merged.dest, merged.exchanged, paths)


@dataclass(frozen=True, slots=True)
class PartTask:
    """The ranges of base, source and destination between two paths at which ranges of base and source end."""

    base: TaskRows
    source: TaskRows
    dest: TaskRows


def _parts(before: Metarange, after: Metarange, dest: Metarange, group: int) -> Iterator[PartTask]:
    ends = np.flatnonzero(to_numpy(pc.is_in(after.table["last_path"], value_set=before.table["last_path"])))
    ends = ends[np.unique(np.searchsorted(ends[:-1], np.arange(group, len(after), group)))] if len(ends) else ends
    paths, last = after.column("last_path", ends), (len(before), len(after), len(dest))
    cuts = np.stack([before.search(paths) + 1, ends + 1, np.minimum(dest.search(paths) + 1, len(dest))], axis=1)
    for starts, stops in pairwise([(0, 0, 0), *cuts.tolist(), last]):
        if starts[:2] != stops[:2]:
            sides = zip((before, after, dest), (*starts[:2], max(0, starts[2] - 1)), stops, strict=True)
            yield PartTask(*(TaskRows(side.between(start, stop)) for side, start, stop in sides))


def plan_part(task: PartTask, store: ObjectStore, *, strategy: Strategy | None) -> _PartPlan:
    """Plan the merge of a task's ranges. Raises ``Corrupted`` or ``FileMissing`` for a range."""
    base, source, dest = (Metarange(rows.table) for rows in (task.base, task.source, task.dest))
    return _walked(MergeWalk(RangeReader(store), base, source, dest, strategy))


def count_part(task: PartTask, store: ObjectStore) -> Summary:
    """Count what the source changes in a task's ranges. Raises as ``plan_part``."""
    return summary(RangeReader(store), Metarange(task.base.table), Metarange(task.source.table))


_PartPlan: TypeAlias = tuple[pa.Table, list[str], Summary, pa.Array]
"""Changes, conflicts, counts, and settled paths, as of ``MergePlan``."""

_NOTHING: _PartPlan = no_rows(STAGED_SCHEMA), [], Summary(), array([], pa.string())


def _walked(walk: MergeWalk) -> _PartPlan:
    changes, conflicts, settled, counts = [_NOTHING[0]], list[str](), [_NOTHING[3]], np.zeros(3, np.int64)
    for decided in walk.decisions():
        changes.append(decided.changes())
        settled.append(decided.paths.filter(from_numpy(decided.own & ~decided.conflict)))
        conflicts += decided.paths.filter(from_numpy(decided.conflict)).to_pylist()
        dead, present = decided.right[decided.take] < 0, decided.present[decided.take]
        counts += [(~dead & ~present).sum(), (dead & present).sum(), (~dead & present).sum()]
    return pa.concat_tables(changes), conflicts, Summary(*counts.tolist()), pa.concat_arrays(settled)


def apply_plan(
    reader: RangeReader,
    planned: MergePlan,
    source: Metarange,
    *,
    engine: Engine,
    split: Split,
    attempt: str,
    label: str = "merge",
    progress: Progress = quiet,
) -> Applied:
    """The metarange that a merge without conflicts gives."""
    if not planned.changes.num_rows:  # ranges that exist already make up the outcome
        return Applied(planned.onto, planned.summary)
    exchanged = planned.exchanged
    applied = apply(
        reader,
        planned.onto,
        planned.changes,
        engine=engine,
        split=split,
        attempt=attempt,
        reuse=source,
        listing=exchanged is not None and planned.onto.id != exchanged.since,
        label=label,
        progress=progress,
    )
    own, delta = applied.metarange.delta, None
    if exchanged is not None and own is not None and own.since == planned.onto.id:  # they have no path in common
        before, after = (
            pa.concat_tables(sides).sort_by("path") for sides in zip(exchanged.rows, own.rows, strict=True)
        )
        delta = Delta(exchanged.since, lambda: (before, after))
    return replace(applied, metarange=applied.metarange.with_delta(delta), summary=planned.summary)


# --- path by path ---


States: TypeAlias = tuple[Mask, Mask, Mask]
"""For each path whether the destination is as the base, is as the source, and has it at all."""


@dataclass(frozen=True)
class ChangedPaths:
    """The paths of a batch of what the source (right) changed in the base (left), in order.

    ``left`` is each path's row in the base, -1 where it is absent, and ``right`` its row in the source.
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


def states(changed: ChangedPaths, places: tuple[RangeFile, Positions]) -> States:
    """The states of those paths that would be in one range of the destination, by their numbers."""
    file, here = places
    like_base, like_source, present = np.zeros((3, len(here)), np.bool_)
    batch, left, right = changed.batch, changed.left[here], changed.right[here]
    sides = ((batch.left, left, like_base), (batch.right, right, like_source))
    for side, rows, like in sides:
        asked = np.flatnonzero((rows >= 0) & ~present)
        known = asked[to_numpy(pc.is_in(side.digests(rows[asked]), value_set=file.digests))]
        like[known] = present[known] = True
    rest = np.flatnonzero(~present)
    if len(rest):  # what digests do not tell
        found = file.find(changed.paths.take(from_numpy(here[rest])))
        present[rest] = found >= 0
        for side, rows, like in sides:
            equal: Mask = (found < 0) & (rows[rest] < 0)
            both = np.flatnonzero((found >= 0) & (rows[rest] >= 0))
            if len(both):
                held = file.take(found[both], IDENTITY_COLUMNS)
                equal[both] = same_identity(held, side.rows(rows[rest[both]], IDENTITY_COLUMNS))
            like[rest] = equal
    return like_base, like_source, present


def listed_states(ours: Delta, changed: ChangedPaths) -> States:
    """The states of some paths of the destination, by the delta from the base to it. Nothing is opened."""
    paths, left, right = changed.paths, changed.left, changed.right
    before, after = ours.rows
    places = pc.index_in(paths, value_set=after.column("path"))
    own = to_numpy(pc.is_valid(places))
    touched = own | to_numpy(pc.is_in(paths, value_set=before.column("path")))
    like_source: Mask = touched & ~own & (right < 0)
    both = np.flatnonzero(own & (right >= 0))
    if len(both):
        mine = after.select(IDENTITY_COLUMNS).take(places.take(from_numpy(both)))
        like_source[both] = same_identity(mine, changed.batch.right.rows(right[both], IDENTITY_COLUMNS))
    return ~touched, like_source, np.where(touched, own, left >= 0)


@dataclass(frozen=True)
class DecidedPaths(ChangedPaths):
    """The decisions about some paths that the source changed. A later one's paths all come after an earlier one's.

    For each path: does the destination ``take`` the source's state, can nobody tell (``conflict``), has it a state of
    its ``own`` that is neither the base's nor the source's, and has it the path at all (``present``)?
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


@dataclass
class MergeWalk:
    """Decides path by path, in order, what a merge does.

    Attributes:
        columns: what is read of the source's rows.
        ours: the delta from the base to the destination, where there is one. The destination is not opened then.
    """

    reader: RangeReader
    base: Metarange
    source: Metarange
    dest: Metarange
    strategy: Strategy | None
    columns: Sequence[str] = tuple(ENTRY_SCHEMA.names)
    ours: Delta | None = None

    def __post_init__(self) -> None:
        self._open: tuple[int, RangeFile] | None = None
        self._coming = self._ask_ahead() if self.reader.store.remote and self.ours is None else iter(())

    def decisions(self, prefix: str = "") -> Iterator[DecidedPaths]:
        """The decisions about the paths under ``prefix`` that the source changed. Reads as it is consumed."""
        columns = (SKETCH_COLUMNS, [*self.columns])
        for batch in diff_batches(self.reader, self.base, self.source, columns=columns, prefix=prefix):
            changed = ChangedPaths.of(batch)
            found = self._states(changed) if self.ours is None else listed_states(self.ours, changed)
            like_base, like_source, present = found
            own = ~like_base & ~like_source
            take = like_base & ~like_source
            if self.strategy is Strategy.SOURCE_WINS:
                take |= own
            conflict = own if self.strategy is None else np.zeros_like(own)
            yield DecidedPaths(batch, changed.paths, changed.left, changed.right, take, conflict, own, present)

    def sizes(self, paths: pa.Array) -> Positions:
        """The sizes of objects that the destination alone has, by ascending paths."""
        if self.ours is not None:
            after = self.ours.rows[1]
            return to_numpy(after.column("size_bytes").take(pc.index_in(paths, value_set=after.column("path"))))
        owner = self.dest.search(paths)
        found = np.zeros(len(paths), np.int64)
        for number in np.unique(owner).tolist():
            here = np.flatnonzero(owner == number)
            file = self._file(number)
            places = file.find(paths.take(from_numpy(here)))
            found[here] = to_numpy(file.take(places, ["size_bytes"]).column(0))
        return found

    def _states(self, changed: ChangedPaths) -> States:
        """The destination's states of the changed paths, without opening ranges that base or source share."""
        left, right = changed.left, changed.right
        owner = self.dest.holding(changed.paths)
        inside = owner >= 0
        like_base, like_source = ~inside & (left < 0), ~inside & (right < 0)
        present = np.zeros(len(owner), np.bool_)
        known = np.flatnonzero(inside)
        by_base, by_source = self._kept[0][owner[known]], self._kept[1][owner[known]]
        # A range that base or source has too holds their state of every path within it.
        like_base[known[by_base]] = True
        present[known[by_base]] = left[known[by_base]] >= 0
        only_source = known[by_source & ~by_base]
        like_source[only_source] = True
        present[only_source] = right[only_source] >= 0
        unknown = known[~by_base & ~by_source]
        numbers, starts = np.unique(owner[unknown], return_index=True)
        parts = np.split(unknown, starts)[1:]

        looks = self.reader.ahead(partial(states, changed), zip(map(self._file, numbers.tolist()), parts, strict=True))
        for here, found in zip(parts, looks, strict=True):
            like_base[here], like_source[here], present[here] = found
        return like_base, like_source, present

    @cached_property
    def _kept(self) -> tuple[Mask, Mask]:
        """For each range of the destination whether the base has it too, and whether the source has it too."""
        kept = np.ones((2, len(self.dest)), np.bool_)
        for mask, side in zip(kept, (self.base, self.source), strict=True):
            mask[self.dest.without(side)] = False
        return kept[0], kept[1]

    def _file(self, number: int) -> RangeFile:
        """A range of the destination. The next batch may begin in the one that this one ended in."""
        if self._open is None or self._open[0] != number:
            asked = next((file for other, file in self._coming if other == number), None)
            self._open = number, asked or self.reader.open(self.dest.row(number))
        return self._open[1]

    def _ask_ahead(self) -> Iterator[tuple[int, RangeFile]]:
        """The ranges of the destination that will be looked at, as far as whole ranges tell, by their numbers."""
        near = np.zeros(len(self.dest), np.bool_)
        for side, other in ((self.base, self.source), (self.source, self.base)):
            near |= self.dest.meets(side.only(side.without(other)))
        numbers = np.flatnonzero(near & ~self._kept[0] & ~self._kept[1])
        return zip(numbers.tolist(), self.reader.open_each(self.dest, numbers), strict=True)


# --- the preview ---


_TYPES = (ChangeType.ADDED, ChangeType.REMOVED, ChangeType.CHANGED, ChangeType.CONFLICT)
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
    """The changes under ``prefix`` that a merge would make in ``dest``, and the conflicts that would prevent it.

    Tables of ``DIFF_SCHEMA`` in path order, none empty. The type of a conflict is ``conflict``. The rows without
    conflicts are the difference between the destination before and after. A conflict's size is that of the source's
    object, or of the destination's where the source has none. With a ``strategy`` there are no conflicts.
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


# --- bases of criss-cross histories: the merge of several, a metarange that nobody publishes ---


_NO_TYPE = "\n"
"""A content type that no object has: staging refuses what cannot be printed. (Ranges refuse sizes below zero.)"""


def bases_matter(reader: RangeReader, sides: tuple[Metarange, Metarange], bases: Sequence[Metarange]) -> bool:
    """Whether the bases disagree on any path at which the sides differ. Reads what differs, a stretch at a time."""
    first, *others = bases
    return any(_share_a_path(_differing(reader, *sides), _differing(reader, first, other)) for other in others)


def merged_base(
    reader: RangeReader,
    base: Metarange | None,
    one: Metarange,
    other: Metarange,
    *,
    label: str,
    split: Split,
    attempt: str,
) -> Metarange:
    """The merge of two bases over their own base. A path in conflict gets a state that equals no object's.

    Where nobody knows their own ``base`` every path on which they differ conflicts. ``label`` tells the conflicts of
    this merge from those of any other: it is a function of the commits that are merged.
    """
    if base is None:
        found: Iterator[pa.Table] = (_conflicting(paths, label) for paths in _differing(reader, other, one))
    else:
        merged = merge_ranges(base, one, other)
        other = merged.dest
        walk = MergeWalk(reader, *merged.rest, other, None, ours=merged.ours)
        found = (_with_conflicts(decided, label) for decided in walk.decisions())
    changes = pa.concat_tables(chain([no_rows(STAGED_SCHEMA)], found))
    return apply(reader, other, changes, engine=LocalEngine(), split=split, attempt=attempt, reuse=one).metarange


def _with_conflicts(decided: DecidedPaths, label: str) -> pa.Table:
    conflicts = _conflicting(decided.paths.filter(from_numpy(decided.conflict)), label)
    return pa.concat_tables([decided.changes(), conflicts]).sort_by("path")


def _conflicting(paths: pa.Array, label: str) -> pa.Table:
    """The state of paths on which bases conflict, as rows to apply: ``STAGED_SCHEMA``."""
    state = {"path": "", "tombstone": False, "physical_address": "", "checksum": label, "size_bytes": 0, "mtime": 0}
    rows = pa.Table.from_pylist([{**state, "content_type": _NO_TYPE, "metadata": []}], STAGED_SCHEMA)
    return rows.take(from_numpy(np.zeros(len(paths), np.int64))).set_column(0, STAGED_SCHEMA.field(0), paths)


def _differing(reader: RangeReader, left: Metarange, right: Metarange) -> Iterator[pa.Array]:
    return (ChangedPaths.of(batch).paths for batch in diff_batches(reader, left, right))


def _share_a_path(ones: Iterator[pa.Array], others: Iterator[pa.Array]) -> bool:
    one, other = next(ones, None), next(others, None)
    while one is not None and other is not None:
        if pc.any(pc.is_in(one, value_set=other)).as_py():
            return True
        if one[-1].as_py().encode() < other[-1].as_py().encode():
            one = next(ones, None)
        else:
            other = next(others, None)
    return False
