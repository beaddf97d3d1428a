"""CatalogPart of branches and tags.

* ``create_branch`` needs a free name and a live commit. Leaves a branch with an empty staging area, and a reflog row.
* ``delete_tag`` and ``move_tag`` refuse protected ones. Leave a reflog row.
* ``delete_branch`` refuses the default branch and protected ones. Leaves retired tokens and a reflog row. Recovery:
  ``purge_retired`` removes the rows of retired tokens, now or at any later call.
* ``move_branch`` and ``move_tag`` need a live commit, and a branch that is as the caller saw it and has nothing staged.
  Leave a reflog row, and the key. Recovery: none needed. The key says that it is done.

Each refuses a caller who does not know the repository's hooks (``hooks``: those that the caller runs).
"""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, literal, select, update

from lakeops.catalog.guards import (
    CatalogPart,
    check_live,
    check_writable,
    delete_rows,
    find_branch,
    find_repository,
    lock_branch,
    lock_repository,
    new_ref,
)
from lakeops.catalog.hooks import Hooks, check_hooks
from lakeops.catalog.lookups import Lookup
from lakeops.catalog.records import BranchState, Pinned
from lakeops.catalog.rows import reflog_record
from lakeops.catalog.staging import any_staged, branch_update, check_pinned, earlier_commit
from lakeops.catalog.tables import BRANCH, QUEUE, REFLOG, TAG
from lakeops.model.errors import (
    BranchMoved,
    NotAsSeen,
    PreconditionFailed,
    RefNotFound,
)
from lakeops.model.mirrors import RefKind
from lakeops.model.records import ReflogRecord, RefRecord

NONE: Hooks = frozenset()

# Built once: building a statement takes longer than SQLite takes to run it.
_NEW_BRANCH = new_ref(
    BRANCH,
    staging_token=bindparam("token", type_=BRANCH.c.staging_token.type),
    sealed_tokens=literal([], BRANCH.c.sealed_tokens.type),
    resets=literal(0),
    sealed_resets=literal(0),
    intents=literal([], BRANCH.c.intents.type),
)


