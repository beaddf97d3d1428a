"""Reading commits, and the transition that expires them.

``expire_commits`` marks commits that no branch, no tag and no mirror needs; every transition refuses them from then on.
Recovery: repeat it. It holds the repository's row exclusively. So a transition either finished before, and its
commits and refs were seen, or begins afterwards, and finds them expired: garbage collection can trust the set that is
left live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, bindparam, literal, select, update

from lakeops.catalog.base import History
from lakeops.catalog.database import run_again
from lakeops.catalog.guards import IN_CHUNK, check_writable, find_repository, lock_repository, no_commit, under
from lakeops.catalog.part import Part
from lakeops.catalog.retention import find_rules, mirror_needs
from lakeops.catalog.rows import COMMIT_COLUMNS, commit_record
from lakeops.catalog.tables import BRANCH, COMMIT, TAG
from lakeops.model.records import Commit


def _first_parents() -> Select[Any]:
    here = COMMIT.c.repository_id == bindparam("repository")
    columns = (*COMMIT_COLUMNS, COMMIT.c.first_parent)
    start = select(*columns, literal(1).label("depth")).where(here, COMMIT.c.id == bindparam("commit"))
    walk = start.cte("walk", recursive=True)
    parents = select(*columns, walk.c.depth + 1).where(here, COMMIT.c.id == walk.c.first_parent)
    walk = walk.union_all(parents.where(walk.c.depth < bindparam("limit")))
    return select(*(walk.c[column.name] for column in COMMIT_COLUMNS)).order_by(walk.c.depth)


# Built once, as they are asked for on every look at a ref.
_WALK = _first_parents()
_ONE = select(*COMMIT_COLUMNS).where(
    COMMIT.c.repository_id == bindparam("repository"), COMMIT.c.id == bindparam("commit")
)


def find_commit(conn: Connection, repository_id: str, commit_id: str) -> Commit | None:
    """The commit as a transaction sees it, if it exists."""
    row = conn.execute(_ONE, {"repository": repository_id, "commit": commit_id}).one_or_none()
    return None if row is None else commit_record(row)


class Commits(Part):
    """Commits: immutable, but for the mark that retention expired them."""

    def commit(self, repository_id: str, commit_id: str) -> Commit:
        """The commit, expired or not. Raises ``RefNotFound``."""

        def work(conn: Connection) -> Commit:
            found = find_commit(conn, repository_id, commit_id)
            if found is None:
                find_repository(conn, repository_id)
                raise no_commit(repository_id, commit_id)
            return found

        return self.database.read(work)

    def commits(self, repository_id: str, ids: Iterable[str]) -> dict[str, Commit]:
        """The commits that exist among these ids."""
        wanted = sorted(set(ids))

        def work(conn: Connection) -> dict[str, Commit]:
            found: dict[str, Commit] = {}
            for start in range(0, len(wanted), IN_CHUNK):
                some = COMMIT.c.id.in_(wanted[start : start + IN_CHUNK])
                for row in conn.execute(select(*COMMIT_COLUMNS).where(COMMIT.c.repository_id == repository_id, some)):
                    found[row[0]] = commit_record(row)
            return found

        return self.database.read(work)

    def commits_with_prefix(self, repository_id: str, prefix: str, *, limit: int = 8) -> list[str]:
        """Ids that start with a hex prefix, in order, at most ``limit``."""
        name: ColumnElement[str] = COMMIT.c.id
        query = select(name).where(COMMIT.c.repository_id == repository_id, *under(name, prefix))
        query = query.order_by(name).limit(limit)
        return self.database.read(lambda conn: list(conn.execute(query).scalars()))

    def first_parents(self, repository_id: str, commit_id: str, *, limit: int) -> list[Commit]:
        """The commit and its first parents, newest first, at most ``limit``: one statement, however many."""

        def work(conn: Connection) -> list[Commit]:
            values = {"repository": repository_id, "commit": commit_id, "limit": limit}
            found = [commit_record(row) for row in conn.execute(_WALK, values).all()]
            if not found:
                find_repository(conn, repository_id)
                raise no_commit(repository_id, commit_id)
            return found[:limit]

        return self.database.read(work)

    def history(self, repository_id: str) -> History:
        """Every ref and every commit of a repository at one instant: what retention decides on."""

        def work(conn: Connection) -> History:
            find_repository(conn, repository_id)
            return find_history(conn, repository_id)

        return self.database.read(work)

    def expire_commits(self, repository_id: str, ids: Iterable[str] | Callable[[History], Iterable[str]]) -> list[str]:
        """Mark commits expired, with the repository's row locked against every other transition."""
        chosen = ids if callable(ids) else frozenset(ids)

        def work(conn: Connection) -> list[str]:
            check_writable(conn, lock_repository(conn, repository_id, exclusive=True), action="expire")
            asked = chosen(find_history(conn, repository_id)) if callable(chosen) else chosen
            return expire(conn, repository_id, asked)

        return self.database.write(work, settle=run_again)


def expire(conn: Connection, repository_id: str, ids: Iterable[str]) -> list[str]:
    """Mark commits expired, inside a transition that holds the repository's row exclusively; returns those it marked.

    What a ref points to or a mirror needs is left alone.
    """
    asked = set(ids)
    for refs in (BRANCH, TAG):
        pointed = select(refs.c.commit_id).where(refs.c.repository_id == repository_id)
        asked.difference_update(conn.execute(pointed).scalars())
    asked.difference_update(*mirror_needs(conn, repository_id).values())
    doomed = sorted(asked)
    marked: list[str] = []
    for start in range(0, len(doomed), IN_CHUNK):
        some = COMMIT.c.id.in_(doomed[start : start + IN_CHUNK])
        change = update(COMMIT).where(COMMIT.c.repository_id == repository_id, some, COMMIT.c.expired.is_(False))
        marked.extend(conn.execute(change.values(expired=True).returning(COMMIT.c.id)).scalars())
    return sorted(marked)


def find_history(conn: Connection, repository_id: str) -> History:
    """Every ref, every commit, the rules and what mirrors need, as a transaction sees them."""

    def refs(table: Table) -> dict[str, str]:
        query = select(table.c.name, table.c.commit_id).where(table.c.repository_id == repository_id)
        return {row.name: row.commit_id for row in conn.execute(query)}

    rows = conn.execute(select(*COMMIT_COLUMNS).where(COMMIT.c.repository_id == repository_id))
    return History(
        branches=refs(BRANCH),
        tags=refs(TAG),
        commits={row[0]: commit_record(row) for row in rows},
        mirrors=mirror_needs(conn, repository_id),
        rules=find_rules(conn, repository_id),
    )
