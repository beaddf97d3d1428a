"""Merging metaranges on an engine: plans of merges, and merge bases of criss-cross histories.

The walk over three metaranges is cut into stretches of paths that share nothing. A stretch ends where a range ends
in base and source alike, so no range of either is in two stretches. Most of their ends are shared, because they are
cut by the paths. The plan is the one that a single walk gives.

Two commits with a criss-cross history are merged over the merge of their merge bases: a metarange that nobody
publishes. A path on which the bases conflict gets a state that no object can have, so that a merge over it
conflicts there unless both sides agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.base import Engine, LocalEngine, TaskRows, first_of_each, from_ipc, to_ipc
from lakeops.model.arrow import STAGED_SCHEMA, no_metadata, no_rows, scalar, text, to_numpy
from lakeops.model.errors import Transient
from lakeops.model.records import Split, Strategy, Summary
from lakeops.ranges.apply import apply
from lakeops.ranges.changelist import ChangeList
from lakeops.ranges.diff import deltas, summary
from lakeops.ranges.merge import MergePlan, MergeWalk, by_path, paths_of, planned
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.ranges.rewrite import total
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


_NO_TYPE = "\n"
"""A content type that no object has: staging refuses what cannot be printed. (Ranges refuse sizes below zero.)"""


def needed(reader: RangeReader, sides: tuple[Metarange, Metarange], bases: Sequence[Metarange]) -> bool:
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
    """The merge of two bases over their own; where they conflict stands a state that equals no object's.

    Args:
        reader: reads the bases. What has to be written goes to its store.
        base: the base of the two. None where nobody knows it: then every path on which they differ conflicts.
        one: a base.
        other: another one.
        label: tells the conflicts of this merge from those of any other: a function of the commits that are merged.
        split: the repository's split.
        attempt: fresh for every call.
    """
    if base is None:
        found: Iterator[pa.Table] = (_conflicting(paths, label) for paths in _differing(reader, other, one))
    else:
        splicing = splice(base, one, other)
        other = splicing.dest
        walk = MergeWalk(reader, *splicing.rest, other, None, ours=splicing.ours)
        found = (
            pa.concat_tables([decided.changes(), _conflicting(decided.conflicts, label)]).sort_by("path")
            for decided in walk.decisions()
        )
    changes = pa.concat_tables(chain([no_rows(STAGED_SCHEMA)], found))
    return apply(reader, other, changes, engine=LocalEngine(), split=split, attempt=attempt, reuse=one).metarange


def _conflicting(paths: pa.Array, label: str) -> pa.Table:
    """The state of paths on which bases conflict, as rows to apply: ``STAGED_SCHEMA``."""
    count = len(paths)
    values = {
        "path": paths,
        "tombstone": pa.repeat(scalar(False, pa.bool_()), count),
        "physical_address": pa.repeat(text(""), count),
        "checksum": pa.repeat(text(label), count),
        "size_bytes": pa.repeat(scalar(0, pa.int64()), count),
        "mtime": pa.repeat(scalar(0, pa.int64()), count),
        "content_type": pa.repeat(text(_NO_TYPE), count),
        "metadata": no_metadata(count),
    }
    return pa.table([values[name] for name in STAGED_SCHEMA.names], schema=STAGED_SCHEMA)


def _differing(reader: RangeReader, left: Metarange, right: Metarange) -> Iterator[pa.Array]:
    """The paths that differ, in order, some at a time."""
    return (paths_of(delta) for delta in deltas(reader, left, right))


def _share_a_path(ones: Iterator[pa.Array], others: Iterator[pa.Array]) -> bool:
    """Whether two ascending streams of paths have one in common."""
    one, other = next(ones, None), next(others, None)
    while one is not None and other is not None:
        if pc.any(pc.is_in(one, value_set=other)).as_py():
            return True
        if one[-1].as_py().encode() < other[-1].as_py().encode():
            one = next(ones, None)
        else:
            other = next(others, None)
    return False
