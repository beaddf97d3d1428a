"""CatalogPart of the staging area: rows under tokens, read through the active token, then the sealed ones.

* ``put_staged`` leaves rows under the token that is active at that instant. Recovery: repeat it.
* ``seal`` puts an active token with rows first among the sealed ones and a new one in its place. Recovery: the next
  commit covers sealed tokens.
* ``discard`` retires sealed tokens without a commit, if head, tokens and resets are as they were.
* ``reset`` drops rows. One that drops any counts itself, apart when they were sealed: a commit in flight notices those.
* ``purge_retired`` removes the rows of retired tokens. Recovery: any later call catches up.

Stagers hold the branch's row shared, so they run beside each other. Sealing, resetting and publishing hold it
exclusively. No row can arrive under a token after it was sealed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, func, insert, select, update

from lakeops.catalog.commits import find_commit, find_head
from lakeops.catalog.database import run_again
from lakeops.catalog.guards import (
    PROTECTING,
    CatalogPart,
    check_protection,
    check_started,
    check_writable,
    deadline_of,
    delete_rows,
    find_branch,
    find_repository,
    grace_of,
    lock_branch,
    lock_repository,
    no_branch,
    no_commit,
    repository_found,
    under,
)
from lakeops.catalog.lookups import Lookup
from lakeops.catalog.marks import check_links
from lakeops.catalog.records import BranchAt, BranchState, ChangeCounter, Intent, KeyRecord, Pinned, Sealed, Staged
from lakeops.catalog.rows import (
    COMMIT_COLUMNS,
    AnyRow,
    branch_record,
    branch_values,
    commit_record,
    from_ticks,
    intent_values,
    key_record,
    staged_values,
    ticks,
)
from lakeops.catalog.tables import BRANCH, COMMIT, KEY, PROTECTION, REPOSITORY, RETIRED, STAGED, UPLOAD
from lakeops.model.errors import BranchMoved, NotAsSeen
from lakeops.model.records import Commit

if TYPE_CHECKING:
    import pyarrow as pa


class Staging(CatalogPart):
    """Uncommitted changes."""

    def stageable(self, repository_id: str, branch: str) -> BranchAt:
        """The branch, when it may be staged to now.

        Raises ``PreconditionFailed`` (``protected_branch``), ``PreconditionFailed`` (``read_only_repository``).
        """

        def work(conn: Connection) -> BranchAt:
            state, head = find_stageable(conn, repository_id, branch)
            return BranchAt(state, head, self.database.dialect.now(conn))

        return self.database.read(work)

    def staging_time(self, repository_id: str, branch: str) -> datetime:
        """The database's time, when the branch may be staged to now. Raises as ``stageable``."""

        def work(conn: Connection) -> datetime:
            check_stageable(conn, repository_id, branch)
            return self.database.dialect.now(conn)

        return self.database.read(work)

    def put_staged(
        self,
        repository_id: str,
        branch: str,
        rows: Sequence[Staged] | pa.Table,
        *,
        started: datetime,
        expected: BranchState | None = None,
        upload: str | None = None,
        cleared: frozenset[str] | None = None,
        seen: frozenset[str] | None = None,
        unchanged: ChangeCounter | None = None,
    ) -> BranchState:
        """Insert or replace staged rows under the branch's active token.

        ``rows`` is a short list, or an Arrow table with the columns of ``model.schema.STAGED_SCHEMA`` (path,
        tombstone, then the entry's columns) for bulk. With ``expected`` nothing is written, and ``BranchMoved`` raised,
        unless the branch's head, tokens and resets are still those. ``upload`` ends that upload in the same
        transaction. ``cleared`` is for rows that link objects which were there before the attempt began: the marks
        that hold none of them and never will. It is found out before the objects are seen to be there. ``seen`` is for
        rows that may replace nothing but objects at these stored addresses: ``BranchMoved`` is raised when another one
        has been staged at one of their paths. ``unchanged`` is for rows that were worked out from what the branch
        showed at a place: ``BranchMoved`` is raised when anything has been staged there since. What is committed does
        not change while ``expected`` holds.
        Raises ``PreconditionFailed`` (``protected_branch``), ``PreconditionFailed`` (``read_only_repository``),
        ``AttemptExpired``; with ``cleared`` also
        ``Transient`` (``collection_running``) while a mark is being made, and ``BranchMoved`` when there is a mark
        beside those.
        """
        # A bulk load goes to the server before the branch is locked, so it keeps nobody waiting while it travels.
        dialect = self.database.dialect
        table = None if isinstance(rows, Sequence) else _columns(rows)
        paths: list[str] = []
        if seen is not None:
            paths = [row.path for row in rows] if isinstance(rows, Sequence) else rows["path"].to_pylist()
        alone = seen is not None or unchanged is not None

        def work(conn: Connection) -> BranchState:
            if table is not None:
                dialect.bring(conn, table)
            repository, state = lock_stageable(conn, repository_id, branch, exclusive=alone)
            if seen is not None:
                _check_seen(conn, state, paths, seen)
            if expected is not None and state != expected:
                raise BranchMoved(f"branch {branch!r} changed while the changes for it were being prepared; try again")
            if unchanged is not None:
                _check_unchanged(conn, state, unchanged, rows if table is None else table)
            now = self.database.dialect.now(conn)
            check_started(repository, now, started)
            if cleared is not None:
                check_links(conn, repository_id, cleared, now - deadline_of(repository, now))
            if table is not None:
                dialect.load(conn, repository_id, state.staging_token, table)
            elif rows:
                in_order = sorted(rows, key=attrgetter("path"))  # so that stagers never wait in a circle
                values = [staged_values(repository_id, state.staging_token, row) for row in in_order]
                conn.exec_driver_sql(dialect.insert_staged, [tuple(value.values()) for value in values])
            if upload is not None:
                conn.execute(delete(UPLOAD).where(UPLOAD.c.repository_id == repository_id, UPLOAD.c.id == upload))
            return state

        return self.database.write(work, settle=run_again)

    def change_counter(self, state: BranchState, place: str, *, below: bool) -> ChangeCounter:
        """How often something was staged at a path, or ``below`` a prefix, for ``put_staged`` to compare with."""
        return self.database.read(lambda conn: _count_changes(conn, state, place, below=below))

    def pin(self, repository_id: str, branch: str, place: str, *, below: bool) -> Pinned:
        """A branch and its change counter at a path, or ``below`` a prefix, for a transition after a look at them."""

        def work(conn: Connection) -> Pinned:
            state = find_branch(conn, repository_id, branch)
            return Pinned(state, _count_changes(conn, state, place, below=below))

        return self.database.read(work)

    def seal(
        self,
        repository_id: str,
        branch: str,
        *,
        token: str,
        key: str | None = None,
        fingerprint: str = "",
        intent: Intent | None = None,
    ) -> Sealed:
        """Before a commit: the active token joins the sealed ones and ``token`` takes its place. Writers go on.

        An active token without rows stays where it is. Recovery: sealed tokens are read by everyone, and the next
        commit covers them. Nothing is sealed when the call's idempotency key stands for a commit already, even if the
        branch takes no commits any more. Raises ``KeyReused`` when the key was used with another fingerprint.
        ``intent`` is kept with the newest sealed token, for the case that somebody else commits it.
        """

        def work(conn: Connection) -> Sealed:
            repository = lock_repository(conn, repository_id)
            state = before = lock_branch(conn, repository_id, branch, exclusive=True)
            now, head = self.database.dialect.now(conn), find_head(conn, state)
            earlier = earlier_commit(conn, repository_id, key, fingerprint)
            if earlier is not None:
                return Sealed(state, head, now, earlier)
            check_writable(conn, repository, action="seal", branch=branch)
            if state.staging_token != token and _any_row(conn, state, (state.staging_token,)):
                state = replace(state, staging_token=token, sealed_tokens=state.tokens)
            state = _with_intent(state, intent)
            if state != before:
                conn.execute(branch_update(state).values(branch_values(state)))
            return Sealed(state, head, now)

        return self.database.write(work, settle=run_again)

    def discard(self, state: BranchState, tokens: tuple[str, ...]) -> None:
        """Retire sealed tokens whose rows change nothing over ``state``'s head.

        Raises ``BranchMoved`` when head, tokens or resets are no longer ``state``'s: the rows may matter now.
        """

        def work(conn: Connection) -> None:
            check_writable(conn, lock_repository(conn, state.repository_id), action="seal", branch=state.id)
            now = lock_branch(conn, state.repository_id, state.id, exclusive=True)
            same = (now.commit_id, now.sealed_resets) == (state.commit_id, state.sealed_resets)
            rest = without(now, tokens) if same else None
            if rest is None:
                raise BranchMoved(f"branch {state.id!r} changed while its staged rows were being compared; try again")
            after = with_sealed(now, rest)
            conn.execute(branch_update(now).values(branch_values(after)))
            self._retire(conn, state.repository_id, tokens)

        if tokens:
            self.database.write(work, settle=run_again)

    def reset(
        self,
        repository_id: str,
        branch: str,
        *,
        prefix: str | None = None,
        path: str | None = None,
        actor: str,
        pinned: Pinned | None = None,
    ) -> int:
        """Drop staged rows: all, those under a prefix, or one path's. Returns how many paths.

        A reset that drops a row counts itself. One that drops nothing leaves everything as it is.
        Raises ``NotAsSeen`` when the branch is not as it was ``pinned``.
        """
        chosen = [STAGED.c.path == path] if path is not None else _below_prefix(prefix or "")

        def work(conn: Connection) -> int:
            check_writable(conn, lock_repository(conn, repository_id), action="reset", branch=branch)
            state = lock_branch(conn, repository_id, branch, exclusive=True)
            if pinned is not None:
                check_pinned(conn, state, pinned)
            dropped = _drop_staged(conn, state, *chosen)
            count = len(set().union(*dropped.values()))
            if not count:
                return 0
            sealed = any(token in dropped for token in state.sealed_tokens)
            counts: dict[str, Any] = {"resets": state.resets + 1, "sealed_resets": state.sealed_resets + sealed}
            if state.intents:  # those whose rows are all gone have nothing left to commit
                empty = [token for token in dropped if not _any_row(conn, state, (token,))]
                counts["intents"] = intent_values(tuple(one for one in state.intents if one[0] not in empty))
            conn.execute(branch_update(state).values(**counts))
            self._record_move(conn, repository_id, branch, state.commit_id, state.commit_id, "reset", actor)
            return count

        return self.database.write(work)

    def purge_retired(self, repository_id: str, *, waiting: bool = False) -> int:
        """Remove the rows of retired tokens. Returns how many. Called after publishing. Any later call catches up.

        With ``waiting`` the caller knows that there are such rows. Otherwise nothing is locked when there are none.
        """
        mine = RETIRED.c.repository_id == repository_id
        unpurged = select(RETIRED.c.token).where(mine, RETIRED.c.purged.is_(False))
        # Two purges at once share the tokens out between them.
        mine_now = unpurged.with_for_update(skip_locked=True)

        def work(conn: Connection) -> int:
            lock_repository(conn, repository_id)
            removed = 0
            for token in conn.execute(mine_now).scalars().all():
                removed += _forget_staged(conn, repository_id, token)
                this = (mine, RETIRED.c.token == token)
                conn.execute(update(RETIRED).where(*this, RETIRED.c.commit_id.is_not(None)).values(purged=True))
                delete_rows(conn, RETIRED, *this, RETIRED.c.commit_id.is_(None))
            return removed

        def nothing_to_do(conn: Connection) -> bool:
            find_repository(conn, repository_id)
            return conn.execute(unpurged.limit(1)).first() is None

        if not waiting and self.database.read(nothing_to_do):
            return 0
        return self.database.write(work, settle=run_again)

    def consumed_by(self, repository_id: str, token: str) -> str | None:
        """The commit that consumed a sealed token, if one did (not: a reset)."""
        query = select(RETIRED.c.commit_id).where(RETIRED.c.repository_id == repository_id, RETIRED.c.token == token)
        return self.database.read(lambda conn: conn.execute(query).scalar())


