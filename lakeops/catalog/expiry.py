"""CatalogPart by which marks expire commits, and those that bring them back.

* ``expire_by_mark`` needs a mark under way, and rules that are still those of the plan. Leaves a bounded number of
  commits expired by the mark. Every other transition refuses them from then on. What a ref shows or a mirror needs at
  that moment stays. Recovery: the next mark decides about them anew.
* ``revive_commits`` needs a mark under way. Leaves pending commits live. Recovery: repeat it.
* ``restore_commits`` needs a mark that is being restored (``restore_mark``). Leaves a bounded number of pending commits
  live, and with the last of them the mark restored. Recovery: repeat it. The next mark decides about what is left.

A commit that a mark expired is *pending* until the sweep of a mark begins that has it. Only the newest mark can be
swept or restored, and when it is finished it has every pending commit: so what comes back is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, bindparam, func, or_, select, update

from lakeops.catalog.commits import find_rules, mirror_needs
from lakeops.catalog.database import run_again
from lakeops.catalog.guards import IN_CHUNK, CatalogPart, check_writable, find_repository, lock_repository
from lakeops.catalog.marks import find_mark, update_mark
from lakeops.catalog.records import ExpiryStep
from lakeops.catalog.tables import BRANCH, COMMIT, MARK, REFLOG, TAG
from lakeops.model.errors import MarkRefused
from lakeops.model.graph import Lineage, Node, RefMove
from lakeops.model.marks import BEGUN, Mark, MarkState

MOVES = 1000
"""How many moves of refs one step takes in."""

_HERE = COMMIT.c.repository_id == bindparam("repository")
_UNSWEPT = select(MARK.c.id).where(
    MARK.c.repository_id == bindparam("repository"), MARK.c.state.not_in([state.value for state in BEGUN])
)
_PENDING: ColumnElement[bool] = and_(COMMIT.c.expired.is_(True), COMMIT.c.expired_by.in_(_UNSWEPT))
_SOME: ColumnElement[bool] = COMMIT.c.id.in_(bindparam("some", expanding=True))
_REVIVE = update(COMMIT).where(_HERE, _SOME, _PENDING).values(expired=False, expired_by=None)


def _commits_of_refs(table: Table) -> Select[Any]:
    return select(table.c.commit_id).where(table.c.repository_id == bindparam("repository"))


_TAKE = update(COMMIT).where(_HERE, _SOME).values(expired=True, expired_by=bindparam("mark")).returning(COMMIT.c.id)
_TAKE_OVER = _TAKE.where(_PENDING)
# What a ref shows never expires, whatever was decided.
_EXPIRE = _TAKE.where(
    COMMIT.c.expired.is_(False), COMMIT.c.id.not_in(_commits_of_refs(BRANCH)), COMMIT.c.id.not_in(_commits_of_refs(TAG))
)
_NODES = select(
    COMMIT.c.id, COMMIT.c.parents, COMMIT.c.creation_date, COMMIT.c.generation, COMMIT.c.expired, COMMIT.c.expired_by
)
_NODES = _NODES.where(_HERE).execution_options(yield_per=10_000)


class Expiry(CatalogPart):
    """Expiring commits step by step, and taking that back."""

    def lineage(self, repository_id: str, *, left_since: int) -> Lineage:
        """What decides which commits live, at one instant and without a lock.

        Args:
            repository_id: the repository.
            left_since: moves of refs after this (Unix seconds) are looked at.
        """
        here = {"repository": repository_id}

        def refs(conn: Connection, table: Table) -> dict[str, str]:
            query = select(table.c.name, table.c.commit_id).where(table.c.repository_id == repository_id)
            return {row[0]: row[1] for row in conn.execute(query)}

        def work(conn: Connection) -> Lineage:
            find_repository(conn, repository_id)
            unswept = set(conn.execute(_UNSWEPT, here).scalars())
            rows = conn.execute(_NODES, here)
            commits = {
                row[0]: Node(
                    row[0],
                    tuple(row[1]),
                    row[2],
                    row[3],
                    row[4] and row[5] not in unswept,
                    row[4] and row[5] in unswept,
                )
                for row in rows
            }
            left, deleted = _left_commits(conn, repository_id, left_since)
            return Lineage(
                branches=refs(conn, BRANCH),
                tags=refs(conn, TAG),
                commits=commits,
                mirrors=mirror_needs(conn, repository_id),
                left=left,
                deleted=deleted,
                rules=find_rules(conn, repository_id),
            )

        return self.database.read(work)

    def expire_by_mark(
        self,
        repository_id: str,
        mark_id: str,
        *,
        since: int,
        rules: str | None,
        choose: Callable[[Sequence[RefMove]], Sequence[str]],
    ) -> ExpiryStep:
        """Expire some of the commits that a mark does not keep, with the repository's row locked for that alone.

        Args:
            repository_id: the repository.
            mark_id: the mark, which must be under way.
            since: moves of refs up to this sequence are known.
            rules: the rules that were decided by. When they are others now, nothing expires.
            choose: gets the moves since then, and says which commits to expire, a few hundred at most. Called inside
                the transaction, and again when that is repeated. Its answer counts only when there are no more moves.

        Commits that a ref shows or a mirror needs are left alone whatever it says. Pending commits of earlier marks
        become this one's. Raises ``MarkRefused`` when the mark is not under way any more.
        """

        def work(conn: Connection) -> ExpiryStep:
            check_writable(conn, lock_repository(conn, repository_id, exclusive=True), action="mark")
            _check_state(find_mark(conn, repository_id, mark_id), MarkState.MARKING)
            if find_rules(conn, repository_id) != rules:
                return ExpiryStep(since, rules_changed=True)
            moves, newest = _moves(conn, repository_id, since)
            asked = tuple(choose(moves))
            if len(moves) >= MOVES:
                return ExpiryStep(newest)  # there may be more of them
            needed = set().union(*mirror_needs(conn, repository_id).values())
            values = {"repository": repository_id, "mark": mark_id}
            carried = conn.execute(_TAKE_OVER, values | {"some": asked}).scalars().all()
            expired = conn.execute(_EXPIRE, values | {"some": [*{*asked} - needed]}).scalars().all()
            if expired:
                self._record(conn, repository_id, "expire", "mark", mark_id, None, f"{len(expired)} commits expired")
            return ExpiryStep(newest, True, frozenset(expired), frozenset(carried))

        return self.database.write(work, settle=run_again)

    def revive_commits(self, repository_id: str, mark_id: str, ids: Iterable[str]) -> None:
        """Let commits live again that earlier marks expired and were not swept; those that were are left alone.

        Raises ``MarkRefused`` when the mark is not under way any more.
        """
        wanted = sorted(set(ids))

        def work(conn: Connection, some: list[str]) -> None:
            check_writable(conn, lock_repository(conn, repository_id), action="mark")
            _check_state(find_mark(conn, repository_id, mark_id), MarkState.MARKING)
            conn.execute(_REVIVE, {"repository": repository_id, "some": some})
            self._record(conn, repository_id, "revive", "mark", mark_id, None, f"up to {len(some)} commits live again")

        for start in range(0, len(wanted), IN_CHUNK):
            some = wanted[start : start + IN_CHUNK]
            self.database.write(lambda conn, some=some: work(conn, some), settle=run_again)  # type: ignore[misc]

    def restore_commits(self, repository_id: str, mark_id: str) -> tuple[Mark, int]:
        """Let some commits live again that the mark being restored has expired; how many, and the mark.

        To be called until none is left. The mark is restored then. Raises ``MarkRefused``.
        """

        def work(conn: Connection) -> tuple[Mark, int]:
            lock_repository(conn, repository_id)
            mark = find_mark(conn, repository_id, mark_id)
            if mark.state is MarkState.RESTORED:
                return mark, 0
            _check_state(mark, MarkState.RESTORING)
            values: dict[str, object] = {"repository": repository_id}
            some = conn.execute(select(COMMIT.c.id).where(_HERE, _PENDING).limit(IN_CHUNK), values).scalars().all()
            if some:
                conn.execute(_REVIVE, values | {"some": some})
                after = f"{len(some)} commits live again"
            else:
                update_mark(conn, repository_id, mark_id, state=MarkState.RESTORED.value)
                after = MarkState.RESTORED.value
            self._record(conn, repository_id, "restore-commits", "mark", mark_id, mark.state.value, after)
            return find_mark(conn, repository_id, mark_id), len(some)

        return self.database.write(work, settle=run_again)


def _check_state(mark: Mark, state: MarkState) -> None:
    if mark.state is not state:
        raise MarkRefused(f"mark {mark.id} is {mark.state.value}: it was restored, or another one began meanwhile")


def _moves(conn: Connection, repository_id: str, since: int) -> tuple[list[RefMove], int]:
    """The moves of refs after a sequence, oldest first, at most ``MOVES``; and the sequence of the last one."""
    query = select(REFLOG.c.sequence, REFLOG.c.old, REFLOG.c.new).where(
        REFLOG.c.repository_id == repository_id, REFLOG.c.sequence > since
    )
    rows = conn.execute(query.order_by(REFLOG.c.sequence).limit(MOVES)).all()
    parents: dict[str, tuple[str, ...]] = {}
    made = sorted({row.new for row in rows if row.new is not None})
    for start in range(0, len(made), IN_CHUNK):
        some = {"repository": repository_id, "some": made[start : start + IN_CHUNK]}
        found = conn.execute(select(COMMIT.c.id, COMMIT.c.parents).where(_HERE, _SOME), some)
        parents.update((row[0], tuple(row[1])) for row in found)
    moves = [RefMove(row.old, row.new, parents.get(row.new, ())) for row in rows]
    return moves, rows[-1].sequence if rows else since


def _left_commits(conn: Connection, repository_id: str, since: int) -> tuple[dict[str, int], frozenset[str]]:
    """Commits that a ref pointed to before a move after a moment, with the last time; and ends of deleted branches."""
    here = (REFLOG.c.repository_id == repository_id, REFLOG.c.at > since, REFLOG.c.old.is_not(None))
    moved = or_(REFLOG.c.new.is_(None), REFLOG.c.new != REFLOG.c.old)
    query = select(REFLOG.c.old, func.max(REFLOG.c.at)).where(*here, moved).group_by(REFLOG.c.old)
    left: dict[str, int] = {row[0]: row[1] for row in conn.execute(query)}
    gone = select(REFLOG.c.old).distinct().where(*here, REFLOG.c.action == "delete-branch")
    return left, frozenset(conn.execute(gone).scalars())
