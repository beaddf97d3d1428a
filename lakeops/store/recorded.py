"""Reading an object as it was recorded: what is short, too long or holds other bytes ends in an error.

Every read of an object's contents comes through here. The size is compared always, and costs no request: the store
tells it when it answers. A small object is fetched whole when it is opened, and its digest is compared then. That of a
larger one is compared by reads that reach its end without leaving a gap. The last piece is given out only when it is
right. A read of some ranges of a larger one checks the size alone.

Where the digest is another, the contents decide, and not what the store says of them. The store is asked one thing: how
the object is encrypted, because the ETag of some encrypted objects looks like an MD5 and is none.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from lakeops.model.errors import Corrupted, StoreUnavailable, Transient
from lakeops.store.base import ObjectStore, StoredObject

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER_BYTES = 128 * 1024

_SMALL_NEAR, _SMALL_FAR = _BUFFER_BYTES, 1024 * 1024
"""Up to here an object of a near and of a far store is small: a reader would fetch as much at once."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The record of an object that reads are compared with.

    Attributes:
        path: the path that led to it, for messages.
        address: where it lies, for messages.
        size_bytes: how large it is.
        checksum: its checksum.
        algorithm: how to compute the checksum. None when it cannot be, or shall not be.
    """

    path: str
    address: str
    size_bytes: int
    checksum: str
    algorithm: str | None

    def check_size(self, held: int) -> None:
        """Raises ``Corrupted`` for an object of another size."""
        if held != self.size_bytes:
            raise self.flaw(f"has {held:,} bytes, and {self.size_bytes:,} were recorded")

    def check_digest(self, digest: str, store: ObjectStore, key: str) -> None:
        """Raises ``Corrupted`` for other contents than those that were recorded."""
        if digest != self.checksum and self._is_digest(store, key):
            raise self.flaw(f"holds other contents, with the {self.algorithm} {digest}; {self.checksum} was recorded")

    def check_contents(self, data: bytes, store: ObjectStore, key: str) -> None:
        """Raises ``Corrupted`` for other contents, where they can be told from their digest."""
        if self.algorithm is not None:
            self.check_digest(hashlib.new(self.algorithm, data, usedforsecurity=False).hexdigest(), store, key)

    def _is_digest(self, store: ObjectStore, key: str) -> bool:
        """Whether the checksum is a digest of the contents. An ETag is none where the store encrypts with KMS."""
        if self.algorithm != "md5":
            return True
        try:
            opened = store.open_checked(StoredObject(key, self.size_bytes, 0, self.checksum))
        except StoreUnavailable:
            raise
        except Transient:
            return True  # the store has another object there by now
        with closing(opened.file):
            return opened.checked

    def flaw(self, what: str) -> Corrupted:
        """The error for an object that is not what was recorded."""
        return Corrupted(
            f"{self.path!r}: its object {self.address} {what}; restore it from a version of the bucket, a backup or a "
            "mirror, or write the path anew (lakeops fsck --data names all such objects)"
        )


def read(store: ObjectStore, key: str, recorded: Recorded) -> bytes:
    """The contents, in one request. Raises ``ObjectNotFound``, ``Corrupted``."""
    data = store.get(key)
    recorded.check_size(len(data))
    return _right(data, store, key, recorded, lambda: store.get(key))


def _right(data: bytes, store: ObjectStore, key: str, recorded: Recorded, fetch: Callable[[], bytes]) -> bytes:
    """Check the contents. Fetch them once more when they are wrong: they may have been damaged on the way."""
    try:
        recorded.check_contents(data, store, key)
    except Corrupted:
        data = fetch()
        recorded.check_size(len(data))
        recorded.check_contents(data, store, key)
    return data


def open_object(store: ObjectStore, key: str, recorded: Recorded) -> ObjectFile:
    """A seekable file over the contents. Raises ``ObjectNotFound``, ``Corrupted`` here and at its reads."""
    if 0 < recorded.size_bytes <= (_SMALL_FAR if store.remote else _SMALL_NEAR):
        # One request. The byte behind its end shows that it is longer than what was recorded.
        fetch = partial(store.get_range, key, 0, recorded.size_bytes + 1)
        data = fetch()
        recorded.check_size(store.head(key).size_bytes if len(data) > recorded.size_bytes else len(data))
        return SmallObject(_right(data, store, key, recorded, fetch))
    inner = cast("io.BufferedReader", store.open(key))
    try:
        recorded.check_size(inner.seek(0, os.SEEK_END))
        inner.seek(0)
        return ObjectFile(_SizeChecked(inner, store, key, recorded), _BUFFER_BYTES, recorded.size_bytes)
    except BaseException:
        inner.close()
        raise


class ObjectFile(io.BufferedReader):
    """An object that is open for reading. ``size`` is its size in bytes. Programs of fsspec ask for this and others."""

    mode = "rb"
    loc = property(io.BufferedReader.tell)
    closed = property(io.BufferedReader.closed.__get__, lambda _, __: None)
    # fsspec's block cache writes to it, after it has closed the file.

    def __init__(self, raw: io.RawIOBase | io.BytesIO, buffer_bytes: int, size: int) -> None:
        super().__init__(cast("io.RawIOBase", raw), buffer_bytes)
        self.size = size


class SmallObject(ObjectFile):
    """An object that is open for reading, all of it in memory."""

    def __init__(self, contents: bytes) -> None:
        super().__init__(io.BytesIO(contents), io.DEFAULT_BUFFER_SIZE, len(contents))
        self.contents = contents


class _SizeChecked(io.RawIOBase):
    """Reads of a file that holds the recorded number of bytes. Once it was found wrong, every read fails."""

    def __init__(self, inner: io.BufferedReader, store: ObjectStore, key: str, recorded: Recorded) -> None:
        self._inner = inner
        self._place, self._process = (store, key), os.getpid()
        self._recorded = recorded
        self._position = 0
        self._flaw: Corrupted | None = None
        self._hash = hashlib.new(recorded.algorithm, usedforsecurity=False) if recorded.algorithm else None
        self._hashed = 0
        if not recorded.size_bytes:
            self._take(memoryview(b""))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._position = self._own().seek(offset, whence)
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        count = self._own().readinto(view)
        self._take(view[:count], ended=not count and bool(view))
        return count

    def readall(self) -> bytes:
        data = self._own().read()
        self._take(memoryview(data), ended=True)
        return data

    def close(self) -> None:
        self._inner.close()
        super().close()

    def _own(self) -> io.BufferedReader:
        """The file. A forked process opens it anew, because it would move the position of its parent's."""
        store, key = self._place
        if os.getpid() != self._process and not store.remote:
            self._process, self._inner = os.getpid(), cast("io.BufferedReader", store.open(key))
            self._inner.seek(self._position)
        return self._inner

    def _take(self, data: memoryview, *, ended: bool = False) -> None:
        if self._flaw is not None:
            raise self._flaw
        try:
            start, size = self._position, self._recorded.size_bytes
            self._position += len(data)
            if (data and self._position > size) or (ended and self._position < size):
                raise self._recorded.flaw(f"gave {self._position:,} bytes, and {size:,} were recorded")
            if self._hash and start <= self._hashed <= self._position:
                self._hash.update(data[self._hashed - start :])
                self._hashed = self._position
                if self._hashed == size:
                    digest, self._hash = self._hash.hexdigest(), None
                    self._recorded.check_digest(digest, *self._place)
        except Corrupted as error:
            self._flaw = error
            raise
