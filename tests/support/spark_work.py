"""Work for Spark's workers: it is found by name there, so it lives in a module of its own."""

import os
import resource
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lakeops.model.errors import Corrupted, LakeopsError, StoreUnavailable
from lakeops.ops.gc.unreferenced import Piece, read_references
from lakeops.ranges.rewrite import Task, TaskResult, run_task

LONGEST = 60.0
"""Seconds that anything here waits for a condition."""


@dataclass(frozen=True)
class Number:
    """A task; ``data`` is what may be parked."""

    value: int
    data: bytes = b""


class Unpicklable(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def double(task: Number, store) -> int:
    return 2 * task.value


def length(task: Number, store) -> tuple[int, int]:
    return task.value, len(task.data)


def length_beside(task: Number, store) -> tuple[int, int]:
    return len(task.data), len(store.get("early"))


def partition(task: Number, store) -> int:
    from pyspark import TaskContext

    return TaskContext.get().partitionId()


def process(task: Number, store) -> int:
    return os.getpid()


def corrupted_at_three(task: Number, store) -> int:
    if task.value == 3:
        raise Corrupted("ranges/x.parquet does not match its digest")
    return task.value


def key_error(task: Number, store) -> int:
    return {}[task.value]


def unpicklable(task: Number, store) -> int:
    raise Unpicklable("left", "right")


def crash(task: Number, store) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def unavailable(task: Number, store) -> int:
    """Fails at every try; each leaves an object behind."""
    store.put(f"tries/{time.time_ns()}", b"")
    raise StoreUnavailable("the store answers 503")


def unavailable_at_first(task: Number, store) -> int:
    """Fails at the first try of each task."""
    mark = f"tries/{task.value}"
    if not list(store.list(mark)):
        store.put(mark, b"")
        raise StoreUnavailable("the store answers 503")
    return task.value


def wait_for(path: Path) -> None:
    """Return when a file is there."""
    end = time.monotonic() + LONGEST
    while not path.exists():
        if time.monotonic() > end:
            raise LakeopsError(f"{path} did not appear")
        time.sleep(0.02)


def held_rewrite(task: Task, store) -> TaskResult:
    """``run_task``; says that it began, ends its first half, and goes on when it is released."""
    folder = Path(store.root)
    (folder / f"began-{task.segments[0].start}-{os.getpid()}").touch()
    run_task(task, store)
    wait_for(folder / "released")
    return run_task(task, store)


def out_of_memory_at_first(task: Task, store) -> TaskResult:
    """``run_task``; the first try of each task asks for more memory than its process may have."""
    from pyspark import TaskContext

    if TaskContext.get().attemptNumber() == 0:
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 32, limits[1]))
        try:
            bytearray(1 << 33)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
    return run_task(task, store)


def killed_at_first(task: Task, store) -> TaskResult:
    """``run_task``; the first try of the first task ends as the kernel ends a process when memory is short."""
    from pyspark import TaskContext

    context, mark = TaskContext.get(), Path(store.root) / "killed"
    if context.partitionId() == 0 and context.attemptNumber() == 0 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return run_task(task, store)


def is_first(task: str, store) -> bool:
    """Whether this is the task that began before all others."""
    claim = Path(store.root) / "first-task"
    with suppress(FileExistsError), claim.open("x") as file:
        file.write(task)
    return claim.read_text() == task


def slow_first_try(task: Task, store) -> TaskResult:
    """``run_task``; the first task's first try waits until another try of it is done."""
    from pyspark import TaskContext

    done = Path(store.root) / "twin-done"
    if not is_first(str(task.segments[0].start), store):
        return run_task(task, store)
    if TaskContext.get().attemptNumber() == 0:
        wait_for(done)
        return run_task(task, store)
    result = run_task(task, store)
    done.touch()
    return result


def slow_first_reading(task, store, **how) -> list[Piece]:
    """``read_references``; the first task's first try waits until another try of it is done."""
    from pyspark import TaskContext

    found = read_references(task, store, **how)
    if is_first(task[0].file, store):
        done = Path(store.root) / "twin-done"
        wait_for(done) if TaskContext.get().attemptNumber() == 0 else done.touch()
    return found


def reading_again(task, store, **how) -> list[Piece]:
    """``read_references``; each task's first try fails when its work is done."""
    found = read_references(task, store, **how)
    unavailable_at_first(Number(task[0].file), store)
    return found


def reading_for_ever(task, store, **how) -> list[Piece]:
    """``read_references``, which waits for what does not come."""
    wait_for(Path(store.root) / "never")
    return read_references(task, store, **how)


def failing_rows(batches):
    """The rows of Spark's partitions; the partition with the number 3 fails."""
    for batch in batches:
        if 3 in batch.column(0).to_pylist():
            raise ValueError("no such row")
        yield batch


def slow_first_rows(batches, *, folder):
    """The rows; the first try of the first partition waits until another try of it is done."""
    from pyspark import TaskContext

    context = TaskContext.get()
    yield from batches
    if context.partitionId() == 0:
        done = Path(folder) / "twin-done"
        if context.attemptNumber() > 0:
            done.touch()
            return
        try:
            wait_for(done)
        except LakeopsError:
            (Path(folder) / "no-twin").touch()  # the next try is none: it comes after this one
            raise
