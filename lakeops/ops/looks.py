"""One look at the catalog for many calls that ask the same within a moment.

An answer is told again for a tenth of a second. While one thread looks, others that ask the same wait for its answer
instead of looking too. This is for questions whose answer is decided again later, in a transaction: an early answer
spares work in vain, and an old one spares less of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from datetime import datetime, timedelta
from threading import Lock
from typing import Generic, TypeVar

from lakeops.model.clock import Clock, SystemClock

T = TypeVar("T")

FRESH = timedelta(milliseconds=100)
"""How old an answer may be."""


class Looks(Generic[T]):
    """Answers of a moment ago. Threads share it. Errors are not kept."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._lock = Lock()
        self._turns: defaultdict[Hashable, Lock] = defaultdict(Lock)
        self._told: dict[Hashable, tuple[datetime, T]] = {}

    def ask(self, question: Hashable, look: Callable[[], T]) -> T:
        """What ``look`` returns, or returned a moment ago. A clock that was set meanwhile ends the moment."""
        told = self._fresh(question)
        if told is None:
            with self._lock:
                turn = self._turns[question]
            with turn:
                told = self._fresh(question)  # whoever had the turn before may have looked
                if told is None:
                    told = self._told[question] = self._clock.now(), look()
        return told[1]

    def _fresh(self, question: Hashable) -> tuple[datetime, T] | None:
        told = self._told.get(question)
        return None if told is None or abs(self._clock.now() - told[0]) >= FRESH else told
