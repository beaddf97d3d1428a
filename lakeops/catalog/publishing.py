"""Publishing: the transaction that makes commits visible, who publishes next, and the keys that commits stand under.

* ``publish`` needs a branch whose head, tokens and resets are as the commit was made from. It leaves all of the commit
  or nothing. Recovery: none is needed, and ``purge_retired`` removes the rows that were committed.
* ``enqueue`` needs a branch. Leaves the publisher with a place in its queue, the last one unless it has one. The place
  counts from now for a while, by the database's clock. Recovery: repeat it. A place that nobody renews lapses.
* ``dequeue`` leaves no place. Recovery: repeat it, or let the place lapse.

While somebody is first in the queue nobody else publishes, and who has published has no place any more. The queue is
for fairness alone. A place that lapses too early, is counted too long or is lost costs somebody another try, and
nothing else: ``publish`` decides by head, tokens and resets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, insert, or_, select, update

from lakeops.catalog.commits import find_commit
from lakeops.catalog.database import run_again
from lakeops.catalog.guards import (
    CatalogPart,
    check_live,
    check_started,
    check_writable,
    expired,
    lock_branch,
    lock_repository,
)
from lakeops.catalog.hooks import check_hooks
from lakeops.catalog.protection import require_passed
from lakeops.catalog.records import BranchState, KeyRecord, Publish
from lakeops.catalog.rows import branch_values, commit_values, ticks
from lakeops.catalog.staging import earlier_commit, find_key, with_sealed, without
from lakeops.catalog.tables import BRANCH, COMMIT, QUEUE, REFLOG
from lakeops.model.errors import BranchMoved
from lakeops.model.ids import with_along
from lakeops.model.records import Commit

# Built once: building these takes longer than SQLite takes to run them.
_NEW_COMMIT = insert(COMMIT)
_MOVE_HEAD = update(BRANCH).where(
    BRANCH.c.repository_id == bindparam("the_repository"),
    BRANCH.c.name == bindparam("the_branch"),
    BRANCH.c.commit_id == bindparam("the_head"),
)


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


class Publishing(CatalogPart):
    """Publishing commits, the publishers that wait for their turn, and the idempotency keys of commits."""

    def publish(self, publish: Publish) -> Commit:
        """The transaction that makes a commit visible: all of it or nothing.

        Locks the branch. Checks head, resets, tokens, live commits, deadline and protection. Inserts the commit, the
        reflog row and the key. Moves the head and retires the consumed tokens. A known key with the same fingerprint
        returns that commit and changes nothing (``KeyReused`` with another fingerprint). A head, token list or reset
        count that is not as expected raises ``BranchMoved``, and so does a queue in which somebody else is first.
        What others asked for whose rows are consumed is kept in the commit's metadata, and their keys stand for it.
        """
        made: list[str] = []

        def work(conn: Connection) -> Commit:
            made.clear()
            return self._publish(conn, publish, made.append)

        def settle(conn: Connection) -> Commit | None:
            """Find the commit that was made, or the earlier one under the key."""
            if made:
                return _published(conn, publish, made[0])
            return earlier_commit(conn, publish.repository_id, publish.key, publish.fingerprint)

        return self.database.write(work, settle=settle)

    def _publish(self, conn: Connection, publish: Publish, note: Callable[[str], None]) -> Commit:
        """Publish a commit inside a transaction. Its id is noted before it is inserted."""
        repository = lock_repository(conn, publish.repository_id)
        earlier = earlier_commit(conn, repository.id, publish.key, publish.fingerprint)
        if earlier is not None:
            return earlier
        state = lock_branch(conn, publish.repository_id, publish.branch, exclusive=True)
        # Again: a call under the same key may have held the lock until now.
        earlier = earlier_commit(conn, repository.id, publish.key, publish.fingerprint)
        if earlier is not None:
            return earlier
        check_writable(conn, repository, action=publish.action, branch=publish.branch)
        if publish.action == "merge":  # anything else went no further, where checks are needed
            merged = publish.merged or publish.commit.parents[-1]
            require_passed(conn, repository.id, publish.branch, merged)
        check_hooks(repository, publish.action, publish.branch, publish.hooks)
        _check_turn(conn, repository.id, publish.branch, publish.publisher, self.database.dialect.now(conn))
        rest = _check_state(state, publish)
        check_started(repository, self.database.dialect.now(conn), publish.started)
        check_live(conn, publish.repository_id, {publish.expected_head, *publish.commit.parents, *publish.live})
        # Others, whose rows are in it, may have begun to commit them until this moment.
        taken = [one for token, one in state.intents if token in publish.consumed]
        others = [one for one in dict.fromkeys(taken) if not one.same_call(publish.intent)]
        said = with_along(publish.commit, [one.along for one in others])
        note(said.id)
        commit = _insert_commit(conn, publish.repository_id, said)
        _move_head(conn, publish, replace(with_sealed(state, rest), commit_id=commit.id))
        if publish.publisher is not None:
            _leave(conn, publish.repository_id, publish.branch, publish.publisher)
        self._retire(conn, publish.repository_id, publish.consumed, commit_id=commit.id)
        self._record_move(
            conn,
            publish.repository_id,
            publish.branch,
            publish.expected_head,
            commit.id,
            publish.action,
            publish.actor,
        )
        self._remember(conn, publish.repository_id, publish.key, publish.fingerprint, commit.id)
        for one in others:
            if one.key is not None and find_key(conn, publish.repository_id, one.key) is None:
                self._remember(conn, publish.repository_id, one.key, one.fingerprint, commit.id)
        return commit

    def key(self, repository_id: str, key: str) -> KeyRecord | None:
        """What an idempotency key stands for, if it was used."""
        return self.database.read(lambda conn: find_key(conn, repository_id, key))

    def remember_key(self, repository_id: str, key: str, fingerprint: str, commit_id: str) -> None:
        """Let a key stand for a commit that exists already. An existing key stays as it is."""

        def work(conn: Connection) -> None:
            check_writable(conn, lock_repository(conn, repository_id), action="remember-key")
            if find_key(conn, repository_id, key) is None:
                self._remember(conn, repository_id, key, fingerprint, commit_id)

        self.database.write(work, settle=run_again)

    def enqueue(self, repository_id: str, branch: str, publisher: str, *, lasts: timedelta) -> int:
        """Take the last place in a branch's queue, or renew the place that the publisher has; how many are ahead.

        The place counts for ``lasts`` by the database's clock. While somebody is first, nobody else publishes.
        """
        mine = _of_publisher(repository_id, branch, publisher)

        def work(conn: Connection) -> int:
            check_writable(conn, lock_repository(conn, repository_id), action="seal", branch=branch)
            renewed = {"renewed": ticks(self.database.dialect.now(conn)), "lasts": lasts // timedelta(microseconds=1)}
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
        self.database.write(lambda conn: _leave(conn, repository_id, branch, publisher), settle=run_again)


def _check_turn(conn: Connection, repository_id: str, branch: str, publisher: str | None, now: datetime) -> None:
    """Refuse to publish while somebody else is first. Raises ``BranchMoved``."""
    first = conn.execute(_FIRST, {"repository": repository_id, "branch": branch, "now": ticks(now)}).scalar()
    if first is not None and first != publisher:
        raise BranchMoved(f"others wait to publish to branch {branch!r}; try again")


def _leave(conn: Connection, repository_id: str, branch: str, publisher: str) -> None:
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


def _check_state(state: BranchState, publish: Publish) -> tuple[str, ...]:
    if state.commit_id != publish.expected_head:
        raise BranchMoved(f"branch {state.id!r} moved to {state.commit_id} while the commit was being made; try again")
    rest = without(state, publish.consumed)
    if state.sealed_resets != publish.sealed_resets or rest is None:
        raise BranchMoved(f"staged rows of branch {state.id!r} changed while they were being committed; try again")
    return rest


def _insert_commit(conn: Connection, repository_id: str, commit: Commit) -> Commit:
    existing = find_commit(conn, repository_id, commit.id)
    if existing is None:
        conn.execute(_NEW_COMMIT, commit_values(repository_id, commit))
        return commit
    if existing.expired:
        raise expired(existing.id)
    return existing


def _move_head(conn: Connection, publish: Publish, moved: BranchState) -> None:
    here = {"the_repository": publish.repository_id, "the_branch": publish.branch, "the_head": publish.expected_head}
    done = conn.execute(_MOVE_HEAD, here | branch_values(moved))
    if done.rowcount != 1:
        raise BranchMoved(f"branch {publish.branch!r} moved while the commit was being made; try again")


def _published(conn: Connection, publish: Publish, commit_id: str) -> Commit | None:
    move = select(REFLOG.c.sequence).where(
        REFLOG.c.repository_id == publish.repository_id,
        REFLOG.c.ref == publish.branch,
        REFLOG.c.old == publish.expected_head,
        REFLOG.c.new == commit_id,
    )
    if conn.execute(move.limit(1)).first() is None:
        return None
    return find_commit(conn, publish.repository_id, commit_id)
