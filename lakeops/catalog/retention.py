"""Retention: rules and the grace period, expiring commits by marks, and removing what is past its time.

A commit that a mark expired is *pending* until the sweep of a mark begins that has it. Only the newest mark can be
swept or restored, and when it is finished it has every pending commit: so what comes back is whole. Every transition is
a bounded step: repeat it, or leave the rest to the next mark.

What is pruned, a step at a time: a commit that is expired, older than the log, and whose ancestors have all gone, but
for the initial commit, by which mirrors are compared, and none while a mark waits for its sweep; a move that is older
than the log, with all moves of its ref before it, but for the last one of a ref that exists; a key that is older than
the rules say; and a retired token that is purged, and that no commit in flight can ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from lakeops.catalog import guards
from lakeops.catalog.database import AnyRow, read_transaction, run_again, write_transaction
from lakeops.catalog.guards import CatalogPart
from lakeops.catalog.marks import find_mark, update_mark
from lakeops.catalog.mirrors import mirror_needs
from lakeops.catalog.records import COMMIT_COLUMNS, branch_record, commit_record, epoch_micros
from lakeops.catalog.staging import addresses, uploads_in_flight
from lakeops.catalog.tables import BRANCH, COMMIT, KEY, MARK, REFLOG, REPOSITORY, RETENTION, RETIRED, TAG, VERDICT
from lakeops.model.clock import Grace
from lakeops.model.errors import MarkRefused
from lakeops.model.graph import Lineage, Node, RefMove
from lakeops.model.marks import BEGUN, UNPROVED, Mark, MarkState
from lakeops.model.records import Commit

if TYPE_CHECKING:
    import pyarrow as pa

MOVES = 1000
"""How many moves of refs one step takes in."""
_WAITING = (MarkState.MARKING, MarkState.MARKED, MarkState.SWEEPING)

_REFS = (BRANCH, TAG)
_HERE = COMMIT.c.repository_id == bindparam("repository")
_UNSWEPT = select(MARK.c.id).where(
    MARK.c.repository_id == bindparam("repository"), MARK.c.state.not_in([state.value for state in BEGUN])
)
PENDING: ColumnElement[bool] = and_(COMMIT.c.expired.is_(True), COMMIT.c.expired_by.in_(_UNSWEPT))
_SOME: ColumnElement[bool] = COMMIT.c.id.in_(bindparam("some", expanding=True))
_REVIVE = update(COMMIT).where(_HERE, _SOME, PENDING).values(expired=False, expired_by=None)
_TAKE = update(COMMIT).where(_HERE, _SOME).values(expired=True, expired_by=bindparam("mark")).returning(COMMIT.c.id)
_TAKE_OVER = _TAKE.where(PENDING)
# What a ref shows never expires, whatever was decided.
_SHOWN = [select(refs.c.commit_id).where(refs.c.repository_id == bindparam("repository")) for refs in _REFS]
_EXPIRE = _TAKE.where(COMMIT.c.expired.is_(False), *(COMMIT.c.id.not_in(shown) for shown in _SHOWN))
_NODES = select(*(COMMIT.c[name] for name in ("id", "parents", "creation_date", "generation", "expired", "expired_by")))
_NODES = _NODES.where(_HERE).execution_options(yield_per=10_000)


@dataclass(frozen=True, slots=True)
class ExpiryStep:
    """The outcome of one step of expiry. Nothing happens when the rules have changed.

    ``sequence`` is the newest move of a ref that it took in. Unless ``complete`` there are moves left to take in first.
    ``carried`` were expired by an earlier mark.
    """

    sequence: int
    complete: bool = False
    expired: frozenset[str] = frozenset()
    carried: frozenset[str] = frozenset()
    rules_changed: bool = False


@dataclass(frozen=True, slots=True)
class Roots:
    """Roots of garbage collection at one instant: live commits, staged addresses and uploads in flight.

    ``staged`` has the stored addresses of all staged entries, shadowed ones included, in a column ``physical_address``.
    ``uploads`` are id to (address, started).
    """

    commits: Sequence[Commit]
    staged: pa.Table
    uploads: Mapping[str, tuple[str, datetime]]


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """The work of a step of pruning: ``commits``, ``moves``, ``keys`` or ``tokens`` older than ``before``.

    That is in Unix seconds. It begins ``after`` what an earlier step gave back. ``gone`` are commits that earlier steps
    removed, or would have.
    """

    kind: str
    before: int
    after: tuple[Any, ...] | None = None
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PruneStep:
    """The outcome of a step: how many rows went, which commits among them, and where the next one begins, if any."""

    count: int
    gone: frozenset[str]
    after: tuple[Any, ...] | None


class Retention(CatalogPart):
    """Retention rules, the grace period, expiry of commits, and pruning of old rows."""

    @read_transaction
    def get_rules(self, conn: Connection, repository_id: str) -> str | None:
        """The repository's retention rules as they were set, if there are any."""
        guards.find_repository(conn, repository_id)
        return find_rules(conn, repository_id)

    @write_transaction
    def set_rules(self, conn: Connection, repository_id: str, rules: str | None) -> None:
        """Replace the repository's retention rules (JSON text that the caller validated), or remove them."""
        guards.lock_writable(conn, repository_id, action="set-rules", exclusive=True)
        before = find_rules(conn, repository_id)
        if before == rules:
            return
        conn.execute(delete(RETENTION).where(RETENTION.c.repository_id == repository_id))
        if rules is not None:
            conn.execute(insert(RETENTION).values(repository_id=repository_id, rules=rules))
        self.record(conn, repository_id, "set-rules", "rules", "retention", before, rules)

    @read_transaction
    def grace(self, conn: Connection, repository_id: str) -> Grace:
        """The repository's grace period: the age below which garbage collection touches nothing."""
        return guards.grace_of(guards.find_repository(conn, repository_id))

    @write_transaction
    def set_grace(self, conn: Connection, repository_id: str, seconds: int) -> Grace:
        """Change the grace period. A longer one counts at once, a shorter one once the old one has passed."""
        repository = guards.lock_writable(conn, repository_id, action="set-grace", exclusive=True)
        before = guards.grace_of(repository)
        grace = before.changed(seconds, self.database.dialect.now(conn))
        values = {
            "grace_seconds": grace.seconds,
            "grace_before": grace.before,
            "grace_until": None if grace.until is None else epoch_micros(grace.until),
        }
        conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(values))
        if grace != before:
            self.record(conn, repository_id, "set-grace", "rules", "grace", before.seconds, grace.seconds)
        return grace

    @read_transaction
    def roots(self, conn: Connection, repository_id: str) -> Roots:
        """Live commits, staged addresses and uploads in flight, at one instant."""
        unload = self.database.dialect.unload
        repository = guards.find_repository(conn, repository_id)
        live = select(*COMMIT_COLUMNS).where(COMMIT.c.repository_id == repository_id, COMMIT.c.expired.is_(False))
        branches = conn.execute(select(BRANCH).where(BRANCH.c.repository_id == repository_id))
        tokens = [token for row in branches for token in branch_record(row).tokens]
        staged = addresses(unload(conn, repository_id, token, "") for token in tokens)
        uploads = uploads_in_flight(conn, repository, self.database.dialect.now(conn))
        return Roots([commit_record(row) for row in conn.execute(live)], staged, uploads)

    @read_transaction
    def lineage(self, conn: Connection, repository_id: str, *, left_since: int) -> Lineage:
        """The refs, commits, rules and moves after ``left_since`` (Unix seconds) that decide which commits live."""
        guards.find_repository(conn, repository_id)
        here = {"repository": repository_id}
        unswept = set(conn.execute(_UNSWEPT, here).scalars())
        commits = {
            name: Node(name, tuple(parents), date, generation, expired and by not in unswept, expired and by in unswept)
            for name, parents, date, generation, expired, by in conn.execute(_NODES, here)
        }
        queries = (select(refs.c.name, refs.c.commit_id).where(refs.c.repository_id == repository_id) for refs in _REFS)
        branches, tags = ({row.name: row.commit_id for row in conn.execute(query)} for query in queries)
        left, deleted = _left_commits(conn, repository_id, left_since)
        mirrors, rules = mirror_needs(conn, repository_id), find_rules(conn, repository_id)
        return Lineage(branches, tags, commits, mirrors, left, deleted, rules)

    @write_transaction
    def expire_by_mark(
        self,
        conn: Connection,
        repository_id: str,
        mark_id: str,
        *,
        since: int,
        rules: str | None,
        choose: Callable[[Sequence[RefMove]], Sequence[str]],
    ) -> ExpiryStep:
        """Expire some of the commits that a mark does not keep, with the repository's row locked for that alone.

        Commits that a ref shows or a mirror needs are left alone. Pending commits of earlier marks become this one's.
        ``choose`` gets the moves of refs after the sequence ``since``, and says which commits to expire, a few hundred
        at most. It is called again when the transaction is repeated. Its answer counts when there are no more moves,
        and ``rules`` are those that were decided by. Raises ``MarkRefused`` when the mark is not under way.
        """
        guards.lock_writable(conn, repository_id, action="mark", exclusive=True)
        _check_state(find_mark(conn, repository_id, mark_id), MarkState.MARKING)
        if find_rules(conn, repository_id) != rules:
            return ExpiryStep(since, rules_changed=True)
        moves, newest = _ref_moves(conn, repository_id, since)
        asked = tuple(choose(moves))
        if len(moves) >= MOVES:
            return ExpiryStep(newest)  # there may be more of them
        needed = set().union(*mirror_needs(conn, repository_id).values())
        values = {"repository": repository_id, "mark": mark_id}
        carried = conn.execute(_TAKE_OVER, values | {"some": asked}).scalars().all()
        expired = conn.execute(_EXPIRE, values | {"some": [*{*asked} - needed]}).scalars().all()
        if expired:
            self.record(conn, repository_id, "expire", "mark", mark_id, None, f"{len(expired)} commits expired")
        return ExpiryStep(newest, True, frozenset(expired), frozenset(carried))

    def revive_commits(self, repository_id: str, mark_id: str, ids: Iterable[str]) -> None:
        """Let commits live again that unswept marks expired. Raises ``MarkRefused`` when the mark is not under way."""

        def work(conn: Connection, some: list[str]) -> None:
            guards.lock_writable(conn, repository_id, action="mark")
            _check_state(find_mark(conn, repository_id, mark_id), MarkState.MARKING)
            conn.execute(_REVIVE, {"repository": repository_id, "some": some})
            self.record(conn, repository_id, "revive", "mark", mark_id, None, f"up to {len(some)} commits live again")

        for some in guards.chunks(ids):
            self.database.write(lambda conn, some=some: work(conn, some), resolve=run_again)  # type: ignore[misc]

    @write_transaction
    def restore_commits(self, conn: Connection, repository_id: str, mark_id: str) -> tuple[Mark, int]:
        """Let some pending commits live again that the mark being restored has; how many, and the mark.

        To be called until none is left: the mark is restored then. Raises ``MarkRefused``.
        """
        guards.lock_repository(conn, repository_id)
        mark = find_mark(conn, repository_id, mark_id)
        if mark.state is MarkState.RESTORED:
            return mark, 0
        _check_state(mark, MarkState.RESTORING)
        values: dict[str, object] = {"repository": repository_id}
        some = conn.execute(select(COMMIT.c.id).where(_HERE, PENDING).limit(guards.IN_CHUNK), values).scalars().all()
        if some:
            conn.execute(_REVIVE, values | {"some": some})
            after = f"{len(some)} commits live again"
        else:
            update_mark(conn, repository_id, mark_id, state=MarkState.RESTORED.value)
            after = MarkState.RESTORED.value
        self.record(conn, repository_id, "restore-commits", "mark", mark_id, mark.state.value, after)
        return find_mark(conn, repository_id, mark_id), len(some)

    @read_transaction
    def pruned(self, conn: Connection, repository_id: str) -> bool:
        """Whether history was ever pruned, so that ancestors of known commits may be missing."""
        return guards.find_repository(conn, repository_id).pruned is not None

    def prune(self, repository_id: str, plan: PrunePlan, *, limit: int, dry_run: bool = False) -> PruneStep:
        """Remove at most ``limit`` rows that are past their time, or find out which these would be."""
        table, find = _KINDS[plan.kind]

        def work(conn: Connection) -> PruneStep:
            repository = (guards.find_repository if dry_run else guards.lock_repository)(conn, repository_id)
            if not dry_run:
                guards.check_writable(conn, repository, action="prune")
            page = find(conn, repository, plan, limit)
            count = len(page.keys) if dry_run else _remove(conn, repository_id, table, page.keys)
            if count and not dry_run:
                if page.generation > (repository.pruned or 0):
                    pruned = update(REPOSITORY).where(REPOSITORY.c.id == repository_id)
                    conn.execute(pruned.values(pruned=page.generation))
                self.record(conn, repository_id, "prune", plan.kind, "", None, f"{count} removed")
            return PruneStep(count, frozenset(page.keys) if table is COMMIT else frozenset(), page.after)

        return self.database.read(work) if dry_run else self.database.write(work, resolve=run_again)


