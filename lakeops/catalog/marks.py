"""Transitions of garbage collection's marks.

* ``begin_mark`` expires what the rules no longer keep and opens the mark, with the repository's row locked against
  every other transition; earlier marks that nobody began to sweep are stale from then on. Recovery: the mark that a
  crash left open fails when the next one begins, and keeps links of old objects waiting until then or the deadline.
* ``finish_mark`` needs the mark to be the one open, and younger than the deadline; leaves it ready to be swept.
* ``begin_sweep`` needs a finished mark, the newest one; leaves it being swept. Recovery: repeat it, the sweep goes on.
* ``advance_sweep`` leaves on record how far it came. Recovery: repeat it; deleting twice does no harm.
* ``check_links`` is part of ``put_staged``: an object that a mark may hold is not linked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, insert, select, update

from lakeops.catalog.base import History
from lakeops.catalog.commits import expire, find_history
from lakeops.catalog.database import run_again
from lakeops.catalog.guards import check_writable, find_repository, lock_repository
from lakeops.catalog.part import Part
from lakeops.catalog.rows import AnyRow, from_ticks, ticks
from lakeops.catalog.tables import MARK
from lakeops.model.errors import BranchMoved, CollectionRunning, MarkNotFound, MarkRefused
from lakeops.model.marks import PENDING, Mark, MarkState

KEEP = timedelta(days=30)
"""For how long a mark that is done with stays on record."""

SWEEPABLE = timedelta(days=7)
"""How old a mark may be when its sweep begins."""


class Marks(Part):
    """Marks of garbage collection."""

    @property
    def grace(self) -> timedelta:
        """The age below which garbage collection touches nothing."""
        return 2 * self.deadline

    @property
    def has_own_clock(self) -> bool:
        """Whether ``now`` is a server's time, and not what the catalog was opened with."""
        return self.database.dialect.name == "postgresql"

    def begin_mark(
        self, repository_id: str, mark_id: str, *, cutoff: datetime, expiring: Callable[[History], Iterable[str]]
    ) -> tuple[Mark, list[str]]:
        """Expire what ``expiring`` chooses and open a mark; returns it and the ids that this call expired."""

        def work(conn: Connection) -> tuple[Mark, list[str]]:
            check_writable(conn, lock_repository(conn, repository_id, exclusive=True), action="mark")
            now = self.database.dialect.now(conn)
            here = MARK.c.repository_id == repository_id
            conn.execute(delete(MARK).where(here, MARK.c.id == mark_id))  # of an earlier run whose answer was lost
            _check_clock(conn, repository_id, now)
            for old, new in ((MarkState.MARKING, MarkState.FAILED), (MarkState.MARKED, MarkState.STALE)):
                conn.execute(update(MARK).where(here, MARK.c.state == old.value).values(state=new.value))
            done = MARK.c.state.not_in([state.value for state in PENDING])
            conn.execute(delete(MARK).where(here, done, MARK.c.created < ticks(now - KEEP)))
            gone = expire(conn, repository_id, expiring(find_history(conn, repository_id)))
            mark = Mark(mark_id, MarkState.MARKING, now, cutoff)
            conn.execute(insert(MARK).values(_values(repository_id, mark)))
            return mark, gone

        return self.database.write(work, settle=run_again)

    def finish_mark(
        self, repository_id: str, mark_id: str, *, digest: str, rows: int, objects: int, size_bytes: int, listed: int
    ) -> Mark:
        """Record the mark file; from then on the mark may be swept. Raises ``MarkRefused``, ``MarkNotFound``."""

        def work(conn: Connection) -> Mark:
            check_writable(conn, lock_repository(conn, repository_id), action="mark")
            mark = _find(conn, repository_id, mark_id)
            if mark.state is MarkState.MARKED and mark.digest == digest:
                return mark
            if mark.state is not MarkState.MARKING:
                raise MarkRefused(f"mark {mark_id} is {mark.state.value}: another one began meanwhile; use that one")
            if not timedelta(0) <= self.database.dialect.now(conn) - mark.created <= self.deadline:
                raise MarkRefused(
                    f"mark {mark_id} took longer than {self.deadline}, or the database's clock jumped; make a new one"
                )
            found = {"digest": digest, "rows": rows, "objects": objects, "bytes": size_bytes, "listed": listed}
            _update(conn, repository_id, mark_id, state=MarkState.MARKED.value, **found)
            return _find(conn, repository_id, mark_id)

        return self.database.write(work, settle=run_again)

    def begin_sweep(self, repository_id: str, mark_id: str) -> Mark:
        """Let a sweep of this mark begin or go on. Raises ``MarkNotFound``, ``MarkRefused``."""

        def work(conn: Connection) -> Mark:
            check_writable(conn, lock_repository(conn, repository_id, exclusive=True), action="sweep")
            mark = _find(conn, repository_id, mark_id)
            now = self.database.dialect.now(conn)
            _check_clock(conn, repository_id, now)
            if mark.state is MarkState.MARKED:
                if now - mark.created > SWEEPABLE:
                    raise MarkRefused(
                        f"mark {mark_id} is stale: it is older than {SWEEPABLE.days} days; make a new one"
                    )
                _update(conn, repository_id, mark_id, state=MarkState.SWEEPING.value)
            elif mark.state not in (MarkState.SWEEPING, MarkState.SWEPT):
                raise MarkRefused(f"mark {mark_id} {_WHY[mark.state]}; nothing was deleted")
            return _find(conn, repository_id, mark_id)

        return self.database.write(work, settle=run_again)

    def advance_sweep(self, repository_id: str, mark_id: str, swept: int) -> Mark:
        """Record that the mark's first ``swept`` rows are deleted; with all of them it is swept."""

        def work(conn: Connection) -> Mark:
            lock_repository(conn, repository_id)
            mark = _find(conn, repository_id, mark_id)
            if mark.state is MarkState.SWEEPING:
                state = MarkState.SWEPT if swept >= mark.rows else MarkState.SWEEPING
                _update(conn, repository_id, mark_id, state=state.value, swept=max(mark.swept, swept))
            return _find(conn, repository_id, mark_id)

        return self.database.write(work, settle=run_again)

    def mark(self, repository_id: str, mark_id: str) -> Mark:
        """The mark. Raises ``MarkNotFound``."""

        def work(conn: Connection) -> Mark:
            find_repository(conn, repository_id)
            return _find(conn, repository_id, mark_id)

        return self.database.read(work)

    def marks(self, repository_id: str) -> list[Mark]:
        """Marks on record, newest first."""
        query = (
            select(MARK).where(MARK.c.repository_id == repository_id).order_by(MARK.c.created.desc(), MARK.c.id.desc())
        )

        def work(conn: Connection) -> list[Mark]:
            find_repository(conn, repository_id)
            return [_record(row) for row in conn.execute(query)]

        return self.database.read(work)