# --- a branch that may be staged to ---
#
# One statement finds the branch with all that decides whether it may. Each put asks twice: before the upload, and in
# the transaction that links it. On PostgreSQL that transaction takes a statement for each lock, because nobody may
# rely on what is protected before the repository is locked.

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

    Raises ``RepositoryNotFound``, ``RefNotFound``, ``PreconditionFailed`` (``read_only_repository``),
    ``PreconditionFailed`` (``protected_branch``).
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


# --- sealed tokens and staged rows ---


def without(state: BranchState, tokens: Sequence[str]) -> tuple[str, ...] | None:
    """The sealed tokens that stay when ``tokens`` leave. None when these are not the oldest ones of the branch.

    Only the oldest may leave: an older row that stayed behind would cover what the newer ones put into a commit.
    """
    stay = len(state.sealed_tokens) - len(tokens)
    return state.sealed_tokens[:stay] if stay >= 0 and set(state.sealed_tokens[stay:]) == set(tokens) else None


def with_sealed(state: BranchState, sealed: tuple[str, ...]) -> BranchState:
    """The branch with these of its sealed tokens, and what was asked for of them."""
    return replace(state, sealed_tokens=sealed, intents=tuple(one for one in state.intents if one[0] in sealed))


def _with_intent(state: BranchState, intent: Intent | None) -> BranchState:
    """The branch with an intent kept at its newest sealed token. A call that is repeated has one."""
    if intent is None or not state.sealed_tokens:
        return state
    others = tuple(one for one in state.intents if not one[1].same_call(intent))
    if len(others) < len(state.intents):
        kept = next(token for token, one in state.intents if one.same_call(intent))
        return replace(state, intents=(*others, (kept, intent)))
    return replace(state, intents=(*others, (state.sealed_tokens[0], intent)))


