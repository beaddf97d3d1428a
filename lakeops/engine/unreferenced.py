"""Garbage collection's anti-join: the listed objects that nothing refers to.

Both sides may be larger than memory. The listing is sorted by address and cut into slices that fit in memory. The
references are read from the range files by tasks. Each reference is written to the file of the slice that its address
belongs in, and DuckDB joins every slice with its file. On Spark the executors read the references and Spark joins
(``lakeops.engine.spark.antijoin``). Addresses are compared whole, byte by byte.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.addresses import ReadTask, managed, read_tasks, referenced_by
from lakeops.engine.base import Engine, first_of_each
from lakeops.engine.listed import LISTED_SCHEMA, Listed, Listing, checked
from lakeops.machine import cores
from lakeops.model.arrays import array, from_numpy, in_one, to_numpy
from lakeops.model.errors import (
    LakeopsError,
    Transient,
)
from lakeops.ranges.metarange import Metarange, ranges_for
from lakeops.store.base import ObjectStore

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from lakeops.engine.spark.engine import SparkEngine

OnProgress = Callable[[int, int], None]
Mask = npt.NDArray[np.bool_]

MEMORY = "384MB"
"""What DuckDB may hold before it writes to the scratch directory. The Arrow tables of this process come on top."""

THREADS = 4
"""The most threads that DuckDB joins with: more of them need more memory."""

_BATCH = 65_536
"""Rows that are handed over at a time."""

_TOGETHER = 100_000
"""Objects in the ranges that one task in this process reads."""

_READING = 2
"""Ranges whose addresses are read in the time that one is rewritten, which is what engines are chosen by."""

_COMPACT = 1_000_000
"""Ranges of many metaranges after which those that repeat are dropped."""

_REFERENCED = pa.schema([pa.field("address", pa.binary())])

_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
"""How scratch files are written: writing half as many bytes costs less than compressing them."""

_JOIN = "select row from referenced join listed using (address)"
"""DuckDB builds its hash table from the right side: a slice has a bounded size, and its references have not."""

_END = array([b"\0"], pa.binary())
"""An address that no object has. It stands at the end of each file of references and in each slice.

