"""Arrow arrays from values of Python and numpy, and back, without pandas.

pyarrow imports pandas, where that is installed, as soon as it is given or gives a Python value or a numpy array. A
process that commits once would spend as much CPU on that as on all the rest. So short tasks make and read arrays by the
functions here. ``tests/ops/test_pandas.py`` finds code that does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import repeat
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_MANY = 100_000
"""More Python values than these are left to Arrow: it is quicker, and with so many of them the import is no matter."""

_PYTHON: dict[int, type] = {
    **dict.fromkeys((pa.string().id, pa.large_string().id), str),
    **dict.fromkeys((pa.binary().id, pa.large_binary().id, pa.binary(1).id), bytes),
    **{kind.id: int for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{kind.id: int for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    pa.bool_().id: bool,
}
"""The Python type of a value, by the number of its Arrow type. Other types are left to Arrow."""


def from_numpy(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers or truth values as an Arrow array. Numbers are not copied. Those that are ``missing`` are null."""
    known = None if missing is None else _bits(~missing)
    if values.dtype == np.bool_:
        return pa.Array.from_buffers(pa.bool_(), len(values), [known, _bits(values)])
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [known, pa.py_buffer(values)])


def to_numpy(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """The numbers or truth values of an Arrow array. Raises ``ArrowTypeError`` where there are nulls.

    Numbers of one chunk are not copied, and cannot be changed.
    """
    values = in_one(values)
    if values.null_count:
        raise pa.ArrowTypeError("nulls are no numbers and no truth values")
    if not pa.types.is_boolean(values.type):
        return np.from_dlpack(values)
    start, stop = values.offset, values.offset + len(values)
    data = np.frombuffer(values.buffers()[1] or b"", np.uint8)
    return np.unpackbits(data, count=stop, bitorder="little")[start:].view(np.bool_)


def in_one(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """An array without chunks. It is not copied where it has one chunk alone."""
    if isinstance(values, pa.Array):
        return values
    chunks = values.chunks or [pa.nulls(0, values.type)]
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def first_true(mask: pa.Array | pa.ChunkedArray) -> int | None:
    """The position of the first true value."""
    mask = in_one(mask)
    if mask.null_count:
        mask = pc.fill_null(mask, scalar(False, pa.bool_()))
    found = np.flatnonzero(to_numpy(mask))
    return int(found[0]) if len(found) else None


def text(value: str) -> pa.StringScalar:
    """A text as Arrow's functions take it."""
    return scalar(value, pa.string())


def scalar(value: object, kind: pa.DataType) -> pa.Scalar:
    """A value as Arrow's functions take it."""
    return array([value], kind)[0]


def array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Python values as an Arrow array, with None for null: what ``pa.array`` gives, and its errors."""
    python = _PYTHON.get(kind.id)
    if python is not None and len(values) <= _MANY:
        kinds = set(map(type, values))
        if kinds <= {python, NoneType}:
            missing = np.array([value is None for value in values], np.bool_) if NoneType in kinds else None
            with suppress(UnicodeEncodeError, OverflowError):
                if python not in (str, bytes):
                    plain = values if missing is None else [value or 0 for value in values]
                    return from_numpy(np.array(plain, kind.to_pandas_dtype()), missing)
                found = _texts(values, kind, missing)
                if found is not None:
                    return found
    return pa.array(values, kind)


def no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows."""
    return pa.Table.from_arrays([*map(pa.nulls, repeat(0), schema.types)], schema=schema)


def _texts(values: Sequence[Any], kind: pa.DataType, missing: npt.NDArray[np.bool_] | None) -> pa.Array | None:
    """Texts or bytes. None where they do not fit into ``kind``."""
    fixed = pa.types.is_fixed_size_binary(kind)
    if missing is not None:
        nothing = bytes(kind.byte_width) if fixed else _PYTHON[kind.id]()
        values = [nothing if value is None else value for value in values]
    joined = None
    if values and isinstance(values[0], str):
        characters = "".join(values)
        if characters.isascii():  # then there are as many bytes
            joined = characters.encode()
        else:
            values = list(map(str.encode, values))
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    joined = b"".join(values) if joined is None else joined
    known, data = None if missing is None else _bits(~missing), pa.py_buffer(joined)
    if fixed:
        fits = np.all(sizes == kind.byte_width)
        return pa.Array.from_buffers(kind, len(values), [known, data]) if fits else None
    bounds = np.int64 if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) else np.int32
    if len(joined) > np.iinfo(bounds).max:
        return None
    ends = np.zeros(len(values) + 1, bounds)
    np.cumsum(sizes, out=ends[1:])
    return pa.Array.from_buffers(kind, len(values), [known, pa.py_buffer(ends), data])


def _bits(values: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


METADATA_TYPE = pa.map_(pa.string(), pa.string())

ENTRY_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("physical_address", pa.string(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("mtime", pa.int64(), nullable=False),
        pa.field("content_type", pa.string(), nullable=False),
        pa.field("metadata", METADATA_TYPE, nullable=False),
    ]
)
"""One object a row. ``mtime`` in Unix seconds. Sorted by the UTF-8 bytes of ``path`` wherever order is promised."""

RANGE_SCHEMA = ENTRY_SCHEMA.append(pa.field("digest", pa.binary(16), nullable=False))
"""Rows of a range: an entry and its digest (see ``ranges.digest``)."""

STAGED_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("tombstone", pa.bool_(), nullable=False),
        *(ENTRY_SCHEMA.field(name).with_nullable(True) for name in ENTRY_SCHEMA.names[1:]),
    ]
)
"""Staged rows: an entry, or a tombstone whose other columns are null."""

STAGING_COLUMNS = STAGED_SCHEMA.set(STAGED_SCHEMA.get_field_index("metadata"), pa.field("metadata", pa.string()))
"""Staged rows as the catalog's staging table keeps them: metadata is JSON text, null when empty."""


def no_metadata(rows: int) -> pa.MapArray:
    """The user metadata of rows that have none."""
    nothing = pa.nulls(0, pa.string())
    return pa.MapArray.from_arrays(from_numpy(np.zeros(rows + 1, np.int32)), nothing, nothing)
