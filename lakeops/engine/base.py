"""Engines: run one function over many plain tasks, in threads or on Spark.

The function is defined at a module's top level and takes a task and the store of the namespace. Tasks and results are
frozen plain data. Whatever runs them may run a task twice or let two copies race: results carry the task's index, and
callers take the first of each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar

import pyarrow as pa

from lakeops.machine import cores
from lakeops.store.base import ObjectStore
from lakeops.store.in_flight import IN_FLIGHT


class Numbered(Protocol):
    """A result with the number of its task."""

    @property
    def index(self) -> int:
        """The number of the task."""
        ...


T = TypeVar("T")
R = TypeVar("R")
N = TypeVar("N", bound=Numbered)


class Engine(ABC):
    """A place where work runs.

    Attributes:
        name: the place in words, for instance ``in process``.
        in_process: whether work runs in this process and sees the directories of this machine.
    """

    name: str
    in_process: bool

    @abstractmethod
    def run(self, work: Callable[[T, ObjectStore], R], tasks: Iterable[T], store: ObjectStore) -> Iterator[R]:
        """The result of each task, in any order, possibly more than once. The first error ends the run and is raised.

        Tasks are taken from the iterable as there is room, so a long stream of them is never held at once.
        """

    @abstractmethod
    def group(self, items: int, *, at_once: bool = False) -> int:
        """The number of pieces of work that one task should hold.

        Args:
            items: how many there are.
            at_once: whether a task asks the store for many of its pieces at once, and not for one after the other.
        """

    def for_work(self, seconds: float) -> Engine:  # noqa: ARG002 - for an engine that chooses
        """The engine for work that one core would take so long for: this one, unless it is one that chooses."""
        return self

    def close(self) -> None:  # noqa: B027 - for engines that hold something
        """Give back what the engine holds between runs."""


def first_of_each(results: Iterable[N]) -> Iterator[N]:
    """The first result of each task."""
    seen: set[int] = set()
    for result in results:
        if result.index not in seen:
            seen.add(result.index)
            yield result


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

    def run(self, work: Callable[[T, ObjectStore], R], tasks: Iterable[T], store: ObjectStore) -> Iterator[R]:
        """The result of each task, as they finish. See ``Engine.run``."""
        source = iter(tasks)
        threads = max(self.threads, IN_FLIGHT) if store.remote else self.threads  # far tasks wait for answers
        with ThreadPoolExecutor(threads, thread_name_prefix="engine") as pool:
            running: set[Future[R]] = set()
            try:
                while True:
                    for task in islice(source, threads + 1 - len(running)):
                        running.add(pool.submit(work, task, store))
                    if not running:
                        return
                    finished, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in finished:
                        yield future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def group(self, items: int, *, at_once: bool = False) -> int:
        """Enough tasks to keep every thread busy to the end, and none so large that progress stalls.

        Where a task asks for one piece after the other there are as many tasks as a far store is asked at once.
        """
        tasks = self.threads * _TASKS_PER_THREAD
        return max(1, min(_MOST_IN_A_TASK, -(-items // (tasks if at_once else max(tasks, IN_FLIGHT)))))
