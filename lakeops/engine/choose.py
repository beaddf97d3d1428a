"""Which engine: in process, or on Spark when there is one and the work is worth the way.

The estimate follows measurements: what rewriting a range costs on one core, what a task and a job cost on Spark, what
it takes to start. Spark has to promise half the time, for what is estimated is not certain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from lakeops.engine.base import RANGE_SECONDS, Engine, LocalEngine, R, T
from lakeops.engine.spark.engine import SparkEngine, tasks_for
from lakeops.engine.spark.session import is_local
from lakeops.machine import cores as usable_cores
from lakeops.settings import Settings
from lakeops.store.base import ObjectStore

TASK_SECONDS = 0.05
JOB_SECONDS = 0.4
START_SECONDS = 7.0

ASSUMED_CORES = 32
"""What a cluster is thought to have before it was asked."""

_ADVANTAGE = 2.0


def open_engine(settings: Settings) -> Engine:
    """The engine that the settings ask for. Touches nothing yet."""
    local = LocalEngine()
    if settings.engine == "local":
        return local
    spark = SparkEngine(settings.spark_master)
    return spark if settings.engine == "spark" else ChoosingEngine(local, spark)


def spark_seconds(ranges: int, cores: int, *, started: bool) -> float:
    """How long Spark is estimated to take for rewriting so many ranges."""
    start = 0.0 if started else START_SECONDS
    busy = min(cores, max(1, ranges))
    return start + JOB_SECONDS + (ranges * RANGE_SECONDS + tasks_for(ranges, cores) * TASK_SECONDS) / busy


def local_seconds(ranges: int, cores: int) -> float:
    """How long this process is estimated to take."""
    return ranges * RANGE_SECONDS / min(cores, max(1, ranges))


class ChoosingEngine:
    """In process or on Spark, by the work at hand.

    Args:
        local: for work that is not worth the way.
        spark: for the rest, if it has a master or a session is active in this process.
        cores: how many this process may use.
    """

    def __init__(self, local: LocalEngine, spark: SparkEngine, *, cores: int | None = None) -> None:
        self._local = local
        self._spark = spark
        self._cores = cores or usable_cores()

    @property
    def name(self) -> str:
        """Where work runs before it is known how much there is."""
        return "in process or on spark"

    @property
    def in_process(self) -> bool:
        """Yes, for work of an unknown size."""
        return True

    def for_work(self, ranges: int) -> Engine:
        """The engine for so many ranges to rewrite."""
        here = local_seconds(ranges, self._cores)
        ready = self._spark.ready
        # The least that Spark could take decides most calls without asking a cluster anything.
        if (self._spark.master is None and not ready) or here <= _ADVANTAGE * JOB_SECONDS:
            return self._local
        there = spark_seconds(ranges, self._spark_cores(ready=ready), started=ready)
        return self._spark if here > _ADVANTAGE * there else self._local

    def run(self, work: Callable[[T, ObjectStore], R], tasks: Iterable[T], store: ObjectStore) -> Iterator[R]:
        """Work of an unknown size, in process."""
        return self._local.run(work, tasks, store)

    def group(self, items: int, *, at_once: bool = False) -> int:
        """For work of an unknown size, in process."""
        return self._local.group(items, at_once=at_once)

    def close(self) -> None:
        """Give back what either engine holds."""
        self._local.close()
        self._spark.close()

    def _spark_cores(self, *, ready: bool) -> int:
        if ready:
            return self._spark.cores
        master = self._spark.master or ""
        if not is_local(master):
            return ASSUMED_CORES
        threads = re.match(r"local\[(\d+)", master)
        return int(threads[1]) if threads else self._cores if "*" in master else 1
