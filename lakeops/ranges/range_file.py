"""Range and metarange files: the one place that reads them and the one that writes them.

Plain Parquet that DuckDB, polars and Spark read as it is. ``docs/format.md`` documents the columns. The settings were
measured: delta encodings and light zstd come within a tenth of the data's entropy. Ids never come from these bytes.

A file is fetched whole and verified before anything of it is used. The catalog's commit holds the SHA-256 of the
metarange file, the metarange that of each range file, and the entry digests in a range file hash to the range's id. A
digest says who wrote the bytes, and not that they are harmless, so all decoding has bounds of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.parquet.core import ParquetReader

from lakeops.model.arrow import RANGE_SCHEMA, from_numpy, in_one, no_rows, text, to_numpy
from lakeops.model.caching import cached_property
from lakeops.model.errors import Corrupted, FileMissing, ObjectNotFound
from lakeops.ranges import metarange as sizes
from lakeops.ranges.digest import DIGEST_BYTES, Positions
from lakeops.ranges.metarange import (
    LEAF_SCHEMA,
    METARANGE_SCHEMA,
    OVERHEAD,
    ROW_MOST,
    Delta,
    DeltaRows,
    Metarange,
    RangeRow,
    described_leaf,
    in_leaves,
    range_id,
    root_flaw,
    root_row,
)
from lakeops.store.base import ObjectStore
from lakeops.store.in_flight import in_flight
from lakeops.store.layout import attempt_file, metarange_key, range_key

if TYPE_CHECKING:
    from lakeops.store.disk_cache import DiskCache

VERSION: Final = 2
"""The version of the format."""
VERSION_KEY = "lakeops.version"
"""The key in a range file's footer under which the version of the format stands."""
CHANGES_KEY = "lakeops.changes"
"""The key in a metarange file's footer under which stands where its list of changes is."""

_COMMON: dict[str, Any] = {"store_schema": False, "write_page_checksum": True}
_DENSE = ("size_bytes", "mtime", "content_type", "digest")
"""Columns that their encoding leaves nothing to compress of: trying costs a tenth of the time that writing takes."""
_TEXTS = ("path", "physical_address", "checksum", "metadata.key_value.key", "metadata.key_value.value")
_RANGE: dict[str, Any] = _COMMON | {
    "compression": dict.fromkeys(_TEXTS, "ZSTD") | dict.fromkeys(_DENSE, "NONE"),
    "compression_level": dict.fromkeys(_TEXTS, 1),
    "use_dictionary": ["content_type", "metadata.key_value.key", "metadata.key_value.value"],
    "column_encoding": {
        "path": "DELTA_BYTE_ARRAY",
        "physical_address": "DELTA_BYTE_ARRAY",
        "checksum": "DELTA_LENGTH_BYTE_ARRAY",
        "size_bytes": "DELTA_BINARY_PACKED",
        "mtime": "DELTA_BINARY_PACKED",
        "digest": "PLAIN",
    },
    "write_statistics": ["path", "size_bytes", "mtime"],
    "sorting_columns": [pq.SortingColumn(RANGE_SCHEMA.get_field_index("path"))],
    "write_batch_size": 16_384,  # a range at a time: the same bytes as in smaller batches, with fewer steps
}
_LISTED = {name: value for name, value in _RANGE.items() if name != "sorting_columns"}
_METARANGE: dict[str, Any] = _COMMON | {
    "compression": "ZSTD",
    "compression_level": 1,
    "use_dictionary": False,
    "write_statistics": ["first_path", "last_path", "count", "bytes"],
}
_ENCODINGS = {
    "id": "PLAIN",
    "file": "DELTA_LENGTH_BYTE_ARRAY",
    "first_path": "DELTA_BYTE_ARRAY",
    "last_path": "DELTA_BYTE_ARRAY",
    "count": "DELTA_BINARY_PACKED",
    "bytes": "DELTA_BINARY_PACKED",
    "file_bytes": "DELTA_BINARY_PACKED",
    "file_digest": "PLAIN",
    "ranges": "DELTA_BINARY_PACKED",
}
_RANGES_ENCODINGS = {name: _ENCODINGS[name] for name in METARANGE_SCHEMA.names}
_METARANGE_GROUP = 8_192
_LEAVES: dict[str, list[int]] = {}
"""The numbers of Parquet's columns that hold a column of ``RANGE_SCHEMA``. A map has one for keys, one for values."""
for _field in RANGE_SCHEMA:
    _first = sum(map(len, _LEAVES.values()))
    _LEAVES[_field.name] = [_first, _first + 1] if pa.types.is_map(_field.type) else [_first]
