"""A file that is read once, and that ends in an error rather than short or wrong.

Whoever writes what it gives somewhere else learns of a flaw before the last byte is accepted, so nothing torn ever
gets its name.
"""

from __future__ import annotations

import io
from typing import BinaryIO, Protocol

from lakeops.model.errors import Corrupted, Transient

_PIECE = 1024 * 1024


class Proof(Protocol):
    """Something that is fed an object's contents and tells whether they are what the store's checksum says."""

    def update(self, data: bytes) -> None:
        """Take the next bytes."""
        ...

    def holds(self) -> bool:
        """Whether all that was fed is the object."""
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
