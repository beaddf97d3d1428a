"""Progress of a call that moves many bytes: counted over its threads, and reported."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import BinaryIO, cast

from lakeops.model.errors import LakeopsError

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


def quiet(label: str, done: int, total: int) -> None:
    """Show no progress."""


class ByteCounter:
    """Adds up the bytes that several threads move, and reports the sum.

    Args:
        report: where to.
        label: what is being done.
        total: how many bytes there are.
    """

    def __init__(self, report: Progress, label: str, total: int) -> None:
        self._report = report
        self._label = label
        self._total = total
        self._done = 0
        self._stopped = False
        self._lock = Lock()

    def counting(self, file: BinaryIO) -> BinaryIO:
        """The file, counted while it is read. It can only be read."""
        return cast("BinaryIO", _CountedFile(file, self))

    def stop(self) -> None:
        """Let the next read of every file fail."""
        self._stopped = True

    def add(self, size: int) -> None:
        """Count some more bytes. Raises ``LakeopsError`` once stopped."""
        if self._stopped:
            raise LakeopsError("stopped, because another file failed or the command was interrupted")
        with self._lock:
            self._done += size
            self._report(self._label, self._done, self._total)


class _CountedFile:
    def __init__(self, file: BinaryIO, counter: ByteCounter) -> None:
        self._file = file
        self._counter = counter

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._counter.add(len(data))
        return data