_BROKEN = (
    pa.ArrowException, OSError, ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError
)  # fmt: skip
"""The errors of decoding bytes that are no file of ours."""

MARK: Final = b"PAR1"
"""The bytes that a Parquet file begins and ends with."""
_LISTED_MOST: Final = 8 << 10
"""Bytes that a row of a metarange takes in memory at most."""
_AT_ONCE: Final = 1 << 30
"""Memory that decoding some rows may take before anybody can look at them."""

_FREE = 256 << 10
_FREE_OF_RANGE = 128
"""Bytes of a list: every reader of the commit reads them. A range takes about as many in the metarange."""
_RELEASED_AFTER = 8 << 20


def fetch(store: ObjectStore, key: str, digest: bytes, size: int | None = None, *, cached: bool = True) -> bytes:
    """The bytes of a file whose SHA-256 is ``digest``. Raises ``Corrupted`` or ``FileMissing``, naming it.

    Where its ``size`` is known, no more is asked for. ``cached`` files may be in this machine's cache, and get there.
    """
    cache: DiskCache | None = getattr(store, "disk_cache", None) if cached else None
    if cache is not None and (kept := cache.get(digest)) is not None:
        return kept
    try:
        data = store.get(key) if size is None else store.get_range(key, 0, size + 1)
    except ObjectNotFound as error:
        raise FileMissing(
            f"{key} is missing from {store.url}, though a commit needs it; run `lakeops fsck` to see what is affected"
        ) from error
    if sha256(data).digest() != digest:
        raise Corrupted(
            f"{key} does not match its digest ({len(data):,} bytes were read); nothing of it was used; "
            "restore it from a copy of the bucket, and run `lakeops fsck` to see what is affected"
        )
    if cache is not None:
        cache.put(digest, data)
    return data


def _put(store: ObjectStore, key: str, data: bytes) -> str:
    """Write a file, also to this machine's cache. Returns its SHA-256 in hex."""
    digest = store.put(key, data).checksum
    cache: DiskCache | None = getattr(store, "disk_cache", None)
    if cache is not None:
        cache.put(bytes.fromhex(digest), data)
    return digest


# --- ranges ---


