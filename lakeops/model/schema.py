"""Entries as Arrow: the columns of ranges and of staged rows.

Imports pyarrow, so nothing on the way to a ref, branch or log command may import this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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


def arrow(values: npt.NDArray[Any]) -> pa.Array:
    """Numbers or truth values as an Arrow array without nulls. Numbers are not copied."""
    if values.dtype == np.bool_:
        bits = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def numbers(values: pa.Array) -> npt.NDArray[Any]:
    """The numbers of an Arrow array without nulls. They are not copied and cannot be changed."""
    return np.from_dlpack(values)


def text(value: str) -> pa.StringScalar:
    """A text as Arrow's functions take it. They import pandas to make one of a Python value."""
    raw = value.encode()
    bounds = np.array([0, len(raw)], np.int32)
    return pa.StringArray.from_buffers(1, pa.py_buffer(bounds), pa.py_buffer(raw))[0]
