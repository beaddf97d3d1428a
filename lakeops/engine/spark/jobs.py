"""Jobs on Spark: how tasks travel to its workers, what runs there, and what Spark's failures mean in lakeops' errors.

Small tasks travel whole. The Arrow streams of big ones are parked in the store, because Spark keeps what a job carries
in the driver's heap and sends it again with every try of a task. A worker uses a parked stream only if it has the
digest that the driver computed. Only data is parked, so that write access to the bucket cannot make a worker run code.
What a killed driver leaves behind lies under a prefix of its own, for garbage collection.

A job has a partition for each core at most, over ``mapInArrow``, which Spark Connect has too. Several threads may run
jobs at the same time. All that one caller started ends together by its tag. An error of lakeops' own comes back as a
value, so that the driver raises it as it was. What may go away is left to Spark first, which tries the task elsewhere.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic

import pyarrow as pa

from lakeops.engine.base import R, T, TaskRows, from_ipc, to_ipc
from lakeops.model import errors
from lakeops.model.clock import Ids
from lakeops.model.errors import Corrupted, LakeopsError, ObjectNotFound, Transient, unsupported
from lakeops.store.base import ObjectStore
from lakeops.store.layout import CLAIM, TASKS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARK_ABOVE = 256 * 1024
"""Bytes from which on a stream is parked."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A field of a task that lies in the store: its name, its key, the SHA-256 in hex, and whether it holds rows.

    Without a name it is a proof: a file that a worker has to see as the driver does.
    """

    field: str
    key: str
    digest: str
    rows: bool


@dataclass(frozen=True, slots=True)
class PackedTask(Generic[T]):
    """A task as it is sent to a worker, and its number. Its parked fields are empty."""

    task: T
    parked: tuple[Parked, ...] = ()
    number: int = 0


class Parking:
    """Parks the fields of one run's tasks that are larger than ``above`` bytes in the namespace that workers read.

    With ``above`` below 0 each task proves that it sees the namespace, by its claim. A replica may not have one yet.
    """

    def __init__(self, store: ObjectStore, above: int = PARK_ABOVE) -> None:
        self._store = store
        self._above = above
        self._prefix = f"{TASKS}{Ids().new()}/"
        self._keys: list[str] = []
        claims = [*store.list(CLAIM)] if above < 0 else []
        self._proofs = tuple(Parked("", one.key, sha256(store.get(one.key)).hexdigest(), rows=False) for one in claims)

    def pack(self, task: T, number: int = 0) -> PackedTask[T]:
        """The task, ready to travel."""
        plain: Any = task
        parked = list[Parked]()
        for field in fields(plain) if is_dataclass(task) else ():
            value = getattr(plain, field.name)
            rows = isinstance(value, TaskRows)
            data = to_ipc(value.table) if rows else value
            if isinstance(data, bytes) and len(data) > self._above:
                key = f"{self._prefix}{len(self._keys)}.arrow"
                self._keys.append(key)
                self._store.put(key, data)
                parked.append(Parked(field.name, key, sha256(data).hexdigest(), rows))
        task = replace(plain, **{one.field: b"" for one in parked}) if parked else task
        return PackedTask(task, (*self._proofs, *parked), number)

    def close(self) -> None:
        """Remove the parked fields, once no worker needs them. Garbage collection takes what is left."""
        with contextlib.suppress(LakeopsError):
            self._store.delete(self._keys)
        self._keys.clear()


def unpack(packed: PackedTask[T], store: ObjectStore) -> T:
    """The task as it was packed. Raises ``LakeopsError`` (``unsupported``), ``Corrupted``."""
    found: dict[str, bytes | TaskRows] = {}
    for parked in packed.parked:
        try:
            data = store.get(parked.key)
        except ObjectNotFound:
            raise unsupported(
                f"a Spark worker does not find {store.url}/{parked.key}, which the driver sees: workers and driver "
                "need the same storage, a bucket or a directory that all machines mount; or set engine=local"
            ) from None
        if sha256(data).hexdigest() != parked.digest:
            raise Corrupted(f"{store.url}/{parked.key} is not what the driver sees there; nothing of it was used")
        if parked.field:
            found[parked.field] = TaskRows(from_ipc(data)) if parked.rows else data
    plain: Any = packed.task
    task: T = replace(plain, **found) if found else plain
    return task


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """The outcome of the task with a number: a value, or the error that it ended with."""

    values: tuple[R, ...] = ()
    error: Exception | None = None
    number: int = 0

    def value(self) -> R:
        """The value. Raises the error as it was."""
        if self.error is not None:
            raise self.error
        return self.values[0]


@dataclass(frozen=True, slots=True)
class Performer(Generic[T, R]):
    """The function over partitions that a job takes along.

    ``work`` runs one task. ``last_try`` is the number, from 0, of the try after which Spark would give up.
    """

    work: Callable[[T, ObjectStore], R]
    store: ObjectStore
    last_try: int

    def __call__(self, packed_tasks: Iterable[PackedTask[T]]) -> Iterator[Outcome[R]]:
        """The outcome of each task, in order."""
        _freeze()
        for packed in packed_tasks:
            yield self._outcome(packed)

    def _outcome(self, packed: PackedTask[T]) -> Outcome[R]:
        try:
            return Outcome((self.work(unpack(packed, self.store), self.store),), number=packed.number)
        except Exception as error:
            if isinstance(error, Transient) or not isinstance(error, LakeopsError):  # it may go away
                from pyspark import TaskContext

                context = TaskContext.get()
                if (context.attemptNumber() if context else 0) < self.last_try:
                    raise
            return Outcome(error=_portable(error))


def in_arrow(
    perform: Callable[[Iterable[PackedTask[T]]], Iterator[Outcome[R]]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Pickled outcomes for batches of one column of pickled packed tasks, for ``mapInArrow``."""
    # As the driver of this very job wrote them: nothing of them lay in a store.
    packed_tasks = (data for batch in batches for data in map(pickle.loads, batch.column(0).to_pylist()))
    for outcome in perform(packed_tasks):
        yield pa.record_batch({"outcome": pa.array([pickle.dumps(outcome)], pa.binary())})


