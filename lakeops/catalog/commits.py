"""Commits: reading and publishing them, the queue of those who publish, and idempotency keys.

While somebody is first in a branch's queue nobody else publishes to it. The queue is for fairness alone: a place that
lapses too early, counts too long or is lost costs another try. ``publish`` decides by head, tokens and resets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, bindparam, delete, func, insert, literal, or_, select, update

from lakeops.catalog import guards, records
from lakeops.catalog.database import AnyRow, Lookup, read_transaction, write_transaction
from lakeops.catalog.guards import CatalogPart
from lakeops.catalog.records import BranchState, Publish
from lakeops.catalog.tables import BRANCH, COMMIT, KEY, QUEUE, REFLOG, STAGED
from lakeops.model.errors import BranchMoved, KeyReused, RefNotFound
from lakeops.model.graph import Node
from lakeops.model.ids import with_along
from lakeops.model.records import Commit, difference

FORGET = timedelta(hours=1)
"""How long a place in the queue that lapsed is kept for a publisher that was only slow."""

# Built once: building these takes longer than SQLite takes to run them.
_OF_REPOSITORY = COMMIT.c.repository_id == bindparam("repository")
_STEP = (*records.COMMIT_COLUMNS, COMMIT.c.first_parent)
_START = select(*_STEP, literal(1).label("depth")).where(_OF_REPOSITORY, COMMIT.c.id == bindparam("commit"))
_LINE = _START.cte("walk", recursive=True)
_NEXT = select(*_STEP, _LINE.c.depth + 1).where(_OF_REPOSITORY, COMMIT.c.id == _LINE.c.first_parent)
_LINE = _LINE.union_all(_NEXT.where(_LINE.c.depth < bindparam("limit")))
_WALK = select(*(_LINE.c[column.name] for column in records.COMMIT_COLUMNS)).order_by(_LINE.c.depth)
_SOME = select(*records.COMMIT_COLUMNS).where(_OF_REPOSITORY, COMMIT.c.id.in_(bindparam("some", expanding=True)))
_ONE = Lookup(records.COMMIT_COLUMNS, f"{COMMIT.name} WHERE repository_id = :repository AND id = :commit")
_NEW_COMMIT = insert(COMMIT)
_OF_TOKENS = STAGED.c.token.in_(bindparam("the_tokens", expanding=True))
_MOVE_HEAD = update(BRANCH).where(
    BRANCH.c.repository_id == bindparam("the_repository"),
    BRANCH.c.name == bindparam("the_branch"),
    BRANCH.c.commit_id == bindparam("the_head"),
    ~select(STAGED.c.token).where(STAGED.c.repository_id == BRANCH.c.repository_id, _OF_TOKENS).exists(),
)
_HERE = (QUEUE.c.repository_id == bindparam("repository"), QUEUE.c.branch == bindparam("on"))
# A place that was renewed later than now does not count: the clock was set back.
_COUNTS = (QUEUE.c.renewed <= bindparam("now"), QUEUE.c.renewed + QUEUE.c.lasts > bindparam("now"))
_FIRST = select(QUEUE.c.publisher).where(*_HERE, *_COUNTS).order_by(QUEUE.c.number).limit(1)
_AHEAD = select(func.count()).where(*_HERE, *_COUNTS, QUEUE.c.number < bindparam("place"))


def find_commit(conn: Connection, repository_id: str, commit_id: str) -> Commit | None:
    """The commit as a transaction sees it, if it exists."""
    row = _ONE.one(conn, {"repository": repository_id, "commit": commit_id})
    return None if row is None else records.commit_record(row)


def with_head(join: str = "", columns: Iterable[Column[Any]] = ()) -> Lookup:
    """A branch (``:repository``, ``:branch``), the commit that it points to, and columns of one more outer join."""
    return Lookup(
        (*BRANCH.c, *records.COMMIT_COLUMNS, *columns),
        f"{BRANCH.name} LEFT JOIN {COMMIT.name} ON {COMMIT.name}.repository_id = {BRANCH.name}.repository_id "
        f"AND {COMMIT.name}.id = {BRANCH.name}.commit_id {join} "
        f"WHERE {BRANCH.name}.repository_id = :repository AND {BRANCH.name}.name = :branch AND {guards.MEANT}",
    )


_HEAD = with_head()
_BRANCH_WIDTH, _COMMIT_WIDTH = len(BRANCH.c), len(records.COMMIT_COLUMNS)


def find_branch_and_head(
    conn: Connection, repository_id: str, name: str, query: Lookup = _HEAD, **values: str
) -> tuple[BranchState, Commit, Sequence[Any]]:
    """A branch, the commit that it points to, and what else a query of ``with_head`` asks for.

    Raises ``RepositoryNotFound``, ``RefNotFound``.
    """
    row = query.one(conn, {"repository": repository_id, "branch": name, **values})
    if row is None:
        guards.find_repository(conn, repository_id)
        raise guards.no_branch(repository_id, name)
    state, rest = records.branch_record(row[:_BRANCH_WIDTH]), row[_BRANCH_WIDTH:]
    if rest[0] is None:
        raise guards.no_commit(repository_id, state.commit_id)
    return state, records.commit_record(rest[:_COMMIT_WIDTH]), rest[_COMMIT_WIDTH:]


def require_commit(conn: Connection, repository_id: str, commit_id: str) -> Commit:
    """The commit. Raises ``RepositoryNotFound``, ``RefNotFound``."""
    found = find_commit(conn, repository_id, commit_id)
    if found is None:
        guards.find_repository(conn, repository_id)
        raise guards.no_commit(repository_id, commit_id)
    return found


def earlier_commit(conn: Connection, repository_id: str, key: str | None, fingerprint: str) -> Commit | None:
    """The commit that an idempotency key stands for, if it was used. Raises ``KeyReused``, ``RefNotFound``."""
    known = None if key is None else find_key(conn, repository_id, key)
    if key is None or known is None:
        return None
    differs = difference(known.fingerprint, fingerprint)
    if differs:
        raise KeyReused(key, known.commit_id, differs)
    return require_commit(conn, repository_id, known.commit_id)  # pruning may have taken it before its key


def find_key(conn: Connection, repository_id: str, key: str) -> AnyRow | None:
    """The ``commit_id`` that an idempotency key stands for, and the call's ``fingerprint``, if it was used."""
    query = select(KEY.c.fingerprint, KEY.c.commit_id).where(KEY.c.repository_id == repository_id, KEY.c.key == key)
    return conn.execute(query).one_or_none()


