"""Waiting for one's turn to publish to a branch that others publish to as well.

A first try races. Who loses takes a place in the branch's queue, in the catalog, and waits for those ahead alone. So
nobody loses for ever, however many publish. A place counts for a while after it was renewed, so a process that was
killed holds the others up for that long at most.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from lakeops.model.clock import pause, stopwatch
from lakeops.model.errors import BranchMoved, LakeopsError
from lakeops.model.records import Commit
from lakeops.ops.context import Context

LEAST_SECONDS = 10.0
"""How long a place counts at least. One counts longer when its publisher's tries take longer."""

WAIT, LONGEST_WAIT = 0.02, 1.0
"""Seconds between two looks at the queue: so many for each one ahead, and at most."""

Overtaken = Callable[[], Commit | None]
"""The commit of somebody else that took the caller's changes along, if there is one."""


class Place:
    """A publisher's place in the queue of a branch.

    Attributes:
        publisher: whose place it is.
    """

    def __init__(self, ctx: Context, branch: str, publisher: str) -> None:
        self._ctx = ctx
        self._branch = branch
        self._passed = stopwatch()
        self._longest = 0.0
        self.publisher = publisher

    def took(self, seconds: float) -> None:
        """Report how long a try took, so that the place lasts for the next one."""
        self._longest = max(self._longest, seconds)

    def wait(self, overtaken: Overtaken) -> Commit | None:
        """Return when it is the publisher's turn, or with the commit that has overtaken it.

        Raises:
            BranchMoved: the turn did not come in the time of the setting ``publish_minutes``.
        """
        ahead: int | None = None
        renewed = stopwatch()
        while True:
            if ahead is None or renewed() > self._place_lasts / 4:
                renewed = stopwatch()
                lasts = timedelta(seconds=self._place_lasts)
                ahead = self._ctx.catalog.enqueue(self._ctx.repository_id, self._branch, self.publisher, lasts=lasts)
            if not ahead:
                return None
            found = overtaken()
            if found is not None:
                return found
            self.check_time()
            pause(min(LONGEST_WAIT, WAIT * ahead))
            ahead = self._ctx.catalog.ahead(self._ctx.repository_id, self._branch, self.publisher)

    def check_time(self) -> None:
        """Raise ``BranchMoved`` when the time of the setting ``publish_minutes`` is over."""
        minutes = self._ctx.settings.publish_minutes
        if self._passed() > minutes * 60:
            raise BranchMoved(
                f"others moved branch {self._branch!r} for {minutes:g} minutes, and its turn did not come; try again, "
                "or raise the setting publish_minutes"
            )

    def leave(self) -> None:
        """Give the place up. One that cannot be given up now lapses."""
        with suppress(LakeopsError):
            self._ctx.catalog.dequeue(self._ctx.repository_id, self._branch, self.publisher)

    @property
    def _place_lasts(self) -> float:
        return LEAST_SECONDS + 2 * self._longest


class _Held(threading.local):
    """The publishers whose places this thread has, by storage namespace and branch."""

    def __init__(self) -> None:
        self.publishers: dict[tuple[str, str], str] = {}


_held = _Held()


def held(ctx: Context, branch: str) -> str | None:
    """The publisher whose place in the queue this thread has already.

    Something that publishes while the same thread publishes to the same branch, as a callback may, does it at that
    place: it would wait for its own caller otherwise.
    """
    return _held.publishers.get((ctx.repository.storage_namespace, branch))


@contextmanager
def in_line(ctx: Context, branch: str) -> Iterator[Place]:
    """A place in the queue of a branch, that is given up at the end. It is taken by ``Place.wait``."""
    where = (ctx.repository.storage_namespace, branch)
    earlier = _held.publishers.get(where)
    place = Place(ctx, branch, earlier or ctx.ids.new())
    _held.publishers[where] = place.publisher
    try:
        yield place
    except BaseException:
        place.leave()
        raise
    finally:
        if earlier is None:
            del _held.publishers[where]
