"""Locks and checks: what every transition does first.

Locks are taken in one order, so no two transitions wait for each other: the repository's row (shared; exclusive only
where everything else must stop), then the branch's (exclusive to change it, shared to stage under its active token). A
row that many lock shared may never be free for one that wants it alone. So PostgreSQL takes a fair lock before each
row, in the same mode and statement: an advisory lock, which goes by the order of asking. In SQLite a writer is alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from hashlib import sha256
from itertools import chain
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Boolean,
    ColumnElement,
    Connection,
    Insert,
    Select,
    Table,
    bindparam,
    column,
    exists,
    insert,
    select,
)
from sqlalchemy import text as sql

from lakeops.catalog import records
from lakeops.catalog.database import AnyRow, Database, Lookup
from lakeops.catalog.records import BranchState, Caller
from lakeops.catalog.tables import AUDIT, BRANCH, COMMIT, KEY, PROTECTION, REFLOG, REPOSITORY, RETIRED, TAG, VERDICT
from lakeops.model import errors
from lakeops.model.clock import LONGEST, Clock, Grace, unix_seconds
from lakeops.model.names import HeldRepository, did_you_mean, next_prefix
from lakeops.model.protection import BRANCH_PROTECTION, CHECK_PROTECTION, PASSED, TAG_PROTECTION, Hook, Verdict
from lakeops.model.records import RefKind

Hooks = frozenset[Hook]
T = TypeVar("T", int, str)
Verdicts = Sequence[tuple[str, str]]
"""Ids of commits, each with the name of a check."""

IN_CHUNK = 500
"""How many values one IN list may hold."""

AHEAD = timedelta(hours=1)
"""How far ahead of the clock an attempt may have begun, or the clock was set back since."""

PROTECTING = (BRANCH_PROTECTION, CHECK_PROTECTION)
"""Kinds of patterns of protected branches."""


def _behind_fair_lock(table: Table, *where: ColumnElement[bool]) -> tuple[Select[Any], Select[Any]]:
    """Queries that wait for the fair lock of a row (parameter ``fair``), and then lock the row: shared, exclusively."""

    def query(exclusive: bool) -> Select[Any]:
        # A join with one row: PostgreSQL locks what a join has found, so the fair lock comes first.
        asked = sql(f"SELECT lakeops_fair_lock(:fair, {str(exclusive).lower()}) AS here")
        asked = asked.bindparams(bindparam("fair", type_=BigInteger))
        lock = asked.columns(column("here", Boolean)).cte("fair_lock")
        found = select(table).where(*where).select_from(lock.join(table, lock.c.here))
        return found.with_for_update(read=not exclusive, of=table)

    return query(exclusive=False), query(exclusive=True)


# Built once: every transition runs these, and building them would take longer than SQLite takes to answer.
MEANT = f":namespace IN ('', (SELECT storage_namespace FROM {REPOSITORY.name} WHERE id = :repository))"  # noqa: S608
"""A condition of lookups: the repository is the one that a ``HeldRepository`` means."""
_REPOSITORY = Lookup(REPOSITORY.c, f"{REPOSITORY.name} WHERE id = :repository")
_BRANCH = Lookup(BRANCH.c, f"{BRANCH.name} WHERE repository_id = :repository AND name = :branch AND {MEANT}")
_ON_BRANCH = (BRANCH.c.repository_id == bindparam("repository"), BRANCH.c.name == bindparam("branch"))
_LOCK_REPOSITORY = _behind_fair_lock(REPOSITORY, REPOSITORY.c.id == bindparam("repository"))
_LOCK_BRANCH = _behind_fair_lock(BRANCH, *_ON_BRANCH)
_EXPIRED = select(COMMIT.c.id, COMMIT.c.expired).where(
    COMMIT.c.repository_id == bindparam("repository"), COMMIT.c.id.in_(bindparam("some", expanding=True))
)
_PATTERNS = select(PROTECTION.c.pattern).where(
    PROTECTION.c.repository_id == bindparam("repository"), PROTECTION.c.kind.in_(bindparam("kinds", expanding=True))
)
_PASSED = exists().where(
    VERDICT.c.repository_id == PROTECTION.c.repository_id,
    VERDICT.c.commit_id == bindparam("commit"),
    VERDICT.c.name == PROTECTION.c.check_name,
    VERDICT.c.state == PASSED,
)
_VERDICTS = (
    select(*(column for column in VERDICT.c if column.name != "repository_id"))
    .where(VERDICT.c.repository_id == bindparam("repository"))
    .where(VERDICT.c.commit_id.in_(bindparam("some", expanding=True)))
    .order_by(VERDICT.c.commit_id, VERDICT.c.name)
)
_LACKING = select(PROTECTION.c.pattern, PROTECTION.c.check_name, PROTECTION.c.prefix).where(
    PROTECTION.c.repository_id == bindparam("repository"), PROTECTION.c.kind == CHECK_PROTECTION, ~_PASSED
)


# --- rows, found or locked ---


def lock_repository(conn: Connection, repository_id: str, *, exclusive: bool = False) -> AnyRow:
    """The repository's row, locked. Raises ``RepositoryNotFound``."""
    row = _lock(conn, _REPOSITORY, _LOCK_REPOSITORY[exclusive], {"repository": repository_id})
    return repository_found(conn, row, repository_id)