class Commits(CatalogPart):
    """The commits of repositories. A commit is immutable, except that retention may expire it."""

    @read_transaction
    def get(self, conn: Connection, repository_id: str, commit_id: str) -> Commit:
        """The commit, expired or not. Raises ``RefNotFound``."""
        return require_commit(conn, repository_id, commit_id)

    @read_transaction
    def get_many(self, conn: Connection, repository_id: str, ids: Collection[str]) -> dict[str, Commit]:
        """The commits that exist among these ids."""
        found: dict[str, Commit] = {}
        for some in guards.chunks(ids):
            rows = conn.execute(_SOME, {"repository": repository_id, "some": some})
            found |= {row[0]: records.commit_record(row) for row in rows}
        return found

    @read_transaction
    def all(self, conn: Connection, repository_id: str) -> dict[str, Commit]:
        """The commits of a repository by id, expired ones included. Raises ``RepositoryNotFound``."""
        query = select(*records.COMMIT_COLUMNS).where(COMMIT.c.repository_id == repository_id)
        guards.find_repository(conn, repository_id)
        return {row[0]: records.commit_record(row) for row in conn.execute(query)}

    @read_transaction
    def initial_commit(self, conn: Connection, repository_id: str) -> Commit:
        """The commit that everything in the repository descends from. Raises ``RepositoryNotFound``."""
        query = select(*records.COMMIT_COLUMNS).where(
            COMMIT.c.repository_id == repository_id, COMMIT.c.first_parent.is_(None), COMMIT.c.generation == 1
        )
        found = conn.execute(query.order_by(COMMIT.c.creation_date, COMMIT.c.id).limit(1)).one_or_none()
        if found is None:
            guards.find_repository(conn, repository_id)
            raise RefNotFound(f"repository {repository_id!r} has no initial commit")
        return records.commit_record(found)

    @read_transaction
    def commits_with_prefix(self, conn: Connection, repository_id: str, prefix: str, *, limit: int = 8) -> list[str]:
        """Ids that start with a hex prefix, in order, at most ``limit``."""
        name: ColumnElement[str] = COMMIT.c.id
        query = select(name).where(COMMIT.c.repository_id == repository_id, *guards.under(name, prefix))
        return list(conn.execute(query.order_by(name).limit(limit)).scalars())

    @read_transaction
    def first_parents(self, conn: Connection, repository_id: str, commit_id: str, *, limit: int) -> list[Commit]:
        """The commit and its first parents, newest first, at most ``limit``: one statement, however many."""
        values = {"repository": repository_id, "commit": commit_id, "limit": limit}
        rows = _ONE.all(conn, values) if limit == 1 else conn.execute(_WALK, values).all()
        found = [records.commit_record(row) for row in rows]
        if not found:
            guards.find_repository(conn, repository_id)
            raise guards.no_commit(repository_id, commit_id)
        return found[:limit]

    @read_transaction
    def newest_generations(self, conn: Connection, repository_id: str, commit_id: str, generations: int) -> list[Node]:
        """The nodes of all commits of so many generations, from that of a commit down; none where it is not there."""
        here = COMMIT.c.repository_id == repository_id
        top = select(COMMIT.c.generation).where(here, COMMIT.c.id == commit_id).scalar_subquery()
        columns = (COMMIT.c.id, records.PARENTS, COMMIT.c.creation_date, COMMIT.c.generation, COMMIT.c.expired)
        query = select(*columns).where(here, COMMIT.c.generation <= top, COMMIT.c.generation > top - generations)
        # The driver's own tuples: making SQLAlchemy's rows takes longer than reading them.
        rows = conn.execute(query).cursor.fetchall()
        known = ((one, records.parents_of(ids), *rest) for one, ids, *rest in rows)
        return [Node(*node) for node in known if node[1] is not None]

    def publish(self, publish: Publish) -> Commit:
        """The transaction that makes a commit visible: all of it or nothing.

        Locks the branch. Checks head, resets, tokens, live commits, deadline and protection. Inserts the commit, the
        reflog row and the key. Moves the head and retires the consumed tokens. A known key returns its commit and
        changes nothing (``KeyReused`` with another fingerprint). A head, token list or reset count that is not as
        expected raises ``BranchMoved``, and so do a queue in which somebody else is first and, except for a commit,
        rows that are staged and not consumed: who staged them saw the old head. What others asked for whose rows are
        consumed is kept in the commit's metadata, and their keys stand for it.
        """
        repository_id, branch = publish.repository_id, publish.branch
        made = ""

        def resolve(conn: Connection) -> Commit | None:
            here = (REFLOG.c.repository_id == repository_id, REFLOG.c.ref == branch)
            move = select(REFLOG.c.sequence).where(*here, REFLOG.c.old == publish.expected_head, REFLOG.c.new == made)
            return find_commit(conn, repository_id, made) if conn.execute(move.limit(1)).first() else None

        def work(conn: Connection) -> Commit:
            nonlocal made
            repository = guards.lock_repository(conn, repository_id)
            earlier = earlier_commit(conn, repository_id, publish.key, publish.fingerprint)
            if earlier is not None:
                return earlier
            state = guards.lock_branch(conn, repository_id, branch, exclusive=True)
            # Check again: a call with the same key may have held the lock until now.
            earlier = earlier_commit(conn, repository_id, publish.key, publish.fingerprint)
            if earlier is not None:
                return earlier
            rest = self._check_publish(conn, publish, repository, state)
            # Other callers, whose rows this commit covers, may have begun to commit them until now.
            others = {
                one: one.along
                for token, one in state.intents
                if token in publish.consumed and not one.same_call(publish.intent)
            }
            commit = with_along(publish.commit, list(others.values()))
            made = commit.id
            existing = find_commit(conn, repository_id, commit.id)
            if existing is None:
                conn.execute(_NEW_COMMIT, records.commit_values(repository_id, commit))
            elif existing.expired:
                raise guards.expired(commit.id)
            here: dict[str, Any] = {
                "the_repository": repository_id,
                "the_branch": branch,
                "the_head": publish.expected_head,
                "the_tokens": () if publish.action == "commit" else rest.tokens,
            }
            if conn.execute(_MOVE_HEAD, here | records.branch_values(replace(rest, commit_id=commit.id))).rowcount != 1:
                raise BranchMoved(f"branch {branch!r} was staged to while the commit was being made; try again")
            if publish.publisher is not None:
                conn.execute(delete(QUEUE).where(*_of_publisher(repository_id, branch, publish.publisher)))
            self.retire(conn, repository_id, publish.consumed, commit_id=commit.id)
            move = (repository_id, branch, publish.expected_head, commit.id)
            self.record_move(conn, *move, publish.action, publish.actor)
            for source, name in publish.despite:
                self.record(conn, repository_id, "despite-check", "check", name, source, commit.id)
            self.remember(conn, repository_id, publish.key, publish.fingerprint, commit.id)
            for one in others:
                if one.key is not None and find_key(conn, repository_id, one.key) is None:
                    self.remember(conn, repository_id, one.key, one.fingerprint, commit.id)
            return existing or commit

        return self.database.write(work, resolve=resolve)

    def _check_publish(self, conn: Connection, publish: Publish, repository: AnyRow, state: BranchState) -> BranchState:
        """Refuse what may not be published now. Returns the branch without the tokens that are consumed."""
        repository_id, branch = publish.repository_id, publish.branch
        guards.check_writable(conn, repository, action=publish.action, branch=branch)
        if publish.action == "merge" or publish.passed:  # nothing else got here where a branch requires checks
            source = publish.merged or publish.commit.parents[-1]
            guards.require_passed(conn, repository_id, branch, source, publish.untouched, publish.passed)
        guards.check_hooks(repository, publish.action, branch, publish.hooks)
        now = self.database.dialect.now(conn)
        here = {"repository": repository_id, "on": branch, "now": records.epoch_micros(now)}
        first = conn.execute(_FIRST, here).scalar()
        if first is not None and first != publish.publisher:
            raise BranchMoved(f"others wait to publish to branch {branch!r}; try again")
        if state.commit_id != publish.expected_head:
            raise BranchMoved(
                f"branch {branch!r} moved to {state.commit_id} while the commit was being made; try again"
            )
        rest = state.without_sealed(publish.consumed)
        if state.sealed_resets != publish.sealed_resets or rest is None:
            raise BranchMoved(f"staged rows of branch {branch!r} changed while they were being committed; try again")
        guards.check_started(repository, now, publish.started)
        guards.check_live(conn, repository_id, {publish.expected_head, *publish.commit.parents, *publish.live})
        return rest

    @read_transaction
    def of_key(self, conn: Connection, repository_id: str, key: str, fingerprint: str) -> Commit | None:
        """The commit that an idempotency key stands for, if it was used. Raises ``KeyReused``."""
        return earlier_commit(conn, repository_id, key, fingerprint)

    @write_transaction
    def remember_key(self, conn: Connection, repository_id: str, key: str, fingerprint: str, commit_id: str) -> None:
        """Let a key stand for a commit that exists already. An existing key stays as it is."""
        guards.lock_writable(conn, repository_id, action="remember-key")
        if find_key(conn, repository_id, key) is None:
            self.remember(conn, repository_id, key, fingerprint, commit_id)

    @write_transaction
    def enqueue(self, conn: Connection, repository_id: str, branch: str, publisher: str, *, lasts: timedelta) -> int:
        """Take the last place in a branch's queue, or renew the publisher's place. Returns how many are ahead.

        The place counts for ``lasts`` by the database's clock. One that nobody renews lapses.
        """
        here = (QUEUE.c.repository_id == repository_id, QUEUE.c.branch == branch)
        mine = update(QUEUE).where(*_of_publisher(repository_id, branch, publisher))
        guards.lock_writable(conn, repository_id, action="seal", branch=branch)
        now = self.database.dialect.now(conn)
        renewed = {"renewed": records.epoch_micros(now), "lasts": lasts // timedelta(microseconds=1)}
        if not conn.execute(mine.values(**renewed)).rowcount:
            # So that numbers are in the order of commits.
            guards.lock_branch(conn, repository_id, branch, exclusive=True)
            now = self.database.dialect.now(conn)
            lapsed = QUEUE.c.renewed + QUEUE.c.lasts < records.epoch_micros(now - FORGET)
            conn.execute(delete(QUEUE).where(*here, or_(lapsed, QUEUE.c.renewed > records.epoch_micros(now + FORGET))))
            last = conn.execute(select(func.max(QUEUE.c.number)).where(*here)).scalar() or 0
            place = {"repository_id": repository_id, "branch": branch, "number": last + 1, "publisher": publisher}
            conn.execute(insert(QUEUE).values(**place, **renewed))
        return self._count_ahead(conn, repository_id, branch, publisher) or 0

    @read_transaction
    def ahead(self, conn: Connection, repository_id: str, branch: str, publisher: str) -> int | None:
        """How many in a branch's queue are ahead of a publisher. None when it has no place."""
        return self._count_ahead(conn, repository_id, branch, publisher)

    @write_transaction
    def dequeue(self, conn: Connection, repository_id: str, branch: str, publisher: str) -> None:
        """Give a place up. ``publish`` does so by itself."""
        conn.execute(delete(QUEUE).where(*_of_publisher(repository_id, branch, publisher)))

    def _count_ahead(self, conn: Connection, repository_id: str, branch: str, publisher: str) -> int | None:
        mine = select(QUEUE.c.number).where(*_of_publisher(repository_id, branch, publisher))
        place = conn.execute(mine).scalar()
        if place is None:
            return None
        here = {"repository": repository_id, "on": branch, "now": records.epoch_micros(self.database.dialect.now(conn))}
        return conn.execute(_AHEAD, here | {"place": place}).scalar_one()


def _of_publisher(repository_id: str, branch: str, publisher: str) -> tuple[ColumnElement[bool], ...]:
    return (QUEUE.c.repository_id == repository_id, QUEUE.c.branch == branch, QUEUE.c.publisher == publisher)
