"""Listing ahead: several requests under way at a time, and what they give in order.

A listing is a tree of steps (directories, prefixes, pages), and only doing a step tells which ones follow it. So the
steps nearest to the front run beside each other, each is replaced in its place by what it gave, and the front goes
out. No more than a fixed number of results wait, however large the tree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import TypeAlias, Union

from lakeops.store.base import Listing

Step: TypeAlias = Callable[[], "Sequence[Found]"]
"""Does one request. Gives listings and further steps, in order."""
Found: TypeAlias = Union[Listing, "Step"]
_Waiting: TypeAlias = "Found | Future[Sequence[Found]]"


class Threads:
    """The threads of one listing.

    Args:
        count: how many steps are done at a time.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._counting = Lock()
        self._given = 0

    @property
    def idle(self) -> int:
        """How many have nothing to do. A step that asks counts as one that does something."""
        return max(0, self.count - self._given)

    def give(self, pool: ThreadPoolExecutor, step: Step) -> Future[Sequence[Found]]:
        """Let one of them do a step."""
        with self._counting:
            self._given += 1
        given = pool.submit(step)
        given.add_done_callback(self._end)
        return given

    def _end(self, _: Future[Sequence[Found]]) -> None:
        with self._counting:
            self._given -= 1


def in_order(first: Step, *, threads: Threads, ahead: int = 64) -> Iterator[Listing]:
    """The listings that a step leads to, in order.

    Args:
        first: where to begin.
        threads: what does the steps. Steps may ask it who is idle.
        ahead: how many listings and steps, from the front on, may be done or under way.
    """
    line: deque[_Waiting] = deque([first])
    with ThreadPoolExecutor(max_workers=threads.count, thread_name_prefix="scan") as pool:
        try:
            while line:
                _look_ahead(line, partial(threads.give, pool), ahead)
                front = line.popleft() if line else None  # the last steps may have given nothing
                if isinstance(front, Listing):
                    yield front
                elif isinstance(front, Future):
                    line.extendleft(reversed(front.result()))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _look_ahead(line: deque[_Waiting], give: Callable[[Step], Future[Sequence[Found]]], ahead: int) -> None:
    """Begin the steps among the first ``ahead`` items, and put what is done in its place."""
    looked: list[_Waiting] = []
    while line and len(looked) < ahead:
        item = line.popleft()
        if isinstance(item, Future):
            if item.done():
                line.extendleft(reversed(item.result()))
            else:
                looked.append(item)
        else:
            looked.append(item if isinstance(item, Listing) else give(item))
    line.extendleft(reversed(looked))
