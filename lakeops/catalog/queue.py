"""The queue of publishers that lost a race for a branch: who publishes next.

* ``enqueue`` needs a branch. Leaves the publisher with a place in its queue, the last one unless it has one. The place
  counts from now for a while, by the database's clock. Recovery: repeat it. A place that nobody renews lapses.
* ``dequeue`` leaves no place. Recovery: repeat it, or let the place lapse.
* ``check_turn`` and ``leave`` are part of ``publish``: while somebody is first in the queue nobody else publishes, and
  who has published has no place any more.

The queue is for fairness alone. A place that lapses too early, is counted too long or is lost costs somebody another
try, and nothing else: the publish transaction decides by head, tokens and resets.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, insert, or_, select, update

from lakeops.catalog.database import run_again
from lakeops.catalog.guards import Transitions, check_writable, lock_branch, lock_repository
from lakeops.catalog.rows import ticks
from lakeops.catalog.tables import QUEUE
from lakeops.model.errors import BranchMoved

FORGET = timedelta(hours=1)
"""How long a place that lapsed is kept for a publisher that was only slow."""


# Built once, as every publish asks for it. One that was renewed later than now does not count: the clock was set back.
_FIRST = (
    select(QUEUE.c.publisher)
    .where(
        QUEUE.c.repository_id == bindparam("repository"),
        QUEUE.c.branch == bindparam("branch"),
        QUEUE.c.renewed <= bindparam("now"),
        QUEUE.c.renewed + QUEUE.c.lasts > bindparam("now"),
    )
    .order_by(QUEUE.c.number)
    .limit(1)
)


class Queue(Transitions):
    """The publishers that wait for their turn."""

    def enqueue(self, repository_id: str, branch: str, publisher: str, *, lasts: timedelta) -> int:
        """Take the last place in a branch's queue, or renew the place that the publisher has; how many are ahead.

        The place counts for ``lasts`` by the database's clock. While somebody is first, nobody else publishes.
        """
        mine = _of_publisher(repository_id, branch, publisher)

        def work(conn: Connection) -> int:
            check_writable(conn, lock_repository(conn, repository_id), action="seal", branch=branch)
            renewed = {"renewed": ticks(self.database.dialect.now(conn)), "lasts": lasts // _TICK}
            if not conn.execute(update(QUEUE).where(*mine).values(**renewed)).rowcount:
                lock_branch(conn, repository_id, branch, exclusive=True)  # so that numbers are in the order of commits
                _forget(conn, repository_id, branch, self.database.dialect.now(conn))
                number = conn.execute(
                    select(func.max(QUEUE.c.number)).where(*_of_branch(repository_id, branch))
                ).scalar()
                place = {"repository_id": repository_id, "branch": branch, "number": (number or 0) + 1}
                conn.execute(insert(QUEUE).values(publisher=publisher, **place, **renewed))
            return _count_ahead(conn, repository_id, branch, publisher, self.database.dialect.now(conn)) or 0

        return self.database.write(work, settle=run_again)

    def ahead(self, repository_id: str, branch: str, publisher: str) -> int | None:
        """How many in a branch's queue are ahead of a publisher. None when it has no place."""
        return self.database.read(
            lambda conn: _count_ahead(conn, repository_id, branch, publisher, self.database.dialect.now(conn))
        )

    def dequeue(self, repository_id: str, branch: str, publisher: str) -> None:
        """Give a place up. ``publish`` does so by itself."""
        self.database.write(lambda conn: leave(conn, repository_id, branch, publisher), settle=run_again)


def check_turn(conn: Connection, repository_id: str, branch: str, publisher: str | None, now: datetime) -> None:
    """Refuse to publish while somebody else is first. Raises ``BranchMoved``."""
    first = conn.execute(_FIRST, {"repository": repository_id, "branch": branch, "now": ticks(now)}).scalar()
    if first is not None and first != publisher:
        raise BranchMoved(f"others wait to publish to branch {branch!r}; try again")


def leave(conn: Connection, repository_id: str, branch: str, publisher: str) -> None:
    """Give a place up, inside a transition."""
    conn.execute(delete(QUEUE).where(*_of_publisher(repository_id, branch, publisher)))


def _count_ahead(conn: Connection, repository_id: str, branch: str, publisher: str, now: datetime) -> int | None:
    mine = select(QUEUE.c.number).where(*_of_publisher(repository_id, branch, publisher))
    number = conn.execute(mine).scalar()
    if number is None:
        return None
    count = select(func.count()).where(*_of_branch(repository_id, branch), *_counts(now), QUEUE.c.number < number)
    return conn.execute(count).scalar_one()


def _of_branch(repository_id: str, branch: str) -> tuple[ColumnElement[bool], ...]:
    return (QUEUE.c.repository_id == repository_id, QUEUE.c.branch == branch)


def _of_publisher(repository_id: str, branch: str, publisher: str) -> tuple[Any, ...]:
    return (*_of_branch(repository_id, branch), QUEUE.c.publisher == publisher)


def _counts(now: datetime) -> tuple[ColumnElement[bool], ...]:
    """Places that count now. One that was renewed later than now does not: the clock was set back since."""
    return (QUEUE.c.renewed <= ticks(now), QUEUE.c.renewed + QUEUE.c.lasts > ticks(now))


def _forget(conn: Connection, repository_id: str, branch: str, now: datetime) -> None:
    lapsed = QUEUE.c.renewed + QUEUE.c.lasts < ticks(now - FORGET)
    conn.execute(
        delete(QUEUE).where(*_of_branch(repository_id, branch), or_(lapsed, QUEUE.c.renewed > ticks(now + FORGET)))
    )


_TICK = timedelta(microseconds=1)
