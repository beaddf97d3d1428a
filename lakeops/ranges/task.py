"""Rewriting ranges as plain work that can travel.

A task says everything that a worker needs besides the store, a result everything that the driver needs back. The same
function runs in a thread and on a cluster, and it cannot publish anything.

A *segment* is a run of base ranges of which the first is touched. Rows are cut anew from its start (a cut before is
still a cut after) until a cut falls on the end of a base range: from there on the base's own ranges stand. A segment
brings a few untouched ranges along for that. What is still open at its end goes back to the driver as *carry*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from lakeops.model.changes import Summary
from lakeops.model.records import Split
from lakeops.ranges.metarange import RangeRow
from lakeops.ranges.write import Work


@dataclass(frozen=True, slots=True)
class TaskRows:
    """Rows of a task: in one process the table as it is, between processes an Arrow IPC stream."""

    table: pa.Table

    @classmethod
    def from_bytes(cls, data: bytes) -> TaskRows:
        """The rows of an Arrow IPC stream, without a copy."""
        return cls(from_ipc(data))

    def to_bytes(self) -> bytes:
        """The rows as an Arrow IPC stream."""
        return to_ipc(self.table)

    def __reduce__(self) -> tuple[Callable[[bytes], TaskRows], tuple[bytes]]:
        # A table that is a slice would take all of what it is a slice of along.
        return TaskRows.from_bytes, (self.to_bytes(),)


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
class Piece:
    """What became of base rows ``[start, stop)``: these ranges, and ``carry``, rows whose range is still open.

    ``carry`` is an Arrow IPC stream of ``RANGE_SCHEMA``, empty when a cut fell on the end of range ``stop - 1``.
    """

    start: int
    stop: int
    rows: tuple[RangeRow, ...]
    carry: bytes = b""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task gives back.

    Attributes:
        index: the task's.
        pieces: what became of its ranges, in order.
        summary: how many paths changed.
        work: what it cost.
        before: the rows that were removed or replaced, ``RANGE_SCHEMA`` in path order. None unless asked for.
        after: the rows that were added or replaced others, likewise.
    """

    index: int
    pieces: tuple[Piece, ...]
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


def to_ipc(table: pa.Table) -> bytes:
    """The rows as an Arrow IPC stream: how rows travel."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_ipc(data: bytes) -> pa.Table:
    """The rows of an Arrow IPC stream, without a copy."""
    with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
        return reader.read_all()
