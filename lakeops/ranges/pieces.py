"""A file of which only some bytes are at hand, as Arrow reads files.

Row groups are fetched and verified one by one, but Parquet's metadata speaks of places in the whole file. So the
pieces stand in for it, without being copied into a buffer of its size; and whoever asks for a byte outside of them
gets an error, so nothing is decoded that was not verified.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa


class Pieces:
    """A readable and seekable file, for ``pyarrow.PythonFile``.

    Args:
        size: bytes of the whole file.
        pieces: where each piece begins, and its bytes; ascending.
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
