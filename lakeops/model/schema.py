"""Entries as Arrow: the columns of ranges and of staged rows.

Imports pyarrow, so nothing on the way to a ref, branch or log command may import this module.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lakeops.model.arrays import from_numpy

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


def no_metadata(rows: int) -> pa.MapArray:
    """The user metadata of rows that have none."""
    nothing = pa.nulls(0, pa.string())
    return pa.MapArray.from_arrays(from_numpy(np.zeros(rows + 1, np.int32)), nothing, nothing)
