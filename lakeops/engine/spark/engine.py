"""The Spark engine, as the driver sees it.

Work is handed over as jobs of three tasks a core, two jobs at a time: while the last tasks of one finish, the next
one's fill the cores that are free. So results come back in steps, memory holds two jobs' tasks and no more, and the
first error ends the run early.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from itertools import chain, islice
from threading import Lock
from typing import Any

from lakeops.engine.base import Engine, R, T
from lakeops.engine.spark.jobs import PARK_ABOVE, Jobs, Outcome, PackedTask, Parking, Performer, translated, warm_up
from lakeops.engine.spark.session import active, connect, is_local
from lakeops.model.clock import Ids
from lakeops.model.errors import LakeopsError, Transient
from lakeops.store.base import ObjectStore
from lakeops.store.disk_cache import unwrapped

_TASK_SECONDS = 0.05
_JOB_SECONDS = 0.4
_START_SECONDS = 7.0
_LARGEST_TASK_SECONDS = 1.5
"""As measured: what a task, a job and a start take, and what the largest task has to do."""

_JOBS_AT_ONCE = 2
_TASKS_PER_CORE = 3
_MOST_IN_A_TASK = 256
"""So few pieces that a lost worker loses little."""

_AGAIN = 1.0
"""Seconds after which jobs that should have ended are told so again."""

PATIENCE = 180.0
"""Seconds that a cluster may take to give the first worker."""


def tasks_for(items: int, cores: int) -> int:
    """The number of tasks for so many pieces of work: a few a core, each of many consecutive pieces."""
    return min(items, max(_TASKS_PER_CORE * cores, -(-items // _MOST_IN_A_TASK)))


class SparkEngine(Engine):
    """Runs tasks on Spark. Connects when it is first given work.

    Args:
        master: where to, when no session is active in this process: ``spark://host:port``, ``local[*]`` (also when
            None), ``yarn``, ``k8s://...``, or ``sc://host:port`` for Spark Connect.
        conf: Spark settings for a session of our own.
    """

    name = "on spark"
    in_process = False

    def __init__(self, master: str | None = None, *, conf: Mapping[str, str] | None = None) -> None:
        self.master = master
        self._conf = dict(conf or {})
        self._jobs: Jobs | None = None
        self._lock = Lock()

    @property
    def ready(self) -> bool:
        """Whether work can be handed over without starting anything."""
        return self._jobs is not None or active() is not None

    @property
    def cores(self) -> int:
        """The number of tasks that run at the same time. Connects."""
        jobs = self._connected()
        with translated():
            return jobs.cores

    def ask(self) -> None:
        """Have a cluster say how many cores it has: start the session, and wait for its first worker."""
        if not is_local(self.master or ""):
            self._connected()

    def estimate(self, seconds: float, cores_here: int) -> float:
        """Estimate the seconds on Spark of work that takes one core ``seconds``. Connects only to what is ready.

        A cluster that has not started yet gets the estimate of the largest one. ``local[*]`` has ``cores_here``.
        """
        start, master = (0.0 if self.ready else _START_SECONDS) + _JOB_SECONDS, self.master or ""
        if self.ready:
            cores = self.cores
        elif is_local(master):
            threads = re.match(r"local\[(\d+)", master)
            cores = int(threads[1]) if threads else cores_here if "*" in master else 1
        else:
            return start + _TASKS_PER_CORE * _TASK_SECONDS
        tasks = max(_TASKS_PER_CORE * cores, seconds / _LARGEST_TASK_SECONDS)
        return start + (seconds + tasks * _TASK_SECONDS) / cores

    def perform(
        self, work: Callable[[T, ObjectStore], R], tasks: Iterator[tuple[T, int]], store: ObjectStore
    ) -> Iterator[tuple[int, R]]:
        """The result of each task, as jobs finish. See ``Engine.run``.

        Raises ``LakeopsError`` (``unsupported``) where workers lack a package, or do not see the store; ``Transient``
        (``engine_unavailable``) when Spark gave up; and the error of the first task that failed, as it was.
        """
        first = list(islice(tasks, 1))
        if not first:
            return
        jobs, store = self._connected(), unwrapped(store)
        with translated():
            performer = Performer(work, store, last_try=jobs.tries - 1)
            size = _TASKS_PER_CORE * jobs.cores
        # A directory that only this machine has would swallow what workers elsewhere write: let them prove they see it.
        everything = not jobs.here and store.url.startswith("file:")
        parking = Parking(store, -1 if everything else PARK_ABOVE)
        packed_tasks = (parking.pack(task, number) for task, number in chain(first, tasks))
        with closing(parking), closing(_run(jobs, performer, packed_tasks, size)) as outcomes:
            for outcome in outcomes:
                yield outcome.number, outcome.value()

    def group(self, items: int, *, at_once: bool = False) -> int:  # noqa: ARG002 - as for every engine
        """A few tasks a core. Connects when there is more than one piece of work to divide."""
        if items <= 1:
            return 1
        return -(-items // tasks_for(items, self.cores))

    def close(self) -> None:
        """Stop Spark, if it was started here."""
        with self._lock:
            if self._jobs is not None:
                self._jobs.close()
                self._jobs = None

    def _connected(self) -> Jobs:
        with self._lock:
            if self._jobs is None or not self._jobs.alive:
                self._jobs = None
                jobs = connect(self.master, self._conf)
                try:
                    _await_worker(jobs)
                except BaseException:
                    jobs.close()
                    raise
                self._jobs = jobs
            return self._jobs


def _run(
    jobs: Jobs, performer: Performer[T, R], packed_tasks: Iterator[PackedTask[T]], size: int
) -> Generator[Outcome[R]]:
    tag = f"lakeops-{Ids().new()}"
    with ThreadPoolExecutor(_JOBS_AT_ONCE, thread_name_prefix="spark-job") as pool:
        running: set[Future[list[Outcome[R]]]] = set()
        try:
            while True:
                while len(running) < _JOBS_AT_ONCE and (batch := list(islice(packed_tasks, size))):
                    running.add(pool.submit(jobs.run, performer, batch, tag))
                if not running:
                    return
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    with translated():
                        outcomes = future.result()
                    yield from outcomes
        finally:
            _cancel(jobs, tag, running)


def _cancel(jobs: Jobs, tag: str, running: Iterable[Future[Any]]) -> None:
    """End the jobs under a tag. One may be on its way to Spark meanwhile, so this is said until all have ended."""
    left = {future for future in running if not future.cancel()}
    while left:
        with suppress(LakeopsError), translated():
            jobs.cancel(tag)
        left = wait(left, _AGAIN).not_done


def _await_worker(jobs: Jobs) -> None:
    """Wait until a first worker has run something: before, a cluster does not say how many cores it has."""
    tag = f"lakeops-{Ids().new()}"
    with ThreadPoolExecutor(1) as pool, translated():
        first = pool.submit(jobs.run, warm_up, [PackedTask(None)], tag)
        if not wait([first], PATIENCE).done:
            _cancel(jobs, tag, {first})
            raise Transient(
                f"Spark gave no worker within {PATIENCE:.0f} s: see whether the cluster has free cores, or set "
                "engine=local",
                kind="engine_unavailable",
            )
        first.result()
