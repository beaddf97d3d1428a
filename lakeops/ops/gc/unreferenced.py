"""The listing of a namespace, and garbage collection's anti-join: the listed objects that nothing refers to.

The names are listed between borders, by tasks where that is quicker, and lie in scratch files in small chunks. Both
sides may be larger than memory, so both are cut into slices: some chunks each, and references at the same names. Tasks
read the ranges, and each leaves one scratch file with the addresses that its ranges refer to, slice by slice. Then a
task for each slice reads its pieces of these files, verifies them, and compares whole addresses, byte by byte. Threads
and Spark's workers run the same tasks. Scratch files lie in a directory of this machine, and for Spark in the
namespace, under ``_lakefs/tasks/``.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.base import Engine, from_ipc
from lakeops.model.arrow import array, from_numpy, in_one, to_numpy
from lakeops.model.clock import Ids, unix_seconds
from lakeops.model.errors import Corrupted, InvalidInput, LakeopsError, Transient
from lakeops.ranges.metarange import Metarange, RangeRow, ranges_for
from lakeops.ranges.range_file import fetch_range
from lakeops.ranges.validation import ABSOLUTE
from lakeops.store import layout
from lakeops.store.base import Listing, ObjectStore
from lakeops.store.in_flight import IN_FLIGHT, read_ahead
from lakeops.store.listing import LISTING_SECONDS, gathered
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

_CHUNKS = 8
"""Chunks of the listing that a slice has at least."""

_SLICES_ON_SPARK = 4
"""The most slices that a task on Spark joins, one after the other: few jobs."""

_BATCH = 65_536
"""Rows that are handed over at a time."""

_TOGETHER = 100_000
"""Objects in the ranges that one thread reads at a time."""

_TOGETHER_ON_SPARK = 1_500_000
"""Objects in the ranges of one task on Spark: some 450 MB, and few jobs."""

_FILE_SECONDS = 4e-6
"""The time in which one core lists a local file."""

_ROW_SECONDS = 8e-7
"""The time that one core takes for a name of the listing, and for an address that ranges refer to."""

_COMPACT = 1_000_000
"""Ranges of many metaranges after which those that repeat are dropped."""

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

SAMPLE = 20
"""How many names of a kind are shown."""

_TO_THE_SECOND = r"^data/\d{10}/\d{4}[0-9a-v]{20}(/|$)"
_ATTEMPT = r"-(?P<stamp>\d{14})[0-9a-v]{20,}\.parquet$"
_RUN = r"^_lakefs/retention/gc/(?P<stamp>\d{14})[0-9a-v]{20}/."
_STAMPS = {"range": _ATTEMPT, "metarange": _ATTEMPT, "mark": _RUN}
"""Where names say when what wrote a metadata file began."""

KINDS = {
    "range": r"^_lakefs/ranges/[0-9a-f]{64}-[^/]+\.parquet$",
    "metarange": r"^_lakefs/metaranges/[0-9a-f]{64}-[^/]+\.parquet$",
    "mark": _RUN,
    "task": r"^_lakefs/tasks/[^/]+/.",
    "probe": r"^_lakefs/probe/[0-9a-v]+",
}
"""Metadata files by what their keys look like. ``object`` is the kind of everything under ``layout.OBJECT_NAME``."""


@dataclass
class FileCount:
    """How many files, how many bytes, and the first few of their names."""

    count: int = 0
    size_bytes: int = 0
    sample: list[str] = field(default_factory=list)

    def add(self, table: pa.Table) -> None:
        """Count the files of a table of ``LISTED_SCHEMA``."""
        names = table["physical_address"].slice(0, SAMPLE).to_pylist()
        self.extend(FileCount(table.num_rows, pc.sum(table["size_bytes"]).as_py() or 0, names))

    def extend(self, later: FileCount) -> None:
        """Count the files of another one, too."""
        self.count += later.count
        self.size_bytes += later.size_bytes
        self.sample = [*self.sample, *later.sample][:SAMPLE]

    def to_json(self) -> dict[str, int]:
        """The count for programs."""
        return {"count": self.count, "bytes": self.size_bytes}


@dataclass
class StoreListing:
    """A store's files as they were listed.

    With a ``cutoff`` they are sorted out: objects that were begun before it lie in ``chunks``, metadata files in
    ``files`` by kind. ``listed`` counts all objects of lakeops, ``young`` what is too young, ``strays`` what somebody
    else put there. Without one all files lie in ``chunks``. ``names`` is how many there are.
    """

    cutoff: datetime | None
    names: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    files: dict[str, list[pa.Table]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    listed: FileCount = field(default_factory=FileCount)
    young: FileCount = field(default_factory=FileCount)
    strays: FileCount = field(default_factory=FileCount)

    def take(self, listing: Listing, scratch: Scratch) -> None:
        """Add what comes next, but for the scratch files."""
        rows = pa.table([listing.keys, listing.sizes, listing.mtimes], schema=LISTED_SCHEMA)
        own = pc.starts_with(rows["physical_address"], scratch.prefix)
        rows = rows.filter(pc.invert(own)) if pc.any(own).as_py() else rows
        self.names += len(rows)
        self.chunks += scratch.write_chunks(rows if self.cutoff is None else self.sort(rows, self.cutoff))

    def extend(self, later: StoreListing) -> None:
        """Add what was listed behind all that is here."""
        self.names += later.names
        self.chunks += later.chunks
        for kind, tables in later.files.items():
            self.files[kind] += tables
        self.listed.extend(later.listed)
        self.young.extend(later.young)
        self.strays.extend(later.strays)

    def old(self, kind: str) -> pa.Table:
        """The metadata files of a kind that are old enough: ``LISTED_SCHEMA``."""
        return pa.concat_tables([LISTED_SCHEMA.empty_table(), *self.files[kind]])

    def sort(self, table: pa.Table, cutoff: datetime) -> pa.Table:
        """Put each row of a table where it belongs. Returns the objects that are old enough."""
        address = table["physical_address"]
        ours = pc.match_substring_regex(address, layout.OBJECT_NAME)
        objects, rest = table.filter(ours), table.filter(pc.invert(ours))
        self.listed.add(objects)
        address = objects["physical_address"]
        to_the_second = pc.match_substring_regex(address, _TO_THE_SECOND)
        second = pc.if_else(to_the_second, pc.utf8_slice_codeunits(address, 16, 20), "5959")
        stamps = pc.binary_join_element_wise(pc.utf8_slice_codeunits(address, 5, 15), second, "")
        old = self._only_old(objects, pc.if_else(pc.starts_with(address, layout.TABLES), "", stamps), cutoff)
        for kind, pattern in KINDS.items():
            if not rest.num_rows:
                return old
            of_kind = pc.match_substring_regex(rest["physical_address"], pattern)
            files, rest = rest.filter(of_kind), rest.filter(pc.invert(of_kind))
            if files.num_rows:
                stamps = pa.chunked_array([pa.repeat("", files.num_rows)])
                if kind in _STAMPS:
                    stamps = pc.struct_field(pc.extract_regex(files["physical_address"], _STAMPS[kind]), [0])
                self.files[kind].append(self._only_old(files, pc.fill_null(stamps, ""), cutoff))
        names = rest["physical_address"]
        strange = pc.not_equal(names, layout.CLAIM)
        for folder in (layout.OWNER, layout.REFS):
            strange = pc.and_not(strange, pc.starts_with(names, folder))
        self.strays.add(rest.filter(strange))
        return old

    def _only_old(self, files: pa.Table, stamps: pa.ChunkedArray, cutoff: datetime) -> pa.Table:
        """The files that were begun before the cutoff, by their stamps or the store's times. Others count as young."""
        # Stamps have whole seconds: one of the cutoff's second may stand for a later moment.
        last = f"{cutoff - timedelta(seconds=1):%Y%m%d%H%M%S}"
        by_store = pc.less_equal(files["mtime"], unix_seconds(cutoff))
        old = pc.if_else(pc.equal(stamps, ""), by_store, pc.less_equal(stamps, last))
        self.young.add(files.filter(pc.invert(old)))
        return files.filter(old)


