"""Rewriting ranges as plain work that can travel: read touched ranges, apply the changes to them, cut, write.

A task says everything that a worker needs besides the store, a result everything that the driver needs back. The same
function runs in a thread and on a cluster, and it cannot publish anything.

A *segment* is a run of base ranges of which the first is touched. Rows are cut anew from its start (a cut before is
still a cut after) until a cut falls on the end of a base range: from there on the base's own ranges stand. A segment
brings a few untouched ranges along for that. What is still open at its end goes back to the driver as *remainder*.

Every step over some rows has a fixed price, and for a small range that is more than what its rows cost. So ranges are
read one by one, but their rows are changed and hashed together, a *window* of them at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.base import TaskRows, to_ipc
from lakeops.model.arrow import RANGE_SCHEMA, array, from_numpy, no_rows, to_numpy
from lakeops.model.clock import Ids
from lakeops.model.records import Split, Summary
from lakeops.ranges.chunker import Chunker, Hashes, path_hashes
from lakeops.ranges.digest import IDENTITY_COLUMNS, Positions, complete, entry_digests, same_identity, with_digests
from lakeops.ranges.metarange import RangeRow
from lakeops.ranges.range_file import RangeFile, RangeWriter, fetch_range, fetch_ranges
from lakeops.store.base import ObjectStore

RANGE_SECONDS = 0.008
"""The time in which one core reads, changes, cuts and writes one range of 2,800 entries."""

_AT_ONCE = 50_000
"""Changes that are digested or applied at a time: a bulk load into one range streams through."""
_ROWS = 24_000
"""Rows of a window at most, changes included. More of them gain nothing and take memory."""


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
    """Ranges to rewrite: segments, ascending, and the ``STAGED_SCHEMA`` rows of all of them, in order.

    Each run of it adds a fresh suffix of its own to ``attempt``.
    ``reuse`` are ranges of other live commits that may be referred to instead of written again. With ``listing`` the
    result holds the rows that changed.
    """

    segments: tuple[Segment, ...]
    changes: TaskRows
    split: Split
    attempt: str
    reuse: tuple[RangeRow, ...] = ()
    listing: bool = False


@dataclass(frozen=True, slots=True)
class RewrittenRun:
    """The ranges that base rows ``[start, stop)`` became, and ``remainder``, rows whose range is still open.

    ``remainder`` is an Arrow IPC stream of ``RANGE_SCHEMA``, empty when a cut fell on the end of range ``stop - 1``.
    """

    start: int
    stop: int
    rows: tuple[RangeRow, ...]
    remainder: bytes = b""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The outcome of a task: what became of its ranges, and how many paths changed.

    Where they were asked for, ``before`` are the rows that were removed or replaced (``RANGE_SCHEMA`` in path order),
    and ``after`` those that were added or replaced others.
    """

    runs: tuple[RewrittenRun, ...]
    summary: Summary
    before: TaskRows | None = None
    after: TaskRows | None = None


def run_task(task: Task, store: ObjectStore) -> TaskResult:
    """Rewrite the task's ranges. Safe to run any number of times, also at the same time.

    Every run writes under names of its own and publishes nothing, so what a lost or doubled run wrote is garbage that
    nothing refers to. Raises ``Corrupted`` or ``FileMissing`` for a base range that cannot be trusted.
    """
    known: list[RangeRow] = list(task.reuse)
    touched: list[tuple[RangeRow, int]] = []
    for segment in task.segments:
        known += segment.rows
        touched += filter(itemgetter(1), zip(segment.rows, segment.changes, strict=False))  # none of an empty base
    writer = RangeWriter(store, task.attempt + Ids().new(), known)
    summary = Summary()
    before, after = [no_rows(RANGE_SCHEMA)], [no_rows(RANGE_SCHEMA)]

    def on_applied(applied: AppliedRows) -> None:
        nonlocal summary
        summary += applied.summary
        if task.listing and applied.summary.total:
            before.append(applied.base.take(from_numpy(applied.gone)))
            after.append(applied.after)

    changes = with_change_digests(task.changes.table)
    changed = changed_ranges(store, touched, changes, on_applied)
    if not touched:  # then there is no base
        changed = iter([apply_in_batches(no_rows(RANGE_SCHEMA), changes, on_applied)])
    runs: list[RewrittenRun] = []
    for segment in task.segments:
        runs += _rewrite(segment, changed, Chunker(task.split), writer)
    listed = map(TaskRows, map(pa.concat_tables, (before, after))) if task.listing else ()
    return TaskResult(tuple(runs), summary, *listed)


