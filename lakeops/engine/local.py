"""The default engine: threads of this process. Arrow, zstd and the store let go of the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from itertools import islice

from lakeops.engine.base import R, T
from lakeops.machine import cores
from lakeops.store.base import ObjectStore
from lakeops.store.in_flight import IN_FLIGHT
from lakeops.store.nearby import giving_way
from lakeops.store.slots import Crew, Slots

_TASKS_PER_THREAD = 3
_MOST_IN_A_TASK = 16


class LocalEngine:
    """Runs tasks in a pool of threads.

    Args:
        threads: how many; as many as there are cores for this process by default. Each holds a range or two in
            memory, and on a local disk more of them get into each other's way.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads: int = threads or cores()

    @property
    def name(self) -> str:
        """Where a plan says that it runs."""
        return "in process"

    @property
    def in_process(self) -> bool:
        """Yes."""
        return True

    def run(self, work: Callable[[T, ObjectStore], R], tasks: Iterable[T], store: ObjectStore) -> Iterator[R]:
        """The result of each task, as they finish. See ``Engine.run``."""
        source = iter(tasks)
        threads = self.threads
        pool: Executor = ThreadPoolExecutor(threads, thread_name_prefix="engine")
        if store.remote:
            # Most tasks wait for an answer. As many as before are worked at, so memory stays as it was.
            slots = Slots(threads)
            threads, store = max(threads, IN_FLIGHT), giving_way(store, slots)
            pool = Crew(slots, threads, "engine")
        with pool:
            running: set[Future[R]] = set()
            try:
                while True:
                    room = threads + 1 - len(running)
                    running |= {pool.submit(work, task, store) for task in islice(source, room)}
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

    def for_work(self, ranges: int) -> LocalEngine:  # noqa: ARG002 - the protocol's
        """The engine itself."""
        return self

    def close(self) -> None:
        """Nothing is held between runs."""
