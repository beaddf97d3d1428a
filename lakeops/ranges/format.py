"""The Parquet shape of ranges and metaranges: schemas, how they are encoded, how they are decoded.

Plain Parquet that DuckDB, polars and Spark read as it is. ``docs/format.md`` documents the columns. The settings were
measured: delta encodings and light zstd come within a tenth of the data's entropy, row groups of a few thousand rows
make a point lookup and a diff cheap, and everything that would tie the bytes to one reader is left out. Ids never come
from these bytes: another version of the writer may encode the same rows differently.

A range file's end says of each row group where its bytes are, their SHA-256 and the digest of its rows. So a
reader that trusts the end of the file can read one row group and trust it too.
"""

from __future__ import annotations

import io
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet.core import ParquetReader

from lakeops.model.errors import Corrupted
from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.outline import MARK, NotOutlined, metadata_at, page_bytes
from lakeops.ranges.split import VERSION

_TABLE_MARK: Final = b"lakeops groups 1"
_TRAILER: Final = struct.Struct("<II16s")
_RECORD: Final = struct.Struct("<QII32s32s")


class RowGroup(NamedTuple):
    """One row group of a range file.

    Attributes:
        start: where its bytes begin in the file.
        size: how many there are.
        rows: how many rows it has.
        first_path: the path of the first row, UTF-8.
        file_digest: the SHA-256 of the bytes.
        digest: the digest of the rows.
    """

    start: int
    size: int
    rows: int
    first_path: bytes
    file_digest: bytes
    digest: bytes

    @property
    def end(self) -> int:
        """Where its bytes end."""
        return self.start + self.size


def with_table(groups: Sequence[RowGroup], footer: bytes) -> bytes:
    """The end of a range file: Parquet's footer after the table of these row groups.

    Args:
        groups: the row groups, which follow one another from the file's mark on.
        footer: everything after the last row group as Parquet would have it.
    """
    begin = metadata_at(footer)
    records = [
        _RECORD.pack(group.size, group.rows, len(group.first_path), group.file_digest, group.digest) for group in groups
    ]
    paths = b"".join(group.first_path for group in groups)
    trailer = _TRAILER.pack(len(paths), len(groups), _TABLE_MARK)
    return b"".join((footer[:begin], *records, paths, trailer, footer[begin:]))


def find_table(tail: bytes) -> tuple[RowGroup, ...]:
    """The row groups by the table in the bytes at a file's end. Raises ``ValueError`` when there is no whole table."""
    end = metadata_at(tail) - _TRAILER.size
    if end < 0:
        raise ValueError("the table of row groups is missing")
    paths, count, mark = _TRAILER.unpack_from(tail, end)
    path_at, begin = end - paths, end - paths - count * _RECORD.size
    if mark != _TABLE_MARK or begin < 0:
        raise ValueError("the table of row groups is missing or not whole")
    groups, start = [], len(MARK)
    for size, rows, path_size, file_digest, digest in _RECORD.iter_unpack(tail[begin:path_at]):
        groups.append(RowGroup(start, size, rows, tail[path_at : path_at + path_size], file_digest, digest))
        start, path_at = start + size, path_at + path_size
    return tuple(groups)


class Pieces:
    """A readable and seekable file, for ``pyarrow.PythonFile``.

    Args:
        size: bytes of the whole file.
        pieces: where each piece begins, and its bytes. Ascending.
    """

    closed = False

    def __init__(self, size: int, pieces: Sequence[tuple[int, memoryview]]) -> None:
        self._size = size
        self._starts = [start for start, _ in pieces]
        self._pieces = [data for _, data in pieces]
        self._at = 0

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Read on elsewhere."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read_buffer(self, size: int) -> pa.Buffer:
        """The next bytes, without a copy. Raises ``ValueError`` unless one piece holds them all."""
        number = bisect_right(self._starts, self._at) - 1
        if number >= 0:
            start = self._at - self._starts[number]
            data = self._pieces[number][start : start + size]
            if len(data) == size:
                self._at += size
                return pa.py_buffer(data)
        raise ValueError(f"bytes {self._at} to {self._at + size} are outside of the row groups that were asked for")

    def close(self) -> None:
        """Nothing is held open."""


