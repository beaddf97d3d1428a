"""What a process remembers of immutable files: verified ranges, decoded row groups, metaranges.

Entries are keyed by the digest of the file's bytes and by the store, never change, and can be dropped at any time. What
says where bytes are read from is keyed by the file's name too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Protocol, TypeVar


class Sized(Protocol):
    """Anything that knows what it keeps in memory."""

    @property
    def nbytes(self) -> int:
        """Bytes."""
        ...


T = TypeVar("T", bound=Sized)


class RangeCache:
    """The most recently used values up to a number of bytes; safe to share between threads.

    Args:
        max_bytes: what all values together may keep in memory. A larger single value is not kept.
    """

    def __init__(self, max_bytes: int = 256 * 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """What all values keep in memory."""
        return self._bytes

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of ``key``, made when it is not there. Two threads may make the same value; one is kept."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                value: T = found[0]
                return value
        return self.put(key, make())

    def put(self, key: Hashable, value: T) -> T:
        """Remember a value and return it."""
        size = value.nbytes
        with self._lock:
            if size <= self._max_bytes and key not in self._values:
                self._values[key] = (value, size)
                self._bytes += size
                while self._bytes > self._max_bytes:
                    _, (_, dropped) = self._values.popitem(last=False)
                    self._bytes -= dropped
        return value

    def peek(self, key: Hashable) -> Any:  # noqa: ANN401 - what a key stands for is the caller's business
        """The value of ``key`` or None; does not count as a use."""
        with self._lock:
            found = self._values.get(key)
        return found[0] if found is not None else None