A slice that does not meet it was joined with a part of its references, and nothing in it counts as unreferenced.
"""

_FIXED = (
    "set disabled_optimizers = 'join_order,build_side_probe_side'",  # it joins as the query says
    "set enable_external_access = false",  # it reads what it is given, and no file or address besides
    "set lock_configuration = true",
)


@contextmanager
def unreferenced(
    store: ObjectStore,
    listing: Listing,
    ranges: pa.Table,
    *,
    engine: Engine,
    addresses: Iterable[pa.Array | pa.ChunkedArray] = (),
    prefixes: Iterable[str] = (),
    folder: Path | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[Unreferenced]:
    """The objects of a listing that nothing refers to, usable inside the block.

    Args:
        store: the namespace.
        listing: gives the objects, taken before it was decided what is live. It is called twice when they come sorted
            by address, as stores list them. Otherwise they are sorted first, and repeated names are dropped.
        ranges: what is live: ``METARANGE_SCHEMA``, in any order (see ``distinct_ranges``). Each file is opened once.
        engine: where ranges are read and joined.
        addresses: what else is referred to: ``string`` columns, relative or absolute.
        prefixes: everything under these is kept: places that somebody writes to.
        folder: where on this machine the scratch directory goes, by default the system's place. It takes the text of
            all referenced addresses (with Spark: none), and of what is found.
        on_progress: called with (ranges read, ranges in all).

    Raises:
        InvalidInput: the listing has other columns.
        Corrupted: a range is not what was written. ``ObjectNotFound``: it is gone.
        Transient: ``engine_unavailable``: the scratch directory is full, or Spark gave up.
    """
    engine = engine.for_work(-(-ranges.num_rows // _READING))
    kept_places = tuple(prefixes)
    with tempfile.TemporaryDirectory(prefix="lakeops-", dir=folder) as name:
        scratch = Path(name)
        with _explained(scratch):
            listed = _in_order(listing, scratch)
            given = [managed(store.url, some).cast(pa.large_string()) for some in addresses]
            search = _Search(store, engine, scratch, _one_each([ranges]), given, on_progress)
            found = Unreferenced(listed.count, scratch / "found.arrow")
            with pa.ipc.new_stream(found.path, LISTED_SCHEMA, options=_LZ4) as out:
                for rows, met in search.met(listed):
                    free = rows.filter(from_numpy(~(met | _lie_under(rows.column(0), kept_places))))
                    out.write_table(free, max_chunksize=_BATCH)
                    found.count += free.num_rows
        yield found


class Unreferenced:
    """What nothing refers to.

    Attributes:
        listed: how many distinct objects the listing named.
        count: how many of them nothing refers to.
        path: where these lie on this machine.
    """

    def __init__(self, listed: int, path: Path) -> None:
        self.listed = listed
        self.count = 0
        self.path = path

    @property
    def kept(self) -> int:
        """How many listed objects something refers to, or a prefix keeps."""
        return self.listed - self.count

    def batches(self) -> Iterator[pa.Table]:
        """The objects, sorted by address: tables of ``LISTED_SCHEMA``, none empty. Can be asked for again."""
        return _stream(self.path)


def distinct_ranges(metaranges: Iterable[Metarange]) -> pa.Table:
    """Every range of some metaranges, one row an id: ``METARANGE_SCHEMA``.

    Costs what each differs in from the one before, and the memory of the distinct ones.
    """
    last = Metarange.empty()
    tables, count = [last.table], 0
    for metarange in metaranges:
        fresh = metarange.table.take(from_numpy(metarange.without(last)))
        tables, count, last = [*tables, fresh], count + fresh.num_rows, metarange
        if count > _COMPACT:
            tables, count = [_one_each(tables)], 0
    return _one_each(tables)


def _in_order(listing: Listing, scratch: Path) -> Listed:
    """A listing that ascends: as it comes, or sorted in the scratch directory."""
    listed = Listed(listing)
    if listed.ascends:
        return listed
    path, last = scratch / "listed.arrow", ""
    with _database(scratch) as database, pa.ipc.new_stream(path, LISTED_SCHEMA, options=_LZ4) as out:
        database.register("listed", pa.RecordBatchReader.from_batches(LISTED_SCHEMA, listed.batches()))
        for batch in database.sql("from listed order by physical_address").to_arrow_reader(_BATCH):
            names = batch.column(0)
            before = pa.concat_arrays([array([last], names.type), names.slice(0, len(names) - 1)])
            out.write_table(checked(batch.filter(pc.not_equal(names, before))))
            last = names[-1].as_py()
    ordered = Listed(partial(_stream, path))
    if not ordered.ascends:
        raise Transient("the listing is not in order after it was sorted; nothing was deleted; try again")
    return ordered


@dataclass(frozen=True)
class _Search:
    """One search: what is referred to, where it is read and joined."""

    store: ObjectStore
    engine: Engine
    scratch: Path
    ranges: pa.Table
    given: Sequence[pa.Array]
    on_progress: OnProgress | None

    def met(self, listed: Listed) -> Iterator[tuple[pa.Table, Mask]]:
        """Every slice of a listing, and which of its rows something refers to."""
        if self.engine.in_process:
            return self._met_here(listed)
        from lakeops.engine.spark.antijoin import met

        spark = cast("SparkEngine", self.engine)
        return met(spark, self.store, listed, self.ranges, self.given, self.on_progress)

    def _met_here(self, listed: Listed) -> Iterator[tuple[pa.Table, Mask]]:
        self._sort_out(listed)
        with _database(self.scratch) as database:
            for number, rows in enumerate(listed.slices()):
                yield rows, _joined(database, rows, self._file(number))
                self._file(number).unlink()

    def _sort_out(self, listed: Listed) -> None:
        """Write every reference to the file of the slice that its address belongs in."""
        with ExitStack() as stack:
            paths = map(self._file, range(len(listed.firsts)))
            files = [stack.enter_context(pa.ipc.new_stream(path, _REFERENCED, options=_LZ4)) for path in paths]
            read = chain.from_iterable(self._read(listed.firsts))
            for number, some in chain(read, *(_by_slice(some, listed.firsts) for some in self.given)):
                files[number].write_batch(pa.record_batch([some], schema=_REFERENCED))
            for file in files:
                file.write_batch(pa.record_batch([_END], schema=_REFERENCED))
        # The threads that read are gone, and what they had freed would stay with them.
        pa.default_memory_pool().release_unused()

    def _read(self, firsts: pa.Array) -> Iterator[list[tuple[int, pa.Array]]]:
        """What the ranges refer to, by the number of the slice."""
        total, done = self.ranges.num_rows, 0
        work = partial(_read_and_sort_out, firsts=firsts)
        tasks = read_tasks(self.ranges, ranges_for(_TOGETHER, [self.ranges]))
        for result in first_of_each(self.engine.run(work, tasks, self.store)):
            done += result.ranges
            if self.on_progress:
                self.on_progress(done, total)
            yield result.parts
        if done != total:
            raise Transient(f"the engine ({self.engine.name}) gave back {done} of {total} ranges; try again")

    def _file(self, number: int) -> Path:
        return self.scratch / f"{number}.referenced"


@dataclass(frozen=True, eq=False)
class _SortedOut:
    """What a task read: addresses by the number of their slice."""

    index: int
    ranges: int
    parts: list[tuple[int, pa.Array]]


def _read_and_sort_out(task: ReadTask, store: ObjectStore, *, firsts: pa.Array) -> _SortedOut:
    # A range has a few dozen addresses of each slice, and each batch that is written and joined has a fixed price.
    batches = _in_batches(referenced_by(row, store) for row in task.rows)
    parts = [part for addresses in batches for part in _by_slice(addresses, firsts)]
    return _SortedOut(task.index, len(task.rows), parts)


def _in_batches(arrays: Iterable[pa.Array]) -> Iterator[pa.Array]:
    """The values of arrays, those of small ones together."""
    held: list[pa.Array] = []
    for one in arrays:
        if held and sum(map(len, held)) + len(one) > _BATCH:
            yield pa.concat_arrays(held)
            held = []
        held.append(one)
    if held:
        yield pa.concat_arrays(held)


def _by_slice(addresses: pa.Array, firsts: pa.Array) -> Iterator[tuple[int, pa.Array]]:
    """Addresses as ``binary``, by the number of their slice; those before the first slice are left out."""
    after = to_numpy(pc.search_sorted(firsts, addresses, side="right")).astype(np.int16)
    ordered = addresses.take(from_numpy(np.argsort(after, kind="stable"))).cast(pa.binary())
    ends = np.cumsum(np.bincount(after, minlength=len(firsts) + 1)).tolist()
    for number, (start, stop) in enumerate(pairwise(ends)):
        if start < stop:
            yield number, ordered.slice(start, stop - start)


@contextmanager
def _database(scratch: Path) -> Iterator[DuckDBPyConnection]:
    """DuckDB in this process, with bounded memory and threads, which spills to the scratch directory.

    It loads no extensions and opens no files, so it asks the network for nothing.
    """
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY,
        "threads": min(THREADS, cores()),
        "temp_directory": str(scratch / "spilled"),
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
    }
    with _explained(scratch, duckdb.Error), duckdb.connect(config=settings) as database:
        for statement in _FIXED:
            database.execute(statement)
        yield database


@contextmanager
def _explained(scratch: Path, *failures: type[Exception]) -> Iterator[None]:
    """Raise ``engine_unavailable`` for what fails on this machine inside the block: a full disk, too little memory."""
    try:
        yield
    except LakeopsError:  # of a store, some of which are OSErrors too
        raise
    except (OSError, pa.ArrowInvalid, *failures) as error:
        reason = str(error).partition("\n")[0]
        raise Transient(
            f"the join that finds unreferenced objects failed: {reason}; see that {scratch.parent} has room, or run it "
            "on Spark; nothing was deleted",
            kind="engine_unavailable",
        ) from error


def _joined(database: DuckDBPyConnection, rows: pa.Table, file: Path) -> Mask:
    """Which rows of a slice are among the references in a file."""
    met = np.zeros(rows.num_rows + 1, np.bool_)
    names = pa.chunked_array([*rows.column(0).cast(pa.binary()).chunks, _END])
    database.register("listed", pa.table([names, from_numpy(np.arange(len(met)))], names=["address", "row"]))
    with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as stream:
        database.register("referenced", stream)
        for batch in database.sql(_JOIN).to_arrow_reader(_BATCH):
            met[to_numpy(batch.column(0))] = True
    if not met[-1]:
        raise Transient("some of the references were lost on their way to the join; nothing was deleted; try again")
    return met[:-1]


def _lie_under(addresses: pa.ChunkedArray, prefixes: tuple[str, ...]) -> Mask:
    """For each address whether it lies under one of the prefixes. Prefixes of one length are looked for together."""
    by_size: dict[int, list[bytes]] = {}
    for prefix in prefixes:
        by_size.setdefault(len(prefix.encode()), []).append(prefix.encode())
    raw = addresses.cast(pa.binary())
    found = np.zeros(len(addresses), np.bool_)
    for size, same in by_size.items():
        beneath = pc.is_in(pc.binary_slice(raw, 0, size), value_set=array(same, pa.binary()))
        found |= to_numpy(beneath)
    return found


def _stream(path: Path) -> Iterator[pa.Table]:
    """The rows of an Arrow stream on disk, a batch at a time, none empty."""
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        yield from (pa.Table.from_batches([batch]) for batch in stream if batch.num_rows)


def _one_each(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all tables, one an id: the first."""
    table = pa.concat_tables(tables).combine_chunks()
    codes = to_numpy(in_one(table.column("id")).dictionary_encode().indices)
    return table.take(from_numpy(np.unique(codes, return_index=True)[1]))