VERSION_KEY = "lakeops.version"
"""The key in a range file's footer under which the version of the format stands."""
CHANGES_KEY = "lakeops.changes"
"""The key in a metarange file's footer under which stands where its list of changes is."""

METARANGE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.binary(32), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("first_path", pa.string(), nullable=False),
        pa.field("last_path", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("file_bytes", pa.int64(), nullable=False),
        pa.field("footer_bytes", pa.int64(), nullable=False),
        pa.field("footer_digest", pa.binary(32), nullable=False),
    ]
)
"""One range a row, in order: its id and file name, first and last path, how many objects and their sizes' sum; then
the size of the file, and of its end (everything after the last row group) the size and the SHA-256. These belong to
this copy and are not part of any id."""

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
    "write_batch_size": 8_192,  # a row group at a time: the same bytes as in smaller batches, with fewer steps
}
_METARANGE: dict[str, Any] = _COMMON | {
    "compression": "ZSTD",
    "compression_level": 1,
    "use_dictionary": False,
    "column_encoding": {
        "id": "PLAIN",
        "file": "DELTA_LENGTH_BYTE_ARRAY",
        "first_path": "DELTA_BYTE_ARRAY",
        "last_path": "DELTA_BYTE_ARRAY",
        "count": "DELTA_BINARY_PACKED",
        "bytes": "DELTA_BINARY_PACKED",
        "file_bytes": "DELTA_BINARY_PACKED",
        "footer_bytes": "DELTA_BINARY_PACKED",
        "footer_digest": "PLAIN",
    },
    "write_statistics": ["first_path", "last_path", "count", "bytes"],
}
_METARANGE_GROUP = 8_192
_LEAVES: dict[str, list[int]] = {}
"""The numbers of Parquet's columns that hold a column of ``RANGE_SCHEMA``. A map has one for keys, one for values."""
for _field in RANGE_SCHEMA:
    _first = sum(map(len, _LEAVES.values()))
    _LEAVES[_field.name] = [_first, _first + 1] if pa.types.is_map(_field.type) else [_first]
_BROKEN = (
    pa.ArrowException, OSError, ValueError, KeyError, IndexError, TypeError, OverflowError, struct.error, NotOutlined
)  # fmt: skip
"""How bytes that are no file of ours fail where they are decoded."""

ROW_LEAST: Final = 16
"""Bytes that a row of a range takes in any file: its digest cannot be compressed."""
ROW_MOST: Final = 16 << 10
"""Bytes that a row of a range takes in memory at most: all its texts have bounds."""
FILE_MOST: Final = 1 << 31
"""Bytes of a range file at most: they are read in one request."""
_LISTED_MOST: Final = 8 << 10
OVERHEAD: Final = 1 << 20
"""Bytes of a file that belong to no row, and more than there are of them."""
_AT_ONCE: Final = 1 << 30
"""Memory that decoding some rows may take before anybody can look at them."""


@dataclass(frozen=True)
class Footer:
    """The end of a range file: its row groups, and what Parquet says of it."""

    groups: tuple[RowGroup, ...]
    _tail: bytes
    _key: str

    def parse(self) -> pq.FileMetaData:
        """What Parquet says of the file, parsed anew: it takes ten times the memory of the bytes.

        Raises ``Corrupted``, naming the file.
        """
        metadata = _range_metadata(self._tail, self._key)
        _check_budget(metadata, self._key, ROW_MOST)
        row_counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        if row_counts != [group.rows for group in self.groups]:
            raise not_decodable(self._key, "its table of row groups does not fit its footer")
        return metadata


def encode_range(groups: Sequence[pa.Table], digests: Sequence[bytes]) -> tuple[bytes, int]:
    """The Parquet bytes of a range file, and how many of them at the end are the footer.

    Args:
        groups: the rows of each row group, ``RANGE_SCHEMA``, none empty.
        digests: the digest of each group's rows.
    """
    sink = pa.BufferOutputStream()
    ends = []
    with pq.ParquetWriter(sink, RANGE_SCHEMA, **_RANGE) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=group.num_rows)
            ends.append(sink.tell())
        writer.add_key_value_metadata({VERSION_KEY: str(VERSION)})
    data = memoryview(sink.getvalue())
    tail = encode_tail(list(_written(data, ends, groups, digests)), bytes(data[ends[-1] :]))
    return b"".join((data[: ends[-1]], tail)), len(tail)


