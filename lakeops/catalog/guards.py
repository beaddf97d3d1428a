"""What every transition does first: locks, and the checks that decide whether it may go on.

Locks are always taken in this order, so no two transitions wait for each other: the repository's row (shared;
exclusive only where everything else must stop: expiry, deletion, closing), then the branch's row (exclusive to change
it, shared to stage under its active token). SQLite needs none of it: a writer there is alone.

``check_writable`` is the one place that knows about read-only repositories and protected branches.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, select

from lakeops.catalog.base import BranchState
from lakeops.catalog.rows import AnyRow, branch_record
from lakeops.catalog.tables import BRANCH, COMMIT, PROTECTION, REPOSITORY
from lakeops.model.errors import (
    AttemptExpired,
    CommitExpired,
    ProtectedBranch,
    ReadOnlyRepository,
    RefNotFound,
    RepositoryNotFound,
)
from lakeops.model.paths import next_prefix

IN_CHUNK = 500
"""How many values one IN list may hold."""

_THROUGH_PROTECTION = {"merge", "reset", "seal"}
"""What a protected branch takes: merges, and what changes nothing that is committed."""


def _locking(query: Select[Any]) -> dict[bool | None, Select[Any]]:
    """A query that locks nothing (None), shared (False) or exclusively (True)."""
    return {None: query, False: query.with_for_update(read=True), True: query.with_for_update()}


# Built once: every transition runs these, and building them would take longer than SQLite takes to answer.
_REPOSITORY = _locking(select(REPOSITORY).where(REPOSITORY.c.id == bindparam("repository")))
_BRANCH = _locking(
    select(BRANCH).where(BRANCH.c.repository_id == bindparam("repository"), BRANCH.c.name == bindparam("branch"))
)
_EXPIRED = select(COMMIT.c.id, COMMIT.c.expired).where(
    COMMIT.c.repository_id == bindparam("repository"), COMMIT.c.id.in_(bindparam("some", expanding=True))
)
_PATTERNS = select(PROTECTION.c.pattern).where(PROTECTION.c.repository_id == bindparam("repository"))


def lock_repository(conn: Connection, repository_id: str, *, exclusive: bool = False) -> AnyRow:
    """The repository's row, locked. Raises ``RepositoryNotFound``."""
    row = conn.execute(_REPOSITORY[exclusive], {"repository": repository_id}).one_or_none()
    return _repository(row, repository_id)


def find_repository(conn: Connection, repository_id: str) -> AnyRow:
    """The repository's row. Raises ``RepositoryNotFound``."""
    row = conn.execute(_REPOSITORY[None], {"repository": repository_id}).one_or_none()
    return _repository(row, repository_id)


def lock_branch(conn: Connection, repository_id: str, name: str, *, exclusive: bool) -> BranchState:
    """The branch's row, locked. Raises ``RefNotFound``."""
    row = conn.execute(_BRANCH[exclusive], {"repository": repository_id, "branch": name}).one_or_none()
    return _branch(row, repository_id, name)


def find_branch(conn: Connection, repository_id: str, name: str) -> BranchState:
    """The branch's row. Raises ``RepositoryNotFound``, ``RefNotFound``."""
    row = conn.execute(_BRANCH[None], {"repository": repository_id, "branch": name}).one_or_none()
    if row is None:
        find_repository(conn, repository_id)
    return _branch(row, repository_id, name)


def check_writable(conn: Connection, repository: AnyRow, *, action: str, branch: str | None = None) -> None:
    """Refuse what a read-only repository or a protected branch does not take.

    Args:
        conn: the transition's transaction.
        repository: the repository's row.
        action: what is going to be done.
        branch: the branch that it is done to, if it is one.

    Raises:
        ReadOnlyRepository, ProtectedBranch.
    """
    if repository.read_only:
        raise ReadOnlyRepository(f"repository {repository.id!r} is read-only")
    if branch is None or action in _THROUGH_PROTECTION:
        return
    for pattern in conn.execute(_PATTERNS, {"repository": repository.id}).scalars():
        if fnmatchcase(branch, pattern):
            raise ProtectedBranch(
                f"branch {branch!r} is protected by {pattern!r}: it changes through merges only; "
                "work on another branch and merge it"
            )


def check_live(conn: Connection, repository_id: str, ids: Iterable[str]) -> None:
    """Refuse to rest on commits that do not exist or are expired. Raises ``RefNotFound``, ``CommitExpired``."""
    wanted = sorted(set(ids))
    states: dict[str, bool] = {}
    for start in range(0, len(wanted), IN_CHUNK):
        some = {"repository": repository_id, "some": wanted[start : start + IN_CHUNK]}
        states.update((row.id, row.expired) for row in conn.execute(_EXPIRED, some))
    for commit_id in wanted:
        if commit_id not in states:
            raise no_commit(repository_id, commit_id)
        if states[commit_id]:
            raise expired(commit_id)


def no_branch(repository_id: str, name: str) -> RefNotFound:
    """The error for a branch that is not there."""
    return RefNotFound(f"repository {repository_id!r} has no branch {name!r}")


def no_commit(repository_id: str, commit_id: str) -> RefNotFound:
    """The error for a commit that is not there."""
    return RefNotFound(f"repository {repository_id!r} has no commit {commit_id!r}")


def expired(commit_id: str) -> CommitExpired:
    """The error for a commit that retention took."""
    return CommitExpired(
        f"commit {commit_id} was expired by the retention rules and its objects may be gone; "
        "start from a newer commit, or lengthen retention to keep such commits in future"
    )


def check_started(now: datetime, started: datetime, deadline: timedelta) -> None:
    """Refuse an attempt that began longer ago than the deadline. Raises ``AttemptExpired``."""
    age = now - started
    if age > deadline:
        raise AttemptExpired(
            f"the attempt began {int(age.total_seconds())} s ago and {int(deadline.total_seconds())} s are allowed: "
            "garbage collection may have taken what it wrote; start it again"
        )


def under(column: ColumnElement[str], prefix: str) -> list[ColumnElement[bool]]:
    """Conditions for texts that begin with a prefix, as a range of bytes: nothing to escape, and an index serves it."""
    above = next_prefix(prefix)
    conditions = [column >= prefix] if prefix else []
    return conditions if above is None else [*conditions, column < above]


def _repository(row: AnyRow | None, repository_id: str) -> AnyRow:
    if row is None:
        raise RepositoryNotFound(f"no repository {repository_id!r}")
    return row


def _branch(row: AnyRow | None, repository_id: str, name: str) -> BranchState:
    if row is None:
        raise no_branch(repository_id, name)
    return branch_record(row)