def _of_tokens(state: BranchState, tokens: Sequence[str]) -> tuple[Any, ...]:
    return (STAGED.c.repository_id == state.repository_id, STAGED.c.token.in_(tokens))


def _below_prefix(prefix: str) -> list[Any]:
    return under(STAGED.c.path, prefix)


def any_staged(conn: Connection, state: BranchState) -> bool:
    """Whether a branch has any staged row, effective or not."""
    return _any_row(conn, state, state.tokens)


def _any_row(conn: Connection, state: BranchState, tokens: Sequence[str]) -> bool:
    return conn.execute(select(STAGED.c.token).where(*_of_tokens(state, tokens)).limit(1)).first() is not None


def branch_update(state: BranchState) -> Any:  # noqa: ANN401 - SQLAlchemy's Update, before values()
    """A statement that changes a branch's row."""
    return update(BRANCH).where(BRANCH.c.repository_id == state.repository_id, BRANCH.c.name == state.id)


def _columns(rows: pa.Table) -> pa.Table:
    from lakeops.catalog.arrow import to_columns

    return to_columns(rows)


def _drop_staged(conn: Connection, state: BranchState, *where: Any) -> dict[str, list[str]]:  # noqa: ANN401 - conditions
    """Delete staged rows of a branch that is locked exclusively. Returns their paths by token."""
    gone = delete(STAGED).where(*_of_tokens(state, state.tokens), *where)
    paths: dict[str, list[str]] = {}
    for row in conn.execute(gone.returning(STAGED.c.token, STAGED.c.path)).all():
        paths.setdefault(row.token, []).append(row.path)
    return paths


