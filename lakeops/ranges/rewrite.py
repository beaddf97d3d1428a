"""What a worker does with a task: read touched ranges, lay the changes over them, cut, write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from lakeops.model.arrays import no_rows
from lakeops.model.changes import Summary
from lakeops.model.clock import Ids
from lakeops.model.records import Split
from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.changed import Changed, changed_ranges, flooded
from lakeops.ranges.cutter import Cutter
from lakeops.ranges.fetch import read_range
from lakeops.ranges.metarange import RangeRow
from lakeops.ranges.overlay import Overlaid, digested
from lakeops.ranges.patch import Patch, encoded_together, patched
from lakeops.ranges.split import Hashes
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
    windows = changed_ranges(store, touched, changes, task.split, seen.add)
    if not touched:  # then there is no base
        windows = iter([[Changed(flooded(no_rows(RANGE_SCHEMA), changes, seen.add))]])
    changed = _patched(windows, task, writer)
    pieces: list[Piece] = []
    work = Work()
    for segment in task.segments:
        run = _Rewriting(segment, task.split, writer, store)
        pieces += run.pieces(changed)
        work += run.work
    return TaskResult(task.index, tuple(pieces), seen.summary, work + writer.work, *seen.rows())


def _patched(
    windows: Iterable[list[Changed]], task: Task, writer: RangeWriter
) -> Iterator[tuple[Changed, Patch | None]]:
    """Changed ranges, and each as a patch where it can be one. New row groups of a window are encoded together."""
    segment = task.segments[-1]
    last = segment.rows[-1] if segment.last and segment.rows else None
    for window in windows:
        patches = [patched(one, task.split, last=one.file is not None and one.file.row == last) for one in window]
        yield from zip(window, encoded_together(patches, writer.knows), strict=True)


class _Seen:
    """What changed so far: how many paths, and if that is asked for the rows."""

    def __init__(self, listing: bool) -> None:
        self.summary: Summary = Summary()
        self._listing = listing
        self._before: list[pa.Table] = [no_rows(RANGE_SCHEMA)]
        self._after: list[pa.Table] = [no_rows(RANGE_SCHEMA)]

    def add(self, overlaid: Overlaid) -> None:
        """The next paths."""
        self.summary = total((self.summary, overlaid.summary))
        if self._listing and overlaid.summary.total:
            self._before.append(overlaid.before)
            self._after.append(overlaid.after)

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
        self._cutter = Cutter(split)
        self._writer = writer
        self._store = store

    def pieces(self, changed: Iterator[tuple[Changed, Patch | None]]) -> Iterator[Piece]:
        """The segment's pieces. Ranges that were not touched and are not needed to re-synchronise are in none.

        Args:
            changed: the touched ranges, from this segment's first on, and what they are as patches.
        """
        segment = self._segment
        start = 0
        written: list[RangeRow] = []
        for index, count in enumerate(segment.changes):
            if not count and not self._cutter.open:
                continue
            if not self._cutter.open:
                start, written = index, []
            written += self._written(index, *next(changed)) if count else self._cut(self._untouched(index))
            if not self._cutter.open:
                stop = min(index + 1, len(segment.rows))
                yield Piece(segment.start + start, segment.start + stop, tuple(written))
        if self._cutter.open:
            carry = b"" if segment.last else to_ipc(self._cutter.carry())
            if segment.last:
                written.append(self._writer.write(self._cutter.rest()))
            yield Piece(segment.start + start, segment.start + len(segment.rows), tuple(written), carry)

    def _written(self, index: int, changed: Changed, patch: Patch | None) -> list[RangeRow]:
        """The ranges that base range ``index`` brings to an end, written."""
        if self._segment.rows:
            self._count(index)
        if not self._cutter.open and patch is not None:
            return [self._writer.write(patch)]
        return self._cut(changed.rows())

    def _cut(self, rows: Iterable[tuple[pa.Table, Hashes | None]]) -> list[RangeRow]:
        """The ranges that these rows bring to an end, written. None of the rows stay behind in memory."""
        return [self._writer.write(cut) for table, hashes in rows for cut in self._cutter.add(table, hashes)]

    def _untouched(self, index: int) -> Iterator[tuple[pa.Table, None]]:
        self._count(index)
        yield read_range(self._store, self._segment.rows[index]), None

    def _count(self, index: int) -> None:
        self.work += Work(opened=1, bytes_read=self._segment.rows[index].file_bytes)
