"""What a worker does with a task: read touched ranges, apply the changes to them, cut, write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from lakeops.model.arrays import no_rows
from lakeops.model.changes import Summary
from lakeops.model.clock import Ids
from lakeops.model.records import Split
from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.changes import Applied, Changed, apply_in_batches, changed_ranges, digested
from lakeops.ranges.chunker import Chunker, Hashes
from lakeops.ranges.file import read_range
from lakeops.ranges.metarange import RangeRow
from lakeops.ranges.task import Piece, Segment, Task, TaskResult, TaskRows, to_ipc, total
from lakeops.ranges.write import RangeWriter, Work
from lakeops.store.base import ObjectStore


def run_task(task: Task, store: ObjectStore) -> TaskResult:
    """Rewrite the task's ranges. Safe to run any number of times, also at the same time.

    Every run writes under names of its own and publishes nothing, so what a lost or doubled run wrote is garbage that
    nothing refers to. Raises ``Corrupted`` or ``ObjectNotFound`` for a base range that cannot be trusted.
    """
    attempt = task.attempt + Ids().new()
    changes = digested(task.changes.table)
    writer = RangeWriter(store, attempt, [*task.reuse, *(row for segment in task.segments for row in segment.rows)])
    seen = _Seen(task.listing)
    touched = [
        (row, count)
        for segment in task.segments
        for row, count in zip(segment.rows, segment.changes[: len(segment.rows)], strict=True)
        if count
    ]
    changed = changed_ranges(store, touched, changes, seen.add)
    if not touched:  # then there is no base
        changed = iter([apply_in_batches(no_rows(RANGE_SCHEMA), changes, seen.add)])
    pieces: list[Piece] = []
    work = Work()
    for segment in task.segments:
        run = _Rewriting(segment, task.split, writer, store)
        pieces += run.pieces(changed)
        work += run.work
    return TaskResult(task.index, tuple(pieces), seen.summary, work + writer.work, *seen.rows())


class _Seen:
    """What changed so far: how many paths, and if that is asked for the rows."""

    def __init__(self, listing: bool) -> None:
        self.summary: Summary = Summary()
        self._listing = listing
        self._before: list[pa.Table] = [no_rows(RANGE_SCHEMA)]
        self._after: list[pa.Table] = [no_rows(RANGE_SCHEMA)]

    def add(self, applied: Applied) -> None:
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
    """One segment on its way from base rows to pieces."""

    def __init__(self, segment: Segment, split: Split, writer: RangeWriter, store: ObjectStore) -> None:
        self.work = Work()
        self._segment = segment
        self._chunker = Chunker(split)
        self._writer = writer
        self._store = store

    def pieces(self, changed: Iterator[Iterable[Changed]]) -> Iterator[Piece]:
        """The segment's pieces. Ranges that were not touched and are not needed to re-synchronise are in none.

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
                yield Piece(segment.start + start, segment.start + stop, tuple(written))
        if self._chunker.open:
            rest, remainder = self._chunker.rest(), b""
            if segment.last:
                written.append(self._writer.write(rest))
            else:
                remainder = to_ipc(rest)
            yield Piece(segment.start + start, segment.start + len(segment.rows), tuple(written), remainder)