def _forget_staged(conn: Connection, repository_id: str, token: str) -> int:
    """Delete all rows of a token that no branch reads any more. Returns how many."""
    return delete_rows(conn, STAGED, STAGED.c.repository_id == repository_id, STAGED.c.token == token)


def _check_seen(conn: Connection, state: BranchState, paths: Sequence[str], seen: frozenset[str]) -> None:
    """Raise ``BranchMoved`` when an object that is not at one of these addresses is staged at one of the paths."""
    columns = STAGED.c.path, STAGED.c.token, STAGED.c.tombstone, STAGED.c.physical_address
    for start in range(0, len(paths), PATHS_AT_ONCE):
        some = STAGED.c.path.in_(paths[start : start + PATHS_AT_ONCE])
        where = STAGED.c.repository_id == state.repository_id, STAGED.c.token.in_(state.tokens), some
        newest: dict[str, AnyRow] = {}
        for row in sorted(conn.execute(select(*columns).where(*where)), key=lambda row: state.tokens.index(row.token)):
            newest.setdefault(row.path, row)
        for row in newest.values():
            if not row.tombstone and row.physical_address not in seen:
                raise BranchMoved(f"{row.path!r} was staged on branch {state.id!r} meanwhile; try again")


def _check_unchanged(
    conn: Connection, state: BranchState, counter: ChangeCounter, rows: Sequence[Staged] | pa.Table
) -> None:
    """Raise ``BranchMoved`` when something else than these rows was staged at a place since its changes were counted.

    The rows themselves are there when the answer to an earlier run was lost.
    """
    total = _count_changes(conn, state, counter.place, below=counter.below).total
    if total != counter.total and (
        total != counter.total + len(mine := _rows_at(counter, rows)) or not _are_staged(conn, state, mine)
    ):
        raise BranchMoved(f"{counter.place!r} of branch {state.id!r} was staged to meanwhile; try again")


