"""Garbage collection's anti-join: the listed objects that nothing refers to.

Both sides may be larger than memory. The listing is sorted by address and cut into slices that fit in memory. The
references are read from the range files by tasks. Each reference is written to the file of the slice that its address
belongs in, and DuckDB joins every slice with its file. On Spark the executors read the references and Spark joins
(``_joined_by_spark``). Addresses are compared whole, byte by byte.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.base import Engine, first_of_each
from lakeops.machine import cores
from lakeops.model.arrow import array, from_numpy, in_one, no_rows, to_numpy
from lakeops.model.errors import InvalidInput, LakeopsError, Transient
from lakeops.ranges.metarange import Metarange, RangeRow, ranges_for
from lakeops.ranges.range_file import fetch_range
from lakeops.ranges.rewrite import RANGE_SECONDS
from lakeops.store import layout
from lakeops.store.base import ObjectStore
from lakeops.store.open import relative_directory, split_address

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame

    from lakeops.engine.spark.engine import SparkEngine
    from lakeops.engine.spark.jobs import Jobs, PackedTask

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
    ranges, kept_places = _one_each([ranges], "id"), tuple(prefixes)
    engine = engine.for_work(ranges.num_rows / _READING * RANGE_SECONDS)
    joined = _joined_here if engine.in_process else _joined_by_spark
    with tempfile.TemporaryDirectory(prefix="lakeops-", dir=folder) as name:
        scratch = Path(name)
        with _explained(scratch):
            listed = _in_order(listing, scratch)
            given = [managed(store.url, some).cast(pa.large_string()) for some in addresses]
            found = Unreferenced(listed.count, scratch / "found.arrow")
            with pa.ipc.new_stream(found.path, LISTED_SCHEMA, options=_LZ4) as out:
                for rows, met in joined(engine, store, listed, ranges, given, scratch, on_progress):
                    free = rows.filter(from_numpy(~(met | _lie_under(rows.column(0), kept_places))))
                    out.write_table(free, max_chunksize=_BATCH)
                    found.count += free.num_rows
        yield found


@dataclass
class Unreferenced:
    """Unreferenced objects: ``count`` of the ``listed`` distinct ones. They lie in a local file, ``path``."""

    listed: int
    path: Path
    count: int = 0

    @property
    def kept(self) -> int:
        """How many listed objects something refers to, or a prefix keeps."""
        return self.listed - self.count

    def batches(self) -> Iterator[pa.Table]:
        """The objects, sorted by address: tables of ``LISTED_SCHEMA``, none empty. Can be asked for again."""
        return read_stream(self.path)


def distinct_ranges(metaranges: Iterable[Metarange]) -> pa.Table:
    """Every range file of some metaranges, one row a file: ``METARANGE_SCHEMA``. Files may hold the same range.

    Costs what each differs in from the one before, and the memory of the distinct ones.
    """
    last = Metarange.empty().table
    tables, count = [last], 0
    for metarange in metaranges:
        table = metarange.table
        fresh = table.filter(pc.invert(pc.is_in(table["file"], value_set=in_one(last["file"]))))
        tables, count, last = [*tables, fresh], count + fresh.num_rows, table
        if count > _COMPACT:
            tables, count = [_one_each(tables, "file")], 0
    return _one_each(tables, "file")


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
    ordered = Listed(partial(read_stream, path))
    if not ordered.ascends:
        raise Transient("the listing is not in order after it was sorted; nothing was deleted; try again")
    return ordered


def _joined_here(
    engine: Engine,
    store: ObjectStore,
    listed: Listed,
    ranges: pa.Table,
    given: Sequence[pa.Array],
    scratch: Path,
    on_progress: OnProgress | None,
) -> Iterator[tuple[pa.Table, Mask]]:
    paths = [scratch / f"{number}.referenced" for number in range(len(listed.firsts))]
    done = 0
    with ExitStack() as stack:
        files = [stack.enter_context(pa.ipc.new_stream(path, _REFERENCED, options=_LZ4)) for path in paths]

        def write(parts: Iterable[tuple[int, pa.Array]]) -> None:
            for number, some in parts:
                files[number].write_batch(pa.record_batch([some], schema=_REFERENCED))

        tasks = read_tasks(ranges, ranges_for(_TOGETHER, [ranges]))
        for result in first_of_each(engine.run(partial(_read_and_sort_out, firsts=listed.firsts), tasks, store)):
            write(result.parts)
            done += result.ranges
            if on_progress:
                on_progress(done, ranges.num_rows)
        if done != ranges.num_rows:
            raise Transient(f"the engine ({engine.name}) gave back {done} of {ranges.num_rows} ranges; try again")
        for some in given:
            write(_by_slice(some, listed.firsts))
        write((number, _END) for number in range(len(files)))
    # The threads that read are gone, and what they had freed would stay with them.
    pa.default_memory_pool().release_unused()
    with _database(scratch) as database:
        for path, rows in zip(paths, listed.slices(), strict=True):
            yield rows, _joined(database, rows, path)
            path.unlink()


@dataclass(frozen=True, eq=False)
class _SortedOut:
    """The addresses that a task read, by the number of their slice."""

    index: int
    ranges: int
    parts: list[tuple[int, pa.Array]]


def _read_and_sort_out(task: ReadTask, store: ObjectStore, *, firsts: pa.Array) -> _SortedOut:
    parts: list[tuple[int, pa.Array]] = []
    held: list[pa.Array] = []
    # A range has a few dozen addresses of each slice, and each batch that is written and joined has a fixed price.
    for last, row in enumerate(task.rows, 1):
        held.append(referenced_by(row, store))
        if last == len(task.rows) or sum(map(len, held)) >= _BATCH:
            parts += _by_slice(pa.concat_arrays(held), firsts)
            held = []
    return _SortedOut(task.index, len(task.rows), parts)


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


def read_stream(path: Path) -> Iterator[pa.Table]:
    """The rows of an Arrow stream on disk, a batch at a time, none empty."""
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        yield from (pa.Table.from_batches([batch]) for batch in stream if batch.num_rows)


def _one_each(tables: Sequence[pa.Table], name: str) -> pa.Table:
    """The rows of all tables, one a value of a column: the first."""
    table = pa.concat_tables(tables).combine_chunks()
    codes = to_numpy(in_one(table.column(name)).dictionary_encode().indices)
    return table.take(from_numpy(np.unique(codes, return_index=True)[1]))


_ABSOLUTE = r"^[a-z][a-z0-9+.-]*://"
_DIRECTORY = r"[^/]*$"
_BLOCK = 8_192
"""Addresses that are decoded at a time: few enough to stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Ranges whose addresses are wanted."""

    index: int
    rows: tuple[RangeRow, ...]


def read_tasks(ranges: pa.Table, group: int) -> Iterator[ReadTask]:
    """Tasks that read all of these ranges (``METARANGE_SCHEMA``), so many a task."""
    metarange = Metarange(ranges)
    for index, start in enumerate(range(0, len(metarange), group)):
        yield ReadTask(index, tuple(metarange.rows(start, min(start + group, len(metarange)))))


def referenced_by(row: RangeRow, store: ObjectStore) -> pa.Array:
    """The addresses in the namespace that a range refers to, in any order: ``large_string``.

    The whole file is read and verified. Raises ``Corrupted`` or ``ObjectNotFound``.
    """
    blocks = fetch_range(store, row).addresses(_BLOCK)
    return managed(store.url, pa.chunked_array(blocks, pa.large_string())).cast(pa.large_string())


def managed(namespace: str, addresses: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The addresses that lie in the namespace, relative to it, in any order and with repetitions.

    Args:
        namespace: the store's URL.
        addresses: ``string`` or ``large_string``, relative or absolute.
    """
    addresses = in_one(addresses)
    if pc.all(pc.starts_with(addresses, layout.DATA)).as_py():
        return addresses
    addresses = addresses.cast(pa.string())
    absolute = pc.match_substring_regex(addresses, _ABSOLUTE)
    far, root = addresses.filter(absolute), namespace + "/"
    inside = pc.starts_with(far, root)
    parts = [addresses.filter(pc.invert(absolute))]
    if namespace.startswith("file://"):
        parts.append(_files(namespace, far.filter(pc.starts_with(far, "file://"))))
    else:
        parts.append(pc.utf8_slice_codeunits(far.filter(inside), len(root)))
    return pa.concat_arrays(parts)