def _rewrite(
    segment: Segment, changed: Iterator[Iterable[ChangedRows]], chunker: Chunker, writer: RangeWriter
) -> Iterator[RewrittenRun]:
    """The segment's runs. Ranges that were not touched and are not needed to re-synchronise are in none.

    ``changed`` gives the rows of each touched range, from this segment's first on.
    """
    start = 0
    written: list[RangeRow] = []
    for index, count in enumerate(segment.changes):
        if not chunker.open:
            if not count:
                continue
            start, written = index, []
        rows = next(changed) if count else [(fetch_range(writer.store, segment.rows[index]).read(), None)]
        for table, hashes in rows:
            written += map(writer.write, chunker.add(table, hashes))
        if not chunker.open:
            stop = min(index + 1, len(segment.rows))
            yield RewrittenRun(segment.start + start, segment.start + stop, tuple(written))
    if chunker.open:
        rest, remainder = chunker.rest(), b""
        if segment.last:
            written.append(writer.write(rest))
        else:
            remainder = to_ipc(rest)
        yield RewrittenRun(segment.start + start, segment.start + len(segment.rows), tuple(written), remainder)


@dataclass(frozen=True, slots=True)
class AppliedRows:
    """Rows after the changes (``RANGE_SCHEMA``, in order), and what really changed.

    Of the rows in ``base`` those with the numbers ``gone`` are no more, and ``after`` are new.
    """

    table: pa.Table
    summary: Summary
    base: pa.Table
    gone: Positions
    after: pa.Table


ChangedRows: TypeAlias = tuple[pa.Table, Hashes | None]
"""Rows that changes were applied to, ``RANGE_SCHEMA``, and the boundary hash of each path where that is known."""

OnApplied: TypeAlias = Callable[[AppliedRows], None]


def apply_changes(base: pa.Table, changes: pa.Table) -> AppliedRows:
    """The rows of ``base`` (``RANGE_SCHEMA``) with ``changes`` (``STAGED_SCHEMA``, strictly ascending paths) applied.

    A change that writes what is already there (same path, same identity) keeps the base row, a tombstone of an absent
    path does nothing, and neither is counted. So re-uploading a whole prefix is no change at all. A column ``digest``
    of the changes may come along.
    """
    paths = changes.column("path")
    places: Positions = to_numpy(pc.search_sorted(base.column("path"), paths)).astype(np.int64)
    found = np.zeros(changes.num_rows, np.bool_)
    if base.num_rows:
        # Past the last row the last path is compared, which is smaller, so it is never equal.
        present = base.column("path").take(from_numpy(np.minimum(places, base.num_rows - 1)))
        found = to_numpy(pc.equal(present, paths))
    dead = to_numpy(changes.column("tombstone"))
    rewritten = np.flatnonzero(found & ~dead)
    if len(rewritten):
        old = base.select(IDENTITY_COLUMNS).take(from_numpy(places[rewritten]))
        new = changes.select(IDENTITY_COLUMNS).take(from_numpy(rewritten))
        rewritten = rewritten[~same_identity(old, new)]
    added = np.flatnonzero(~found & ~dead)
    removed = np.flatnonzero(found & dead)
    summary = Summary(added=len(added), removed=len(removed), changed=len(rewritten))
    if not summary.total:
        return AppliedRows(base, summary, base, np.zeros(0, np.int64), base.slice(0, 0))
    written = np.union1d(added, rewritten)
    new = with_digests(changes.take(from_numpy(written)))
    gone = places[np.union1d(removed, rewritten)]
    kept = np.delete(np.arange(base.num_rows), gone)
    order = np.insert(kept, np.searchsorted(kept, places[written]), base.num_rows + np.arange(new.num_rows))
    return AppliedRows(pa.concat_tables([base, new]).take(from_numpy(order)), summary, base, gone, new)