def find_rules(conn: Connection, repository_id: str) -> str | None:
    """The retention rules, as a transaction sees them."""
    rules: ColumnElement[str] = RETENTION.c.rules
    return conn.execute(select(rules).where(RETENTION.c.repository_id == repository_id)).scalar()


def _check_state(mark: Mark, state: MarkState) -> None:
    if mark.state is not state:
        raise MarkRefused(f"mark {mark.id} is {mark.state.value}: it was restored, or another one began meanwhile")


def _ref_moves(conn: Connection, repository_id: str, since: int) -> tuple[list[RefMove], int]:
    """The moves of refs after a sequence, oldest first, at most ``MOVES``; and the sequence of the last one."""
    query = select(REFLOG.c.sequence, REFLOG.c.old, REFLOG.c.new).where(
        REFLOG.c.repository_id == repository_id, REFLOG.c.sequence > since
    )
    rows = conn.execute(query.order_by(REFLOG.c.sequence).limit(MOVES)).all()
    parents: dict[str, tuple[str, ...]] = {}
    for some in guards.chunks(row.new for row in rows if row.new is not None):
        values = {"repository": repository_id, "some": some}
        found = conn.execute(select(COMMIT.c.id, COMMIT.c.parents).where(_HERE, _SOME), values)
        parents.update((row[0], tuple(row[1])) for row in found)
    moves = [RefMove(row.old, row.new, parents.get(row.new, ())) for row in rows]
    return moves, rows[-1].sequence if rows else since