def lock_writable(conn: Connection, repository_id: str, *, exclusive: bool = False, **change: str) -> AnyRow:
    """``lock_repository``, and then ``check_writable`` for the change."""
    repository = lock_repository(conn, repository_id, exclusive=exclusive)
    check_writable(conn, repository, **change)
    return repository


def _lock(conn: Connection, query: Lookup, locking: Select[Any], where: dict[str, str]) -> AnyRow | None:
    if conn.dialect.name == "sqlite":
        return query.one(conn, where)
    return conn.execute(locking, {**where, "fair": fair_lock_key(*where.values())}).one_or_none()


def find_repository(conn: Connection, repository_id: str) -> AnyRow:
    """The repository's row. Raises ``RepositoryNotFound``."""
    return repository_found(conn, _REPOSITORY.one(conn, {"repository": repository_id}), repository_id)


def repository_found(conn: Connection, row: AnyRow | None, repository_id: str) -> AnyRow:
    """The row of a repository, when it is the one that is meant. Raises ``RepositoryNotFound``, ``Corrupted``."""
    if row is None:
        some = conn.execute(select(REPOSITORY.c.id).order_by(REPOSITORY.c.id).limit(_COMPARED)).scalars().all()
        raise errors.RepositoryNotFound(f"no repository {repository_id!r}{did_you_mean(repository_id, some)}")
    if isinstance(repository_id, HeldRepository) and repository_id.namespace != row.storage_namespace:
        raise errors.RepositoryNotFound(
            f"repository {repository_id!r} was deleted, and another one has its name now: this one's objects are "
            f"in {repository_id.namespace}; open the repository again"
        )
    _check_numbers(row)
    return row


@records.decoding(REPOSITORY, "id")
def _check_numbers(row: AnyRow) -> None:
    for seconds in (records.number(row.grace_seconds), records.optional_number(row.grace_before) or 0):
        if not 0 <= seconds <= LONGEST:
            raise ValueError(f"{seconds} seconds are no grace period")
    for moment in (row.grace_until, row.fence):
        records.from_epoch_micros(records.optional_number(moment) or 0)
    records.optional_number(row.pruned)


def lock_branch(conn: Connection, repository_id: str, name: str, *, exclusive: bool) -> BranchState:
    """The branch's row, locked. Raises ``RefNotFound``."""
    row = _lock(conn, _BRANCH, _LOCK_BRANCH[exclusive], {"repository": repository_id, "branch": name})
    if row is None:
        raise no_branch(repository_id, name)
    return records.branch_record(row)


def find_branch(conn: Connection, repository_id: str, name: str) -> BranchState:
    """The branch's row. Raises ``RepositoryNotFound``, ``RefNotFound``."""
    row = _BRANCH.one(conn, {"repository": repository_id, "branch": name})
    if row is None:
        find_repository(conn, repository_id)
        raise no_branch(repository_id, name)
    return records.branch_record(row)


def fair_lock_key(repository_id: str, branch: str | None = None) -> int:
    """The key of the fair lock of a repository or a branch: 64 bits, signed, equal in every process.

    Two that share a key only wait for each other. A repository never shares one with a branch: the order is kept.
    """
    name = repository_id if branch is None else f"{repository_id}\0{branch}"
    digest = int.from_bytes(sha256(name.encode()).digest()[:8], "big", signed=True)
    return digest & ~1 if branch is None else digest | 1


def chunks(values: Iterable[T]) -> Iterator[list[T]]:
    """The values in order, each of them once, as many at a time as an IN list may hold."""
    wanted = sorted(set(values))
    for start in range(0, len(wanted), IN_CHUNK):
        yield wanted[start : start + IN_CHUNK]


