"""Copying one object from any store to any other, under the same key: whole and right, or not at all.

The server copies where it can. Else the contents stream through this process: what is read is checked against the
source's own checksum before the destination accepts the last byte, and what a store without checksums has kept is read
back.
"""

from __future__ import annotations

import io
from contextlib import closing
from typing import BinaryIO, Protocol

from lakeops.model.errors import Corrupted, Transient
from lakeops.store.base import ObjectStore, StoredObject


def copy_object(source: ObjectStore, destination: ObjectStore, item: StoredObject) -> None:
    """Copy an object that was listed at the source.

    Raises:
        ObjectNotFound: the source has it no longer.
        Transient: it is another one than was listed, or a store did not answer.
        Corrupted: what was read or written is not it. Nothing is left of it at the destination.
        StoreError: a store refused.
    """
    if destination.copy_from(source, item):
        return
    opened = source.open_checked(item)
    with closing(opened.file) as file:
        done = destination.put(item.key, file, content_type=opened.content_type)
    if done.etag:
        return
    arrived = destination.checksum(StoredObject(item.key, done.size_bytes, item.mtime))
    if arrived != done.checksum:
        destination.delete([item.key])
        raise Corrupted(f"{destination.url}/{item.key} is not what was written to it; it was removed again")


_PIECE = 1024 * 1024


class Proof(Protocol):
    """Something that is fed an object's contents and tells whether they are what the store's checksum says."""

    def update(self, data: bytes) -> None:
        """Take the next bytes."""
        ...

    def holds(self) -> bool:
        """Whether the bytes that were fed are the object's."""
        ...


class CheckedFile(io.BufferedIOBase, BinaryIO):
    """A readable file around another one, which it closes with itself. No seeking: a proof needs every byte in order.

    Args:
        inner: the file.
        where: the object's URL, for messages.
        size: how many bytes there must be.
        proof: what tells that they are the right ones, where there is such a thing.
    """

    def __init__(self, inner: BinaryIO, where: str, size: int, proof: Proof | None = None) -> None:
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
