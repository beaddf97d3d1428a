"""Garbage collection's anti-join: the listed objects that nothing refers to.

Both sides may be larger than memory, so both are cut into slices at the same names. Tasks read the ranges, and each
leaves one scratch file with the addresses that its ranges refer to, slice by slice. Then a task for each slice of the
listing reads its pieces of these files, verifies them, and compares whole addresses, byte by byte. Threads and Spark's
workers run the same tasks. Scratch files lie in a directory of this machine, and for Spark in the namespace, under
``_lakefs/tasks/``.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.base import Engine, TaskRows, from_ipc
from lakeops.model.arrow import array, from_numpy, in_one, to_numpy
from lakeops.model.clock import Ids
from lakeops.model.errors import Corrupted, InvalidInput, LakeopsError, ObjectNotFound, Transient
from lakeops.ranges.metarange import Metarange, RangeRow, ranges_for
from lakeops.ranges.range_file import fetch_range
from lakeops.store import layout
from lakeops.store.base import ObjectStore, PutResult, pieces
from lakeops.store.in_flight import IN_FLIGHT, read_ahead
from lakeops.store.local import LocalStore
from lakeops.store.open import relative_directory, split_address

OnProgress = Callable[[int, int], None]
Mask = npt.NDArray[np.bool_]

SLICE = 131_072
"""Rows of a slice: some 13 MB of text, and 40 MB while it is joined."""

SLICE_BYTES = 32 << 20
"""The most text of a slice, on average: addresses may be long."""

SLICES = 256
"""The most slices, since every scratch file has a piece for each. A longer listing has longer slices."""

_SAMPLES = 64
"""Names of the listing for each slice that its borders are chosen from."""

_BATCH = 65_536
"""Rows that are handed over at a time."""

_TOGETHER = 100_000
"""Objects in the ranges that one thread reads at a time."""

_TOGETHER_ON_SPARK = 500_000
"""Objects in the ranges of one task on Spark: some 150 MB, and few jobs."""

_ROW_SECONDS = 8e-7
"""The time that one core takes for a name of the listing, and for an address that ranges refer to."""

_COMPACT = 1_000_000
"""Ranges of many metaranges after which those that repeat are dropped."""

_PIECE = 1 << 20

_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
"""How scratch files are written: writing half as many bytes costs less than compressing them."""

LISTED_SCHEMA = pa.schema(
    [
        pa.field("physical_address", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("mtime", pa.int64(), nullable=False),
    ]
)
"""One object a row: its address relative to the namespace, its size, the time of its last write in Unix seconds."""

_REFERENCED = pa.schema([LISTED_SCHEMA.field(0)])

Listing = Callable[[], Iterable[pa.Table]]
"""Gives tables of ``LISTED_SCHEMA`` each time that it is called."""


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
    on_progress: OnProgress = lambda _done, _total: None,
) -> Iterator[Unreferenced]:
    """The objects of a listing that nothing refers to, usable inside the block.

    Args:
        listing: gives the objects in byte order, taken before it was decided what is live. It is called twice.
        ranges: what is live: ``METARANGE_SCHEMA``, in any order (see ``distinct_ranges``). Each file is opened once.
        addresses: what else is referred to: ``string`` columns, relative or absolute.
        prefixes: everything under these is kept: places that somebody writes to.
        folder: where on this machine the scratch directory goes. It takes the text of both sides (with Spark: none).
        on_progress: called with (ranges read, ranges in all).

    Raises ``Corrupted`` or ``ObjectNotFound`` for a range, and ``Transient``: ``engine_unavailable`` where the scratch
    directory is full, or Spark gave up.
    """
    ranges = _one_each([ranges], "id")
    with tempfile.TemporaryDirectory(prefix="lakeops-", dir=folder) as name:
        scratch = Path(name).resolve()
        try:
            listed, found = Listed(listing), Unreferenced(scratch)
            rows = listed.count + sum(ranges["count"].to_pylist())
            engine = engine.for_work(rows * _ROW_SECONDS)
            with cutting(store, listed, engine, scratch) as cutter:
                pieces = list[Piece]()
                for some in addresses:
                    pieces += cutter.cut(pa.table([managed(store.url, some).cast(pa.string())], schema=_REFERENCED))
                most = ranges_for(_TOGETHER if engine.in_process else _TOGETHER_ON_SPARK, [ranges])
                group, total = min(engine.group(ranges.num_rows), most), ranges.num_rows
                neighbours = Metarange(ranges.sort_by("first_path"))
                tasks = (tuple(neighbours.rows(i, min(i + group, total))) for i in range(0, total, group))
                done = 0
                for number, read in engine.run(partial(read_references, cutter=cutter), tasks, store):
                    pieces += read
                    done += min(group, total - number * group)
                    on_progress(done, total)
                work = partial(join_slice, prefixes=tuple(prefixes))
                for number, free in cutter.join(listed, pieces, engine, work):
                    found.add(number, free.table)
                found.listed = listed.count
        except LakeopsError:  # of a store, some of which are OSErrors too
            raise
        except (OSError, pa.ArrowInvalid) as error:
            reason = str(error).partition("\n")[0]
            raise Transient(
                f"the join that finds unreferenced objects failed: {reason}; see that {scratch.parent} has room, or "
                "run it on Spark; nothing was deleted",
                kind="engine_unavailable",
            ) from error
        yield found


@contextmanager
def cutting(store: ObjectStore, listed: Listed, engine: Engine, scratch: Path) -> Iterator[Cutter]:
    """A cutter of what refers to a listing, for tasks inside the block. Its files go then, or as garbage."""
    place = _Scratch(scratch / "pieces") if engine.in_process else store
    cutter = Cutter(place, f"{layout.TASKS}{Ids().new()}/", listed.borders)
    try:
        yield cutter
    finally:
        with suppress(LakeopsError):
            place.delete([item.key for item in place.list(cutter.prefix)])


class Unreferenced:
    """Unreferenced objects: ``count`` of the ``listed`` distinct ones. They lie in local files, one a slice."""

    def __init__(self, folder: Path) -> None:
        self.listed: int = 0
        self.count: int = 0
        self._folder = folder
        self._slices: set[int] = set()

    @property
    def kept(self) -> int:
        """How many listed objects something refers to, or a prefix keeps."""
        return self.listed - self.count

    def add(self, number: int, rows: pa.Table) -> None:
        """Keep what was found in a slice."""
        self._slices.add(number)
        self.count += rows.num_rows
        with pa.ipc.new_stream(self._folder / f"{number}.arrow", LISTED_SCHEMA, options=_LZ4) as out:
            out.write_table(rows, max_chunksize=_BATCH)

    def batches(self) -> Iterator[pa.Table]:
        """The objects, sorted by address: tables of ``LISTED_SCHEMA``, none empty. Can be asked for again."""
        for number in sorted(self._slices):
            yield from read_stream(self._folder / f"{number}.arrow")


class Listed:
    """A listing in slices. The listing is in byte order.

    ``borders`` are names at regular distances, the smallest one and one past the largest among them. So slices have
    equal sizes, and those of another listing similar ones.
    """

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        samples, count, size, last = list[pa.Array](), 0, 0, ""
        step = max(1, SLICE // _SAMPLES)
        for rows in self._batches():
            names = in_one(rows.column(0))
            samples.append(names.take(from_numpy(np.arange(-count % step, len(names), step))))
            count, size, last = count + len(names), size + names.nbytes, names[-1].as_py()
        self.count: int = count
        slices = min(SLICES, max(-(-count // SLICE), -(-size // SLICE_BYTES)))
        chosen = in_one(pa.chunked_array(samples, pa.string()))
        places = np.arange(slices) * len(chosen) // max(1, slices)
        ends = array([f"{last}\0"] if count else [], pa.string())
        self.borders: pa.Array = pc.unique(pa.concat_arrays([chosen.take(from_numpy(places)), ends]))

    def _batches(self) -> Iterator[pa.Table]:
        last = ""
        for rows in filter(len, self._listing()):
            names = in_one(rows.column(0))
            if names[0].as_py() <= last or pc.all(pc.less(names[:-1], names[1:])).as_py() is False:
                raise Transient("the listing of the storage namespace is out of order; nothing was deleted; try again")
            last = names[-1].as_py()
            yield rows

    def slices(self) -> Iterator[tuple[int, pa.Table]]:
        """The number and the rows of every slice. ``count`` is then what these have."""
        self.count = 0
        parts = (part for rows in self._batches() for part in _by_slice(rows, self.borders))
        for number, some in groupby(parts, key=itemgetter(0)):
            table = pa.concat_tables(rows for _, rows in some)
            self.count += len(table)
            yield number, table


class _Scratch(LocalStore):
    """A directory of one run: no file of it has to last, and nobody asks for its digest."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, fsync=False)

    def put(self, key: str, data: bytes | BinaryIO, *, if_absent: bool = False, content_type: str = "") -> PutResult:
        """Write a file under a fresh name, as it is."""
        del if_absent, content_type
        file = self.root / key
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("xb") as target:
            return PutResult(sum(map(target.write, pieces(data, _PIECE))), "")


