"""Files over objects: seekable over ranges, or read once and checked; and small files that lakeops wrote itself."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from lakeops.model.errors import Corrupted, Transient
from lakeops.store.base import ObjectStore

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFER_BYTES = 4 * 1024 * 1024
"""Bytes that one request fetches at least, when a reader goes on piece by piece."""


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


_PIECE = 1024 * 1024


class EtagProof:
    """Tells whether contents have an ETag of S3, which is made of MD5s.

    Args:
        etag: as the server gives it, without quotes.
        sizes: of the parts, for an ETag of parts.
    """

    def __init__(self, etag: str, sizes: Sequence[int] = ()) -> None:
        self._etag = etag
        self._left = list(reversed(sizes))
        self._whole = hashlib.md5(usedforsecurity=False)
        self._part = hashlib.md5(usedforsecurity=False)
        self._room = self._left.pop() if self._left else 0
        self._count = len(sizes)

    def update(self, data: bytes) -> None:
        """Take the next bytes."""
        if not self._count:
            self._whole.update(data)
            return
        view = memoryview(data)
        while view:
            taken = view[: self._room] if self._left else view
            self._part.update(taken)
            self._room -= len(taken)
            view = view[len(taken) :]
            if not self._room and self._left:
                self._whole.update(self._part.digest())
                self._part = hashlib.md5(usedforsecurity=False)
                self._room = self._left.pop()

    def holds(self) -> bool:
        """Whether the bytes that were fed have the ETag."""
        if not self._count:
            return self._whole.hexdigest() == self._etag
        if self._left or self._room:
            return False
        whole = self._whole.copy()
        whole.update(self._part.digest())
        return f"{whole.hexdigest()}-{self._count}" == self._etag


class CheckedFile(io.BufferedIOBase, BinaryIO):
    """A readable file around another one, which it closes with itself. No seeking: a proof needs every byte in order.

    Args:
        inner: the file.
        where: the object's URL, for messages.
        size: how many bytes there must be.
        proof: what tells that they are the right ones, where there is such a thing.
    """

    def __init__(self, inner: BinaryIO, where: str, size: int, proof: EtagProof | None = None) -> None:
        self._inner = inner
        self._where = where
        self._size = size
        self._proof = proof
        self._read = 0

    def readable(self) -> bool:
        """Always true."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Up to ``size`` bytes, all that is left when negative.

        Raises ``Transient`` at an end that is not the end, ``Corrupted`` at the end of something else.
        """
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(_PIECE), b""))
        data = self._inner.read(size)
        self._read += len(data)
        if self._proof is not None:
            self._proof.update(data)
        if self._read > self._size or (size and not data):
            self._check_end()
        return data

    def close(self) -> None:
        """Close both files."""
        self._inner.close()
        super().close()

    def _check_end(self) -> None:
        if self._read != self._size:
            raise Transient(
                f"{self._where} gave {self._read:,} bytes instead of {self._size:,}: it changed while it was read; "
                "nothing was kept of it, copy it again"
            )
        if self._proof is not None and not self._proof.holds():
            raise Corrupted(f"{self._where} does not match its checksum; nothing was kept of it")


MOST_BYTES = 64 << 10
"""Of claims and owner records, which take less than 2 KiB."""


def read_small(store: ObjectStore, key: str, at_most: int = MOST_BYTES) -> bytes:
    """An object's contents. Raises ``ObjectNotFound``, and ``Corrupted`` for one that is longer than ``at_most``."""
    found = store.get_range(key, 0, at_most + 1)
    if len(found) > at_most:
        raise Corrupted(f"{store.url}/{key} is longer than {at_most:,} bytes, so it is not what lakeops writes there")
    return found


def parse_json(text: bytes | str) -> Any:  # noqa: ANN401 - JSON is anything
    """Read a JSON text. Raises ``ValueError`` also for one that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