class Branches(CatalogPart):
    """Branches: mutable pointers to commits, each with a staging area."""

    def branch(self, repository_id: str, name: str) -> BranchState:
        """The branch's row. Raises ``RefNotFound``."""
        return self.database.read(lambda conn: find_branch(conn, repository_id, name))

    def branches(self, repository_id: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[RefRecord]:
        """Branches by name in byte order, keyset-paged."""
        return self._refs(BRANCH, repository_id, prefix, after, limit)

    def create_branch(
        self, repository_id: str, name: str, commit_id: str, *, token: str, actor: str, hooks: Hooks = NONE
    ) -> BranchState:
        """A new branch at a live commit. Raises ``AlreadyExists``, ``CommitExpired``."""
        state = BranchState(repository_id, name, commit_id, token)
        values = {"repository": repository_id, "ref": name, "commit": commit_id, "token": token}

        def work(conn: Connection) -> BranchState:
            repository = lock_repository(conn, repository_id)
            check_writable(conn, repository, action="create-branch")
            check_hooks(repository, "create-branch", name, hooks)
            more = {"staging_token": token, "sealed_tokens": [], "resets": 0, "sealed_resets": 0, "intents": []}
            self._insert_ref(conn, BRANCH, _NEW_BRANCH, {**values, **more})
            self._record_move(conn, repository_id, name, None, commit_id, "create-branch", actor)
            return state

        def settle(conn: Connection) -> BranchState | None:
            mine = select(BRANCH.c.staging_token).where(BRANCH.c.repository_id == repository_id, BRANCH.c.name == name)
            return state if conn.execute(mine).scalar() == token else None

        return self.database.write(work, settle=settle)

    def delete_branch(
        self,
        repository_id: str,
        name: str,
        *,
        actor: str,
        expected: BranchState | None = None,
        pinned: Pinned | None = None,
        hooks: Hooks = NONE,
    ) -> str:
        """Delete a branch and its staging. Returns the old head.

        Raises ``PreconditionFailed`` (``default_branch``), ``PreconditionFailed`` (``protected_branch``).

        With ``expected`` only a branch that is still in that state, and has nothing staged; else ``BranchMoved``.
        With ``pinned`` only one that is as it was then; else ``NotAsSeen``.
        """

        def work(conn: Connection) -> str:
            repository = lock_repository(conn, repository_id)
            state = lock_branch(conn, repository_id, name, exclusive=True)
            check_writable(conn, repository, action="delete-branch", branch=name)
            check_hooks(repository, "delete-branch", name, hooks)
            if repository.default_branch == name:
                raise PreconditionFailed(
                    f"{name!r} is the default branch of repository {repository_id!r}: it stays", kind="default_branch"
                )
            if expected is not None and (state != expected or any_staged(conn, state)):
                raise BranchMoved(f"branch {name!r} is in use again; it was not deleted")
            if pinned is not None:
                check_pinned(conn, state, pinned)
            delete_rows(conn, BRANCH, BRANCH.c.repository_id == repository_id, BRANCH.c.name == name)
            conn.execute(delete(QUEUE).where(QUEUE.c.repository_id == repository_id, QUEUE.c.branch == name))
            self._retire(conn, repository_id, state.tokens)
            self._record_move(conn, repository_id, name, state.commit_id, None, "delete-branch", actor)
            return state.commit_id

        return self.database.write(work)

    def move_branch(
        self,
        expected: BranchState,
        commit_id: str,
        *,
        actor: str,
        key: str | None = None,
        fingerprint: str = "",
        hooks: Hooks = NONE,
    ) -> RefRecord:
        """Point a branch that is still in the expected state, and has nothing staged, at a live commit.

        A known key returns what its first call did. Raises ``BranchMoved``, ``CommitExpired``, ``PreconditionFailed``
        (``protected_branch``).
        """
        repository_id, name = expected.repository_id, expected.id

        def work(conn: Connection) -> RefRecord:
            repository = lock_repository(conn, repository_id)
            state = lock_branch(conn, repository_id, name, exclusive=True)
            earlier = earlier_commit(conn, repository_id, key, fingerprint)
            if earlier is not None:
                return RefRecord(name, earlier.id)
            check_writable(conn, repository, action="move-branch", branch=name)
            check_hooks(repository, "move-branch", name, hooks)
            if state != expected or any_staged(conn, state):
                raise BranchMoved(f"branch {name!r} changed meanwhile; it was not moved")
            check_live(conn, repository_id, [commit_id])
            conn.execute(branch_update(state).values(commit_id=commit_id))
            self._record_move(conn, repository_id, name, state.commit_id, commit_id, "move-branch", actor)
            self._remember(conn, repository_id, key, fingerprint, commit_id)
            return RefRecord(name, commit_id)

        return self.database.write(work, settle=lambda conn: _find_done(conn, repository_id, name, key, fingerprint))


_NEW_TAG = new_ref(TAG)
_TAG = Lookup(TAG.c, f"{TAG.name} WHERE repository_id = :repository AND name = :tag")


class Tags(CatalogPart):
    """Tags: immutable pointers to commits."""

    def tag(self, repository_id: str, name: str) -> RefRecord:
        """The tag. Raises ``RefNotFound``."""
        return self.database.read(lambda conn: self._find_tag(conn, repository_id, name))

    def tags(self, repository_id: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[RefRecord]:
        """Tags by name in byte order, keyset-paged."""
        return self._refs(TAG, repository_id, prefix, after, limit)

    def create_tag(
        self, repository_id: str, name: str, commit_id: str, *, actor: str, hooks: Hooks = NONE
    ) -> RefRecord:
        """A new tag at a live commit. Raises ``AlreadyExists``, ``CommitExpired``."""
        values = {"repository": repository_id, "ref": name, "commit": commit_id}

        def work(conn: Connection) -> RefRecord:
            # Alone: PostgreSQL does not see a branch of this name whose transaction has not ended.
            repository = lock_repository(conn, repository_id, exclusive=True)
            check_writable(conn, repository, action="create-tag")
            check_hooks(repository, "create-tag", name, hooks)
            self._insert_ref(conn, TAG, _NEW_TAG, values)
            self._record_move(conn, repository_id, name, None, commit_id, "create-tag", actor, kind=RefKind.TAG)
            return RefRecord(name, commit_id)

        def settle(conn: Connection) -> RefRecord | None:
            # The same tag made by another caller is as good as ours.
            same = select(TAG.c.commit_id).where(TAG.c.repository_id == repository_id, TAG.c.name == name)
            return RefRecord(name, commit_id) if conn.execute(same).scalar() == commit_id else None

        return self.database.write(work, settle=settle)

    def move_tag(
        self,
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

        Raises ``RefNotFound``, ``CommitExpired``, ``PreconditionFailed`` (``protected_tag``), and ``NotAsSeen`` for a
        tag that is not at ``old``.
        """
        mine = (TAG.c.repository_id == repository_id, TAG.c.name == name)

        def work(conn: Connection) -> RefRecord:
            repository = lock_repository(conn, repository_id)
            row = conn.execute(select(TAG.c.commit_id).where(*mine).with_for_update()).one_or_none()
            earlier = earlier_commit(conn, repository_id, key, fingerprint)
            if earlier is not None:
                return RefRecord(name, earlier.id)
            check_writable(conn, repository, action="move-tag", tag=name)
            check_hooks(repository, "move-tag", name, hooks)
            if row is None:
                raise _no_tag(repository_id, name)
            _check_at(name, row.commit_id, old)
            check_live(conn, repository_id, [commit_id])
            if row.commit_id != commit_id:
                conn.execute(update(TAG).where(*mine).values(commit_id=commit_id))
                self._record_move(
                    conn, repository_id, name, row.commit_id, commit_id, "move-tag", actor, kind=RefKind.TAG
                )
            self._remember(conn, repository_id, key, fingerprint, commit_id)
            return RefRecord(name, commit_id)

        return self.database.write(work, settle=lambda conn: _find_done(conn, repository_id, name, key, fingerprint))

    def delete_tag(
        self, repository_id: str, name: str, *, actor: str, old: str | None = None, hooks: Hooks = NONE
    ) -> str:
        """Delete a tag. Returns the commit that it pointed to.

        Raises ``PreconditionFailed`` (``protected_tag``), and ``NotAsSeen`` for a tag that is not at ``old``.
        """
        mine = (TAG.c.repository_id == repository_id, TAG.c.name == name)

        def work(conn: Connection) -> str:
            repository = lock_repository(conn, repository_id)
            check_writable(conn, repository, action="delete-tag", tag=name)
            check_hooks(repository, "delete-tag", name, hooks)
            # Locked, or somebody may move it before it is gone.
            at = conn.execute(select(TAG.c.commit_id).where(*mine).with_for_update()).scalar_one_or_none()
            if at is None:
                raise _no_tag(repository_id, name)
            _check_at(name, at, old)
            delete_rows(conn, TAG, *mine)
            self._record_move(conn, repository_id, name, at, None, "delete-tag", actor, kind=RefKind.TAG)
            return str(at)

        return self.database.write(work)

    def reflog(
        self, repository_id: str, ref: str | None = None, *, below: int | None = None, limit: int = 1000
    ) -> list[ReflogRecord]:
        """Moves of one ref or of all, newest first; those before ``below``, the last ``sequence`` of a page before."""
        query = select(REFLOG).where(REFLOG.c.repository_id == repository_id)
        if ref is not None:
            query = query.where(REFLOG.c.ref == ref)
        if below is not None:
            query = query.where(REFLOG.c.sequence < below)
        query = query.order_by(REFLOG.c.sequence.desc()).limit(limit)

        def work(conn: Connection) -> list[ReflogRecord]:
            find_repository(conn, repository_id)
            return [reflog_record(row) for row in conn.execute(query)]

        return self.database.read(work)

    @staticmethod
    def _find_tag(conn: Connection, repository_id: str, name: str) -> RefRecord:
        row = _TAG.one(conn, {"repository": repository_id, "tag": name})
        if row is None:
            find_repository(conn, repository_id)
            raise _no_tag(repository_id, name)
        return RefRecord(name, row.commit_id)


def _find_done(conn: Connection, repository_id: str, name: str, key: str | None, fingerprint: str) -> RefRecord | None:
    """What a move under this key did, if it has happened."""
    earlier = earlier_commit(conn, repository_id, key, fingerprint)
    return None if earlier is None else RefRecord(name, earlier.id)


def _check_at(name: str, at: str, old: str | None) -> None:
    """Raise ``NotAsSeen`` for a tag that is not where the caller saw it."""
    if old is not None and at != old:
        raise NotAsSeen(f"tag {name!r} is at {at[:16]} by now, and no longer at {old[:16]}; nothing was done")


def _no_tag(repository_id: str, name: str) -> RefNotFound:
    return RefNotFound(f"repository {repository_id!r} has no tag {name!r}")