def _by_slice(rows: pa.Table, borders: pa.Array) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each slice that there are any of. Rows that no slice holds are left out."""
    after = to_numpy(pc.search_sorted(borders, in_one(rows.column(0)), side="right")).astype(np.int16)
    if np.any(after[:-1] > after[1:]):
        order = np.argsort(after, kind="stable")
        after, rows = after[order], rows.take(from_numpy(order))
    ends = np.searchsorted(after, np.arange(1, len(borders) + 1)).tolist()
    for number, (start, stop) in enumerate(pairwise(ends)):
        if start < stop:
            yield number, rows.slice(start, stop - start)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one slice: where they lie in a scratch file as an Arrow stream, and their CRC."""

    slice: int
    key: str
    start: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts rows into slices at ``borders``, and leaves them below ``prefix`` of a store."""

    place: ObjectStore
    prefix: str
    borders: pa.Array

    def cut(self, rows: pa.Table) -> list[Piece]:
        """Write rows to one scratch file, slice by slice, under a fresh name."""
        key, sink, ends = f"{self.prefix}{Ids().new()}.arrow", pa.BufferOutputStream(), [(-1, 0)]
        for number, some in _by_slice(rows.combine_chunks(), self.borders):
            with pa.ipc.new_stream(sink, rows.schema, options=_LZ4) as out:
                out.write_table(some)
            ends.append((number, sink.tell()))
        data = sink.getvalue().to_pybytes()
        if data:
            self.place.put(key, data)
        view = memoryview(data)
        return [Piece(to[0], key, at, to[1] - at, crc32(view[at : to[1]])) for (_, at), to in pairwise(ends)]

    def join(
        self, listed: Listed, pieces: list[Piece], engine: Engine, work: Callable[..., TaskRows]
    ) -> Iterator[tuple[int, TaskRows]]:
        """The number of each slice of the listing, in any order, and what ``work`` makes of it and its pieces."""
        # The threads that read are gone, and what they had freed would stay with them.
        pa.default_memory_pool().release_unused()
        references = defaultdict[int, list[Piece]](list)
        for piece in pieces:
            references[piece.slice].append(piece)
        tasks = (JoinTask(TaskRows(rows), tuple(references[number])) for number, rows in listed.slices())
        return engine.run(work, tasks, self.place)


def read_references(task: tuple[RangeRow, ...], store: ObjectStore, *, cutter: Cutter) -> list[Piece]:
    """Read what ranges refer to in the namespace, and cut it. Raises ``Corrupted`` or ``ObjectNotFound``."""
    tables = (fetch_range(store, row).read(_REFERENCED.names) for row in task)
    names = pa.concat_arrays([managed(store.url, table.column(0)) for table in tables])
    if any(after.first_path <= before.last_path for before, after in pairwise(task)):
        names = names.unique()  # of several commits, which have most addresses in common
    return cutter.cut(pa.table([names], schema=_REFERENCED))


@dataclass(frozen=True, slots=True)
class JoinTask:
    """A slice of the listing, and the pieces of what refers to it."""

    listed: TaskRows
    referenced: tuple[Piece, ...]


def join_slice(task: JoinTask, place: ObjectStore, *, prefixes: tuple[str, ...]) -> TaskRows:
    """Find the rows of a slice that nothing refers to. Raises ``Corrupted`` where a piece is not what was written."""
    met = mark_slice(task, place).table.column(0)
    rows = task.listed.table.combine_chunks()
    return TaskRows(rows.filter(pc.invert(pc.or_(met, from_numpy(_lie_under(rows.column(0), prefixes))))))


def mark_slice(task: JoinTask, place: ObjectStore) -> TaskRows:
    """Say of each row of a slice whether something refers to it, in a column of bits. Raises ``Corrupted``."""
    names = in_one(task.listed.table.column(0))
    met = np.zeros(len(names), np.bool_)
    held, count = list[pa.Table](), 0
    for number, table in enumerate(_read_pieces(place, task.referenced), 1):
        held.append(table)
        count += table.num_rows
        if count >= len(names) or number == len(task.referenced):  # a larger hash table is slower than another call
            met |= to_numpy(pc.is_in(names, value_set=pa.concat_tables(held).column(0)))
            held, count = [], 0
    return TaskRows(pa.table({"referenced": from_numpy(met)}))


def _read_pieces(place: ObjectStore, pieces: Sequence[Piece]) -> Iterator[pa.Table]:
    def load(piece: Piece) -> pa.Table:
        try:
            data = place.get_range(piece.key, piece.start, piece.size)
        except ObjectNotFound:
            raise LakeopsError(
                f"{place.url}/{piece.key} is gone, or this machine does not see it: workers and driver need the same "
                "storage, a bucket or a directory that all machines mount; or set engine=local; nothing was deleted",
                kind="unsupported",
            ) from None
        if len(data) != piece.size or crc32(data) != piece.crc:
            raise Corrupted(f"{place.url}/{piece.key} is not what was written there; nothing was deleted; try again")
        return from_ipc(data)

    return read_ahead(load, pieces, IN_FLIGHT if place.remote else 0)


def distinct_ranges(metaranges: Iterable[Metarange]) -> pa.Table:
    """Every range file of some metaranges, one row a file: ``METARANGE_SCHEMA``. Files may hold the same range."""
    last = Metarange.empty().table
    tables, count = [last], 0
    for metarange in metaranges:
        table = metarange.table
        fresh = table.filter(pc.invert(pc.is_in(table["file"], value_set=in_one(last["file"]))))
        tables, count, last = [*tables, fresh], count + fresh.num_rows, table
        if count > _COMPACT:
            tables, count = [_one_each(tables, "file")], 0
    return _one_each(tables, "file")


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


def managed(namespace: str, addresses: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The addresses (any URLs, or relative) that lie in a namespace, relative to it, with repetitions."""
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
