"""How tasks travel to Spark's workers, and what runs there.

Small tasks travel whole. The Arrow streams of big ones are parked in the store, because Spark keeps what a job carries
in the driver's heap and sends it again with every try of a task. A worker uses a parked stream only if it has the
digest that the driver computed. Only data is parked, so that write access to the bucket cannot make a worker run code.
What a killed driver leaves behind lies under a prefix of its own, for garbage collection.

An error of lakeops' own comes back as a value, so that the driver raises it as it was. What may go away is left to
Spark first, which tries the task again elsewhere.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic

from lakeops.engine.base import R, T, TaskRows
from lakeops.model.clock import Ids
from lakeops.model.errors import Corrupted, LakeopsError, ObjectNotFound, Transient
from lakeops.store.base import ObjectStore
from lakeops.store.layout import TASKS

if TYPE_CHECKING:
    import pyarrow as pa


PARK_ABOVE = 256 * 1024
"""Bytes from which on a stream is parked."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A field of a task that lies in the store: which, where, the SHA-256 of its bytes in hex, whether it is rows."""

    field: str
    key: str
    digest: str
    rows: bool


@dataclass(frozen=True, slots=True)
class PackedTask(Generic[T]):
    """A task as it is sent to a worker. Its parked fields are empty."""

    task: T
    parked: tuple[Parked, ...] = ()


class Parking:
    """Parks the big fields of one run's tasks.

    Args:
        store: the namespace that workers read from.
        above: size in bytes from which on a field is parked. 0 parks every one.
    """

    def __init__(self, store: ObjectStore, above: int = PARK_ABOVE) -> None:
        self._store = store
        self._above = above
        self._prefix = f"{TASKS}{Ids().new()}/"
        self._keys: list[str] = []

    def pack(self, task: T) -> PackedTask[T]:
        """The task, ready to travel."""
        if not hasattr(task, "__dataclass_fields__"):
            return PackedTask(task)
        plain: Any = task
        values = {field.name: getattr(plain, field.name) for field in fields(plain)}
        parked = tuple(self._parked(values))
        return PackedTask(replace(plain, **{one.field: b"" for one in parked}), parked)

    def clear(self) -> None:
        """Remove what was parked, once no worker needs it. What cannot be removed is left to garbage collection."""
        with contextlib.suppress(LakeopsError):
            self._store.delete(self._keys)
        self._keys.clear()

    def _parked(self, values: dict[str, Any]) -> Iterator[Parked]:
        """What became of the big ones among a task's fields."""
        for name, value in values.items():
            rows = isinstance(value, TaskRows)
            data = value.to_bytes() if rows else value
            if isinstance(data, bytes) and len(data) > self._above:
                key = f"{self._prefix}{len(self._keys)}.arrow"
                self._keys.append(key)
                self._store.put(key, data)
                yield Parked(name, key, sha256(data).hexdigest(), rows)


def unpack(packed: PackedTask[T], store: ObjectStore) -> T:
    """The task as it was packed.

    Raises:
        LakeopsError: ``unsupported``: this machine does not see the store that the driver wrote to.
        Corrupted: what lies there is not what the driver wrote.
    """
    found = {parked.field: _fetch(parked, store) for parked in packed.parked}
    plain: Any = packed.task
    task: T = replace(plain, **found) if found else plain
    return task


def _fetch(parked: Parked, store: ObjectStore) -> bytes | TaskRows:
    try:
        data = store.get(parked.key)
    except ObjectNotFound:
        raise LakeopsError(
            f"a Spark worker does not find what the driver wrote to {store.url}/{parked.key}: workers and driver need "
            "the same storage, a bucket or a directory that all machines mount; or set engine=local",
            kind="unsupported",
        ) from None
    if sha256(data).hexdigest() != parked.digest:
        raise Corrupted(f"{store.url}/{parked.key} is not what the driver wrote there; nothing of it was used")
    return TaskRows.from_bytes(data) if parked.rows else data


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """What became of a task: a value, or the error that it ended with."""

    values: tuple[R, ...] = ()
    error: Exception | None = None

    def value(self) -> R:
        """The value. Raises the error as it was."""
        if self.error is not None:
            raise self.error
        return self.values[0]


@dataclass(frozen=True, slots=True)
class Performer(Generic[T, R]):
    """The function over partitions that a job takes along.

    Attributes:
        work: runs one task.
        store: the namespace. It pickles.
        last_try: the number, from 0, of the try after which Spark would give up.
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
            return Outcome((self.work(unpack(packed, self.store), self.store),))
        except Exception as error:
            if _may_go_away(error) and _this_try() < self.last_try:
                raise
            return Outcome(error=_portable(error))


def in_arrow(
    perform: Callable[[Iterable[PackedTask[T]]], Iterator[Outcome[R]]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Pickled outcomes for batches of one column of pickled packed tasks, for ``mapInArrow``."""
    import pyarrow as pa

    for outcome in perform(packed_tasks_of(batches)):
        yield pa.record_batch({"outcome": pa.array([pickle.dumps(outcome)], pa.binary())})


def packed_tasks_of(batches: Iterable[pa.RecordBatch]) -> Iterator[PackedTask[Any]]:
    """The packed tasks of a partition: what the driver of this very job wrote, and nothing that lay in a store."""
    for batch in batches:
        yield from map(pickle.loads, batch.column(0).to_pylist())


def warm_up(packed_tasks: Iterable[PackedTask[T]]) -> Iterator[Outcome[R]]:
    """No value for each packed task: a worker that gets here has Python and can import what tasks need."""
    import pyarrow.parquet  # noqa: F401 - the import is the point

    _freeze()
    yield from (Outcome() for _ in packed_tasks)


def _may_go_away(error: Exception) -> bool:
    return isinstance(error, Transient) or not isinstance(error, LakeopsError)


def _this_try() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return int(context.attemptNumber()) if context else 0


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
