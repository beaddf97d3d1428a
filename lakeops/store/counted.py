"""A file that reports how many bytes were read from it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class CountedFile(io.BufferedIOBase, BinaryIO):
    """A readable, seekable file around another one, which it closes with itself."""

    def __init__(self, inner: BinaryIO, count: Callable[[int], None]) -> None:
        self._inner = inner
        self._count = count

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to another position."""
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        """The position in bytes."""
        return self._inner.tell()

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to ``size`` bytes; all that is left when it is negative or None."""
        data = self._inner.read(-1 if size is None else size)
        self._count(len(data))
        return data

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill a buffer; gives the number of bytes, 0 at the end."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close both files."""
        self._inner.close()
        super().close()
