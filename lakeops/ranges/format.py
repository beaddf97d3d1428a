"""The Parquet shape of ranges and metaranges: schemas, how they are encoded, how they are decoded.

Plain Parquet that DuckDB, polars and Spark read as it is; ``docs/format.md`` documents the columns. The settings were
measured: delta encodings and light zstd come within a tenth of the data's entropy, row groups of 8,192 rows make a
point lookup cheap, and everything that would tie the bytes to one reader is left out. Ids never come from these
bytes: another version of the writer may encode the same rows differently.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakeops.model.errors import Corrupted
from lakeops.model.schema import RANGE_SCHEMA

ROW_GROUP = 8_192

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
the size of the file and the SHA-256 of its bytes, which belong to this copy and are not part of any id."""

_COMMON: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "row_group_size": ROW_GROUP,
    "store_schema": False,
    "write_page_index": True,
    "write_page_checksum": True,
}
_RANGE: dict[str, Any] = _COMMON | {
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
}
_METARANGE: dict[str, Any] = _COMMON | {
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
_BROKEN = (pa.ArrowException, OSError, ValueError, KeyError)


def encode_range(table: pa.Table) -> bytes:
    """The Parquet bytes of a range file; ``table`` has ``RANGE_SCHEMA``."""
    return _encode(table, _RANGE)


def encode_metarange(table: pa.Table) -> bytes:
    """The Parquet bytes of a metarange file; ``table`` has ``METARANGE_SCHEMA``."""
    return _encode(table, _METARANGE)


def decode_metarange(data: bytes, key: str) -> pa.Table:
    """The rows of a metarange file whose bytes were verified. Raises ``Corrupted``, naming ``key``."""
    table = read_columns(data, footer(data, key), key)
    if not table.schema.equals(METARANGE_SCHEMA):
        raise not_decodable(key, "its columns are not a metarange's")
    return table.combine_chunks()


def footer(data: bytes, key: str) -> pq.FileMetaData:
    """The Parquet footer of verified bytes. Raises ``Corrupted``, naming ``key``."""
    try:
        return pq.ParquetFile(pa.BufferReader(data)).metadata
    except _BROKEN as error:
        raise not_decodable(key, str(error)) from error


def read_columns(
    data: bytes, metadata: pq.FileMetaData, key: str, columns: list[str] | None = None, groups: list[int] | None = None
) -> pa.Table:
    """Some columns and row groups of verified bytes (all by default). Raises ``Corrupted``, naming ``key``."""
    try:
        # A reader of its own for each call: they keep state and threads share the bytes.
        file = pq.ParquetFile(pa.BufferReader(data), metadata=metadata)
        if groups is None:
            return file.read(columns=columns, use_threads=False)
        return file.read_row_groups(groups, columns=columns, use_threads=False)
    except _BROKEN as error:
        raise not_decodable(key, str(error)) from error


def not_decodable(key: str, why: str) -> Corrupted:
    """The error for a file whose bytes are what was written, but which does not hold what it should."""
    return Corrupted(f"{key} cannot be decoded ({' '.join(why.split())}); run `lakeops fsck` to see what is affected")


def _encode(table: pa.Table, settings: dict[str, Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **settings)
    data: bytes = sink.getvalue().to_pybytes()
    return data
