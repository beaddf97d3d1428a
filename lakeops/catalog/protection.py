"""CatalogPart of what protects refs: patterns of branches and tags, and the checks that merges need.

* ``protect`` and ``unprotect`` wait for every writer under the old rules. Recovery: look, repeat.
* ``pass_check`` needs a live commit. Leaves on record that it has passed a check. Repeating it changes nothing.
* ``withdraw_check`` waits for every writer that has seen the check passed.
* ``require_passed`` is part of ``publish``: a branch that needs checks takes a commit only when it has passed them all.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from sqlalchemy import ColumnElement, Connection, bindparam, exists, insert, literal, select

from lakeops.catalog.database import run_again
from lakeops.catalog.guards import (
    CatalogPart,
    check_live,
    check_writable,
    delete_rows,
    find_repository,
    lock_repository,
)
from lakeops.catalog.tables import PASSED_CHECK, PROTECTION
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import (
    NotFound,
    PreconditionFailed,
)
from lakeops.model.records import BRANCH_PROTECTION, CHECK_PROTECTION, PassedCheck, Protection

_HERE = PROTECTION.c.repository_id == bindparam("repository")
_EVERY = select(PROTECTION.c.kind, PROTECTION.c.pattern, PROTECTION.c.check_name).where(_HERE)
_PASSED = exists().where(
    PASSED_CHECK.c.repository_id == PROTECTION.c.repository_id,
    PASSED_CHECK.c.commit_id == bindparam("commit"),
    PASSED_CHECK.c.name == PROTECTION.c.check_name,
)
_LACKING = _EVERY.where(PROTECTION.c.kind == literal(CHECK_PROTECTION), ~_PASSED)


class Protections(CatalogPart):
    """What protects branches and tags."""

    def protections(self, repository_id: str) -> list[str]:
        """The glob patterns of branches that change through merges only, whatever is merged."""
        return [one.pattern for one in self.all_protections(repository_id) if one.kind == BRANCH_PROTECTION]

    def all_protections(self, repository_id: str) -> list[Protection]:
        """Everything that protects branches and tags, in order."""

        def work(conn: Connection) -> list[Protection]:
            find_repository(conn, repository_id)
            return sorted(Protection(*row) for row in conn.execute(_EVERY, {"repository": repository_id}))

        return self.database.read(work)

    def protect(self, repository_id: str, pattern: str, *, kind: str = BRANCH_PROTECTION, check: str = "") -> None:
        """Protect branches or tags that match a glob pattern. Repeating it changes nothing."""
        row = {"repository_id": repository_id, "kind": kind, "pattern": pattern, "check_name": check}

        def work(conn: Connection) -> None:
            # Exclusive, so that no transition that found the branch open is still under way afterwards.
            check_writable(conn, lock_repository(conn, repository_id, exclusive=True), action="protect")
            if not conn.execute(select(PROTECTION.c.pattern).where(*_same_row(row))).first():
                conn.execute(insert(PROTECTION).values(row))
                self._record(conn, repository_id, "protect", "protection", pattern, None, _describe(kind, check))

        self.database.write(work, settle=run_again)

    def unprotect(self, repository_id: str, pattern: str, *, kind: str = BRANCH_PROTECTION, check: str = "") -> None:
        """Drop a pattern. Raises ``NotFound``."""
        row = {"repository_id": repository_id, "kind": kind, "pattern": pattern, "check_name": check}

        def work(conn: Connection) -> None:
            check_writable(conn, lock_repository(conn, repository_id, exclusive=True), action="unprotect")
            if not delete_rows(conn, PROTECTION, *_same_row(row)):
                what = f"required check {check!r} for {pattern!r}" if check else f"{kind} protection {pattern!r}"
                raise NotFound(f"repository {repository_id!r} has no {what}")
            self._record(conn, repository_id, "unprotect", "protection", pattern, _describe(kind, check))

        self.database.write(work)

    def pass_check(self, repository_id: str, commit_id: str, name: str, *, by: str | None = None) -> PassedCheck:
        """Record that a live commit has passed a check. What was recorded first stays.

        ``by`` is who says so. The user whom the caller works for, or the database login, when left out.
        Raises ``RefNotFound``, ``CommitExpired``, ``PreconditionFailed`` (``read_only_repository``).
        """

        def work(conn: Connection) -> PassedCheck:
            check_writable(conn, lock_repository(conn, repository_id), action="check")
            check_live(conn, repository_id, [commit_id])
            known = [one for one in _passed(conn, repository_id, commit_id) if one.name == name]
            if known:
                return known[0]
            who = by or self.caller.person or self.database.dialect.account
            who = who or str(conn.exec_driver_sql("SELECT session_user").scalar_one())
            made = PassedCheck(commit_id, name, who, unix_seconds(self.database.dialect.now(conn)))
            conn.execute(insert(PASSED_CHECK).values(repository_id=repository_id, **made.to_json()))
            self._record(conn, repository_id, "pass-check", "check", name, None, f"{commit_id} by {who}")
            return made

        return self.database.write(work, settle=run_again)

    def withdraw_check(self, repository_id: str, commit_id: str, name: str) -> None:
        """Forget that a commit has passed a check. Raises ``NotFound``."""
        mine = (PASSED_CHECK.c.repository_id == repository_id, PASSED_CHECK.c.commit_id == commit_id)

        def work(conn: Connection) -> None:
            check_writable(conn, lock_repository(conn, repository_id, exclusive=True), action="check")
            if not delete_rows(conn, PASSED_CHECK, *mine, PASSED_CHECK.c.name == name):
                raise NotFound(f"commit {commit_id[:16]} has passed no check {name!r}")
            self._record(conn, repository_id, "withdraw-check", "check", name, commit_id)

        self.database.write(work)

    def check_merge(self, repository_id: str, branch: str, source: str) -> None:
        """Refuse what ``publish`` would refuse: to merge a commit into a branch that does not take it now.

        Raises ``PreconditionFailed`` (``read_only_repository``), ``PreconditionFailed`` (``missing_check``).
        """

        def work(conn: Connection) -> None:
            check_writable(conn, find_repository(conn, repository_id), action="merge", branch=branch)
            require_passed(conn, repository_id, branch, source)

        self.database.read(work)

    def passed_checks(self, repository_id: str, commit_id: str) -> list[PassedCheck]:
        """The checks that a commit has passed, by name."""
        return self.database.read(lambda conn: _passed(conn, repository_id, commit_id))


def require_passed(conn: Connection, repository_id: str, branch: str, source: str) -> None:
    """Refuse to merge a commit that lacks a check that the branch needs.

    Raises ``PreconditionFailed`` (``missing_check``).
    """
    rows = conn.execute(_LACKING, {"repository": repository_id, "commit": source})
    lacking = sorted({row.check_name for row in rows if fnmatchcase(branch, row.pattern)})
    if lacking:
        names = ", ".join(map(repr, lacking))
        raise PreconditionFailed(
            f"branch {branch!r} takes only commits that have passed their checks, and {source[:16]} lacks {names}; "
            "run what checks it, or record the outcome with `lakeops check pass`",
            kind="missing_check",
        )


def _passed(conn: Connection, repository_id: str, commit_id: str) -> list[PassedCheck]:
    query = select(PASSED_CHECK).where(
        PASSED_CHECK.c.repository_id == repository_id, PASSED_CHECK.c.commit_id == commit_id
    )
    rows = conn.execute(query.order_by(PASSED_CHECK.c.name))
    return [PassedCheck(row.commit_id, row.name, row.passed_by, row.at) for row in rows]


def _same_row(row: dict[str, str]) -> list[ColumnElement[bool]]:
    return [PROTECTION.c[name] == value for name, value in row.items()]


def _describe(kind: str, check: str) -> str:
    return f"needs check {check}" if check else f"protected {kind}"