def _left_commits(conn: Connection, repository_id: str, since: int) -> tuple[dict[str, int], frozenset[str]]:
    """Commits that refs moved away from after a moment, each with the last time; and heads of deleted branches."""
    here = (REFLOG.c.repository_id == repository_id, REFLOG.c.at > since, REFLOG.c.old.is_not(None))
    moved = or_(REFLOG.c.new.is_(None), REFLOG.c.new != REFLOG.c.old)
    query = select(REFLOG.c.old, func.max(REFLOG.c.at)).where(*here, moved).group_by(REFLOG.c.old)
    left: dict[str, int] = {row[0]: row[1] for row in conn.execute(query)}
    gone = select(REFLOG.c.old).distinct().where(*here, REFLOG.c.action == "delete-branch")
    return left, frozenset(conn.execute(gone).scalars())


# --- pruning ---


@dataclass(frozen=True, slots=True)
class _Page:
    """Keys of rows to remove, where the next step begins (None at the end), and the highest generation among them."""

    keys: Sequence[Any]
    after: tuple[Any, ...] | None
    generation: int = 0


def _remove(conn: Connection, repository_id: str, table: Table, keys: Sequence[Any]) -> int:
    column: ColumnElement[Any] = list(table.primary_key.columns)[-1]
    removed = 0
    for some in guards.chunks(keys):
        rows = delete(table).where(table.c.repository_id == repository_id, column.in_(some))
        if table is not COMMIT:
            removed += conn.execute(rows).rowcount
            continue
        # Somebody may have taken a commit back since the page was read.
        removed += conn.execute(rows.where(COMMIT.c.expired.is_(True))).rowcount
        kept = select(COMMIT.c.id).where(COMMIT.c.repository_id == repository_id)
        checks = VERDICT.c.commit_id.in_(some), VERDICT.c.commit_id.not_in(kept)
        conn.execute(delete(VERDICT).where(VERDICT.c.repository_id == repository_id, *checks))
    return removed