def under(column: ColumnElement[str], prefix: str) -> list[ColumnElement[bool]]:
    """Conditions for texts that begin with a prefix, as a range of bytes: nothing to escape, and an index serves it."""
    if not prefix:
        return []
    above = next_prefix(prefix)
    return [column >= prefix] if above is None else [column >= prefix, column < above]


# --- checks ---

_PROTECTED = {
    RefKind.BRANCH: "it changes through merges only; work on another branch and merge it",
    RefKind.TAG: "it is neither moved nor deleted",
}


def check_writable(
    conn: Connection, repository: AnyRow, *, action: str, branch: str | None = None, tag: str | None = None
) -> None:
    """Refuse what a read-only repository, a protected branch or a protected tag does not take.

    A protected branch takes merges, and what changes nothing that is committed. Raises ``PreconditionFailed``
    (``read_only_repository``, ``protected_branch``, ``protected_tag``).
    """
    if repository.read_only:
        raise errors.PreconditionFailed(f"repository {repository.id!r} is read-only", kind="read_only_repository")
    here = {"repository": repository.id}
    if branch is not None and action not in {"merge", "reset", "seal"}:
        check_protection(branch, conn.execute(_PATTERNS, here | {"kinds": PROTECTING}).scalars())
    if tag is not None:
        check_protection(tag, conn.execute(_PATTERNS, here | {"kinds": (TAG_PROTECTION,)}).scalars(), RefKind.TAG)


def check_protection(name: str, patterns: Iterable[str], kind: RefKind = RefKind.BRANCH) -> None:
    """Refuse a protected branch or tag (``PreconditionFailed``: ``protected_branch``, ``protected_tag``)."""
    for pattern in patterns:
        if fnmatchcase(name, pattern):
            said = f"{kind} {name!r} is protected by {pattern!r}: {_PROTECTED[kind]}"
            if kind is RefKind.TAG:
                raise errors.PreconditionFailed(said, kind="protected_tag")
            raise errors.PreconditionFailed(said, kind="protected_branch")


def check_hooks(repository: AnyRow, action: str, ref: str, known: Hooks) -> None:
    """Refuse a caller who does not know all hooks of this change. Raises ``PreconditionFailed`` (``hooks_changed``)."""
    if repository.hooks == []:
        return
    missing = sorted(
        hook.name for hook in records.hooks_of(repository) if hook.concerns(action, ref) and hook not in known
    )
    if missing:
        raise errors.PreconditionFailed(
            f"hook {missing[0]!r} of repository {repository.id!r} runs beside every {action} of {ref!r}, and this "
            "caller has not run it; nothing was changed",
            kind="hooks_changed",
        )


def require_passed(
    conn: Connection, repository_id: str, branch: str, source: str, untouched: frozenset[str], rests_on: Verdicts
) -> None:
    """Refuse to merge a commit ``source`` without a check that the branch requires (``missing_check``).

    ``untouched`` are prefixes of required checks below which the merge changes nothing. The checks of commits that the
    plan ``rests_on`` have to have passed still.
    """
    found = find_verdicts(conn, repository_id, [commit_id for commit_id, _ in rests_on])
    passed = {(one.commit_id, one.name) for one in found if one.state == PASSED}
    for commit_id, name in sorted(set(rests_on) - passed):
        raise errors.PreconditionFailed(
            f"check {name!r} of commit {commit_id[:16]} does not count as passed any more; run it again on that commit",
            kind="missing_check",
        )
    rows = conn.execute(_LACKING, {"repository": repository_id, "commit": source})
    lacking = sorted(
        {row.check_name for row in rows if row.prefix not in untouched and fnmatchcase(branch, row.pattern)}
    )
    if lacking:
        names = ", ".join(map(repr, lacking))
        raise errors.PreconditionFailed(
            f"branch {branch!r} takes only commits that have passed their checks, and {source[:16]} lacks {names}; "
            "run what checks it, or record the outcome with `lakeops check pass`",
            kind="missing_check",
        )


def find_verdicts(conn: Connection, repository_id: str, commits: Sequence[str]) -> list[Verdict]:
    """The verdicts on some commits, by commit and check."""
    here = {"repository": repository_id}
    parts = (conn.execute(_VERDICTS, here | {"some": some}) for some in chunks(commits))
    return list(map(records.verdict_record, chain.from_iterable(parts)))


def check_live(conn: Connection, repository_id: str, ids: Iterable[str]) -> None:
    """Refuse to reuse commits that do not exist or are expired. Raises ``RefNotFound``, ``CommitExpired``."""
    for some in chunks(ids):
        states = dict(conn.execute(_EXPIRED, {"repository": repository_id, "some": some}).all())
        for commit_id in some:
            if commit_id not in states:
                raise no_commit(repository_id, commit_id)
            if states[commit_id]:
                raise expired(commit_id)