class RangeFile:
    """A range file whose bytes are in hand, verified. Rows are decoded when asked for. Threads may share it.

    Raises ``Corrupted``, naming the file, unless it holds what the metarange ``row`` says. Paths that do not rise are
    an error where they have to be ``ordered``: searches need them to.
    """

    def __init__(self, row: RangeRow, data: bytes, *, ordered: bool = True) -> None:
        self.row = row
        self._data = data
        self._ordered = ordered
        # As files are written here the digests lie right before the footer, dense: nothing is decoded.
        stop = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        start = stop - DIGEST_BYTES * row.count
        count, stored = (row.count, memoryview(data)[start:stop]) if len(MARK) <= start else (0, b"")
        buffers = [None, pa.py_buffer(stored)]
        self.digests: pa.Array = pa.Array.from_buffers(pa.binary(DIGEST_BYTES), count, buffers)
        if range_id(self.digests) != row.id:
            self.digests = in_one(self.read(["digest"]).column(0))

    @cached_property
    def paths(self) -> pa.Array:
        """The paths of all rows."""
        return in_one(self.read(["path"]).column(0))

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """All rows of some columns (all by default)."""
        leaves = None if columns is None else [leaf for column in columns for leaf in _LEAVES[column]]
        try:
            reader = _reader(self._data, self._metadata)
            table = reader.read_row_groups([0], column_indices=leaves, use_threads=False)
            table.validate(full=True)
        except _BROKEN as error:
            raise not_decodable(self.row.key, str(error)) from error
        return self._checked(table).combine_chunks()

    def read_carefully(self) -> pa.Table:
        """All rows, decoded in no more memory than they can take, of a file that somebody else wrote."""
        return self._checked(_decode_rows(self._data, self.row.key, self._metadata))

    def take(self, rows: Positions, columns: list[str] | None = None) -> pa.Table:
        """The rows with these numbers."""
        return self.read(columns).take(from_numpy(rows))

    def find(self, paths: pa.Array) -> Positions:
        """The row of each of these paths; -1 for those that are not here."""
        here = self.paths
        places = to_numpy(pc.search_sorted(here, paths)).astype(np.int64)
        present = here.take(from_numpy(np.minimum(places, len(here) - 1)))
        # Past the end the last path is compared, which is smaller, so it is never equal.
        return np.where(to_numpy(pc.equal(present, paths)), places, -1)

    @cached_property
    def _metadata(self) -> pq.FileMetaData:
        metadata, rows = _range_metadata(self._data, self.row.key), self.row.count
        if (metadata.num_row_groups, metadata.num_rows) != (1, rows) or metadata.row_group(0).num_rows != rows:
            said = f"{metadata.num_rows:,} rows in {metadata.num_row_groups} row groups, not {rows:,} in 1"
            raise not_decodable(self.row.key, said)
        return metadata

    def _checked(self, table: pa.Table) -> pa.Table:
        """Decoded rows, which the id is of, and whose paths rise: a search finds what is there."""
        key, columns = self.row.key, table.column_names
        if table.num_rows != self.row.count:
            raise not_decodable(key, f"{table.num_rows} of its {self.row.count} rows came out")
        if "digest" in columns and range_id(table.column("digest")) != self.row.id:
            raise Corrupted(
                f"{key} holds another range than its metarange says; run `lakeops fsck` to see what is affected"
            )
        if self._ordered and "path" in columns:
            paths = in_one(table.column("path"))
            wrong = None
            if (paths[0].as_py(), paths[-1].as_py()) != (self.row.first_path, self.row.last_path):
                wrong = "it begins or ends elsewhere than its metarange says"
            elif pc.any(pc.greater_equal(paths[:-1], paths[1:])).as_py():
                wrong = "its paths do not rise"
            if wrong is not None:
                raise Corrupted(f"{key} is out of order: {wrong}; run `lakeops fsck` to see what is affected")
        return table


def fetch_range(store: ObjectStore, row: RangeRow, *, ordered: bool = True, cached: bool = True) -> RangeFile:
    """The range file that a metarange row names. Raises ``Corrupted`` or ``FileMissing``, naming it.

    Paths that do not rise are an error where they have to be ``ordered``. See ``fetch`` for ``cached``.
    """
    if row.flaw is not None:
        raise Corrupted(f"range {row.id.hex()[:16]}: {row.flaw}; run `lakeops fsck` to see what is affected")
    return RangeFile(row, fetch(store, row.key, row.file_digest, row.file_bytes, cached=cached), ordered=ordered)


def fetch_ranges(store: ObjectStore, rows: Sequence[RangeRow]) -> list[RangeFile]:
    """The files that some metarange rows name. A far store is asked for all at once. Raises as ``fetch_range``."""
    fetch_one, at_once = partial(fetch_range, store), store.remote and len(rows) > 1
    return list(in_flight(fetch_one, rows) if at_once else map(fetch_one, rows))


class RangeWriter:
    """Writes ranges under names that no other attempt ever uses, but for those that exist already.

    So a retry or a speculative twin never touches a file that somebody else may refer to, and garbage collection never
    meets a name that came back to life. ``known`` are ranges of commits that the publishing transaction checks to be
    live.
    """

    def __init__(self, store: ObjectStore, attempt: str, known: Iterable[RangeRow] = ()) -> None:
        self.store = store
        self.known: dict[bytes, RangeRow] = {row.id: row for row in known}
        self._attempt = attempt
        self._bytes_written = 0

    def write(self, rows: pa.Table) -> RangeRow:
        """The metarange row of the rows of one range (``RANGE_SCHEMA``), written unless a known range is the same."""
        row_id = range_id(rows.column("digest"))
        if row_id in self.known:
            return self.known[row_id]
        data, file = encode_range(rows), attempt_file(row_id.hex(), self._attempt)
        digest = _put(self.store, range_key(file), data)
        before, self._bytes_written = self._bytes_written, self._bytes_written + len(data)
        release_memory(before, self._bytes_written)
        paths = rows.column("path")
        return RangeRow(
            id=row_id,
            file=file,
            first_path=paths[0].as_py(),
            last_path=paths[-1].as_py(),
            count=rows.num_rows,
            size_bytes=int(pc.sum(rows.column("size_bytes")).as_py()),
            file_bytes=len(data),
            file_digest=bytes.fromhex(digest),
        )