def list_store(
    store: ObjectStore, found: StoreListing, engine: Engine, scratch: Scratch, on_progress: Callable[[int], None]
) -> Engine:
    """List the whole namespace, and return the engine that did. ``scratch`` takes about 60 bytes for each object.

    How much there is shows only while it is listed. So the engine is chosen again whenever what was listed has doubled,
    and the rest may become tasks for it.
    """
    after, asked, seconds = "", 0, LISTING_SECONDS / 2_800 if store.remote else _FILE_SECONDS
    with closing(gathered(store.scan(skip_special=True, moving=True), _BATCH)) as listings:
        while (place := engine.for_work(found.names * seconds)).in_process:
            for listing in listings:
                found.take(listing, scratch)
                on_progress(found.names)
                if found.names >= 2 * asked:
                    after, asked = listing.keys[-1], found.names
                    break
            else:
                return place
    scratch.upload_for_workers(place)
    parts, done = dict[int, StoreListing](), found.names
    perform = partial(list_part, cutoff=found.cutoff, scratch=scratch)
    for number, part in place.run(perform, place.parts(store, after), store):
        parts[number], done = part, done + part.names
        on_progress(done)
    for number in sorted(parts):
        found.extend(parts[number])
    return place


def list_part(part: tuple[str, str], store: ObjectStore, *, cutoff: datetime | None, scratch: Scratch) -> StoreListing:
    """List a part of ``Engine.parts`` into scratch files. Safe to run any number of times."""
    found, (after, until) = StoreListing(cutoff), part
    for listing in gathered(store.scan(after=after, until=until, skip_special=True, moving=True), _BATCH):
        found.take(listing, scratch)
    return found


