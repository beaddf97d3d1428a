"""Engines: run one function over many plain tasks, in threads or on Spark.

The function is defined at a module's top level and takes a task and the store of the namespace. Tasks and results are
frozen plain data. A place may run a task twice or let two copies race. Tasks are numbered, so that each has one result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count, islice, pairwise
from typing import TypeVar

import pyarrow as pa

from lakeops.machine import cores
from lakeops.model.errors import Transient
from lakeops.store.base import ObjectStore
from lakeops.store.in_flight import IN_FLIGHT, in_flight

T = TypeVar("T")
R = TypeVar("R")

_PARTS = 128
"""Parts that what a store holds is divided into at most, flat folders apart."""


class Engine(ABC):
    """A place where work runs.

    Attributes:
        name: the place in words, for instance ``in process``.
        in_process: whether work runs in this process and sees the directories of this machine.
    """

    name: str
    in_process: bool

    def run(
        self, work: Callable[[T, ObjectStore], R], tasks: Iterable[T], store: ObjectStore
    ) -> Iterator[tuple[int, R]]:
        """Run each task. Gives its number, from 0, and its result, each task once and in any order.

        Tasks are taken from the iterable as there is room, so a long stream of them is never held at once. The first
        error ends the run and is raised. Raises ``Transient`` when a task has no result.
        """
        source, numbers, done = iter(tasks), count(), set[int]()
        for number, result in self.perform(work, zip(source, numbers, strict=False), store):
            if number not in done:
                done.add(number)
                yield number, result
        given = next(numbers) + len(list(source))
        if len(done) != given:
            raise Transient(f"the engine ({self.name}) gave back {len(done)} of {given} results; try again")

    @abstractmethod
    def perform(
        self, work: Callable[[T, ObjectStore], R], tasks: Iterator[tuple[T, int]], store: ObjectStore
    ) -> Iterator[tuple[int, R]]:
        """The number and the result of each task, in any order, possibly more than once. See ``run``."""

    @abstractmethod
    def group(self, items: int, *, at_once: bool = False) -> int:
        """The number of pieces of work that one task should hold.

        Args:
            items: how many there are.
            at_once: whether a task asks the store for many of its pieces at once, and not for one after the other.
        """

    def parts(self, store: ObjectStore, after: str) -> list[tuple[str, str]]:
        """Divide a store's keys behind ``after`` into parts for a task each to scan: behind which key, up to which."""
        borders = store.borders(after, _PARTS)
        group = self.group(len(borders) + 1)
        return [*pairwise([after, *borders[group - 1 :: group], ""])]

    def for_work(self, seconds: float) -> Engine:  # noqa: ARG002 - for an engine that chooses
        """The engine for work that takes one core so many seconds. ``ChoosingEngine`` may give another engine."""
        return self

    def close(self) -> None:  # noqa: B027 - for engines that hold something
        """Give back what the engine holds between runs."""


@dataclass(frozen=True, slots=True)
class TaskRows:
    """Rows of a task: in one process the table as it is, between processes an Arrow IPC stream."""

    table: pa.Table

    def __reduce__(self) -> tuple[Callable[[bytes], TaskRows], tuple[bytes]]:
        # A slice of a table would take the whole table along.
        return _task_rows, (to_ipc(self.table),)


def _task_rows(data: bytes) -> TaskRows:
    return TaskRows(from_ipc(data))


def to_ipc(table: pa.Table) -> bytes:
    """The rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_ipc(data: bytes) -> pa.Table:
    """The rows of an Arrow IPC stream, without a copy."""
    with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
        return reader.read_all()


_TASKS_PER_THREAD = 3
_MOST_IN_A_TASK = 16


class LocalEngine(Engine):
    """Runs tasks in a pool of threads.

    Args:
        threads: how many; as many as there are cores for this process by default. Each holds a range or two in
            memory, and on a local disk more of them get into each other's way.
    """

    name = "in process"
    in_process = True

    def __init__(self, threads: int | None = None) -> None:
        self.threads: int = threads or cores()

    def perform(
        self, work: Callable[[T, ObjectStore], R], tasks: Iterator[tuple[T, int]], store: ObjectStore
    ) -> Iterator[tuple[int, R]]:
        """The result of each task, in order. See ``Engine.run``."""
        first = list(islice(tasks, 2))
        if len(first) < 2:  # a thread for one task would take as long as half a range
            for task, number in first:
                yield number, work(task, store)
            return
        tasks = chain(first, tasks)
        threads = max(self.threads, IN_FLIGHT) if store.remote else self.threads  # far tasks wait for answers
        yield from in_flight(lambda task: (task[1], work(task[0], store)), tasks, threads + 1, threads)

    def group(self, items: int, *, at_once: bool = False) -> int:
        """Enough tasks to keep every thread busy to the end, and none so large that progress stalls.

        Where a task asks for one piece after the other there are as many tasks as a far store is asked at once.
        Elsewhere a task has two pieces at least, which take less together than each by itself.
        """
        tasks = self.threads * _TASKS_PER_THREAD
        least, tasks = (2, tasks) if at_once else (1, max(tasks, IN_FLIGHT))
        return max(least, min(_MOST_IN_A_TASK, -(-items // tasks)))