def release_memory(before: int, now: int) -> None:
    """Give back the freed memory that Arrow's pool keeps, after every 8 MiB of files that were read or written.

    The pool keeps it for each thread apart. Over many ranges that adds up to several times the memory in use.
    """
    if before // _RELEASED_AFTER != now // _RELEASED_AFTER:
        pa.default_memory_pool().release_unused()


def encode_range(rows: pa.Table, options: dict[str, Any] = _RANGE) -> bytes:
    """The Parquet bytes of a range file, or of a list. ``rows`` has ``RANGE_SCHEMA``, and at least one row."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, RANGE_SCHEMA, **options) as writer:
        writer.write_table(rows, row_group_size=rows.num_rows)
        writer.add_key_value_metadata({VERSION_KEY: str(VERSION)})
    return bytes(sink.getvalue())


# --- metaranges ---


@dataclass(frozen=True, slots=True)
class MetarangeFile:
    """A written metarange: what a commit keeps of it. ``digest`` is the SHA-256 of the file's bytes, in hex."""

    id: str
    file: str
    digest: str


def write_metarange(store: ObjectStore, metarange: Metarange, attempt: str) -> MetarangeFile:
    """Write a metarange. Returns what the commit keeps of it. ``attempt`` is fresh for every try.

    A large one is a root and leaves, of which those that are in no file yet are written.
    """
    most = sizes.MOST_INLINE if store.remote else sizes.MOST_INLINE_NEAR
    attachment = None if metarange.delta is None else encode_delta(metarange.delta, len(metarange))
    file = attempt_file(metarange.id, attempt)
    table = metarange.table if len(metarange) <= most else _write_leaves(store, metarange, attempt)
    return MetarangeFile(metarange.id, file, _put(store, metarange_key(file), encode_metarange(table, attachment)))


def _write_leaves(store: ObjectStore, metarange: Metarange, attempt: str) -> pa.Table:
    leaves = in_leaves(metarange)

    def write(row: RangeRow) -> pa.Table:
        leaf = leaves.fresh[row.id]
        data, file = encode_metarange(leaf.table), attempt_file(row.id.hex(), attempt)
        return root_row(leaf, described_leaf(leaf, file, len(data), bytes.fromhex(_put(store, range_key(file), data))))

    table = leaves.root.table
    new = np.flatnonzero(to_numpy(pc.equal(table.column("file"), text(""))))
    written = (in_flight if store.remote else map)(write, leaves.root.at(new))
    parts, done = [no_rows(LEAF_SCHEMA)], 0
    for number, row in zip(new.tolist(), written, strict=True):
        parts += [table.slice(done, number - done), row]
        done = number + 1
    return pa.concat_tables([*parts, table.slice(done)])


def fetch_leaf(store: ObjectStore, row: RangeRow) -> Metarange:
    """The leaf that a row of a root names. Raises ``Corrupted`` or ``FileMissing``, naming it."""
    leaf = decode_metarange(fetch(store, row.key, row.file_digest, row.file_bytes), row.key)
    told = row.file, row.file_bytes, row.file_digest
    if leaf.table.schema == METARANGE_SCHEMA and len(leaf) and described_leaf(leaf, *told) == row:
        return leaf
    raise Corrupted(f"{row.key} holds another leaf than its metarange says; run `lakeops fsck` to see what is affected")


def encode_metarange(table: pa.Table, attachment: tuple[str, bytes] | None = None) -> bytes:
    """The Parquet bytes of a metarange file or leaf (``METARANGE_SCHEMA``), or of a root (``LEAF_SCHEMA``).

    An attachment is a note, and bytes that lie before the footer, where readers of Parquet do not look.
    """
    sink = pa.BufferOutputStream()
    encodings = _ENCODINGS if "ranges" in table.column_names else _RANGES_ENCODINGS
    with pq.ParquetWriter(sink, table.schema, column_encoding=encodings, **_METARANGE) as writer:
        writer.write_table(table, row_group_size=_METARANGE_GROUP)
        if attachment is not None:
            start = sink.tell()
            sink.write(attachment[1])
            writer.add_key_value_metadata({CHANGES_KEY: f"{start} {sink.tell()} {attachment[0]}"})
    return bytes(sink.getvalue())


