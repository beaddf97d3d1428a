"""One look at the catalog for all threads that ask the same at the same time.

While one thread's look runs, others that ask the same get in line. The first of them looks for all of these. So nobody
waits for company, and no answer is older than the question: a look begins after everybody whom it answers has asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Looks(Generic[T]):
    """Looks that threads share. What a look raises belongs to all who share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._turns: defaultdict[Hashable, Lock] = defaultdict(Lock)
        self._next: defaultdict[Hashable, Future[T]] = defaultdict(Future)

    def ask(self, question: Hashable, look: Callable[[], T]) -> T:
        """What ``look`` returns, of this thread or of another one that asked the same question."""
        with self._lock:
            turn, answer = self._turns[question], self._next[question]
        with turn:
            if not answer.done():
                with self._lock:
                    del self._next[question]  # who asks from now on is not answered by this look
                try:
                    answer.set_result(look())
                except Exception as error:  # noqa: BLE001 - it is the answer
                    answer.set_exception(error)
                except BaseException:
                    answer.cancel()
                    raise
        return self.ask(question, look) if answer.cancelled() else answer.result()