def unreferenced(
    scratch: Scratch,
    listed: Sequence[Chunk],
    ranges: pa.Table,
    *,
    engine: Engine,
    addresses: Iterable[pa.Array | pa.ChunkedArray] = (),
    prefixes: Iterable[str] = (),
    on_progress: OnProgress = lambda _done, _total: None,
) -> Unreferenced:
    """The objects of a listing that nothing refers to, usable as long as the scratch files are there.

    Args:
        scratch: where the listing lies. It takes the text of the other side too.
        listed: the objects in byte order, taken before it was decided what is live.
        ranges: what is live: ``METARANGE_SCHEMA``, in any order (see ``distinct_ranges``). Each file is opened once.
        addresses: what else is referred to: ``string`` columns, relative or absolute.
        prefixes: everything under these is kept: places that somebody writes to.
        on_progress: called with (ranges read, ranges in all).

    Raises ``Corrupted`` or ``FileMissing`` for a range, and ``Transient``: ``engine_unavailable`` where the scratch
    directory is full, or Spark gave up.
    """
    store, ranges = scratch.store, _one_each([ranges], "id")
    slices = Slices(scratch, listed)
    engine = engine.for_work((slices.count + sum(ranges["count"].to_pylist())) * _ROW_SECONDS)
    slices.upload_for_workers(engine)
    for some in addresses:
        slices.refer_to(managed(store.url, some))
    most = ranges_for(_TOGETHER if engine.in_process else _TOGETHER_ON_SPARK, [ranges])
    group, total = min(engine.group(ranges.num_rows), most), ranges.num_rows
    neighbours, done = Metarange(ranges.sort_by("first_path")), 0
    tasks = (tuple(neighbours.rows(i, min(i + group, total))) for i in range(0, total, group))
    for number, read in engine.run(partial(read_references, cutter=slices.cutter), tasks, store):
        slices.references += read
        done += min(group, total - number * group)
        on_progress(done, total)
    return slices.unreferenced(engine, prefixes)


class Unreferenced:
    """Unreferenced objects: ``count`` of the ``listed`` ones, so others are ``kept``. They lie in scratch files."""

    def __init__(self, place: ObjectStore, listed: int, chunks: Sequence[Chunk]) -> None:
        self.listed = listed
        self.count: int = sum(chunk.count for chunk in chunks)
        self.kept: int = listed - self.count
        self._place, self._chunks = place, chunks

    def batches(self) -> Iterator[pa.Table]:
        """The objects, sorted by address: tables of ``LISTED_SCHEMA``, none empty. Can be asked for again.

        Their sizes follow from ``count`` alone, so a file that they are written to is equal on any engine.
        """
        rest = LISTED_SCHEMA.empty_table()
        for table in read_chunks(self._place, self._chunks):
            rest = pa.concat_tables([rest, table])
            while len(rest) >= _BATCH:
                yield rest.slice(0, _BATCH).combine_chunks()
                rest = rest.slice(_BATCH)
        if len(rest):
            yield rest.combine_chunks()