@records.decoding(REPOSITORY, "id")
def grace_of(repository: AnyRow) -> Grace:
    """The grace period of a repository's row. Raises ``Corrupted``."""
    until = None if repository.grace_until is None else records.from_epoch_micros(repository.grace_until)
    return Grace(repository.grace_seconds, repository.grace_before, until)


def deadline_of(repository: AnyRow, now: datetime) -> timedelta:
    """How old an attempt may be now when it publishes or links: half of the grace period."""
    return grace_of(repository).at(now) / 2


def check_started(repository: AnyRow, now: datetime, started: datetime) -> None:
    """Refuse an attempt whose files a mark may hold, and one that is older than the deadline (``AttemptExpired``).

    Safety rests on the GC watermark, which asks no clock. The deadline makes a slow attempt end at a time that is
    known.
    """
    if repository.fence is not None and records.epoch_micros(started) <= repository.fence:
        watermark = records.from_epoch_micros(repository.fence)
        raise errors.AttemptExpired(
            f"the attempt began at {started:%Y-%m-%d %H:%M:%S} UTC, and garbage collection has checked all files "
            f"begun until {watermark:%Y-%m-%d %H:%M:%S}: it may have deleted files of the attempt; "
            "start it again, and if it has only just begun, correct this machine's clock first"
        )
    if started - now > AHEAD:
        raise errors.AttemptExpired(
            f"the attempt began at {started:%Y-%m-%d %H:%M:%S} UTC, and now it is {now:%Y-%m-%d %H:%M:%S}: the clock "
            "was set back meanwhile; start it again"
        )
    age, deadline = now - started, deadline_of(repository, now)
    if age > deadline:
        raise errors.AttemptExpired(
            f"the attempt began {int(age.total_seconds())} s ago and {int(deadline.total_seconds())} s are allowed: "
            "garbage collection may have deleted its files; start it again"
        )


def no_branch(repository_id: str, name: str) -> errors.RefNotFound:
    """The error for a branch that is not there."""
    return errors.RefNotFound(f"repository {repository_id!r} has no branch {name!r}")


_COMPARED = 1_000
"""Names that a misspelt one is compared with."""


def no_commit(repository_id: str, commit_id: str) -> errors.RefNotFound:
    """The error for a commit that is not there."""
    return errors.RefNotFound(f"repository {repository_id!r} has no commit {commit_id!r}")


def expired(commit_id: str) -> errors.CommitExpired:
    """The error for a commit that retention took."""
    return errors.CommitExpired(
        f"commit {commit_id} is expired: the retention rules keep it no longer, and its objects may be gone; "
        "start from a newer commit, or lengthen retention to keep such commits in future (after a fail-over "
        "or a restore, `lakeops mirror verify-history` brings back what is whole)"
    )


# --- rows that several parts write ---

_NEW_BRANCH, _NEW_MOVE, _NEW_RECORD = insert(BRANCH), insert(REFLOG), insert(AUDIT)
_AUDIT_COLUMNS = ("repository_id", "action", "kind", "ref", "before", "after", "person", "claimed")
# Both rows in one statement, which is one round trip. SQLite knows no such statement and has no round trips.
_NEW_MOVE_AND_RECORD = insert(REFLOG).add_cte(
    insert(AUDIT)
    .values({name: bindparam(f"audit_{name}", type_=AUDIT.c[name].type) for name in _AUDIT_COLUMNS})
    .cte("audited")
)


def new_ref(table: Table, **more: ColumnElement[Any]) -> Insert:
    """A statement that inserts a ref, unless its name is taken or its commit is not live.

    A branch's name is no tag's either, as a reader would get the branch. Parameters: ``repository``, ``ref``,
    ``commit``, and those of ``more``, further columns of the table.
    """
    here: BindParameter[str] = bindparam("repository")
    name: BindParameter[str] = bindparam("ref", type_=table.c.name.type)
    taken = [exists().where(one.c.repository_id == here, one.c.name == name) for one in (BRANCH, TAG)]
    values = {"repository_id": COMMIT.c.repository_id, "name": name, "commit_id": COMMIT.c.id, **more}
    live = select(*values.values()).where(
        COMMIT.c.repository_id == here,
        COMMIT.c.id == bindparam("commit"),
        COMMIT.c.expired.is_(False),
        *(~each for each in taken),
    )
    statement = insert(table).from_select(list(values), live)
    return statement.execution_options(preserve_rowcount=True)  # psycopg forgets it with the cursor


