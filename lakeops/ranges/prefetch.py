"""Loading ahead: the next files come over the network while the present one is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


def prefetched(load: Callable[[S], T], items: Iterable[S], window: int = 8) -> Iterator[T]:
    """What ``load`` gives for each item, in order, up to ``window`` of them loaded ahead in threads (0: none).

    Starts with one and doubles, so that a reader who stops early has paid for little. No thread is started for the
    sake of one or two items. Closing the iterator drops what was not begun.
    """
    source = iter(items)
    for item in islice(source, 1):
        yield load(item)
    few = list(islice(source, 2 if window else 0))
    rest = chain(few, source)
    if len(few) < 2:
        yield from map(load, rest)
        return
    with ThreadPoolExecutor(max_workers=window, thread_name_prefix="prefetch") as pool:
        ahead: deque[Future[T]] = deque()
        size = 1
        try:
            while True:
                ahead.extend(pool.submit(load, item) for item in islice(rest, size - len(ahead)))
                if not ahead:
                    return
                yield ahead.popleft().result()
                size = min(2 * size, window)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