def _files(namespace: str, addresses: pa.Array) -> pa.Array:
    """Relative addresses of ``file://`` addresses. Each directory is looked at once, since links may lead anywhere."""
    folders = pc.replace_substring_regex(addresses, _DIRECTORY, "").dictionary_encode()
    below = pa.array([_below(namespace, folder) for folder in folders.dictionary.to_pylist()], pa.string())
    places = below.take(folders.indices)
    inside = pc.and_not(pc.is_valid(places), pc.ends_with(addresses, "/"))
    pairs = zip(addresses.filter(inside).to_pylist(), places.filter(inside).to_pylist(), strict=True)
    return pa.array([f"{place}{split_address(address)[1]}" for address, place in pairs], pa.string())


def _below(namespace: str, folder: str) -> str | None:
    """Where a directory lies in the namespace (empty or ending in a slash). None when it lies elsewhere."""
    try:
        return relative_directory(namespace, folder)
    except InvalidInput:
        return None


LISTED_SCHEMA = pa.schema(
    [
        pa.field("physical_address", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("mtime", pa.int64(), nullable=False),
    ]
)
"""One object a row: its address relative to the namespace, its size, the time of its last write in Unix seconds."""

Listing = Callable[[], Iterable[pa.Table]]
"""Gives tables of ``LISTED_SCHEMA``, the same rows each time that it is called."""

SLICE = 196_608
"""Rows of a slice: some 20 MB of text, and 60 MB while it is joined."""

SLICE_BYTES = 32 << 20
"""The most text of a slice: addresses may be long."""

SLICES = 256
"""The most slices. Each has an open file while the references are read. A longer listing has longer slices."""


class Listed:
    """A listing in slices.

    ``firsts`` has the first address of every slice, as ``large_string``. ``ascends`` says whether the addresses
    strictly ascend: then no row is in two slices, and none is repeated.
    """

    def __init__(self, listing: Listing) -> None:
        self.count: int = 0
        self.ascends: bool = True
        self._listing = listing
        firsts: list[str] = []
        last = ""
        for rows in _slices(listing()):
            names = rows.column(0)
            firsts.append(names[0].as_py())
            in_order = pc.all(pc.less(names.slice(0, len(names) - 1), names.slice(1))).as_py() is not False
            self.ascends = self.ascends and last < firsts[-1] and in_order
            self.count += rows.num_rows
            last = names[-1].as_py()
        self._together = max(1, -(-len(firsts) // SLICES))
        self.firsts: pa.Array = array(firsts[:: self._together], pa.large_string())

    def slices(self) -> Iterator[pa.Table]:
        """The rows of every slice: ``LISTED_SCHEMA``. Raises ``Transient`` when it is another listing by now."""
        parts = _slices(self._listing())
        for first in self.firsts.to_pylist():
            rows = pa.concat_tables([no_rows(LISTED_SCHEMA), *islice(parts, self._together)])
            if not rows.num_rows or rows.column(0)[0].as_py() != first:
                raise Transient("the listing changed while it was read; nothing was deleted; try again")
            yield rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in the order in which they are listed."""
        return (batch for rows in _slices(self._listing()) for batch in rows.to_batches())


def checked(table: pa.Table | pa.RecordBatch) -> pa.Table:
    """Rows of a listing as a table of ``LISTED_SCHEMA``. Raises ``InvalidInput`` for other columns."""
    table = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    try:
        return table.select(LISTED_SCHEMA.names).cast(LISTED_SCHEMA)
    except (KeyError, ValueError) as error:
        raise InvalidInput(f"a listing has the columns {', '.join(LISTED_SCHEMA.names)}: {error}") from error


def _slices(listing: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows in tables of a useful size, none empty. Where they are cut follows from the tables alone."""
    held: list[pa.Table] = []
    rows = size = 0
    for table in map(checked, listing):
        step = max(1, min(_BATCH, SLICE_BYTES * table.num_rows // (8 * max(1, table.nbytes))))
        for start in range(0, table.num_rows, step):
            piece = table.slice(start, step)
            held.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
            if rows >= SLICE or size >= SLICE_BYTES:
                yield pa.concat_tables(held)
                held, rows, size = [], 0, 0
    if held:
        yield pa.concat_tables(held)


_PROOFS = -1


@dataclass(frozen=True, slots=True)
class NamesTask:
    """Addresses as an Arrow stream of one ``binary`` column: a slice of the listing, or references that are given."""

    index: int
    names: bytes


def _joined_by_spark(
    engine: Engine,
    store: ObjectStore,
    listed: Listed,
    ranges: pa.Table,
    given: Sequence[pa.Array],
    _scratch: Path,
    on_progress: OnProgress | None,
) -> Iterator[tuple[pa.Table, Mask]]:
    """Join as ``_joined_here`` does. The executors read, and Spark joins."""
    spark = cast("SparkEngine", engine)
    reads = list(read_tasks(ranges, engine.group(ranges.num_rows)))
    extra = NamesTask(len(reads), _address_stream(given))
    proofs = NamesTask(
        _PROOFS, _address_stream([pa.array([_proof(number) for number in range(len(reads) + 1)], pa.binary())])
    )
    slices = (NamesTask(number, _address_stream(rows.column(0).chunks)) for number, rows in enumerate(listed.slices()))
    with spark.parking(store) as parking:
        left = [parking.pack(task) for task in chain([proofs], slices)]
        right: list[PackedTask[Any]] = [*map(parking.pack, reads), parking.pack(extra)]

        def unreferenced(jobs: Jobs) -> DataFrame:
            names = jobs.over(partial(listed_names, store=store), left, "address binary, slice int, row int")
            found = jobs.over(partial(referenced_names, store=store), right, "address binary")
            # Spark cannot know how much the tasks will read, and would send the references to every executor.
            rest = names.join(found.hint("merge"), "address", "left_anti")
            return rest.groupBy("slice").agg({"row": "collect_list"})

        answer = spark.collect(unreferenced)
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
    for task in _unpacked(batches, store):
        done = 0
        for names in _addresses(task):
            rows = from_numpy(np.arange(done, done + len(names), dtype=np.int32))
            number = from_numpy(np.full(len(names), task.index, np.int32))
            yield pa.record_batch([names, number, rows], names=["address", "slice", "row"])
            done += len(names)


def referenced_names(batches: Iterable[pa.RecordBatch], *, store: ObjectStore) -> Iterator[pa.RecordBatch]:
    """The addresses that the tasks of a partition read, and the proof of each task."""
    for task in _unpacked(batches, store):
        if isinstance(task, ReadTask):
            read: Iterator[pa.Array] = (referenced_by(row, store).cast(pa.binary()) for row in task.rows)
        else:
            read = _addresses(task)
        for names in read:
            yield pa.record_batch([names], names=["address"])
        yield pa.record_batch([pa.array([_proof(task.index)], pa.binary())], names=["address"])


def _unpacked(batches: Iterable[pa.RecordBatch], store: ObjectStore) -> Iterator[Any]:
    from lakeops.engine.spark.jobs import packed_tasks_of, unpack  # late: a mark in this process needs no Spark

    for packed in packed_tasks_of(batches):
        yield unpack(packed, store)


def _proof(number: int) -> bytes:
    """An address that no object has."""
    return b"\0%d" % number


def _address_stream(addresses: Iterable[pa.Array]) -> bytes:
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