def encode_tail(groups: Sequence[RowGroup], footer: bytes) -> bytes:
    """The end of a range file with these row groups: Parquet's footer, which says the version, and their table."""
    return with_table(groups, footer)


def decode_footer(tail: bytes, key: str) -> Footer:
    """The footer in the verified bytes at the end of a range file. Raises ``Corrupted``, naming ``key``."""
    try:
        groups = find_table(tail)
        paths = [group.first_path for group in groups]
        if any(one >= other for one, other in pairwise(paths)) or not all(group.rows for group in groups):
            raise ValueError("its row groups are empty or out of order")
        b"\0".join(paths).decode()
        return Footer(groups, tail, key)
    except _BROKEN as error:
        raise not_decodable(key, str(error)) from error


class Attachment(NamedTuple):
    """Bytes that a metarange file has before its footer, where readers of Parquet do not look, and a note of them."""

    note: str
    data: bytes


def encode_metarange(table: pa.Table, attachment: Attachment | None = None) -> bytes:
    """The Parquet bytes of a metarange file. ``table`` has ``METARANGE_SCHEMA``."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, METARANGE_SCHEMA, **_METARANGE) as writer:
        writer.write_table(table, row_group_size=_METARANGE_GROUP)
        if attachment is not None:
            start = sink.tell()
            sink.write(attachment.data)
            writer.add_key_value_metadata({CHANGES_KEY: f"{start} {sink.tell()} {attachment.note}"})
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_metarange(data: bytes, key: str) -> tuple[pa.Table, Attachment | None]:
    """What a metarange file has whose bytes were verified. Raises ``Corrupted``, naming ``key``."""
    try:
        reader = _reader(pa.BufferReader(data))
        if not reader.metadata.schema.to_arrow_schema().equals(METARANGE_SCHEMA):
            raise not_decodable(key, "its columns are not a metarange's")
        batches = _batches(reader, data, key, _LISTED_MOST)
        table = pa.Table.from_batches(batches, METARANGE_SCHEMA).combine_chunks()
        return table, _attachment(data, reader.metadata.metadata or {})
    except _BROKEN as error:
        raise not_decodable(key, str(error)) from error


def _attachment(data: bytes, said: dict[bytes, bytes]) -> Attachment | None:
    where = said.get(CHANGES_KEY.encode())
    if where is None:
        return None
    start, stop, note = where.decode().split(" ", 2)
    if not len(MARK) <= int(start) <= int(stop) <= len(data):
        raise ValueError(f"its list of changes would be at bytes {start} to {stop}")
    return Attachment(note, data[int(start) : int(stop)])


def encode_rows(table: pa.Table) -> bytes:
    """Some rows of ranges as a Parquet file: ``RANGE_SCHEMA``, in any order."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{name: value for name, value in _RANGE.items() if name != "sorting_columns"})
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_rows(data: bytes, key: str) -> pa.Table:
    """What ``encode_rows`` was given, from bytes that were verified. Raises ``Corrupted``, naming ``key``."""
    return decode_range_slowly(data, _range_metadata(data, key), key)


def decode_range_slowly(data: bytes, metadata: pq.FileMetaData, key: str) -> pa.Table:
    """All rows of a range file that may have been made to fill the memory.

    Args:
        data: the whole file, its bytes verified.
        metadata: what its footer says: ``Footer.parse``.
        key: its name, for errors.

    Raises ``Corrupted``, naming the file.
    """
    try:
        batches = _batches(_reader(pa.BufferReader(data), metadata), data, key, ROW_MOST)
        return pa.Table.from_batches(batches, RANGE_SCHEMA)
    except _BROKEN as error:
        raise not_decodable(key, str(error)) from error


