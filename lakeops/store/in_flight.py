"""Requests in flight: the one way in which work that waits for a store is done several items at a time.

``in_flight`` begins at once and keeps a fixed number under way. ``read_ahead`` begins with one and doubles, for
readers who may stop early. ``in_parallel`` does a list to its end. All give results in the order of the items, and
none begins an item after one has failed. Each holds no more results than it has requests under way, so memory is
bounded by the number of requests and not by the number of items.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from itertools import chain, islice
from threading import get_ident
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

IN_FLIGHT = 16
"""Requests that are under way at once for one piece of work."""

PARALLELISM = 8
"""Files of this machine that are sent or fetched at a time, unless a caller says otherwise."""


def in_flight(
    work: Callable[[T], R], items: Iterable[T], at_once: int = IN_FLIGHT, threads: int | None = None
) -> Iterator[R]:
    """The results of ``work`` for all items, in order, with ``at_once`` of them under way in threads.

    The first are begun by the call itself, before anything is asked of the iterator. The iterator ends, fails or is
    closed when nothing is under way any more. What was not begun by then is dropped.

    Args:
        work: called in a thread for each item.
        items: taken one by one, as far ahead as ``at_once``.
        at_once: how many items may be under way or wait to be asked for.
        threads: how many items may be under way, where these are fewer.
    """
    source, own = iter(items), set[int]()
    pool = ThreadPoolExecutor(threads or at_once, "in-flight", lambda: own.add(get_ident()))
    try:
        under_way = deque(pool.submit(work, item) for item in islice(source, at_once))
    except BaseException:
        pool.shutdown(wait=True, cancel_futures=True)
        raise

    def results() -> Iterator[R]:
        try:
            while under_way:
                found = under_way.popleft().result()
                under_way.extend(pool.submit(work, item) for item in islice(source, 1))
                yield found
        finally:
            # Results that nobody has any more may be closed by a thread of their own, which cannot wait for itself.
            pool.shutdown(wait=get_ident() not in own, cancel_futures=True)

    return results()


def read_ahead(load: Callable[[T], R], items: Iterable[T], most: int = IN_FLIGHT) -> Iterator[R]:
    """The results of ``load`` for all items, in order, with up to ``most`` of them loaded ahead in threads (0: none).

    Starts with one and doubles, so that a reader who stops early has paid for little. No thread is started for the
    sake of one or two items. Closing the iterator drops what was not begun, and waits for nothing: what is read has
    no effect.
    """
    source = iter(items)
    for item in islice(source, 1):
        yield load(item)
    few = list(islice(source, 2 if most else 0))
    rest = chain(few, source)
    if len(few) < 2:
        yield from map(load, rest)
        return
    pool = ThreadPoolExecutor(most, thread_name_prefix="read-ahead")
    ahead: deque[Future[R]] = deque()
    size = 1
    try:
        while True:
            ahead.extend(pool.submit(load, item) for item in islice(rest, size - len(ahead)))
            if not ahead:
                return
            yield ahead.popleft().result()
            size = min(2 * size, most)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def in_parallel(
    items: Sequence[T],
    work: Callable[[T], R],
    *,
    parallelism: int = PARALLELISM,
    failing: Callable[[int, BaseException], None] = lambda _moved, _error: None,
    stop: Callable[[], None] = lambda: None,
) -> list[R]:
    """The results of ``work`` for a list, in the items' order. After a failure no other work begins.

    Args:
        items: what to work on.
        work: called in a thread for each item.
        parallelism: how many threads there are at most.
        failing: told after a failure how many items are done, and the failure, before that is raised.
        stop: called at the end, and after a failure or Ctrl-C, so that work under way may end early.
    """
    pool = ThreadPoolExecutor(max(1, min(parallelism, len(items))), thread_name_prefix="in-parallel")
    try:
        futures = [pool.submit(work, item) for item in items]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = next((future for future in futures if future in done and future.exception()), None)
    finally:
        stop()
        pool.shutdown(cancel_futures=True)
    if failed is not None and (error := failed.exception()):
        failing(sum(1 for future in futures if not future.cancelled() and not future.exception()), error)
        failed.result()
    return [future.result() for future in futures]