def decode_metarange(data: bytes, key: str) -> Metarange:
    """The metarange of a file whose bytes were verified. Raises ``Corrupted``, naming ``key``.

    Of a large one it is the root, whose rows (``LEAF_SCHEMA``) are leaves. The rows of its list of changes are decoded
    once they are asked for, and raise ``Corrupted`` then.
    """
    try:
        reader = _reader(data)
        schema = reader.metadata.schema.to_arrow_schema()
        if schema not in (METARANGE_SCHEMA, LEAF_SCHEMA):
            raise not_decodable(key, "its columns are not a metarange's")
        table = pa.Table.from_batches(_batches(reader, data, key, _LISTED_MOST), schema)
        if schema == LEAF_SCHEMA and (flaw := root_flaw(table)) is not None:
            raise not_decodable(key, flaw)
        where = (reader.metadata.metadata or {}).get(CHANGES_KEY.encode())
        if where is None:
            return Metarange(table)
        start, stop, since, count = where.decode().split(" ")
        first, end, removed = int(start), int(stop), int(count)
        if not len(MARK) <= first <= end <= len(data) or removed < 0:
            raise not_decodable(key, f"its list of changes would be at bytes {start} to {stop}")
    except _BROKEN as error:
        raise not_decodable(key, str(error)) from error
    listed = data[first:end]
    return Metarange(table, Delta(since, partial(_decode_delta, listed, removed, key), (removed, listed)))


def encode_delta(delta: Delta, ranges: int) -> tuple[str, bytes] | None:
    """The list of changes of a metarange of so many ranges. None where it would take too much there."""
    removed, data = delta.encoded
    if not data:
        removed, data = delta.rows[0].num_rows, encode_range(pa.concat_tables(delta.rows), _LISTED)
    most = _FREE + _FREE_OF_RANGE * ranges
    return None if len(data) > most else (f"{delta.since} {removed}", data)


def _decode_delta(data: bytes, removed: int, key: str) -> DeltaRows:
    rows = _decode_rows(data, key)
    before, after = rows.slice(0, removed), rows.slice(removed)
    for side in (before, after):
        paths = in_one(side.column("path"))
        if pc.any(pc.greater_equal(paths[:-1], paths[1:])).as_py():
            raise not_decodable(key, "its list of changes is out of order")
    return before, after


# --- decoding with bounds of memory ---


def _reader(data: bytes, metadata: pq.FileMetaData | None = None) -> ParquetReader:
    """A reader for one call: readers keep state, and threads share the bytes.

    ``ParquetFile`` looks for file systems and names of nested columns first: that takes as long as a small file.
    """
    reader = ParquetReader()
    # All bytes are in memory, so reading ahead gains nothing.
    reader.open(pa.BufferReader(data), metadata=metadata, pre_buffer=False)
    return reader


def _range_metadata(data: bytes, key: str) -> pq.FileMetaData:
    """The footer of a file of ``RANGE_SCHEMA``, within its budget. Raises ``Corrupted``."""
    try:
        metadata = _reader(data).metadata
        fits = metadata.schema.to_arrow_schema().equals(RANGE_SCHEMA)
    except _BROKEN as error:
        raise not_decodable(key, str(error)) from error
    if not fits:
        raise not_decodable(key, "its columns are not a range's")
    _check_budget(metadata, key, ROW_MOST)
    return metadata


def _check_budget(metadata: pq.FileMetaData, key: str, most: int) -> None:
    """Refuse a file whose footer tells of more bytes than its rows can take. Raises ``Corrupted``."""
    size = 0
    for number in range(metadata.num_row_groups):
        size += metadata.row_group(number).total_byte_size
    if size > metadata.num_rows * most + OVERHEAD:
        raise not_decodable(key, f"its {metadata.num_rows:,} rows take {size:,} bytes without compression")


