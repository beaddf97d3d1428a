"""Running functions on Spark: jobs over packed tasks, and what Spark's failures mean in lakeops' own errors.

A job has a partition for each packed task, over ``mapInArrow``, which Spark Connect has too. It is waited for. Several
threads may run jobs at the same time. All that one caller started ends together by its tag.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakeops.engine.spark.worker import Outcome, PackedTask, in_arrow
from lakeops.model import errors
from lakeops.model.errors import LakeopsError, Transient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Perform = Callable[[Iterable[PackedTask[Any]]], Iterator[Outcome[Any]]]
"""What runs over the packed tasks of one partition. It is pickled, so it is defined at a module's top level."""

InArrow = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What runs over batches of pickled packed tasks. It is pickled too."""

_TRIES = "spark.task.maxFailures"
_MISSING = re.compile(r"No module named '([\w.]+)'")
_VERSIONS = re.compile(r"PYTHON_VERSION_MISMATCH\]\s*(.*)")
_OURS = re.compile(rf"^{re.escape(errors.__name__)}\.(?:\w+\.)?(\w+): (.+)$", re.MULTILINE)
_LOST = (OSError, EOFError)
"""What Py4J lets through when the JVM is gone."""

_current = Lock()


def tries_of(master: str, setting: str | None) -> int:
    """How often Spark tries a task: what is set, but in this JVM's own threads (``local[N, tries]``) once."""
    threads = re.fullmatch(r"local(?:\[[^,]*(?:,\s*(\d+)\s*)?\])?", master)
    if threads:
        return int(threads[1] or 1)
    return int(setting or 4)


class Jobs:
    """The jobs of a Spark session, whether its JVM belongs to this process or is elsewhere (Spark Connect)."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._context = getattr(session, "_sc", None)
        self._cores: int | None = None

    @property
    def alive(self) -> bool:
        """Whether nobody has stopped the session."""
        if self._context is not None:
            return self._context._jsc is not None  # noqa: SLF001 - there is no public way to ask
        return not self._session.is_stopped

    @property
    def cores(self) -> int:
        """How many tasks run at the same time."""
        if self._context is not None:
            return int(self._context.defaultParallelism)
        if self._cores is None:
            # A server does not say, but it cuts a range of numbers into so many partitions.
            parts = self._session.range(100_000).selectExpr("spark_partition_id()").distinct().count()
            self._cores = max(1, int(parts))
        return self._cores

    @property
    def tries(self) -> int:
        """How often a task is tried before Spark gives up."""
        return tries_of(self._session.conf.get("spark.master", ""), self._session.conf.get(_TRIES, ""))

    def run(self, perform: Perform, packed_tasks: Sequence[PackedTask[Any]], tag: str) -> list[Outcome[Any]]:
        """The outcomes of all packed tasks. At most ``cores`` of them, so that each is a partition of its own."""
        found = self.collect(self.over(partial(in_arrow, perform), packed_tasks, "outcome binary"), tag)
        return [pickle.loads(data) for data in found.column(0).to_pylist()]  # noqa: S301 - as Spark's RDDs do

    def over(self, work: InArrow, packed_tasks: Sequence[PackedTask[Any]], schema: str) -> DataFrame:
        """What ``work`` makes of packed tasks, on the workers."""
        table = pa.table({"packed": pa.array([pickle.dumps(packed) for packed in packed_tasks], pa.binary())})
        with self._current():
            return self._session.createDataFrame(table).mapInArrow(work, schema)

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Inside the block PySpark takes this session for the process's one, and whatever was before it afterwards.

        PySpark would make it so for good, and somebody else may have a session, or none on purpose.
        """
        if self._context is None:
            yield
            return
        kind: Any = type(self._session)
        with _current:
            before = kind._instantiatedSession, kind._activeSession  # noqa: SLF001
            kind._instantiatedSession = kind._activeSession = self._session  # noqa: SLF001
            try:
                yield
            finally:
                kind._instantiatedSession, kind._activeSession = before  # noqa: SLF001

    def collect(self, frame: DataFrame, tag: str) -> pa.Table:
        """The rows of a frame, once they are all there."""
        # A session's own tags end nothing that another thread began, where the JVM belongs to this process.
        add, remove = (
            (self._session.addTag, self._session.removeTag)
            if self._context is None
            else (self._context.addJobTag, self._context.removeJobTag)
        )
        add(tag)
        try:
            return frame.toArrow()
        finally:
            remove(tag)

    def cancel(self, tag: str) -> None:
        """End the jobs that run under this tag."""
        if self._context is None:
            self._session.interruptTag(tag)
        else:
            self._context.cancelJobsWithTag(tag)

    def ship(self, package: Path) -> None:
        """Have a zip file of Python code on the workers' path."""
        self._session.addArtifacts(str(package), pyfile=True)


@contextmanager
def translated() -> Iterator[None]:
    """Errors of Spark, of its bridge and of its JVM inside this block come out as ``LakeopsError``."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except LakeopsError:
        raise
    except (Py4JError, PySparkException, *_LOST) as error:
        raise explained(_text(error)) from error


def explained(text: str) -> LakeopsError:
    """The error for what Spark said."""
    missing = _MISSING.search(text)
    if missing:
        return LakeopsError(
            f"a Spark worker cannot import {missing[1]!r}: install lakeops and what it needs for the Python that runs "
            "on the executors, or set engine=local",
            kind="unsupported",
        )
    ours = _OURS.search(text)
    if ours:
        kind = getattr(errors, ours[1], None)
        if isinstance(kind, type) and issubclass(kind, LakeopsError) and kind.__init__ is LakeopsError.__init__:
            return kind(ours[2])
    versions = _VERSIONS.search(text)
    if versions:
        return LakeopsError(f"Spark: {versions[1].strip()} (set PYSPARK_PYTHON, or engine=local)", kind="unsupported")
    if "stopped SparkContext" in text:
        return Transient(
            "Spark stopped: its master did not take this application, or somebody ended the session; see that the "
            "master is a Spark master of the same version, try again, or set engine=local",
            kind="engine_unavailable",
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    first = lines[-1] if "Traceback" in text and not text.startswith("Job aborted") else lines[0]
    return Transient(
        f"Spark gave up: {first[:500]}; nothing was published, try again or set engine=local", kind="engine_unavailable"
    )


def _text(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    try:
        return str(java.getMessage()) if java is not None else str(error)
    except Exception:  # noqa: BLE001 - asking a JVM that is gone
        return f"{type(error).__name__}, and the JVM does not answer"
