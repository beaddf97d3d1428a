"""Applying changes to a metarange on an engine: plan, run the tasks, stitch. Publishes nothing.

Whatever the history and however the work was cut into tasks, the outcome has the ids that building it from scratch
would give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from lakeops.engine.base import Engine, first_of_each
from lakeops.engine.plan import Plan, plan
from lakeops.engine.stitch import stitch
from lakeops.model.changes import Summary
from lakeops.model.clock import Ids
from lakeops.model.errors import Transient
from lakeops.model.records import Split
from lakeops.ranges.changelist import ChangeList
from lakeops.ranges.merge import MergePlan
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.ranges.rewrite import run_task
from lakeops.ranges.task import TaskResult, total
from lakeops.ranges.write import Work

OnPlan = Callable[[Plan], None]
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Applied:
    """The new metarange (its ranges are written, it is not), how many paths changed, and what it cost.

    The metarange has the base's id exactly when nothing changed. Where many ranges were rewritten for few changes, it
    has a list of them.
    """

    metarange: Metarange
    summary: Summary
    work: Work


def apply(
    reader: RangeReader,
    base: Metarange,
    changes: pa.Table,
    *,
    engine: Engine,
    split: Split,
    attempt: str,
    reuse: Metarange | None = None,
    listing: bool = False,
    on_plan: OnPlan | None = None,
    on_progress: OnProgress | None = None,
) -> Applied:
    """The metarange that ``base`` becomes with ``changes``.

    Args:
        reader: the namespace.
        base: what to change.
        changes: ``STAGED_SCHEMA``, paths strictly ascending; else ``InvalidInput``.
        engine: where to work.
        split: the repository's split.
        attempt: fresh for every try.
        reuse: another metarange whose ranges may be referred to (its commit is checked live when this is published).
        listing: make a list of what changes, also where few ranges are touched.
        on_plan: called with the plan before anything is read.
        on_progress: called with (touched ranges done, touched ranges in all).
    """
    planned = plan(base, changes, split=split, attempt=attempt, reuse=reuse, listing=listing)
    if on_plan:
        on_plan(planned)
    results = _run(planned, engine, reader, on_progress)
    pieces = [piece for result in results for piece in result.pieces]
    repaired = attempt + Ids().new()
    metarange, repair = stitch(base, pieces, store=reader.store, split=split, attempt=repaired)
    metarange = base if metarange.id == base.id else metarange.telling(_listed(base, results))
    return Applied(metarange, total(result.summary for result in results), sum((r.work for r in results), repair))


def merge(
    reader: RangeReader,
    planned: MergePlan,
    source: Metarange,
    *,
    engine: Engine,
    split: Split,
    attempt: str,
    on_plan: OnPlan | None = None,
    on_progress: OnProgress | None = None,
) -> Applied:
    """The metarange that a merge without conflicts gives. See ``ranges.merge.three_way`` for the plan."""
    if planned.result is not None:
        return Applied(planned.result, planned.summary, Work())
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
        on_plan=on_plan,
        on_progress=on_progress,
    )
    own, listed = applied.metarange.changes, None
    if exchanged is not None and own is not None and own.since == planned.onto.id:
        listed = exchanged.then(own)
    return replace(applied, metarange=applied.metarange.telling(listed), summary=planned.summary)


def _listed(base: Metarange, results: Sequence[TaskResult]) -> ChangeList | None:
    sides = [[one.before.table, one.after.table] for one in results if one.before is not None and one.after is not None]
    if not results or len(sides) < len(results):
        return None
    return ChangeList.of(base.id, *(pa.concat_tables(side) for side in zip(*sides, strict=True)))


def _run(planned: Plan, engine: Engine, reader: RangeReader, on_progress: OnProgress | None) -> list[TaskResult]:
    """One result for each task, in order of the base's ranges."""
    touched = len(planned.touched)
    engine = engine.for_work(touched)
    group = engine.group(touched, at_once=True)
    results: dict[int, TaskResult] = {}
    done = 0
    for result in first_of_each(engine.run(run_task, planned.tasks(group), reader.store)):
        results[result.index] = result
        done += min(group, touched - result.index * group)
        if on_progress:
            on_progress(done, touched)
    if done != touched:
        raise Transient(f"the engine ({engine.name}) gave back work for {done} of {touched} ranges; try again")
    return [results[index] for index in sorted(results)]
