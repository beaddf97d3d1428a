"""Cores as slots: who works holds one, and who waits for a store leaves it to somebody else.

A ``Crew`` is a pool of threads for such work. It has as many threads as there are slots, and one more for each that
waits. Whoever works from what this machine keeps waits for nobody, so all of it stays in a few threads, and these use
their memory again and again. A thread of its own for each request would touch new memory for each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from threading import BoundedSemaphore, Lock, Thread, current_thread, local
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Slots:
    """So many threads may work at a time. A thread holds a slot in a ``with``."""

    def __init__(self, count: int) -> None:
        self.count: int = count
        self._room = BoundedSemaphore(count)
        self._mine = local()

    def __enter__(self) -> None:
        self._room.acquire()
        self._mine.held = True

    def __exit__(self, *_: object) -> None:
        self._mine.held = False
        self._room.release()

    def join(self, crew: Crew) -> None:
        """Remember of this thread which crew has to be told when it waits."""
        self._mine.crew = crew

    @contextmanager
    def left(self) -> Iterator[None]:
        """Leave the slot for a ``with``, if the thread holds one. Threads that the work itself started hold none."""
        if not getattr(self._mine, "held", False):
            yield
            return
        crew: Crew | None = getattr(self._mine, "crew", None)
        self.__exit__()
        if crew is not None:
            crew.go()
        try:
            yield
        finally:
            if crew is not None:
                crew.come_back()
            self.__enter__()


class Crew(Executor):
    """Threads that hold a slot while they work. A thread ends when nothing is left to do.

    Args:
        slots: what they hold.
        most: how many threads there are at most, those that wait among them.
        name: what their names begin with.
    """

    def __init__(self, slots: Slots, most: int, name: str) -> None:
        self._slots = slots
        self._most = most
        self._name = name
        self._lock = Lock()
        self._queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads: set[Thread] = set()
        self._ready = 0
        self._closed = False

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """See ``Executor.submit``."""
        future: Future[R] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("nothing is begun after the shutdown")
            self._queue.append((future, partial(fn, *args, **kwargs)))
            self._grow()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See ``Executor.shutdown``."""
        with self._lock:
            self._closed = True
            dropped = list(self._queue) if cancel_futures else []
            if cancel_futures:
                self._queue.clear()
            threads = list(self._threads)
        for future, _ in dropped:
            future.cancel()
        for thread in threads if wait else ():
            thread.join()

    def go(self) -> None:
        """One of the threads begins to wait. Another one may work."""
        with self._lock:
            self._ready -= 1
            self._grow()

    def come_back(self) -> None:
        """One of the threads has waited, and wants a slot again."""
        with self._lock:
            self._ready += 1

    def _grow(self) -> None:
        """Start a thread if there is work that a free slot could be used for. The lock is held."""
        if self._queue and self._ready < self._slots.count and len(self._threads) < self._most:
            thread = Thread(target=self._work, name=f"{self._name}-{len(self._threads)}")
            self._threads.add(thread)
            self._ready += 1
            thread.start()

    def _work(self) -> None:
        self._slots.join(self)
        while True:
            with self._lock:
                if not self._queue:
                    self._ready -= 1
                    self._threads.discard(current_thread())
                    return
                future, task = self._queue.popleft()
            _do(future, task, self._slots)
            del future, task  # or they would be held until there is something else to do


def _do(future: Future[Any], task: Callable[[], Any], slots: Slots) -> None:
    """Give a future the outcome of its task, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        with slots:
            outcome = task()
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
        future.set_exception(error)
    else:
        future.set_result(outcome)