class CatalogPart:
    """A group of transitions over one database. Each public method is one transaction.

    ``new_grace`` is the grace period of new repositories, ``clock`` this machine's (SQLite's time), ``caller`` is for
    the audit.
    """

    def __init__(self, database: Database, new_grace: timedelta, clock: Clock, caller: Caller) -> None:
        self.database, self.new_grace, self.clock, self.caller = database, new_grace, clock, caller

    @staticmethod
    def insert_branch(conn: Connection, repository_id: str, name: str, commit_id: str, token: str) -> None:
        """Insert a branch with an empty staging area."""
        conn.execute(_NEW_BRANCH, records.branch_values(BranchState(repository_id, name, commit_id, token)))

    def insert_ref(self, conn: Connection, table: Table, new: Insert, values: Mapping[str, Any]) -> None:
        """Run a statement of ``new_ref``. Raises ``AlreadyExists``, ``CommitExpired``, ``RefNotFound``."""
        while not conn.execute(new, values).rowcount:
            for other in (BRANCH, TAG):
                mine = (other.c.repository_id == values["repository"], other.c.name == values["ref"])
                if conn.execute(select(other.c.name).where(*mine)).first():
                    wanted, found = ("branch" if one is BRANCH else "tag" for one in (table, other))
                    also = "" if other is table else f", so no {wanted} can have this name"
                    raise errors.AlreadyExists(
                        f"{found} {values['ref']!r} exists already in repository {values['repository']!r}{also}"
                    )
            # If this check passes, the commit was restored meanwhile, or the name became free: try again.
            check_live(conn, values["repository"], [values["commit"]])

    def record_move(
        self,
        conn: Connection,
        repository_id: str,
        ref: str,
        old: str | None,
        new: str | None,
        action: str,
        actor: str,
        *,
        kind: RefKind = RefKind.BRANCH,
        audited: dict[str, Any] | None = None,
    ) -> None:
        """Insert a row of the reflog, and its record in the audit, or ``audited`` in place of that one."""
        now = unix_seconds(self.database.dialect.now(conn))
        move: dict[str, Any] = {"repository_id": repository_id, "kind": str(kind), "ref": ref, "old": old, "new": new}
        move |= {"action": action, "actor": actor, "at": now}
        record = audited or self.audit_values(repository_id, action, str(kind), ref, old, new, claimed=actor)
        if self.database.dialect.account is None:
            conn.execute(_NEW_MOVE_AND_RECORD, move | {f"audit_{name}": value for name, value in record.items()})
        else:
            conn.execute(_NEW_MOVE, move)
            conn.execute(_NEW_RECORD, record | {"login": self.database.dialect.account, "recorded": now})

    def record(self, conn: Connection, repository_id: str, action: str, kind: str, ref: str, *change: object) -> None:
        """Insert the audit's record of a transition that moves no ref, with the state before and after it."""
        record = self.audit_values(repository_id, action, kind, ref, *change)
        account = self.database.dialect.account
        if account is not None:  # a server fills in the login and the time by itself
            record |= {"login": account, "recorded": unix_seconds(self.database.dialect.now(conn))}
        conn.execute(_NEW_RECORD, record)

    def audit_values(
        self, repository_id: str, action: str, kind: str, ref: str, *change: object, claimed: str | None = None
    ) -> dict[str, Any]:
        """A record of the audit as column values."""
        texts = [one if one is None else str(one) for one in (*change, None, None)[:2]]
        who = self.caller.person, self.caller.claimed if claimed is None else claimed
        return dict(zip(_AUDIT_COLUMNS, (repository_id, action, kind, ref, *texts, *who), strict=True))

    def remember(self, conn: Connection, repository_id: str, key: str | None, fingerprint: str, commit_id: str) -> None:
        """Let an idempotency key, if there is one, stand for a commit."""
        if key is not None:
            values = {"repository_id": repository_id, "key": key, "fingerprint": fingerprint, "commit_id": commit_id}
            conn.execute(insert(KEY).values(**values, at=unix_seconds(self.database.dialect.now(conn))))

    def retire(
        self, conn: Connection, repository_id: str, tokens: Iterable[str], *, commit_id: str | None = None
    ) -> None:
        """Retire tokens, which a commit has consumed if one is named."""
        here = {"repository_id": repository_id, "commit_id": commit_id, "purged": False}
        rows = [{**here, "token": token} for token in tokens]
        if rows:
            conn.execute(insert(RETIRED), rows)
