"""A seekable file over an object of which only ranges can be fetched."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFER_BYTES = 4 * 1024 * 1024
"""What one request fetches at least, when a reader goes on piece by piece."""


class ObjectReader(io.RawIOBase):
    """Raw reads of one object.

    Args:
        size: the object's size in bytes.
        fetch: ``fetch(start, length)`` gives that many bytes. It refuses to when the object was replaced meanwhile.
    """

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        self._size = size
        self._fetch = fetch
        self._position = 0

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move. Nothing is fetched."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"cannot seek to {start + offset}, before the start of the file")
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        """The position in bytes."""
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fetch as much as the buffer takes, in one request. 0 at the end."""
        view = memoryview(buffer).cast("B")
        data = self._take(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """The rest, in one request."""
        return self._take(self._size)

    def _take(self, length: int) -> bytes:
        length = min(length, self._size - self._position)
        if length <= 0:
            return b""
        data = self._fetch(self._position, length)
        self._position += len(data)
        return data
