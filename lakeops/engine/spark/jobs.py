"""Running a function over parcels as Spark jobs: through RDDs, or through Arrow where there are none (Connect).

A job is one partition a parcel, and it is waited for. Several threads may run jobs at the same time; all that one
caller started end together by their tag.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lakeops.engine.spark.parcel import Parcel
from lakeops.engine.spark.worker import Outcome, in_arrow

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Perform = Callable[[Iterable[Parcel[Any]]], Iterator[Outcome[Any]]]
"""What runs over the parcels of one partition; it is pickled, so it is defined at a module's top level."""

_TRIES = "spark.task.maxFailures"


def tries_of(master: str, setting: str | None) -> int:
    """How often Spark tries a task: what is set, but in this JVM's own threads (``local[N, tries]``) once."""
    threads = re.fullmatch(r"local(?:\[[^,]*(?:,\s*(\d+)\s*)?\])?", master)
    if threads:
        return int(threads[1] or 1)
    return int(setting or 4)


class Jobs(Protocol):
    """A Spark that runs jobs."""

    @property
    def alive(self) -> bool:
        """Whether nobody has stopped it."""
        ...

    @property
    def cores(self) -> int:
        """How many tasks run at the same time."""
        ...

    @property
    def tries(self) -> int:
        """How often a task is tried before Spark gives up."""
        ...

    def run(self, perform: Perform, parcels: Sequence[Parcel[Any]], tag: str) -> list[Outcome[Any]]:
        """The outcomes of all parcels; at most ``cores`` of them, so that each is a partition of its own."""
        ...

    def cancel(self, tag: str) -> None:
        """End the jobs that run under this tag."""
        ...

    def ship(self, package: Path) -> None:
        """Have a zip file of Python code on the workers' path."""
        ...


class RddJobs:
    """Jobs of a Spark context: the cheaper way, by a factor of two in what a task costs."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    @property
    def alive(self) -> bool:
        """Whether nobody has stopped it."""
        return self._context._jsc is not None  # noqa: SLF001 - there is no public way to ask

    @property
    def cores(self) -> int:
        """How many tasks run at the same time."""
        return int(self._context.defaultParallelism)

    @property
    def tries(self) -> int:
        """How often a task is tried before Spark gives up."""
        return tries_of(str(self._context.master), self._context.getConf().get(_TRIES))

    def run(self, perform: Perform, parcels: Sequence[Parcel[Any]], tag: str) -> list[Outcome[Any]]:
        """The outcomes of all parcels."""
        self._context.addJobTag(tag)
        try:
            found: list[Outcome[Any]] = (
                self._context.parallelize(parcels, len(parcels)).mapPartitions(perform).collect()
            )
        finally:
            self._context.removeJobTag(tag)
        return found

    def cancel(self, tag: str) -> None:
        """End the jobs that run under this tag."""
        self._context.cancelJobsWithTag(tag)

    def ship(self, package: Path) -> None:
        """Have a zip file of Python code on the workers' path."""
        self._context.addPyFile(str(package))


class ArrowJobs:
    """Jobs of a session that has no RDDs, over ``mapInArrow``."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._cores: int | None = None

    @property
    def alive(self) -> bool:
        """Whether nobody has stopped it."""
        return not self._session.is_stopped

    @property
    def cores(self) -> int:
        """How many tasks run at the same time: what the server cuts a range of numbers into by default."""
        if self._cores is None:
            parts = self._session.range(100_000).selectExpr("spark_partition_id()").distinct().count()
            self._cores = max(1, int(parts))
        return self._cores

    @property
    def tries(self) -> int:
        """How often a task is tried before Spark gives up."""
        return tries_of(self._session.conf.get("spark.master", ""), self._session.conf.get(_TRIES, ""))

    def run(self, perform: Perform, parcels: Sequence[Parcel[Any]], tag: str) -> list[Outcome[Any]]:
        """The outcomes of all parcels."""
        import pyarrow as pa

        table = pa.table({"parcel": pa.array([pickle.dumps(parcel) for parcel in parcels], pa.binary())})
        self._session.addTag(tag)
        try:
            found = (
                self._session.createDataFrame(table).mapInArrow(partial(in_arrow, perform), "outcome binary").toArrow()
            )
        finally:
            self._session.removeTag(tag)
        return [pickle.loads(data) for data in found.column(0).to_pylist()]  # noqa: S301 - as Spark's RDDs do

    def cancel(self, tag: str) -> None:
        """End the jobs that run under this tag."""
        self._session.interruptTag(tag)

    def ship(self, package: Path) -> None:
        """Have a zip file of Python code on the workers' path."""
        self._session.addArtifacts(str(package), pyfile=True)