def check_pinned(conn: Connection, state: BranchState, pinned: Pinned) -> None:
    """Raise ``NotAsSeen`` when a branch, which is locked, is not as it was when somebody looked at it."""
    counter = pinned.counter
    if state != pinned.state or _count_changes(conn, state, counter.place, below=counter.below) != counter:
        raise not_as_seen(state.id)


def not_as_seen(branch: str) -> NotAsSeen:
    """The error for a branch that is not as it was when somebody looked at it."""
    return NotAsSeen(
        f"branch {branch!r}, or what is uncommitted on it, changed since it was looked at; nothing was done"
    )


def _count_changes(conn: Connection, state: BranchState, place: str, *, below: bool) -> ChangeCounter:
    there = _below_prefix(place) if below else [STAGED.c.path == place]
    total = conn.execute(select(func.sum(STAGED.c.changes)).where(*_of_tokens(state, state.tokens), *there)).scalar()
    return ChangeCounter(place, below, int(total or 0))


def _rows_at(counter: ChangeCounter, rows: Sequence[Staged] | pa.Table) -> dict[str, tuple[Any, ...]]:
    """The rows of ``put_staged`` at a place: paths to the values of the columns behind the path."""
    if isinstance(rows, Sequence):
        columns = [[staged_values("", "", row)[column.name] for row in rows] for column in _VALUES]
    else:
        columns = [rows[column.name].to_pylist() for column in _VALUES]
    return {
        path: tuple(values)
        for path, *values in zip(*columns, strict=True)
        if (path.startswith(counter.place) if counter.below else path == counter.place)
    }


