"""The order of paths, in bytes: bounds of a prefix, and a quick search in a sorted column.

UTF-8 bytes order as code points do, so Python's strings, Arrow, DuckDB and Spark agree. The one thing that text
cannot express is "past everything under this prefix"; bounds are therefore bytes.
"""

from __future__ import annotations

from bisect import bisect_left

import pyarrow as pa


def upper_bound(prefix: str) -> bytes | None:
    """Bytes above every path under ``prefix`` and below every path past it; None when all paths are under it."""
    # No UTF-8 text holds the byte 0xff.
    return prefix.encode() + b"\xff" if prefix else None


class SortedPaths:
    """A sorted text column as a sequence of bytes, made for single lookups: a few microseconds among thousands.

    Arrow's own search is quicker for many needles, but a call costs more than a whole bisection here.

    Args:
        column: ``string``, without nulls; sliced columns are fine.
    """

    def __init__(self, column: pa.Array | pa.ChunkedArray) -> None:
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        _, offsets, values = column.buffers()
        self._size = len(column)
        self._bounds = memoryview(offsets).cast("i")[column.offset : column.offset + self._size + 1] if offsets else ()
        self._values = memoryview(values) if values is not None else memoryview(b"")

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> bytes:
        return bytes(self._values[self._bounds[index] : self._bounds[index + 1]])

    def first_at(self, key: bytes) -> int:
        """The position of the first path at or after ``key``; the length when there is none."""
        return bisect_left(self, key)
