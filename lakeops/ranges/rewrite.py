"""What a worker does with a task: read touched ranges, lay the changes over them, cut, write."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.clock import Ids
from lakeops.model.records import Split, Summary
from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.cutter import Cutter
from lakeops.ranges.file import RangeFile, fetch_range
from lakeops.ranges.metarange import RangeRow
from lakeops.ranges.overlay import Overlaid, digested, overlay
from lakeops.ranges.patch import patched
from lakeops.ranges.task import Piece, Segment, Task, TaskResult, TaskRows, to_ipc, total
from lakeops.ranges.write import RangeWriter, Work
from lakeops.store.base import ObjectStore

_AT_ONCE = 50_000
"""Changes laid over at a time, so that a bulk load into one range streams through."""


def run_task(task: Task, store: ObjectStore) -> TaskResult:
    """Rewrite the task's ranges. Safe to run any number of times, also at the same time.

    Every run writes under names of its own and publishes nothing, so what a lost or doubled run wrote is garbage that
    nothing refers to. Raises ``Corrupted`` or ``ObjectNotFound`` for a base range that cannot be trusted.
    """
    attempt = task.attempt + Ids().new()
    changes = digested(task.changes.table)
    writer = RangeWriter(store, attempt, [*task.reuse, *(row for segment in task.segments for row in segment.rows)])
    pieces: list[Piece] = []
    seen = _Seen(task.listing)
    work, done = Work(), 0
    for segment in task.segments:
        count = sum(segment.changes)
        run = _Rewriting(segment, changes.slice(done, count), task.split, writer, store, seen)
        pieces += run.pieces()
        work, done = work + run.work, done + count
    return TaskResult(task.index, tuple(pieces), seen.summary, work + writer.work, *seen.rows())


class _Seen:
    """What changed so far: how many paths, and if that is asked for the rows."""

    def __init__(self, listing: bool) -> None:
        self.summary: Summary = Summary()
        self._listing = listing
        self._before: list[pa.Table] = [RANGE_SCHEMA.empty_table()]
        self._after: list[pa.Table] = [RANGE_SCHEMA.empty_table()]

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

    def __init__(
        self,
        segment: Segment,
        changes: pa.Table,
        split: Split,
        writer: RangeWriter,
        store: ObjectStore,
        seen: _Seen,
    ) -> None:
        self.work = Work()
        self._seen = seen
        self._segment = segment
        self._changes = changes
        self._split = split
        self._cutter = Cutter(split)
        self._writer = writer
        self._store = store

    def pieces(self) -> Iterator[Piece]:
        """The segment's pieces. Ranges that were not touched and are not needed to re-synchronise are in none."""
        segment = self._segment
        start, done = 0, 0
        written: list[RangeRow] = []
        for index, count in enumerate(segment.changes):
            if not count and not self._cutter.open:
                continue
            if not self._cutter.open:
                start, written = index, []
            written += self._written(index, self._changes.slice(done, count))
            done += count
            if not self._cutter.open:
                stop = min(index + 1, len(segment.rows))
                yield Piece(segment.start + start, segment.start + stop, tuple(written))
        if self._cutter.open:
            carry = b"" if segment.last else to_ipc(self._cutter.carry())
            if segment.last:
                written.append(self._writer.write(self._cutter.rest()))
            yield Piece(segment.start + start, segment.start + len(segment.rows), tuple(written), carry)

    def _written(self, index: int, changes: pa.Table) -> list[RangeRow]:
        """The ranges that base range ``index`` brings to an end, written. None of its rows stay behind in memory."""
        file = self._file(index)
        if file is not None and not self._cutter.open:
            last = self._segment.last and index == len(self._segment.rows) - 1
            patch = patched(file, changes, self._split, last=last)
            if patch is not None:
                self._seen.add(patch.overlaid)
                return [self._writer.write(patch)]
        written: list[RangeRow] = []
        for table in self._rows(file, changes):
            written += [self._writer.write(cut) for cut in self._cutter.add(table)]
        return written

    def _rows(self, file: RangeFile | None, changes: pa.Table) -> Iterator[pa.Table]:
        """The rows that a base range becomes, in order."""
        base = file.read() if file else RANGE_SCHEMA.empty_table()
        done = 0
        for start in range(0, changes.num_rows, _AT_ONCE):
            part = changes.slice(start, _AT_ONCE)
            # The base's rows up to the next part's first path go with this part.
            following = changes.slice(start + _AT_ONCE, 1).column("path")
            stop = base.num_rows
            if len(following):
                stop = pc.search_sorted(base.column("path"), following[0]).as_py()
            overlaid = overlay(base.slice(done, stop - done), part)
            self._seen.add(overlaid)
            done = stop
            yield overlaid.table
        yield base.slice(done)

    def _file(self, index: int) -> RangeFile | None:
        """Base range ``index``. None in a segment without any."""
        if not self._segment.rows:
            return None
        row = self._segment.rows[index]
        self.work += Work(opened=1, bytes_read=row.file_bytes)
        return fetch_range(self._store, row)