def _are_staged(conn: Connection, state: BranchState, wanted: Mapping[str, tuple[Any, ...]]) -> bool:
    """Whether the active token has just these rows at their paths."""
    found: dict[str, tuple[Any, ...]] = {}
    for start in range(0, len(paths := sorted(wanted)), PATHS_AT_ONCE):
        here = STAGED.c.path.in_(paths[start : start + PATHS_AT_ONCE])
        query = select(*_VALUES).where(*_of_tokens(state, (state.staging_token,)), here)
        found |= {path: tuple(values) for path, *values in conn.execute(query)}
    return found == wanted


_VALUES = [column for column in STAGED.columns if column.name not in {"repository_id", "token", "changes"}]

PATHS_AT_ONCE = 500
"""Paths that one query looks for."""


def earlier_commit(conn: Connection, repository_id: str, key: str | None, fingerprint: str) -> Commit | None:
    """The commit that an idempotency key stands for, if it was used. Raises ``KeyReused``."""
    known = None if key is None else find_key(conn, repository_id, key)
    if key is None or known is None:
        return None
    known.check(key, fingerprint)
    return find_commit(conn, repository_id, known.commit_id)


def find_key(conn: Connection, repository_id: str, key: str) -> KeyRecord | None:
    """What an idempotency key stands for, if it was used."""
    query = select(KEY).where(KEY.c.repository_id == repository_id, KEY.c.key == key)
    row = conn.execute(query).one_or_none()
    return None if row is None else key_record(row)


class Uploads(CatalogPart):
    """Uploads in flight."""

    def begin_upload(self, repository_id: str, branch: str, address: str, *, upload: str) -> datetime:
        """Record that objects are being written below ``address``. Returns when, for ``started``.

        Raises ``AttemptExpired`` when the clock is behind the fence: nothing that begins now could be linked.
        """
        mine = (UPLOAD.c.repository_id == repository_id, UPLOAD.c.id == upload)

        def work(conn: Connection) -> datetime:
            repository = lock_repository(conn, repository_id)
            check_writable(conn, repository, action="stage", branch=branch)
            find_branch(conn, repository_id, branch)
            started = self.database.dialect.now(conn)
            check_started(repository, started, started)  # here, and not only once everything is written
            conn.execute(delete(UPLOAD).where(*mine))  # of an earlier run whose answer was lost
            given_up = UPLOAD.c.started < ticks(started - grace_of(repository).at(started))
            conn.execute(delete(UPLOAD).where(UPLOAD.c.repository_id == repository_id, given_up))
            conn.execute(
                insert(UPLOAD).values(
                    repository_id=repository_id,
                    id=upload,
                    branch=branch,
                    address=address,
                    started=ticks(started),
                )
            )
            return started

        return self.database.write(work, settle=run_again)

    def end_upload(self, repository_id: str, upload: str) -> None:
        """Forget an upload that will not be linked. What it wrote becomes garbage."""

        def work(conn: Connection) -> None:
            conn.execute(delete(UPLOAD).where(UPLOAD.c.repository_id == repository_id, UPLOAD.c.id == upload))

        self.database.write(work, settle=run_again)

    def uploads(self, repository_id: str) -> Mapping[str, tuple[str, datetime]]:
        """Uploads in flight, none older than the deadline: id to (address, started)."""

        def work(conn: Connection) -> Mapping[str, tuple[str, datetime]]:
            repository = find_repository(conn, repository_id)
            return uploads_in_flight(conn, repository, self.database.dialect.now(conn))

        return self.database.read(work)


def uploads_in_flight(conn: Connection, repository: AnyRow, now: datetime) -> Mapping[str, tuple[str, datetime]]:
    """Uploads younger than the deadline, as a transaction sees them: id to (address, started)."""
    since = ticks(now - deadline_of(repository, now))
    rows = conn.execute(select(UPLOAD).where(UPLOAD.c.repository_id == repository.id, UPLOAD.c.started >= since))
    return {row.id: (row.address, from_ticks(row.started)) for row in rows}
