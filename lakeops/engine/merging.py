"""Planning a merge on an engine: the walk over three metaranges, cut into stretches of paths that share nothing.

A stretch ends where a range ends in base and source alike, so no range of either is in two stretches. Most of their
ends are shared, because they are cut by the paths. The plan is the one that a single walk gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.base import Engine, first_of_each
from lakeops.model.arrays import no_rows, to_numpy
from lakeops.model.changes import Strategy, Summary
from lakeops.model.errors import Transient
from lakeops.model.schema import STAGED_SCHEMA
from lakeops.ranges.changelist import ChangeList
from lakeops.ranges.diff import summary
from lakeops.ranges.merge import MergePlan, by_path, planned
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.ranges.rewrite import TaskRows, from_ipc, to_ipc, total
from lakeops.ranges.splice import Sides, listed_sides, splice
from lakeops.store.base import ObjectStore

_READING = 2
"""Ranges that are read and compared in the time that one is rewritten, which is what engines are chosen by."""


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

    @classmethod
    def of(cls, index: int, sides: Sides, dest: Metarange | None, strategy: Strategy | None) -> MergeTask:
        """The task over these ranges."""
        old, new = sides
        listed = new.changes_since(old)
        return cls(
            index,
            to_ipc(old.table),
            to_ipc(new.table),
            None if dest is None else to_ipc(dest.table),
            strategy,
            None if listed is None else (TaskRows(listed.before), TaskRows(listed.after)),
        )

    @property
    def sides(self) -> Sides:
        """Base and source."""
        base, source = Metarange(from_ipc(self.base)), Metarange(from_ipc(self.source))
        if self.listed is None:
            return base, source
        return base, source.telling(ChangeList.of(base.id, *(side.table for side in self.listed)))


@dataclass(frozen=True, slots=True)
class Walked:
    """What a stretch gave: a part of the merge plan, its changes as an Arrow IPC stream."""

    index: int
    changes: bytes
    conflicts: tuple[str, ...]
    settled: int
    summary: Summary
    opened: int


def plan_merge(
    reader: RangeReader,
    base: Metarange,
    source: Metarange,
    dest: Metarange,
    strategy: Strategy | None,
    *,
    engine: Engine,
) -> MergePlan:
    """What merging ``source`` into ``dest`` takes, worked out where ``engine`` says. See ``ranges.merge.three_way``."""
    splicing = splice(base, source, dest)
    # With a list of what differs only the destination's ranges are opened, and what was exchanged is counted here.
    listed = source.changes_since(base) is not None
    differing = len(splicing.rest[1]) if listed else sum(map(len, (*splicing.taken, *splicing.rest)))
    if listed and splicing.ours is not None:
        differing = 0  # lists of both sides tell everything
    place = engine.for_work(differing // _READING)
    if place.in_process or not differing:
        return planned(reader, splicing, strategy)
    group = place.group(max(1, differing // _READING)) * _READING
    parts = [*_parts(*splicing.rest, splicing.dest, group)]
    if not listed:
        parts += _parts(*splicing.taken, None, group)
    tasks = [MergeTask.of(number, sides, here, strategy) for number, (sides, here) in enumerate(parts)]
    walked = sorted(first_of_each(place.run(walk, tasks, reader.store)), key=lambda one: one.index)
    if len(walked) != len(tasks):
        raise Transient(
            f"the engine ({place.name}) gave back {len(walked)} of {len(tasks)} parts of a merge; try again"
        )
    return MergePlan(
        pa.concat_tables([from_ipc(one.changes) for one in walked]),
        [path for one in walked for path in one.conflicts],
        sum(one.settled for one in walked),
        total([*(one.summary for one in walked), *([summary(reader, *splicing.taken)] if listed else [])]),
        splicing.dest,
        sum(one.opened for one in walked),
        splicing.exchanged,
    )


def walk(task: MergeTask, store: ObjectStore) -> Walked:
    """Plan the merge of one stretch. Reads only."""
    reader = RangeReader(store)
    base, source = task.sides
    if task.dest is None:
        nothing = to_ipc(no_rows(STAGED_SCHEMA))
        return Walked(task.index, nothing, (), 0, summary(reader, base, source), 0)
    plan = by_path(reader, base, source, Metarange(from_ipc(task.dest)), task.strategy)
    return Walked(task.index, to_ipc(plan.changes), tuple(plan.conflicts), plan.settled, plan.summary, plan.opened)


def _parts(
    old: Metarange, new: Metarange, dest: Metarange | None, group: int
) -> Iterator[tuple[Sides, Metarange | None]]:
    """About ``group`` differing ranges of base and source at a time, and the destination's beside them."""
    done = [0, 0]
    listed = new.changes_since(old)
    for stops in _borders(old, new, group):
        before, after = (_slice(side, start, stop) for side, start, stop in zip((old, new), done, stops, strict=True))
        if len(before) or len(after):
            yield listed_sides(listed, before, after), None if dest is None else _reached_by(dest, [before, after])
        done = stops


def _borders(old: Metarange, new: Metarange, group: int) -> Iterator[list[int]]:
    """Numbers of ranges on both sides after which a stretch may end, the last of them the ends themselves."""
    place = pc.index_in(old.table.column("last_path"), value_set=new.table.column("last_path"))
    ends = np.flatnonzero(to_numpy(pc.is_valid(place)))
    both = np.column_stack([ends, to_numpy(pc.drop_null(place)).astype(np.int64)]) + 1
    begun = 0
    for pair in both.tolist():
        if sum(pair) - begun >= group and pair != [len(old), len(new)]:
            yield pair
            begun = sum(pair)
    yield [len(old), len(new)]


def _reached_by(dest: Metarange, sides: list[Metarange]) -> Metarange:
    """The destination's ranges among which a path of one of the sides would be."""
    firsts = [side.first_paths[0] for side in sides if len(side)]
    lasts = [side.last_paths[len(side) - 1] for side in sides if len(side)]
    start = dest.last_paths.first_at(min(firsts))
    stop = dest.first_paths.first_at(max(lasts) + b"\0")
    return _slice(dest, start, max(start, stop))


def _slice(metarange: Metarange, start: int, stop: int) -> Metarange:
    return Metarange(metarange.table.slice(start, stop - start))
