"""What a process makes once, such as clients of stores, and a child process makes anew."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class PerProcess(Generic[K, V]):
    """Values by key, each made when it is first asked for. Threads may share it.

    Args:
        make: makes the value of a key.
        keep: whether a child process keeps those of its parent, which it does not use. To drop a client of obstore
            would wait for threads that are not there.
    """

    def __init__(self, make: Callable[[K], V], *, keep: bool = False) -> None:
        self._make = make
        self._keep = keep
        self._abandoned: list[object] = []
        self._begin()
        os.register_at_fork(after_in_child=self._forget)

    def get(self, key: K) -> V:
        """The value of a key."""
        if key not in self._made:
            with self._lock:
                if key not in self._made:
                    self._made[key] = self._make(key)
        return self._made[key]

    def _begin(self) -> None:
        self._lock = threading.Lock()  # a thread of the parent may have held the one before
        self._made: dict[K, V] = {}

    def _forget(self) -> None:
        if self._keep:
            self._abandoned.append(self._made)
        self._begin()


class _Process:
    """What this process knows of the one it was forked from."""

    lost = False

    def forked(self) -> None:
        self.lost = self.lost or "obstore" in sys.modules


_process = _Process()
os.register_at_fork(after_in_child=_process.forked)


def threads_lost() -> bool:
    """Whether this process was forked from one that had loaded obstore."""
    return _process.lost
