"""What runs in a Spark worker: the tasks of one partition, each to an outcome.

An error of lakeops' own travels back as a value, so that the driver raises it as it was; what may go away is left to
Spark to try again first, elsewhere.
"""

from __future__ import annotations

import gc
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Generic

from lakeops.engine.base import R, T
from lakeops.engine.spark.parcel import Parcel, unpack
from lakeops.model.errors import LakeopsError, Transient
from lakeops.store.base import ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa


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
        store: the namespace; it pickles.
        last_try: the number, from 0, of the try after which Spark would give up.
    """

    work: Callable[[T, ObjectStore], R]
    store: ObjectStore
    last_try: int

    def __call__(self, parcels: Iterable[Parcel[T]]) -> Iterator[Outcome[R]]:
        """The outcome of each task, in order."""
        _freeze()
        for parcel in parcels:
            yield self._outcome(parcel)

    def _outcome(self, parcel: Parcel[T]) -> Outcome[R]:
        try:
            return Outcome((self.work(unpack(parcel, self.store), self.store),))
        except Exception as error:
            if _may_go_away(error) and _this_try() < self.last_try:
                raise
            return Outcome(error=_portable(error))


def in_arrow(
    perform: Callable[[Iterable[Parcel[T]]], Iterator[Outcome[R]]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Pickled outcomes for batches of one column of pickled parcels, for ``mapInArrow``."""
    import pyarrow as pa

    for batch in batches:
        # What the driver of this very job wrote, as in Spark's own RDDs; nothing that lay in a store.
        parcels = map(pickle.loads, batch.column(0).to_pylist())
        for outcome in perform(parcels):
            yield pa.record_batch({"outcome": pa.array([pickle.dumps(outcome)], pa.binary())})


def warm_up(parcels: Iterable[Parcel[T]]) -> Iterator[Outcome[R]]:
    """No value for each parcel: a worker that gets here has Python and can import what tasks need."""
    import lakeops.ranges.rewrite  # noqa: F401 - the import is the point

    _freeze()
    yield from (Outcome() for _ in parcels)


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

    Spark's worker collects garbage after every task; over pyarrow and pandas that costs more than a small task.
    """
    gc.collect()
    gc.freeze()