@dataclass
class Scratch:
    """The files of one run, under fresh names below a prefix: on this machine, or in the ``store`` for workers."""

    store: ObjectStore
    place: ObjectStore
    prefix: str
    folder: Path

    def upload_for_workers(self, engine: Engine) -> None:
        """Copy the files to the store if the tasks of an engine run outside this process."""
        if not engine.in_process and self.place is not self.store:
            for item in self.place.list(self.prefix):
                self.store.put(item.key, self.place.get(item.key))
            self.place = self.store

    def write(self, tables: Iterable[tuple[int, pa.Table]]) -> list[Piece]:
        """Write the rows of slices, given by number, to one file. Raises ``Transient`` where there is no room."""
        key, sink, ends = f"{self.prefix}{Ids().new()}.arrow", pa.BufferOutputStream(), [(-1, 0)]
        for number, some in tables:
            with pa.ipc.new_stream(sink, some.schema, options=_LZ4) as out:
                out.write_table(some)
            ends.append((number, sink.tell()))
        data = sink.getvalue().to_pybytes()
        try:
            if data and self.place is self.store:
                self.place.put(key, data)
            elif data:  # no file of this machine has to last, and nobody asks for its digest
                (self.folder / self.prefix).mkdir(parents=True, exist_ok=True)
                (self.folder / key).write_bytes(data)
        except LakeopsError:  # of a store, some of which are OSErrors too
            raise
        except OSError as error:
            raise Transient(
                f"a scratch file cannot be written: {error}; see that {self.place.url} has room, or run it on "
                "Spark; nothing was deleted",
                kind="engine_unavailable",
            ) from error
        view = memoryview(data)
        return [Piece(to[0], key, at, to[1] - at, crc32(view[at : to[1]])) for (_, at), to in pairwise(ends)]

    def write_chunks(self, rows: pa.Table) -> list[Chunk]:
        """Write consecutive rows of a listing. Raises ``Transient`` unless they are in byte order."""
        rows, size = rows.combine_chunks(), max(1, SLICE // _CHUNKS)
        names = in_one(rows.column(0))
        if pc.all(pc.less(names[:-1], names[1:])).as_py() is False:
            raise _out_of_order()
        parts = [(at, rows.slice(at, size)) for at in range(0, len(rows), size)]
        found = list[Chunk]()
        for piece, (at, part) in zip(self.write(parts), parts, strict=True):
            some = names.slice(at, len(part))
            found.append(Chunk(some[0].as_py(), some[-1].as_py(), len(part), some.nbytes, piece))
        return found


@contextmanager
def scratching(store: ObjectStore, folder: Path | None = None) -> Iterator[Scratch]:
    """A place for scratch files inside the block, in a local ``folder`` at first. They go then, or as garbage."""
    with tempfile.TemporaryDirectory(prefix="lakeops-", dir=folder) as name:
        local = Path(name).resolve()
        scratch = Scratch(store, LocalStore(local, fsync=False), f"{layout.TASKS}{Ids().new()}/", local)
        try:
            yield scratch
        finally:
            if scratch.place is store:
                with suppress(LakeopsError):
                    store.delete([item.key for item in store.list(scratch.prefix)])


def _out_of_order() -> Transient:
    return Transient("the listing of the storage namespace is out of order; nothing was deleted; try again")


class Slices:
    """A listing in slices of some chunks each, of about equal sizes, and the ``references`` to it, cut likewise.

    The cutter's borders are the first name of each slice, and one past the last name. So slices of references have
    similar sizes.
    """

    def __init__(self, scratch: Scratch, chunks: Sequence[Chunk]) -> None:
        if any(before.last >= after.first for before, after in pairwise(chunks)):
            raise _out_of_order()
        self.count: int = sum(chunk.count for chunk in chunks)
        self.references: list[Piece] = []
        self._scratch = scratch
        slices = max(-(-self.count // SLICE), -(-sum(chunk.size_bytes for chunk in chunks) // SLICE_BYTES))
        starts, slices = accumulate((chunk.count for chunk in chunks), initial=0), min(SLICES, slices)
        groups = groupby(zip(starts, chunks, strict=False), key=lambda pair: pair[0] * slices // self.count)
        self._slices = [tuple(chunk for _, chunk in some) for _, some in groups]
        ends = [f"{chunks[-1].last}\0"] if chunks else []
        self.cutter = Cutter(scratch, array([*(some[0].first for some in self._slices), *ends], pa.string()))

    def upload_for_workers(self, engine: Engine) -> None:
        """Copy the listing, if there is any, to the store if an engine's tasks run outside this process."""
        if self._slices:
            self._scratch.upload_for_workers(engine)

    def refer_to(self, keys: Sequence[str] | pa.Array | pa.ChunkedArray) -> None:
        """Add references to keys of the namespace."""
        self.references += self.cutter.cut(keys)

    def unreferenced(self, engine: Engine, prefixes: Iterable[str]) -> Unreferenced:
        """Join the slices: the objects that no reference is equal to, and that lie under none of the prefixes."""
        self.upload_for_workers(engine)
        # The threads that read are gone, and what they had freed would stay with them.
        pa.default_memory_pool().release_unused()
        by_slice = defaultdict[int, list[Piece]](list)
        for piece in self.references:
            by_slice[piece.slice].append(piece)
        tasks = [JoinTask(some, tuple(by_slice[number])) for number, some in enumerate(self._slices)]
        group = 1 if engine.in_process else min(_SLICES_ON_SPARK, engine.group(len(tasks)))
        work = partial(join_slices, scratch=self._scratch, prefixes=tuple(prefixes))
        grouped = (tuple(tasks[at : at + group]) for at in range(0, len(tasks), group))
        free = dict(engine.run(work, grouped, self._scratch.place))
        return Unreferenced(
            self._scratch.place, self.count, [chunk for number in sorted(free) for chunk in free[number]]
        )


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
class Chunk:
    """Consecutive rows of a listing: the first and the last name, how many, the bytes of their text, and where."""

    first: str
    last: str
    count: int
    size_bytes: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts rows into slices at ``borders``, and leaves them in scratch files."""

    scratch: Scratch
    borders: pa.Array

    def cut(self, keys: Sequence[str] | pa.Array | pa.ChunkedArray) -> list[Piece]:
        """Write keys of the namespace to one scratch file, slice by slice."""
        column = (
            in_one(keys).cast(pa.string()) if isinstance(keys, pa.Array | pa.ChunkedArray) else array(keys, pa.string())
        )
        return self.scratch.write(_by_slice(pa.table([column], schema=_REFERENCED), self.borders))


def read_references(task: tuple[RangeRow, ...], store: ObjectStore, *, cutter: Cutter) -> list[Piece]:
    """Read what ranges refer to in the namespace, and cut it. Raises ``Corrupted`` or ``FileMissing``."""
    tables = (fetch_range(store, row).read(_REFERENCED.names) for row in task)
    names = pa.concat_arrays([managed(store.url, table.column(0)) for table in tables])
    if any(after.first_path <= before.last_path for before, after in pairwise(task)):
        names = names.unique()  # of several commits, which have most addresses in common
    return cutter.cut(names)


@dataclass(frozen=True, slots=True)
class JoinTask:
    """A slice of the listing, and the pieces of what refers to it."""

    listed: tuple[Chunk, ...]
    referenced: tuple[Piece, ...]


def join_slices(
    tasks: Sequence[JoinTask], place: ObjectStore, *, scratch: Scratch, prefixes: tuple[str, ...]
) -> list[Chunk]:
    """Find the rows of slices that nothing refers to. Raises ``Corrupted`` where a piece is not what was written."""
    found = list[Chunk]()
    for task in tasks:
        rows = pa.concat_tables(read_chunks(place, task.listed)).combine_chunks()
        names = rows.column(0)
        met = _lie_under(names, prefixes)
        held, count = list[pa.Table](), 0
        for number, table in enumerate(_read_pieces(place, task.referenced), 1):
            held.append(table)
            count += table.num_rows
            if count >= len(names) or number == len(task.referenced):  # a larger hash table is slower than another call
                met |= to_numpy(in_one(pc.is_in(names, value_set=pa.concat_tables(held).column(0))))
                held, count = [], 0
        found += scratch.write_chunks(rows.filter(from_numpy(~met)))
    return found


def read_chunks(place: ObjectStore, chunks: Iterable[Chunk]) -> Iterator[pa.Table]:
    """The rows of a listing, chunk by chunk. Raises ``Corrupted`` where a chunk is not what was written."""
    return _read_pieces(place, [chunk.piece for chunk in chunks])


def _read_pieces(place: ObjectStore, pieces: Sequence[Piece]) -> Iterator[pa.Table]:
    def load(piece: Piece) -> pa.Table:
        data = place.get_range(piece.key, piece.start, piece.size)
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


def _one_each(tables: Sequence[pa.Table], name: str) -> pa.Table:
    """The rows of all tables, one a value of a column: the first."""
    table = pa.concat_tables(tables).combine_chunks()
    codes = to_numpy(in_one(table.column(name)).dictionary_encode().indices)
    return table.take(from_numpy(np.unique(codes, return_index=True)[1]))


_DIRECTORY = r"[^/]*$"


def managed(namespace: str, addresses: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The addresses (any URLs, or relative) that lie in a namespace, relative to it, with repetitions."""
    addresses = in_one(addresses)
    if pc.all(pc.starts_with(addresses, layout.DATA)).as_py():
        return addresses
    addresses = addresses.cast(pa.string())
    absolute = pc.match_substring_regex(addresses, ABSOLUTE)
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