def check_links(conn: Connection, repository_id: str, cleared: frozenset[str], since: datetime) -> None:
    """Refuse to link old objects while there is a mark that may hold them and was not looked into.

    Marks that were swept count too: one may have been made and swept since the caller looked.

    Args:
        conn: the transition's transaction, which holds the repository's row.
        repository_id: the repository.
        cleared: marks that do not hold the objects, or were swept before the caller looked at the objects.
        since: a mark that was begun before this can no longer be finished.

    Raises:
        CollectionRunning: what a mark will hold is being worked out.
        BranchMoved: there is a mark that the caller does not know yet.
    """
    deadly = [state.value for state in (*PENDING, MarkState.SWEPT)]
    for row in conn.execute(select(MARK).where(MARK.c.repository_id == repository_id, MARK.c.state.in_(deadly))):
        mark = _record(row)
        if mark.state is MarkState.MARKING:
            if mark.created >= since:
                raise CollectionRunning(
                    f"garbage collection is working out what nobody needs (mark {mark.id}), and an object that was "
                    "written long ago cannot be linked meanwhile; try again in a few minutes"
                )
        elif mark.id not in cleared:
            raise BranchMoved(f"garbage collection made the mark {mark.id} meanwhile; try again")


_WHY = {
    MarkState.MARKING: "is not finished: it is still being made, or its run was killed; make a new one",
    MarkState.FAILED: "was never finished: its run was killed; make a new one",
    MarkState.STALE: "is stale: a newer one was made; sweep that one",
}


def _check_clock(conn: Connection, repository_id: str, now: datetime) -> None:
    query = select(MARK.c.created).where(MARK.c.repository_id == repository_id, MARK.c.created > ticks(now)).limit(1)
    later = conn.execute(query).scalar()
    if later is not None:
        raise MarkRefused(
            f"the database's clock says {now:%Y-%m-%d %H:%M:%S} UTC, but a mark was made at "
            f"{from_ticks(later):%Y-%m-%d %H:%M:%S}: it was set back; nothing is deleted until it is right again"
        )


def _find(conn: Connection, repository_id: str, mark_id: str) -> Mark:
    query = select(MARK).where(MARK.c.repository_id == repository_id, MARK.c.id == mark_id)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise MarkNotFound(f"repository {repository_id!r} has no mark {mark_id!r}; `lakeops gc list` shows them")
    return _record(row)


def _update(conn: Connection, repository_id: str, mark_id: str, **values: object) -> None:
    conn.execute(update(MARK).where(MARK.c.repository_id == repository_id, MARK.c.id == mark_id).values(**values))


def _record(row: AnyRow) -> Mark:
    return Mark(
        row.id, MarkState(row.state), from_ticks(row.created), from_ticks(row.cutoff),
        row.digest, row.rows, row.objects, row.bytes, row.listed, row.swept,
    )  # fmt: skip


def _values(repository_id: str, mark: Mark) -> dict[str, object]:
    return {
        "repository_id": repository_id,
        "id": mark.id,
        "state": mark.state.value,
        "created": ticks(mark.created),
        "cutoff": ticks(mark.cutoff),
        "digest": mark.digest,
        "rows": mark.rows,
        "objects": mark.objects,
        "bytes": mark.bytes,
        "listed": mark.listed,
        "swept": mark.swept,
    }
