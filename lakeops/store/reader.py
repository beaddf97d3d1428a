"""Files over objects: seekable over ranges, or read once and checked; and small files that lakeops wrote itself."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, BinaryIO

from lakeops.model.errors import Corrupted, ObjectNotFound, Transient
from lakeops.store.base import ObjectStore

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFER_BYTES = 4 * 1024 * 1024
"""Bytes that one request fetches at least, when a reader goes on piece by piece."""


class ObjectReader(io.RawIOBase):
    """Raw reads of one object of ``size`` bytes.

    ``fetch(start, length)`` gives that many bytes. It refuses to when the object was replaced meanwhile.
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
    """Tells whether contents have an ETag of S3, without quotes. One of parts needs the ``sizes`` of these."""

    def __init__(self, etag: str, sizes: Sequence[int] = ()) -> None:
        self._etag = etag
        self._count = len(sizes)
        self._ends = [*accumulate(sizes)]
        self._size = self._ends.pop() if self._ends else 0
        self._fed = 0
        self._digests = b""
        self._part = hashlib.md5(usedforsecurity=False)

    def update(self, data: bytes) -> None:
        """Take the next bytes."""
        view = memoryview(data)
        while self._ends and self._fed + len(view) >= self._ends[0]:
            rest = self._ends.pop(0) - self._fed
            self._part.update(view[:rest])
            self._digests += self._part.digest()
            self._part = hashlib.md5(usedforsecurity=False)
            self._fed, view = self._fed + rest, view[rest:]
        self._part.update(view)
        self._fed += len(view)

    def holds(self) -> bool:
        """Whether the bytes that were fed have the ETag."""
        if not self._count:
            return self._part.hexdigest() == self._etag
        whole = hashlib.md5(self._digests + self._part.digest(), usedforsecurity=False).hexdigest()
        return self._fed == self._size and f"{whole}-{self._count}" == self._etag


class CheckedFile(io.BufferedIOBase, BinaryIO):
    """A readable file around another one, which it closes with itself. No seeking: a proof needs every byte in order.

    There must be ``size`` bytes, and the right ones, where there is a ``proof``. ``where`` is the object's URL, for
    messages.
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


def read_text(store: ObjectStore, key: str, at_most: int = MOST_BYTES) -> str | None:
    """An object's contents as text. None when there is no object. Raises ``Corrupted`` for one that is too long."""
    try:
        return read_small(store, key, at_most).decode("utf-8", "replace")
    except ObjectNotFound:
        return None


def parse_json(text: bytes | str) -> Any:  # noqa: ANN401 - JSON is anything
    """Read a JSON text. Raises ``ValueError`` also for one that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