def _old_commits(conn: Connection, repository: AnyRow, plan: PrunePlan, limit: int) -> _Page:
    here = COMMIT.c.repository_id == repository.id
    marks = conn.execute(select(MARK.c.id, MARK.c.state).where(MARK.c.repository_id == repository.id)).all()
    if any(mark.state in _WAITING for mark in marks):
        return _Page((), None)
    # What an unswept mark expired may be restored, and what a fail-over expired may be proved.
    unswept = {UNPROVED, *(mark.id for mark in marks if mark.state not in BEGUN)}
    generation, name = plan.after or (0, "")
    later = or_(COMMIT.c.generation > generation, (COMMIT.c.generation == generation) & (COMMIT.c.id > name))
    columns = ("id", "parents", "generation", "expired", "expired_by", "creation_date")
    query = select(*(COMMIT.c[one] for one in columns)).where(here, later)
    rows = conn.execute(query.order_by(COMMIT.c.generation, COMMIT.c.id).limit(limit)).all()
    query = select(COMMIT.c.id, COMMIT.c.expired, COMMIT.c.first_parent).where(here)
    wanted = guards.chunks({parent for row in rows for parent in row.parents} - plan.gone)
    found = (row for some in wanted for row in conn.execute(query.where(COMMIT.c.id.in_(some))))
    # The parents that exist. True for an expired initial commit, which is never removed.
    known = {row.id: row.expired and row.first_parent is None for row in found}
    gone: set[str] = set()
    top = 0
    for row in rows:
        if not row.expired or row.expired_by in unswept or row.creation_date >= plan.before or not row.parents:
            continue
        left = {*row.parents} - gone - plan.gone
        if all(known.get(parent, repository.pruned is not None) for parent in left):
            gone.add(row.id)
            top = max(top, row.generation)
    # Generations rise with time along any line, so a page without an old commit is the end but for other lines' tails.
    old = any(row.creation_date < plan.before for row in rows)
    after = (rows[-1].generation, rows[-1].id) if old and len(rows) == limit else None
    return _Page(sorted(gone), after, top)


