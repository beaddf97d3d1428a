"""The transition that makes a commit visible.

``publish`` needs head, resets and tokens as they were planned on, everything it rests on live, and a young attempt. It
leaves the commit, a reflog row and the key inserted, the head moved and the tokens retired: all of it or nothing, so
there is nothing to recover. When the answer to COMMIT is lost, the reflog tells: the branch moved from the expected
head to this commit, or it did not and the transaction runs again.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection, insert, select, update

from lakeops.catalog.base import BranchState, KeyRecord, Publish
from lakeops.catalog.commits import find_commit
from lakeops.catalog.database import run_again
from lakeops.catalog.guards import check_live, check_started, check_writable, expired, lock_branch, lock_repository
from lakeops.catalog.part import Part
from lakeops.catalog.queue import check_turn, leave
from lakeops.catalog.rows import branch_values, commit_values, key_record
from lakeops.catalog.staging import without
from lakeops.catalog.tables import BRANCH, COMMIT, KEY, REFLOG
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import BranchMoved
from lakeops.model.records import Commit


class Publishing(Part):
    """Publishing commits, and the idempotency keys that they stand under."""

    def publish(self, publish: Publish) -> Commit:
        """The transaction that makes a commit visible: all of it or nothing."""

        def work(conn: Connection) -> Commit:
            repository = lock_repository(conn, publish.repository_id)
            earlier = _earlier(conn, publish)
            if earlier is not None:
                return earlier
            state = lock_branch(conn, publish.repository_id, publish.branch, exclusive=True)
            earlier = _earlier(conn, publish)  # again: a call under the same key may have held the lock until now
            if earlier is not None:
                return earlier
            check_writable(conn, repository, action=publish.action, branch=publish.branch)
            check_turn(conn, repository.id, publish.branch, publish.publisher, self.database.dialect.now(conn))
            rest = _check_state(state, publish)
            check_started(repository, self.database.dialect.now(conn), publish.started)
            check_live(conn, publish.repository_id, {publish.expected_head, *publish.commit.parents, *publish.live})
            commit = _insert_commit(conn, publish.repository_id, publish.commit)
            _move_head(conn, publish, replace(state, commit_id=commit.id, sealed_tokens=rest))
            if publish.publisher is not None:
                leave(conn, publish.repository_id, publish.branch, publish.publisher)
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
            if publish.key is not None:
                self._insert_key(conn, publish.repository_id, publish.key, publish.fingerprint, commit.id)
            return commit

        return self.database.write(work, settle=lambda conn: _published(conn, publish))

    def key(self, repository_id: str, key: str) -> KeyRecord | None:
        """What an idempotency key stands for, if it was used."""
        return self.database.read(lambda conn: _find_key(conn, repository_id, key))

    def remember_key(self, repository_id: str, key: str, fingerprint: str, commit_id: str) -> None:
        """Let a key stand for a commit that exists already. An existing key stays as it is."""

        def work(conn: Connection) -> None:
            check_writable(conn, lock_repository(conn, repository_id), action="remember-key")
            if _find_key(conn, repository_id, key) is None:
                self._insert_key(conn, repository_id, key, fingerprint, commit_id)

        self.database.write(work, settle=run_again)

    def _insert_key(self, conn: Connection, repository_id: str, key: str, fingerprint: str, commit_id: str) -> None:
        conn.execute(
            insert(KEY).values(
                repository_id=repository_id,
                key=key,
                fingerprint=fingerprint,
                commit_id=commit_id,
                at=unix_seconds(self.database.dialect.now(conn)),
            )
        )


def _earlier(conn: Connection, publish: Publish) -> Commit | None:
    if publish.key is None:
        return None
    known = _find_key(conn, publish.repository_id, publish.key)
    if known is None:
        return None
    known.check(publish.key, publish.fingerprint)
    return find_commit(conn, publish.repository_id, known.commit_id)


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
        conn.execute(insert(COMMIT).values(commit_values(repository_id, commit)))
        return commit
    if existing.expired:
        raise expired(existing.id)
    return existing


def _move_head(conn: Connection, publish: Publish, moved: BranchState) -> None:
    done = conn.execute(
        update(BRANCH)
        .where(
            BRANCH.c.repository_id == publish.repository_id,
            BRANCH.c.name == publish.branch,
            BRANCH.c.commit_id == publish.expected_head,
        )
        .values(branch_values(moved))
    )
    if done.rowcount != 1:
        raise BranchMoved(f"branch {publish.branch!r} moved while the commit was being made; try again")


def _published(conn: Connection, publish: Publish) -> Commit | None:
    move = select(REFLOG.c.sequence).where(
        REFLOG.c.repository_id == publish.repository_id,
        REFLOG.c.ref == publish.branch,
        REFLOG.c.old == publish.expected_head,
        REFLOG.c.new == publish.commit.id,
    )
    if conn.execute(move.limit(1)).first() is None:
        return None
    return find_commit(conn, publish.repository_id, publish.commit.id)


def _find_key(conn: Connection, repository_id: str, key: str) -> KeyRecord | None:
    query = select(KEY).where(KEY.c.repository_id == repository_id, KEY.c.key == key)
    row = conn.execute(query).one_or_none()
    return None if row is None else key_record(row)
