"""What is in one file: its columns and its rows as Arrow, read through the store that it lies in."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

import pyarrow as pa

from lakeops.model.errors import Unsupported
from lakeops.model.text import excerpt
from lakeops.spark.files import File
from lakeops.store import recorded

ROWS = 65_536
"""Rows of a batch."""

COMPRESSIONS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4"}
"""How compressed text ends."""


def schema_of(file: File, kind: str, *, header: bool) -> pa.Schema:
    """The columns of a file."""
    with closing(_batches(file, kind, None, header=header)) as batches:
        schema: pa.Schema = next(batches).schema
    return schema


def batches_of(file: File, kind: str, schema: pa.Schema, *, header: bool) -> Iterator[pa.RecordBatch]:
    """The rows of a file; those columns that the schema has too."""
    batches = _batches(file, kind, schema, header=header)
    next(batches)  # the columns
    return batches


def _batches(file: File, kind: str, schema: pa.Schema | None, *, header: bool) -> Generator[pa.RecordBatch]:
    """First a batch without rows, which tells the columns, then the rows."""
    with _open_checked(file) as opened:
        if kind == "parquet":
            import pyarrow.parquet as pq

            with pq.ParquetFile(opened) as parquet:
                names = [name for name in parquet.schema_arrow.names if schema is None or name in schema.names]
                yield pa.RecordBatch.from_pylist([], pa.schema([parquet.schema_arrow.field(name) for name in names]))
                yield from parquet.iter_batches(ROWS, columns=names, use_threads=False)
            return
        with _decompressed(file, opened) as stream:
            if kind == "csv":
                from pyarrow import csv

                how = csv.ReadOptions(use_threads=False, autogenerate_column_names=not header)
                types = None if schema is None else {field.name: field.type for field in schema}
                rows = csv.open_csv(stream, how, convert_options=csv.ConvertOptions(column_types=types))
                yield pa.RecordBatch.from_pylist([], rows.schema)
                yield from rows
            elif kind == "json":
                from pyarrow import json

                table = json.read_json(stream, json.ReadOptions(use_threads=False))
                yield pa.RecordBatch.from_pylist([], table.schema)
                yield from table.to_batches(ROWS)
            else:
                raise Unsupported(f"the format lakeops reads parquet, csv and json, not {excerpt(kind)}")


@contextmanager
def _open_checked(file: File) -> Iterator[recorded.ObjectFile]:
    """The file, its size checked, and its contents where they are read from start to end."""
    what = recorded.Recorded(file.path, file.address, file.size_bytes, file.checksum, file.algorithm)
    with recorded.open_object(file.store, file.key, what) as opened:
        yield opened


@contextmanager
def _decompressed(file: File, opened: recorded.ObjectFile) -> Iterator[pa.NativeFile]:
    """The file as a stream, decompressed where the path says how it is compressed."""
    compression = COMPRESSIONS.get(file.path.rpartition(".")[2].lower())
    with pa.PythonFile(opened, "r") as plain:
        if compression is None:
            yield plain
        else:
            with pa.CompressedInputStream(plain, compression) as stream:
                yield stream
