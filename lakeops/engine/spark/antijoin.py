"""Garbage collection's anti-join on Spark: the executors read both sides, and Spark joins them by the whole address.

The listed addresses lie in the store, a slice an object, as the big fields of other tasks do. The executors read the
ranges as all tasks do, through the store seam. To every slice of the listing belongs the number -1 with one proof for
each reading task: an address that only the end of the task gives. A proof that nothing refers to tells that Spark lost
what the task read, and then nothing counts as unreferenced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakeops.engine.addresses import ReadTask, read_tasks, referenced_by
from lakeops.engine.listed import Listed
from lakeops.engine.spark.engine import SparkEngine
from lakeops.engine.spark.jobs import Jobs
from lakeops.engine.spark.worker import PackedTask, packed_tasks_of, unpack
from lakeops.model.arrays import from_numpy, to_numpy
from lakeops.model.errors import Transient
from lakeops.store.base import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PROOFS = -1
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class NamesTask:
    """Addresses as an Arrow stream of one ``binary`` column: a slice of the listing, or references that are given."""

    index: int
    names: bytes


def met(
    engine: SparkEngine,
    store: ObjectStore,
    listed: Listed,
    ranges: pa.Table,
    given: Sequence[pa.Array],
    on_progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[pa.Table, npt.NDArray[np.bool_]]]:
    """Every slice of a listing, and which of its rows something refers to. See ``unreferenced``."""
    reads = list(read_tasks(ranges, engine.group(ranges.num_rows)))
    extra = NamesTask(len(reads), _stream(given))
    proofs = NamesTask(_PROOFS, _stream([pa.array([_proof(number) for number in range(len(reads) + 1)], pa.binary())]))
    slices = (NamesTask(number, _stream(rows.column(0).chunks)) for number, rows in enumerate(listed.slices()))
    with engine.parking(store) as parking:
        left = [parking.pack(task) for task in chain([proofs], slices)]
        right: list[PackedTask[Any]] = [*map(parking.pack, reads), parking.pack(extra)]

        def unreferenced(jobs: Jobs) -> DataFrame:
            names = jobs.over(partial(listed_names, store=store), left, "address binary, slice int, row int")
            found = jobs.over(partial(referenced_names, store=store), right, "address binary")
            # Spark cannot know how much the tasks will read, and would send the references to every executor.
            rest = names.join(found.hint("merge"), "address", "left_anti")
            return rest.groupBy("slice").agg({"row": "collect_list"})

        answer = engine.collect(unreferenced)
    free = dict(zip(answer.column(0).to_pylist(), answer.column(1).combine_chunks(), strict=True))
    if _PROOFS in free:
        raise Transient(f"the engine ({engine.name}) lost some of what the ranges refer to; try again")
    if on_progress:
        on_progress(ranges.num_rows, ranges.num_rows)
    for number, rows in enumerate(listed.slices()):
        kept = np.ones(rows.num_rows, np.bool_)
        if number in free:
            kept[to_numpy(free[number].values)] = False
        yield rows, kept


def listed_names(batches: Iterable[pa.RecordBatch], *, store: ObjectStore) -> Iterator[pa.RecordBatch]:
    """The listed addresses of a partition, with the number of the slice and of the row."""
    for packed in packed_tasks_of(batches):
        task: NamesTask = unpack(packed, store)
        done = 0
        for names in _addresses(task):
            rows = from_numpy(np.arange(done, done + len(names), dtype=np.int32))
            number = from_numpy(np.full(len(names), task.index, np.int32))
            yield pa.record_batch([names, number, rows], names=["address", "slice", "row"])
            done += len(names)


def referenced_names(batches: Iterable[pa.RecordBatch], *, store: ObjectStore) -> Iterator[pa.RecordBatch]:
    """The addresses that the tasks of a partition read, and the proof of each task."""
    for packed in packed_tasks_of(batches):
        task: ReadTask | NamesTask = unpack(packed, store)
        if isinstance(task, ReadTask):
            read: Iterator[pa.Array] = (referenced_by(row, store).cast(pa.binary()) for row in task.rows)
        else:
            read = _addresses(task)
        for names in read:
            yield pa.record_batch([names], names=["address"])
        yield pa.record_batch([pa.array([_proof(task.index)], pa.binary())], names=["address"])


def _proof(number: int) -> bytes:
    """An address that no object has."""
    return b"\0%d" % number


def _stream(addresses: Iterable[pa.Array]) -> bytes:
    schema, sink = pa.schema([("address", pa.binary())]), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_LZ4) as out:
        for some in addresses:
            out.write_batch(pa.record_batch([some.cast(pa.binary())], schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _addresses(task: NamesTask) -> Iterator[pa.Array]:
    with pa.ipc.open_stream(pa.BufferReader(task.names)) as stream:
        for batch in stream:
            yield batch.column(0)