def _decode_rows(data: bytes, key: str, metadata: pq.FileMetaData | None = None) -> pa.Table:
    """All rows of a file of ``RANGE_SCHEMA`` that may have been made to fill the memory. Raises as ``_batches``."""
    metadata = metadata or _range_metadata(data, key)
    try:
        return pa.Table.from_batches(_batches(_reader(data, metadata), data, key, ROW_MOST), RANGE_SCHEMA)
    except _BROKEN as error:
        raise not_decodable(key, str(error)) from error


def _batches(reader: ParquetReader, data: bytes, key: str, most: int) -> list[pa.RecordBatch]:
    """All rows of a file that may have been made to fill the memory. Raises ``Corrupted``, naming the file.

    A few bytes can stand for a text of many, and that for one in each row. So the pages' sizes are added up first, and
    then so few rows are decoded at a time that each may be as long as all of its row group. A row takes ``most`` bytes
    of memory at most.
    """
    metadata = reader.metadata
    _check_budget(metadata, key, most)
    batches, view = [], memoryview(data)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size = 0
        for place in range(group.num_columns):
            column = group.column(place)
            start = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
            size += _page_bytes(view[start : start + column.total_compressed_size])
        if size > group.num_rows * most + OVERHEAD:
            raise not_decodable(key, f"{group.num_rows:,} rows take {size:,} bytes")
        rows = max(1, _AT_ONCE // max(size, 1))
        for batch in reader.iter_batches(rows, row_groups=[number], use_threads=False):
            # The buffers hold no less, and their sizes are quicker to add up.
            budget = batch.num_rows * most + OVERHEAD
            if batch.get_total_buffer_size() > budget and batch.nbytes > budget:
                raise not_decodable(key, f"{batch.num_rows:,} rows take {batch.nbytes:,} bytes of memory")
            batch.validate(full=True)
            batches.append(batch)
    return batches


def _page_bytes(column: bytes | memoryview) -> int:
    """The size of a column's chunk without compression, as its pages tell it.

    The footer says so too, but memory is taken as the pages ask for it. A page's header is a struct in Thrift's compact
    protocol, which begins with the page's type and its sizes. Raises ``ValueError`` or ``IndexError``.
    """
    data, at, total = bytes(column), 0, 0
    while at < len(data):
        values, place = [], at
        for _ in range(3):  # the page's type, its size without compression and with it
            if data[place] != _PAGE_FIELD:
                raise ValueError("a page's header is not in order")
            value, place = _varint(data, place + 1)
            values.append((value >> 1) ^ -(value & 1))
        _, plain, stored = values
        if plain < 0 or stored < 0:
            raise ValueError("a page has a negative size")
        total, at = total + plain, _skip(data, at, _STRUCT) + stored
    if at != len(data):
        raise ValueError("the last page does not end where its column does")
    return total


_PAGE_FIELD: Final = 0x15
"""The header of a field right behind the one before, with a number of 32 bits."""
_BYTE, _BYTES, _LIST, _STRUCT = 3, 8, 9, 12
_VARINT_SIZES: Final = frozenset((4, 5, 6))
_LONG_LIST: Final = 15
"""From so many elements on their number follows a list's header."""


def _skip(data: bytes, at: int, kind: int) -> int:
    """Where a value of a Thrift field ends."""
    if kind in _VARINT_SIZES:
        return _varint(data, at)[1]
    if kind == _BYTES:
        size, at = _varint(data, at)
        return at + size
    if kind == _STRUCT:
        while head := data[at]:
            at += 1
            if not head >> 4:
                at = _skip(data, at, 4)
            if head & 15 > 2:  # a truth value is in the header
                at = _skip(data, at, head & 15)
        return at + 1
    if kind == _LIST:
        count, of = data[at] >> 4, data[at] & 15
        at += 1
        if count == _LONG_LIST:
            count, at = _varint(data, at)
        if of <= _BYTE:
            return at + count
        for _ in range(count):
            at = _skip(data, at, of)
        return at
    if kind == _BYTE:
        return at + 1
    raise ValueError(f"values of type {kind} are not known")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) > 127:
        value |= (byte & 127) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
    return value | byte << shift, at + 1


def not_decodable(key: str, why: str) -> Corrupted:
    """The error for a file whose bytes are what was written, but which does not hold what it should."""
    return Corrupted(f"{key} cannot be decoded ({' '.join(why.split())}); run `lakeops fsck` to see what is affected")
