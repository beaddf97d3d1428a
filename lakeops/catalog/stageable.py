"""The branch that a transition stages to, with all that decides whether it may, in one statement.

Each put asks twice: before the upload whether it may be staged, and in the transaction that links it. On PostgreSQL
that transaction takes a statement for each lock, because nobody may rely on what is protected before the repository is
locked.
"""

from __future__ import annotations

from sqlalchemy import Connection

from lakeops.catalog.guards import (
    PROTECTING,
    check_protection,
    check_writable,
    lock_branch,
    lock_repository,
    no_branch,
    no_commit,
    repository_found,
)
from lakeops.catalog.lookups import Lookup
from lakeops.catalog.records import BranchState
from lakeops.catalog.rows import COMMIT_COLUMNS, AnyRow, branch_record, commit_record
from lakeops.catalog.tables import BRANCH, COMMIT, PROTECTION, REPOSITORY
from lakeops.model.records import Commit

_OF_REPOSITORY = (
    REPOSITORY.c.id,
    REPOSITORY.c.storage_namespace,
    REPOSITORY.c.read_only,
    REPOSITORY.c.grace_seconds,
    REPOSITORY.c.grace_before,
    REPOSITORY.c.grace_until,
    REPOSITORY.c.fence,
    REPOSITORY.c.pruned,
)
"""What transitions compute with. The rest is JSON, which takes time to parse."""
_BRANCH = slice(1, 1 + len(BRANCH.c))
_HEAD = slice(_BRANCH.stop, _BRANCH.stop + len(COMMIT_COLUMNS))

# A row for each pattern of protected branches, and one where there is none.
_FROM = (
    f"{REPOSITORY.name} "
    f"LEFT JOIN {PROTECTION.name} ON {PROTECTION.name}.repository_id = {REPOSITORY.name}.id "
    f"AND {PROTECTION.name}.kind IN ({', '.join(map(repr, PROTECTING))}) "
    f"LEFT JOIN {BRANCH.name} ON {BRANCH.name}.repository_id = {REPOSITORY.name}.id AND {BRANCH.name}.name = :branch "
)
_TO_HEAD = (
    f"LEFT JOIN {COMMIT.name} ON {COMMIT.name}.repository_id = {BRANCH.name}.repository_id "
    f"AND {COMMIT.name}.id = {BRANCH.name}.commit_id "
)
_HERE = f"WHERE {REPOSITORY.name}.id = :repository"
# The repository's columns come last: of two columns of one name, the last one is the row's attribute.
_ALLOWED = Lookup((PROTECTION.c.pattern, BRANCH.c.name, *_OF_REPOSITORY), _FROM + _HERE)
_ALONE = Lookup((PROTECTION.c.pattern, *BRANCH.c, *_OF_REPOSITORY), _FROM + _HERE)
_WITH_HEAD = Lookup((PROTECTION.c.pattern, *BRANCH.c, *COMMIT_COLUMNS, *_OF_REPOSITORY), _FROM + _TO_HEAD + _HERE)


def lock_stageable(
    conn: Connection, repository_id: str, name: str, *, exclusive: bool = False
) -> tuple[AnyRow, BranchState]:
    """A repository's row and a branch, both locked, when the branch may be staged to.

    Raises ``RepositoryNotFound``, ``RefNotFound``, ``ReadOnlyRepository``, ``ProtectedBranch``.
    """
    if conn.dialect.name == "sqlite":
        return _found(conn, _ALONE, repository_id, name)
    repository = lock_repository(conn, repository_id)
    state = lock_branch(conn, repository_id, name, exclusive=exclusive)
    check_writable(conn, repository, action="stage", branch=name)
    return repository, state


def find_stageable(conn: Connection, repository_id: str, name: str) -> tuple[BranchState, Commit]:
    """A branch that may be staged to, and the commit that it points to. Raises as ``lock_stageable``."""
    row, state = _found(conn, _WITH_HEAD, repository_id, name)
    head = row[_HEAD]
    if head[0] is None:
        raise no_commit(repository_id, state.commit_id)
    return state, commit_record(head)


def check_stageable(conn: Connection, repository_id: str, name: str) -> None:
    """Refuse a branch that may not be staged to. Raises as ``lock_stageable``."""
    _allowed(conn, _ALLOWED, repository_id, name)


def _found(conn: Connection, query: Lookup, repository_id: str, name: str) -> tuple[AnyRow, BranchState]:
    """The repository's row, with everything else before it, and the branch."""
    row = _allowed(conn, query, repository_id, name)
    return row, branch_record(row[_BRANCH])


def _allowed(conn: Connection, query: Lookup, repository_id: str, name: str) -> AnyRow:
    """The row of a query that has a column of the branch behind the pattern."""
    rows = query.all(conn, {"repository": repository_id, "branch": name})
    row = repository_found(rows[0] if rows else None, repository_id)
    if row[_BRANCH.start] is None:
        raise no_branch(repository_id, name)
    check_writable(conn, row, action="stage")
    check_protection(name, [pattern for pattern, *_ in rows if pattern is not None])
    return row
