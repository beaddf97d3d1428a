"""Arrow arrays from values of Python and numpy, and back, without pandas.

pyarrow imports pandas, where that is installed, as soon as it is given a Python value or a numpy array, or gives one. A
process that commits once would spend as much CPU on that as on all the rest. So what a short task does makes and reads
arrays by what is here. ``tests/ops/test_pandas.py`` runs the verbs and finds out who does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_MANY = 10_000
"""Python values that Arrow converts itself: it is much quicker, and with so many of them the import is no matter."""


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
    return array([value], pa.string())[0]


def scalar(value: object, kind: pa.DataType) -> pa.Scalar:
    """A value as Arrow's functions take it."""
    return array([value], kind)[0]


def array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Python values as an Arrow array, with None for null: what ``pa.array`` gives, and its errors."""
    python = _python(kind)
    if python and len(values) <= _MANY and all(value is None or type(value) is python for value in values):
        missing = np.array([value is None for value in values], np.bool_)
        with suppress(UnicodeEncodeError, OverflowError):
            found = (_texts if python in (str, bytes) else _numbers)(values, kind, missing if missing.any() else None)
            if found is not None:
                return found
    return pa.array(values, kind)


def no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _python(kind: pa.DataType) -> type | None:
    """What values of a type are in Python. None for types that are left to Arrow."""
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return str
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return bytes
    return int if types.is_integer(kind) else bool if types.is_boolean(kind) else None


def _texts(values: Sequence[Any], kind: pa.DataType, missing: npt.NDArray[np.bool_] | None) -> pa.Array | None:
    """Texts or bytes. None where they do not fit into ``kind``."""
    fixed, nothing = pa.types.is_fixed_size_binary(kind), b""
    if fixed:
        nothing = bytes(kind.byte_width)
    raw = [nothing if value is None else value.encode() if isinstance(value, str) else value for value in values]
    known, data = None if missing is None else _bits(~missing), pa.py_buffer(b"".join(raw))
    if fixed:
        fits = all(len(value) == kind.byte_width for value in raw)
        return pa.Array.from_buffers(kind, len(values), [known, data]) if fits else None
    bounds = np.int64 if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) else np.int32
    ends = np.cumsum([0, *map(len, raw)], dtype=np.int64)
    if ends[-1] > np.iinfo(bounds).max:
        return None
    return pa.Array.from_buffers(kind, len(values), [known, pa.py_buffer(ends.astype(bounds)), data])


def _numbers(values: Sequence[Any], kind: pa.DataType, missing: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Whole numbers or truth values."""
    return from_numpy(np.array([value or 0 for value in values], kind.to_pandas_dtype()), missing)


def _bits(values: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