def with_change_digests(changes: pa.Table) -> pa.Table:
    """Changes (``STAGED_SCHEMA``) with a column ``digest``, null for tombstones.

    Digests of the changes of each range apart would take longer than those of all.
    """
    blocks = []
    for start in range(0, changes.num_rows, _AT_ONCE):
        block = changes.slice(start, _AT_ONCE)
        dead = to_numpy(block.column("tombstone"))
        digests = entry_digests(complete(block.take(from_numpy(np.flatnonzero(~dead)))))
        blocks.append(digests.take(from_numpy(np.cumsum(~dead) - 1, dead)))
    return changes.append_column("digest", pa.chunked_array(blocks, RANGE_SCHEMA.field("digest").type))


def changed_ranges(
    store: ObjectStore, touched: Sequence[tuple[RangeRow, int]], changes: pa.Table, on_applied: OnApplied
) -> Iterator[Iterable[ChangedRows]]:
    """The rows that each of some ranges becomes with so many of the changes, in order, not cut yet.

    ``on_applied`` is called with what really changed, in order. Several ranges' changes come together.
    Raises ``Corrupted`` or ``FileMissing`` for a range that cannot be trusted.
    """
    done = 0
    for window in _windows(touched):
        ranges, counts = zip(*window, strict=True)
        tables = list(map(RangeFile.read, fetch_ranges(store, ranges)))
        mine = changes.slice(done, sum(counts))
        done += mine.num_rows
        if len(window) == 1 and mine.num_rows > _AT_ONCE:
            yield apply_in_batches(tables[0], mine, on_applied)
            continue
        applied = apply_changes(pa.concat_tables(tables).combine_chunks(), mine)
        on_applied(applied)
        rows = applied.table.combine_chunks()
        hashes = path_hashes(rows.column("path"))
        # A new path may come before a range's first one. Strings compare by code points, as UTF-8 does by bytes.
        changed = mine.column("path").take(from_numpy(np.cumsum([0, *counts[:-1]]))).to_pylist()
        firsts = list(map(min, map(attrgetter("first_path"), ranges), changed))
        borders = [*pc.search_sorted(rows.column("path"), array(firsts, pa.string())).to_pylist(), rows.num_rows]
        for start, end in pairwise(borders):
            yield [(rows.slice(start, end - start), hashes[start:end])]


def _windows(touched: Sequence[tuple[RangeRow, int]]) -> Iterator[list[tuple[RangeRow, int]]]:
    window: list[tuple[RangeRow, int]] = []
    size = 0
    for row, count in touched:
        if window and size + row.count + count > _ROWS:
            yield window
            window, size = [], 0
        window.append((row, count))
        size += row.count + count
    if window:
        yield window


def apply_in_batches(base: pa.Table, changes: pa.Table, on_applied: OnApplied) -> Iterator[ChangedRows]:
    """The rows that ``base`` becomes with very many changes, of which some are applied at a time."""
    done = 0
    for start in range(0, changes.num_rows, _AT_ONCE):
        part = changes.slice(start, _AT_ONCE)
        # The base's rows up to the next part's first path go with this part.
        following = changes.slice(start + _AT_ONCE, 1).column("path")
        stop = pc.search_sorted(base.column("path"), following[0]).as_py() if len(following) else base.num_rows
        applied = apply_changes(base.slice(done, stop - done), part)
        on_applied(applied)
        done = stop
        yield applied.table, path_hashes(applied.table.column("path"))
