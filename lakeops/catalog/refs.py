"""Refs: branches and tags, their moves, what protects them, and the hooks that run beside their changes.

Each change of a ref refuses a caller who does not know the repository's hooks (``hooks``: those that the caller runs),
and leaves a reflog row. What changes protection or hooks locks the repository exclusively, so that no writer under the
old rules is still under way afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, insert, literal, select, update

from lakeops.catalog import guards
from lakeops.catalog.commits import earlier_commit
from lakeops.catalog.database import (
    AnyRow,
    Lookup,
    PageLookup,
    read_transaction,
    write_transaction,
    write_transaction_once,
)
from lakeops.catalog.guards import CatalogPart, Hooks, Verdicts
from lakeops.catalog.records import BranchState, ExpectedState, decoding, hooks_of, number
from lakeops.catalog.staging import any_staged, branch_update, check_expected, not_as_seen
from lakeops.catalog.tables import BRANCH, PROTECTION, QUEUE, REFLOG, REPOSITORY, TAG, UPLOAD, VERDICT
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import BranchMoved, NotAsSeen, NotFound, PreconditionFailed, RefNotFound
from lakeops.model.protection import BRANCH_PROTECTION, FAILED, PASSED, Hook, Protection, Verdict
from lakeops.model.records import RefKind, ReflogRecord, RefRecord

NONE: Hooks = frozenset()

# Built once: building a statement takes longer than SQLite takes to run it.
_NEW_BRANCH = guards.new_ref(
    BRANCH,
    staging_token=bindparam("token", type_=BRANCH.c.staging_token.type),
    sealed_tokens=literal([], BRANCH.c.sealed_tokens.type),
    resets=literal(0),
    sealed_resets=literal(0),
    intents=literal([], BRANCH.c.intents.type),
)
_NEW_TAG = guards.new_ref(TAG)
_TAG = Lookup(TAG.c, f"{TAG.name} WHERE repository_id = :repository AND name = :tag AND {guards.MEANT}")
_BRANCHES, _TAGS = (PageLookup(table, "name", "repository_id = :repository") for table in (BRANCH, TAG))


class Refs(CatalogPart):
    """Branches and tags: pointers to commits. Each branch has a staging area."""

    @read_transaction
    def branch(self, conn: Connection, repository_id: str, name: str) -> BranchState:
        """The branch's row. Raises ``RefNotFound``."""
        return guards.find_branch(conn, repository_id, name)

    @read_transaction
    def branches(
        self, conn: Connection, repository_id: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[RefRecord]:
        """Branches by name in byte order, keyset-paged."""
        return _page(conn, _BRANCHES, repository_id, prefix=prefix, after=after, limit=limit)

    def create_branch(
        self, repository_id: str, name: str, commit_id: str, *, token: str, actor: str, hooks: Hooks = NONE
    ) -> BranchState:
        """A new branch at a live commit. Raises ``AlreadyExists``, ``CommitExpired``."""
        values = {"repository": repository_id, "ref": name, "commit": commit_id, "token": token}
        self._create(RefKind.BRANCH, values, actor, hooks, is_there=BRANCH.c.staging_token == token)
        return BranchState(repository_id, name, commit_id, token)

    def _create(
        self, kind: RefKind, values: Mapping[str, Any], actor: str, hooks: Hooks, is_there: ColumnElement[bool]
    ) -> None:
        """Insert a ref. After a COMMIT without an answer, ``is_there`` tells whether a ref that exists is this one."""
        table, new = (TAG, _NEW_TAG) if kind is RefKind.TAG else (BRANCH, _NEW_BRANCH)
        repository_id, name, action = values["repository"], values["ref"], f"create-{kind}"

        def work(conn: Connection) -> bool:
            # A tag alone: PostgreSQL does not see a branch of this name whose transaction has not ended.
            repository = guards.lock_writable(conn, repository_id, action=action, exclusive=table is TAG)
            guards.check_hooks(repository, action, name, hooks)
            self.insert_ref(conn, table, new, values)
            self.record_move(conn, repository_id, name, None, values["commit"], action, actor, kind=kind)
            return True

        def resolve(conn: Connection) -> bool | None:
            mine = select(table.c.name).where(table.c.repository_id == repository_id, table.c.name == name, is_there)
            return True if conn.execute(mine).first() else None

        self.database.write(work, resolve=resolve)

    @write_transaction_once
    def delete_branch(
        self,
        conn: Connection,
        repository_id: str,
        name: str,
        *,
        actor: str,
        expect: ExpectedState | None = None,
        old: str | None = None,
        hooks: Hooks = NONE,
    ) -> str:
        """Delete a branch and its staging. Returns the old head.

        Raises ``NotAsSeen`` where it is not as expected or not at ``old``, ``PreconditionFailed`` (``default_branch``,
        ``protected_branch``).
        """
        repository = guards.lock_repository(conn, repository_id)
        state = guards.lock_branch(conn, repository_id, name, exclusive=True)
        guards.check_writable(conn, repository, action="delete-branch", branch=name)
        guards.check_hooks(repository, "delete-branch", name, hooks)
        if repository.default_branch == name:
            raise PreconditionFailed(
                f"{name!r} is the default branch of {repository_id!r}: it cannot be deleted", kind="default_branch"
            )
        check_expected(conn, state, expect)
        if old not in (None, state.commit_id):
            raise not_as_seen(name)
        conn.execute(delete(BRANCH).filter_by(repository_id=repository_id, name=name))
        for table in (QUEUE, UPLOAD):  # a branch of this name that is made later takes no outputs of this one
            conn.execute(delete(table).filter_by(repository_id=repository_id, branch=name))
        self.retire(conn, repository_id, state.tokens)
        self.record_move(conn, repository_id, name, state.commit_id, None, "delete-branch", actor)
        return state.commit_id

    @write_transaction
    def move_branch(
        self,
        conn: Connection,
        unused: BranchState,
        commit_id: str,
        *,
        actor: str,
        key: str | None = None,
        fingerprint: str = "",
        hooks: Hooks = NONE,
        rests_on: Verdicts = (),
    ) -> RefRecord:
        """Point a branch that is still in this state, and has nothing staged, at a live commit.

        A known key returns what its first call did. The checks that the move ``rests_on`` have to have passed still.
        Raises ``BranchMoved``, ``CommitExpired``, ``PreconditionFailed``
        (``protected_branch``).
        """
        repository_id, name = unused.repository_id, unused.id
        repository = guards.lock_repository(conn, repository_id)
        state = guards.lock_branch(conn, repository_id, name, exclusive=True)
        earlier = earlier_commit(conn, repository_id, key, fingerprint)
        if earlier is not None:
            return RefRecord(name, earlier.id)
        guards.check_writable(conn, repository, action="move-branch", branch=name)
        guards.check_hooks(repository, "move-branch", name, hooks)
        if state != unused or any_staged(conn, state):
            raise BranchMoved(f"branch {name!r} changed meanwhile; it was not moved")
        if rests_on:
            guards.require_passed(conn, repository_id, name, commit_id, frozenset(), rests_on)
        guards.check_live(conn, repository_id, [commit_id])
        conn.execute(branch_update(state).values(commit_id=commit_id))
        self.record_move(conn, repository_id, name, state.commit_id, commit_id, "move-branch", actor)
        self.remember(conn, repository_id, key, fingerprint, commit_id)
        return RefRecord(name, commit_id)

    @read_transaction
    def tag(self, conn: Connection, repository_id: str, name: str) -> RefRecord:
        """The tag. Raises ``RefNotFound``."""
        row = _TAG.one(conn, {"repository": repository_id, "tag": name})
        if row is None:
            guards.find_repository(conn, repository_id)
        return RefRecord(name, _check_tag_at(repository_id, name, None if row is None else row.commit_id))

    @read_transaction
    def tags(
        self, conn: Connection, repository_id: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[RefRecord]:
        """Tags by name in byte order, keyset-paged."""
        return _page(conn, _TAGS, repository_id, prefix=prefix, after=after, limit=limit)

    def create_tag(
        self, repository_id: str, name: str, commit_id: str, *, actor: str, hooks: Hooks = NONE
    ) -> RefRecord:
        """A new tag at a live commit. Raises ``AlreadyExists``, ``CommitExpired``."""
        values = {"repository": repository_id, "ref": name, "commit": commit_id}
        # Where another caller made this very tag, the call has its result.
        self._create(RefKind.TAG, values, actor, hooks, is_there=TAG.c.commit_id == commit_id)
        return RefRecord(name, commit_id)

    @write_transaction
    def move_tag(
        self,
        conn: Connection,
        repository_id: str,
        name: str,
        commit_id: str,
        *,
        actor: str,
        old: str | None = None,
        key: str | None = None,
        fingerprint: str = "",
        hooks: Hooks = NONE,
    ) -> RefRecord:
        """Point a tag at another live commit. A known key returns what its first call did.

        Raises ``RefNotFound``, ``CommitExpired``, ``PreconditionFailed`` (``protected_tag``), ``NotAsSeen`` where it is
        neither there already nor at ``old``.
        """
        repository = guards.lock_repository(conn, repository_id)
        at = _lock_tag(conn, repository_id, name)
        earlier = earlier_commit(conn, repository_id, key, fingerprint)
        if earlier is not None:
            return RefRecord(name, earlier.id)
        guards.check_writable(conn, repository, action="move-tag", tag=name)
        guards.check_hooks(repository, "move-tag", name, hooks)
        found = _check_tag_at(repository_id, name, at, None if at == commit_id else old)
        guards.check_live(conn, repository_id, [commit_id])
        if found != commit_id:
            conn.execute(update(TAG).filter_by(repository_id=repository_id, name=name).values(commit_id=commit_id))
            self.record_move(conn, repository_id, name, found, commit_id, "move-tag", actor, kind=RefKind.TAG)
        self.remember(conn, repository_id, key, fingerprint, commit_id)
        return RefRecord(name, commit_id)

    @write_transaction_once
    def delete_tag(
        self,
        conn: Connection,
        repository_id: str,
        name: str,
        *,
        actor: str,
        old: str | None = None,
        hooks: Hooks = NONE,
    ) -> str:
        """Delete a tag. Returns its commit. Raises ``PreconditionFailed``, ``NotAsSeen`` where it is not at ``old``."""
        repository = guards.lock_writable(conn, repository_id, action="delete-tag", tag=name)
        guards.check_hooks(repository, "delete-tag", name, hooks)
        # Locked, or somebody may move it before it is gone.
        found = _check_tag_at(repository_id, name, _lock_tag(conn, repository_id, name), old)
        conn.execute(delete(TAG).filter_by(repository_id=repository_id, name=name))
        self.record_move(conn, repository_id, name, found, None, "delete-tag", actor, kind=RefKind.TAG)
        return found

    @read_transaction
    def reflog(
        self,
        conn: Connection,
        repository_id: str,
        ref: str | None = None,
        *,
        below: int | None = None,
        limit: int = 1000,
    ) -> list[ReflogRecord]:
        """Moves of one ref or of all, newest first; those before ``below``, the last ``sequence`` of a page before."""
        guards.find_repository(conn, repository_id)
        query = select(REFLOG).filter_by(repository_id=repository_id, **({} if ref is None else {"ref": ref}))
        query = query if below is None else query.where(REFLOG.c.sequence < below)
        return [_reflog_record(row) for row in conn.execute(query.order_by(REFLOG.c.sequence.desc()).limit(limit))]

    @read_transaction
    def last_moves(self, conn: Connection, repository_id: str, branches: Collection[str]) -> dict[str, ReflogRecord]:
        """The last move of each of some branches, by name."""
        mine = (REFLOG.c.repository_id == repository_id, REFLOG.c.kind == str(RefKind.BRANCH))
        found: dict[str, ReflogRecord] = {}
        for some in guards.chunks(branches):
            last = select(func.max(REFLOG.c.sequence)).where(*mine, REFLOG.c.ref.in_(some)).group_by(REFLOG.c.ref)
            rows = conn.execute(select(REFLOG).where(REFLOG.c.sequence.in_(last)))
            found |= {row.ref: _reflog_record(row) for row in rows}
        return found

    @read_transaction
    def all_protections(self, conn: Connection, repository_id: str) -> list[Protection]:
        """The rules that protect branches and tags, in order."""
        query = select(*(PROTECTION.c[name] for name in ("kind", "pattern", "check_name", "prefix")))
        guards.find_repository(conn, repository_id)
        return sorted(Protection(*row) for row in conn.execute(query.filter_by(repository_id=repository_id)))

    @write_transaction
    def protect(self, conn: Connection, /, repository_id: str, pattern: str, **rule: str) -> None:
        """Protect branches or tags that match a glob pattern: ``kind``, ``check`` and ``prefix`` of a ``Protection``.

        Repeating it changes nothing.
        """
        row, described = _protection(repository_id, pattern, **rule)
        guards.lock_writable(conn, repository_id, action="protect", exclusive=True)
        if not conn.execute(select(PROTECTION.c.pattern).filter_by(**row)).first():
            conn.execute(insert(PROTECTION).values(row))
            self.record(conn, repository_id, "protect", "protection", pattern, None, described)

    @write_transaction_once
    def unprotect(self, conn: Connection, /, repository_id: str, pattern: str, **rule: str) -> None:
        """Drop a pattern. Raises ``NotFound``."""
        row, described = _protection(repository_id, pattern, **rule)
        guards.lock_writable(conn, repository_id, action="unprotect", exclusive=True)
        if not conn.execute(delete(PROTECTION).filter_by(**row)).rowcount:
            what = f"{row['kind']} protection {pattern!r}"
            what = f"required check {row['check_name']!r} for {pattern!r}" if row["check_name"] else what
            todo = f"`lakeops protection list lakefs://{repository_id}` shows its rules"
            raise NotFound(f"repository {repository_id!r} has no {what}; {todo}")
        self.record(conn, repository_id, "unprotect", "protection", pattern, described)

    @write_transaction
    def record_verdict(self, conn: Connection, repository_id: str, given: Verdict) -> Verdict:
        """Record a verdict on a live commit, in place of an earlier one of that check. The audit keeps all of them.

        A check that passes again keeps its verdict. Without ``said_by`` it is by the user whom the caller works for, or
        the database login. Raises ``RefNotFound``, ``CommitExpired``, ``PreconditionFailed``.
        """
        # Exclusive for a failure, so that no merge that has seen the check passed is still under way afterwards.
        guards.lock_writable(conn, repository_id, action="check", exclusive=given.state == FAILED)
        guards.check_live(conn, repository_id, [given.commit_id])
        known = {one.name: one for one in guards.find_verdicts(conn, repository_id, [given.commit_id])}.get(given.name)
        if known is not None and known.state == given.state == PASSED:
            return known
        who = given.said_by or self.caller.person or self.database.dialect.account
        who = who or str(conn.exec_driver_sql("SELECT session_user").scalar_one())
        made = replace(given, said_by=who, at=unix_seconds(self.database.dialect.now(conn)))
        if known is None:
            conn.execute(insert(VERDICT).values(repository_id=repository_id, **made.to_json()))
        else:
            mine = update(VERDICT).filter_by(repository_id=repository_id, commit_id=made.commit_id, name=made.name)
            conn.execute(mine.values(made.to_json()))
        action = "pass-check" if made.state == PASSED else "fail-check"
        told = f"{made.commit_id} by {who}" + (f": {made.findings[:200]}" if made.findings else "")
        self.record(conn, repository_id, action, "check", made.name, known and known.state, told)
        return made

    @write_transaction_once
    def withdraw_check(self, conn: Connection, repository_id: str, commit_id: str, name: str) -> None:
        """Forget the verdict of a check of a commit. Raises ``NotFound``."""
        # Exclusive, so that no merge that has seen the check passed is still under way afterwards.
        guards.lock_writable(conn, repository_id, action="check", exclusive=True)
        mine = delete(VERDICT).filter_by(repository_id=repository_id, commit_id=commit_id, name=name)
        if not conn.execute(mine).rowcount:
            raise NotFound(f"commit {commit_id[:16]} has no verdict of check {name!r}")
        self.record(conn, repository_id, "withdraw-check", "check", name, commit_id)

    @read_transaction
    def check_merge(
        self,
        conn: Connection,
        repository_id: str,
        branch: str,
        source: str,
        untouched: frozenset[str] = frozenset(),
        rests_on: Verdicts = (),
    ) -> None:
        """Refuse a merge that ``publish`` would refuse (``read_only_repository``, ``missing_check``)."""
        guards.check_writable(conn, guards.find_repository(conn, repository_id), action="merge", branch=branch)
        guards.require_passed(conn, repository_id, branch, source, untouched, rests_on)

    def verdicts(self, repository_id: str, commits: Sequence[str]) -> list[Verdict]:
        """The verdicts on some commits, by commit and check."""
        return self.database.read(lambda conn: guards.find_verdicts(conn, repository_id, commits)) if commits else []

    @write_transaction
    def set_hook(self, conn: Connection, repository_id: str, hook: Hook) -> None:
        """Let a hook run beside changes of refs from now on, in place of one of its name."""
        row = guards.lock_writable(conn, repository_id, action="set-hook", exclusive=True)
        known = {one.name: one for one in hooks_of(row)}
        before = known.get(hook.name)
        if before != hook:
            _write_hooks(conn, repository_id, {**known, hook.name: hook})
            old = None if before is None else _spell_hook(before)
            self.record(conn, repository_id, "add-hook", "hook", hook.name, old, _spell_hook(hook))

    @write_transaction_once
    def remove_hook(self, conn: Connection, repository_id: str, name: str) -> None:
        """Let a hook run no longer. Raises ``NotFound``."""
        row = guards.lock_writable(conn, repository_id, action="remove-hook", exclusive=True)
        known = {one.name: one for one in hooks_of(row)}
        before = known.pop(name, None)
        if before is None:
            raise NotFound(f"repository {repository_id!r} has no hook {name!r}")
        _write_hooks(conn, repository_id, known)
        self.record(conn, repository_id, "remove-hook", "hook", name, _spell_hook(before))


def _page(conn: Connection, lookup: PageLookup, repository_id: str, **where: Any) -> list[RefRecord]:  # noqa: ANN401
    guards.find_repository(conn, repository_id)
    rows = lookup.page(conn, {"repository": repository_id}, **where)
    return [RefRecord(row.name, row.commit_id) for row in rows]


def _lock_tag(conn: Connection, repository_id: str, name: str) -> str | None:
    query = select(TAG.c.commit_id).filter_by(repository_id=repository_id, name=name)
    return conn.execute(query.with_for_update()).scalar_one_or_none()


def _check_tag_at(repository_id: str, name: str, at: str | None, old: str | None = None) -> str:
    """The commit of a tag. Raises for a missing tag, and for one that is not where the caller saw it."""
    if at is None:
        raise RefNotFound(f"repository {repository_id!r} has no tag {name!r}")
    if old is not None and at != old:
        raise NotAsSeen(f"tag {name!r} is at {at[:16]} by now, and no longer at {str(old)[:16]}; nothing was done")
    return at


@decoding(REFLOG, "sequence")
def _reflog_record(row: AnyRow) -> ReflogRecord:
    return ReflogRecord(row.sequence, row.ref, row.old, row.new, row.action, row.actor, number(row.at))


def _protection(
    repository_id: str, pattern: str, kind: str = BRANCH_PROTECTION, check: str = "", prefix: str = ""
) -> tuple[dict[str, str], str]:
    """A rule of protection as column values, and in words."""
    row = {"repository_id": repository_id, "kind": kind, "pattern": pattern, "check_name": check, "prefix": prefix}
    below = f" below {prefix}" if prefix else ""
    return row, f"needs check {check}{below}" if check else f"protected {kind}"


def _write_hooks(conn: Connection, repository_id: str, hooks: dict[str, Hook]) -> None:
    values = [hooks[name].to_json() for name in sorted(hooks)]
    conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(hooks=values))


def _spell_hook(hook: Hook) -> str:
    return f"{hook.when} {' '.join(hook.actions) or 'every change'} of {hook.pattern}, {hook.seconds} s"