def _old_moves(conn: Connection, repository: AnyRow, plan: PrunePlan, limit: int) -> _Page:
    here = REFLOG.c.repository_id == repository.id
    (after,) = plan.after or (0,)
    query = select(REFLOG).where(here, REFLOG.c.sequence > after).order_by(REFLOG.c.sequence).limit(limit)
    rows = conn.execute(query).all()
    old = [row for row in rows if row.at < plan.before]
    # By ref: the number of its last move, and of its first one that is not older than the log.
    ends: dict[tuple[str, str], tuple[int, int | None]] = {}
    first_kept = func.min(case((REFLOG.c.at >= plan.before, REFLOG.c.sequence)))
    by_ref = select(REFLOG.c.kind, REFLOG.c.ref, func.max(REFLOG.c.sequence), first_kept)
    for some in guards.chunks(row.ref for row in old):
        mine = by_ref.where(here, REFLOG.c.ref.in_(some)).group_by(REFLOG.c.kind, REFLOG.c.ref)
        ends.update(((kind, ref), (last, kept)) for kind, ref, last, kept in conn.execute(mine))
    gone = []
    for row in old:
        last, kept = ends[row.kind, row.ref]
        # The last move of a ref that exists says since when it is there, and is what fsck compares the ref with.
        stays = row.sequence == last and row.new is not None
        if not stays and (kept is None or row.sequence < kept):
            gone.append(row.sequence)
    return _Page(gone, (rows[-1].sequence,) if old and len(rows) == limit else None)


def _old_keys(conn: Connection, repository: AnyRow, plan: PrunePlan, limit: int) -> _Page:
    query = select(KEY.c.key).where(KEY.c.repository_id == repository.id, KEY.c.at < plan.before)
    return _by_name(conn, query, KEY.c.key, plan, limit)


def _old_tokens(conn: Connection, repository: AnyRow, plan: PrunePlan, limit: int) -> _Page:
    young = select(COMMIT.c.id).where(
        COMMIT.c.repository_id == repository.id,
        COMMIT.c.id == RETIRED.c.commit_id,
        COMMIT.c.creation_date >= plan.before,
    )
    query = select(RETIRED.c.token).where(
        RETIRED.c.repository_id == repository.id,
        ~RETIRED.c.purged.is_(False),  # so that a step reads a page of the key, and no index over "purged" in full
        ~young.exists(),
    )
    return _by_name(conn, query, RETIRED.c.token, plan, limit)


def _by_name(conn: Connection, query: Select[Any], column: Any, plan: PrunePlan, limit: int) -> _Page:  # noqa: ANN401
    (after,) = plan.after or ("",)
    names = conn.execute(query.where(column > after).order_by(column).limit(limit)).scalars().all()
    return _Page(names, (names[-1],) if len(names) == limit else None)


_KINDS: dict[str, tuple[Table, Callable[[Connection, AnyRow, PrunePlan, int], _Page]]] = {
    "commits": (COMMIT, _old_commits),
    "moves": (REFLOG, _old_moves),
    "keys": (KEY, _old_keys),
    "tokens": (RETIRED, _old_tokens),
}
