"""Rewriting ranges as plain work that can travel: read touched ranges, apply the changes to them, cut, write.

A task says everything that a worker needs besides the store, a result everything that the driver needs back. The same
function runs in a thread and on a cluster, and it cannot publish anything.

A *segment* is a run of base ranges of which the first is touched. Rows are cut anew from its start (a cut before is
still a cut after) until a cut falls on the end of a base range: from there on the base's own ranges stand. A segment
brings a few untouched ranges along for that. What is still open at its end goes back to the driver as *remainder*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from lakeops.engine.base import TaskRows, to_ipc
from lakeops.model.arrow import RANGE_SCHEMA, no_rows
from lakeops.model.clock import Ids
from lakeops.model.records import Split, Summary
from lakeops.ranges.changes import AppliedRows, ChangedRows, apply_in_batches, changed_ranges, digested
from lakeops.ranges.chunker import Chunker, Hashes
from lakeops.ranges.file import read_range
from lakeops.ranges.metarange import RangeRow
from lakeops.ranges.write import RangeWriter, Work
from lakeops.store.base import ObjectStore


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of base ranges: from row ``start`` of the base, ``changes[i]`` changes for ``rows[i]``.

    ``last`` says that nothing follows in the repository, so what is open at the end is the last range. Without rows
    (an empty base) all ``changes`` are additions.
    """

    start: int
    rows: tuple[RangeRow, ...]
    changes: tuple[int, ...]
    last: bool


@dataclass(frozen=True, slots=True)
class Task:
    """Ranges to rewrite.

    Attributes:
        index: which of the plan's tasks this is. A task that ran twice has two results with one index.
        segments: where to work, ascending.
        changes: ``STAGED_SCHEMA`` rows of all segments, in order.
        split: the repository's split.
        attempt: the operation's attempt. Each run of the task adds a fresh suffix of its own.
        reuse: ranges of other live commits that may be referred to instead of written again.
        listing: whether the result shall hold the rows that changed.
    """

    index: int
    segments: tuple[Segment, ...]
    changes: TaskRows
    split: Split
    attempt: str
    reuse: tuple[RangeRow, ...] = ()
    listing: bool = False


@dataclass(frozen=True, slots=True)
class RewrittenRun:
    """What became of base rows ``[start, stop)``: these ranges, and ``remainder``, rows whose range is still open.

    ``remainder`` is an Arrow IPC stream of ``RANGE_SCHEMA``, empty when a cut fell on the end of range ``stop - 1``.
    """

    start: int
    stop: int
    rows: tuple[RangeRow, ...]
    remainder: bytes = b""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task gives back.

    Attributes:
        index: the task's.
        runs: what became of its ranges, in order.
        summary: how many paths changed.
        work: what it cost.
        before: the rows that were removed or replaced, ``RANGE_SCHEMA`` in path order. None unless asked for.
        after: the rows that were added or replaced others, likewise.
    """

    index: int
    runs: tuple[RewrittenRun, ...]
    summary: Summary
    work: Work
    before: TaskRows | None = None
    after: TaskRows | None = None


def total(summaries: Iterable[Summary]) -> Summary:
    """All of them together."""
    added = removed = changed = 0
    for summary in summaries:
        added, removed, changed = added + summary.added, removed + summary.removed, changed + summary.changed
    return Summary(added, removed, changed)


def run_task(task: Task, store: ObjectStore) -> TaskResult:
    """Rewrite the task's ranges. Safe to run any number of times, also at the same time.

    Every run writes under names of its own and publishes nothing, so what a lost or doubled run wrote is garbage that
    nothing refers to. Raises ``Corrupted`` or ``ObjectNotFound`` for a base range that cannot be trusted.
    """
    attempt = task.attempt + Ids().new()
    changes = digested(task.changes.table)
    writer = RangeWriter(store, attempt, [*task.reuse, *(row for segment in task.segments for row in segment.rows)])
    seen = _ChangeCounter(task.listing)
    touched = [
        (row, count)
        for segment in task.segments
        for row, count in zip(segment.rows, segment.changes[: len(segment.rows)], strict=True)
        if count
    ]
    changed = changed_ranges(store, touched, changes, seen.add)
    if not touched:  # then there is no base
        changed = iter([apply_in_batches(no_rows(RANGE_SCHEMA), changes, seen.add)])
    runs: list[RewrittenRun] = []
    work = Work()
    for segment in task.segments:
        rewriting = _Rewriting(segment, task.split, writer, store)
        runs += rewriting.runs(changed)
        work += rewriting.work
    return TaskResult(task.index, tuple(runs), seen.summary, work + writer.work, *seen.rows())


class _ChangeCounter:
    """What changed so far: how many paths, and if that is asked for the rows."""

    def __init__(self, listing: bool) -> None:
        self.summary: Summary = Summary()
        self._listing = listing
        self._before: list[pa.Table] = [no_rows(RANGE_SCHEMA)]
        self._after: list[pa.Table] = [no_rows(RANGE_SCHEMA)]

    def add(self, applied: AppliedRows) -> None:
        """The next paths."""
        self.summary = total((self.summary, applied.summary))
        if self._listing and applied.summary.total:
            self._before.append(applied.before)
            self._after.append(applied.after)

    def rows(self) -> tuple[TaskRows, TaskRows] | tuple[()]:
        """The rows that are no more, and those that are new."""
        if not self._listing:
            return ()
        return TaskRows(pa.concat_tables(self._before)), TaskRows(pa.concat_tables(self._after))


class _Rewriting:
    """One segment on its way from base rows to runs."""

    def __init__(self, segment: Segment, split: Split, writer: RangeWriter, store: ObjectStore) -> None:
        self.work = Work()
        self._segment = segment
        self._chunker = Chunker(split)
        self._writer = writer
        self._store = store

    def runs(self, changed: Iterator[Iterable[ChangedRows]]) -> Iterator[RewrittenRun]:
        """The segment's runs. Ranges that were not touched and are not needed to re-synchronise are in none.

        Args:
            changed: the rows of each touched range, from this segment's first on.
        """
        segment = self._segment
        start = 0
        written: list[RangeRow] = []
        for index, count in enumerate(segment.changes):
            if not count and not self._chunker.open:
                continue
            if not self._chunker.open:
                start, written = index, []
            if segment.rows:
                self.work += Work(opened=1, bytes_read=segment.rows[index].file_bytes)
            rows: Iterable[tuple[pa.Table, Hashes | None]] = (
                next(changed) if count else [(read_range(self._store, segment.rows[index]), None)]
            )
            for some in rows:
                written += [self._writer.write(one) for one in self._chunker.add(*some)]
            if not self._chunker.open:
                stop = min(index + 1, len(segment.rows))
                yield RewrittenRun(segment.start + start, segment.start + stop, tuple(written))
        if self._chunker.open:
            rest, remainder = self._chunker.rest(), b""
            if segment.last:
                written.append(self._writer.write(rest))
            else:
                remainder = to_ipc(rest)
            yield RewrittenRun(segment.start + start, segment.start + len(segment.rows), tuple(written), remainder)