def _batches(reader: ParquetReader, data: bytes, key: str, most: int) -> list[pa.RecordBatch]:
    """All rows of a file that may have been made to fill the memory.

    A few bytes can stand for a text of many, and that for one in each row. So the pages' sizes are added up first, and
    then so few rows are decoded at a time that each may be as long as all of its row group.

    Args:
        reader: a reader of the file, whose columns are as they should be.
        data: the whole file, its bytes verified.
        key: its name, for errors.
        most: how many bytes of memory a row takes at most.

    Raises ``Corrupted``, naming the file.
    """
    metadata = reader.metadata
    _check_budget(metadata, key, most)
    batches, view = [], memoryview(data)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size = sum(page_bytes(view[slice(*_chunk(group.column(one)))]) for one in range(group.num_columns))
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


def _chunk(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Where a column's chunk begins in the file, and where it ends."""
    start = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    return start, start + column.total_compressed_size


def _check_budget(metadata: pq.FileMetaData, key: str, most: int) -> None:
    """Refuse a file whose footer tells of more bytes than its rows can take. Raises ``Corrupted``."""
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    if size > metadata.num_rows * most + OVERHEAD:
        raise not_decodable(key, f"its {metadata.num_rows:,} rows take {size:,} bytes without compression")


def _range_metadata(data: bytes, key: str) -> pq.FileMetaData:
    """The Parquet footer of a range, verified bytes. Raises ``Corrupted``, naming ``key``."""
    try:
        metadata = _reader(pa.BufferReader(data)).metadata
        fits = metadata.schema.to_arrow_schema().equals(RANGE_SCHEMA)
    except _BROKEN as error:
        raise not_decodable(key, str(error)) from error
    if not fits:
        raise not_decodable(key, "its columns are not a range's")
    return metadata


def read_columns(
    source: pa.NativeFile, key: str, columns: list[str] | None, metadata: pq.FileMetaData, groups: list[int]
) -> pa.Table:
    """Some columns (None: all) and row groups of a file whose bytes are verified as far as they are read.

    Raises ``Corrupted``, naming ``key``.
    """
    try:
        leaves = None if columns is None else [leaf for column in columns for leaf in _LEAVES[column]]
        reader = _reader(source, metadata)
        table = reader.read_row_groups(groups, column_indices=leaves, use_threads=False)
        table.validate(full=True)
        return table
    except _BROKEN as error:
        raise not_decodable(key, str(error)) from error


def stream_column(
    source: pa.NativeFile, metadata: pq.FileMetaData, key: str, column: str, rows: int
) -> Iterator[pa.Array]:
    """One text column of a file's bytes, which are verified, in pieces of so many rows: ``large_string``.

    Raises ``Corrupted``, naming ``key``.
    """
    try:
        done = 0
        # Arrow decodes into long offsets a sixth quicker, because it need not look whether short ones suffice.
        reader = _reader(source, metadata, pa.large_binary())
        groups = range(metadata.num_row_groups)
        for batch in reader.iter_batches(rows, groups, column_indices=_LEAVES[column], use_threads=False):
            done += batch.num_rows
            yield batch.column(0)
    except _BROKEN as error:
        raise not_decodable(key, str(error)) from error
    if done != metadata.num_rows:
        raise not_decodable(key, f"{done} of its {metadata.num_rows} rows came out")


def _reader(
    source: pa.NativeFile, metadata: pq.FileMetaData | None = None, text: pa.DataType | None = None
) -> ParquetReader:
    """A reader for one call: readers keep state, and threads share the bytes. Text comes as ``string`` by default.

    It is what ``ParquetFile`` reads by. That looks for file systems and for names of nested columns first, which takes
    as long as a small file.
    """
    reader = ParquetReader()
    # All bytes are in memory, so reading ahead gains nothing.
    reader.open(source, metadata=metadata, pre_buffer=False, binary_type=text)
    return reader


def not_decodable(key: str, why: str) -> Corrupted:
    """The error for a file whose bytes are what was written, but which does not hold what it should."""
    return Corrupted(f"{key} cannot be decoded ({' '.join(why.split())}); run `lakeops fsck` to see what is affected")


def _written(
    data: memoryview, ends: list[int], groups: Sequence[pa.Table], digests: Sequence[bytes]
) -> Iterator[RowGroup]:
    """The row groups of a file, which were written up to these places."""
    for start, end, group, digest in zip([len(MARK), *ends[:-1]], ends, groups, digests, strict=True):
        first = group.column("path")[0].as_py().encode()
        yield RowGroup(start, end - start, group.num_rows, first, sha256(data[start:end]).digest(), digest)