def warm_up(packed_tasks: Iterable[PackedTask[T]]) -> Iterator[Outcome[R]]:
    """No value for each packed task: a worker that gets here has Python and can import what tasks need."""
    import pyarrow.parquet  # noqa: F401 - the import is the point

    _freeze()
    yield from (Outcome() for _ in packed_tasks)


def _portable(error: Exception) -> Exception:
    """The error itself where it survives the journey, else one that says the same."""
    if not isinstance(error, LakeopsError):
        error.add_note("in a Spark worker:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - whatever an exception of others does when it is copied
        return LakeopsError(f"a Spark worker failed: {type(error).__name__}: {error}")
    return error


@cache
def _freeze() -> None:
    """Take what is imported out of garbage collection, once a process.

    Spark's worker collects garbage after every task. Over pyarrow and pandas that costs more than a small task.
    """
    gc.collect()
    gc.freeze()


Perform = Callable[[Iterable[PackedTask[Any]]], Iterator[Outcome[Any]]]
"""A function over the packed tasks of one partition. It is pickled, so it is defined at a module's top level."""

_MISSING = re.compile(r"No module named '([\w.]+)'")
_VERSIONS = re.compile(r"PYTHON_VERSION_MISMATCH\]\s*(.*)")
_OURS = re.compile(rf"^{re.escape(errors.__name__)}\.(?:\w+\.)?(\w+): (.+)$", re.MULTILINE)
_LOST = (OSError, EOFError)
"""The errors that Py4J lets through when the JVM is gone."""

_current = Lock()


def tries_of(master: str, setting: str | None) -> int:
    """The number of times that Spark tries a task: as set, but in its own threads (``local[N, tries]``) once."""
    threads = re.fullmatch(r"local(?:\[[^,]*(?:,\s*(\d+)\s*)?\])?", master)
    if threads:
        return int(threads[1] or 1)
    return int(setting or 4)


class Jobs:
    """The jobs of a Spark session, whether its JVM belongs to this process or is elsewhere (Spark Connect).

    ``here``: its workers run on this machine, with its disks and this Python. ``own``: it was started here.
    """

    def __init__(self, session: SparkSession, *, here: bool, own: bool = False) -> None:
        self.here = here
        self._own = own
        self._session = session
        self._context = getattr(session, "_sc", None)
        self._cores: int | None = None

    def close(self) -> None:
        """Stop the session, if it was started here."""
        if self._own and self.alive:
            self._session.stop()

    @property
    def alive(self) -> bool:
        """Whether nobody has stopped the session. PySpark is made to forget a JVM that is gone."""
        context: Any = self._context
        if context is None:
            return not self._session.is_stopped
        with contextlib.suppress(LakeopsError), translated():
            return context._jsc is not None and context._jsc.sc() is not None  # noqa: SLF001 - no public way to ask
        if (kind := type(context))._active_spark_context is context:  # noqa: SLF001
            kind._gateway = kind._jvm = kind._active_spark_context = None  # noqa: SLF001
        return False

    @property
    def cores(self) -> int:
        """The number of tasks that run at the same time."""
        if self._context is not None:
            return int(self._context.defaultParallelism)
        if self._cores is None:
            # A server does not say, but it cuts a range of numbers into so many partitions.
            parts = self._session.range(100_000).selectExpr("spark_partition_id()").distinct().count()
            self._cores = max(1, int(parts))
        return self._cores

    @property
    def tries(self) -> int:
        """The number of times that a task is tried before Spark gives up."""
        conf = self._session.conf
        return tries_of(conf.get("spark.master", ""), conf.get("spark.task.maxFailures", ""))

    def run(self, perform: Perform, packed_tasks: Sequence[PackedTask[Any]], tag: str) -> list[Outcome[Any]]:
        """The outcomes of all packed tasks. Up to ``cores`` of them have a partition each, more share partitions."""
        table = pa.table({"packed": pa.array([pickle.dumps(packed) for packed in packed_tasks], pa.binary())})
        with self._current():
            frame = self._session.createDataFrame(table).mapInArrow(partial(in_arrow, perform), "outcome binary")
        # A session's own tags end nothing that another thread began, where the JVM belongs to this process.
        add, remove = (
            (self._session.addTag, self._session.removeTag)
            if self._context is None
            else (self._context.addJobTag, self._context.removeJobTag)
        )
        add(tag)
        try:
            found = frame.toArrow()
        finally:
            remove(tag)
        return [pickle.loads(data) for data in found.column(0).to_pylist()]  # noqa: S301 - as Spark's RDDs do

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Make this session PySpark's current one inside the block, and restore the earlier one afterwards."""
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
    """The error for a message of Spark."""
    missing = _MISSING.search(text)
    if missing:
        return unsupported(
            f"a Spark worker cannot import {missing[1]!r}: install lakeops and what it needs for the Python that runs "
            "on the executors, or set engine=local"
        )
    ours = _OURS.search(text)
    if ours:
        kind = getattr(errors, ours[1], None)
        if isinstance(kind, type) and issubclass(kind, LakeopsError) and kind.__init__ is LakeopsError.__init__:
            return kind(ours[2])
    versions = _VERSIONS.search(text)
    if versions:
        return unsupported(f"Spark: {versions[1].strip()} (set PYSPARK_PYTHON, or engine=local)")
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
