"""The Parquet shape of ranges and metaranges: schemas, how they are encoded, how they are decoded.

Plain Parquet that DuckDB, polars and Spark read as it is. ``docs/format.md`` documents the columns. The settings were
measured: delta encodings and light zstd come within a tenth of the data's entropy, and everything that would tie the
bytes to one reader is left out. Ids never come from these bytes: another version of the writer may encode the same rows
differently. A range file has one row group.

Bytes that come here were verified by their SHA-256. That says who wrote them, and not that they are harmless, so all
decoding has bounds of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet.core import ParquetReader

from lakeops.model.arrow import RANGE_SCHEMA
from lakeops.model.errors import Corrupted

VERSION: Final = 2
"""The version of the format."""
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
        pa.field("file_digest", pa.binary(32), nullable=False),
    ]
)
"""One range a row, in order: its id and file name, first and last path, how many objects and their sizes' sum; then
the size and the SHA-256 of the file, which belong to this copy and are not part of any id."""

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
        "file_digest": "PLAIN",
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
    pa.ArrowException, OSError, ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError
)  # fmt: skip
"""How bytes that are no file of ours fail where they are decoded."""

MARK: Final = b"PAR1"
"""What a Parquet file begins with and ends with."""
DIGEST_BYTES: Final = 16
"""Bytes of an entry digest."""
ROW_LEAST: Final = DIGEST_BYTES
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


def encode_range(rows: pa.Table) -> bytes:
    """The Parquet bytes of a range file. ``rows`` has ``RANGE_SCHEMA``, and at least one row."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, RANGE_SCHEMA, **_RANGE) as writer:
        writer.write_table(rows, row_group_size=rows.num_rows)
        writer.add_key_value_metadata({VERSION_KEY: str(VERSION)})
    data: bytes = sink.getvalue().to_pybytes()
    return data


def range_metadata(data: bytes, rows: int, key: str) -> pq.FileMetaData:
    """What the footer of a range file of so many rows says. Raises ``Corrupted``, naming ``key``."""
    metadata = _metadata(data, key)
    _check_budget(metadata, key, ROW_MOST)
    if (metadata.num_row_groups, metadata.num_rows) != (1, rows) or metadata.row_group(0).num_rows != rows:
        raise not_decodable(
            key, f"{metadata.num_rows:,} rows in {metadata.num_row_groups} row groups, not {rows:,} in 1"
        )
    return metadata


def stored_digests(data: bytes, rows: int) -> memoryview:
    """The entry digests of a range file as this writer stores them: dense, right before the footer.

    The bytes may be anything where another writer made the file. Then they do not hash to the range's id.
    """
    end = len(data) - len(MARK) - 4 - int.from_bytes(data[-8:-4], "little")
    start = end - DIGEST_BYTES * rows
    return memoryview(data)[start:end] if len(MARK) <= start else memoryview(b"")


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
        reader = _reader(data)
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


def decode_rows(data: bytes, key: str, metadata: pq.FileMetaData | None = None) -> pa.Table:
    """All rows of a file of ``RANGE_SCHEMA`` that may have been made to fill the memory.

    Args:
        data: the whole file, its bytes verified.
        key: its name, for errors.
        metadata: what its footer says, where that is known.

    Raises ``Corrupted``, naming the file.
    """
    metadata = metadata or _metadata(data, key)
    try:
        batches = _batches(_reader(data, metadata), data, key, ROW_MOST)
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
        size = sum(_page_bytes(view[slice(*_chunk(group.column(one)))]) for one in range(group.num_columns))
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


def _metadata(data: bytes, key: str) -> pq.FileMetaData:
    """The Parquet footer of a file of ``RANGE_SCHEMA``. Raises ``Corrupted``, naming ``key``."""
    try:
        metadata = _reader(data).metadata
        fits = metadata.schema.to_arrow_schema().equals(RANGE_SCHEMA)
    except _BROKEN as error:
        raise not_decodable(key, str(error)) from error
    if not fits:
        raise not_decodable(key, "its columns are not a range's")
    return metadata


def read_columns(data: bytes, key: str, columns: list[str] | None, metadata: pq.FileMetaData) -> pa.Table:
    """Some columns (None: all) of a range file whose bytes are verified. Raises ``Corrupted``, naming ``key``."""
    try:
        leaves = None if columns is None else [leaf for column in columns for leaf in _LEAVES[column]]
        table = _reader(data, metadata).read_row_groups([0], column_indices=leaves, use_threads=False)
        table.validate(full=True)
        return table
    except _BROKEN as error:
        raise not_decodable(key, str(error)) from error


def stream_column(data: bytes, metadata: pq.FileMetaData, key: str, column: str, rows: int) -> Iterator[pa.Array]:
    """One text column of a range file, whose bytes are verified, in pieces of so many rows: ``large_string``.

    Raises ``Corrupted``, naming ``key``.
    """
    try:
        done = 0
        # Arrow decodes into long offsets a sixth quicker, because it need not look whether short ones suffice.
        reader = _reader(data, metadata, pa.large_binary())
        for batch in reader.iter_batches(rows, [0], column_indices=_LEAVES[column], use_threads=False):
            done += batch.num_rows
            yield batch.column(0)
    except _BROKEN as error:
        raise not_decodable(key, str(error)) from error
    if done != metadata.num_rows:
        raise not_decodable(key, f"{done} of its {metadata.num_rows} rows came out")


def _reader(data: bytes, metadata: pq.FileMetaData | None = None, text: pa.DataType | None = None) -> ParquetReader:
    """A reader for one call: readers keep state, and threads share the bytes. Text comes as ``string`` by default.

    It is what ``ParquetFile`` reads by. That looks for file systems and for names of nested columns first, which takes
    as long as a small file.
    """
    reader = ParquetReader()
    # All bytes are in memory, so reading ahead gains nothing.
    reader.open(pa.BufferReader(data), metadata=metadata, pre_buffer=False, binary_type=text)
    return reader


def _page_bytes(column: bytes | memoryview) -> int:
    """How many bytes the pages of a column's chunk say that they are without compression.

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
