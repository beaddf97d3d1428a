"""CatalogPart of garbage collection's marks.

* ``begin_mark`` opens a mark and raises the fence to its cutoff, with the repository's row locked against every other
  transition. Earlier marks that nobody began to sweep are over from then on, and unproved commits (a fail-over's) can
  not be proved any more. Recovery: the mark that a crash left open
  fails when the next one begins, and keeps links of old objects waiting until then or the deadline.
* ``finish_mark`` needs the mark to be the one open, to have all pending commits (see ``expiry``), and to be younger
  than the deadline. Leaves it ready to be swept.
* ``restore_mark`` needs a mark whose sweep did not begin. Leaves it as one that is never swept. Recovery: repeat it.
* ``begin_sweep`` needs a finished mark, the newest one. Leaves it being swept, with what earlier sweeps left. Recovery:
  repeat it, the sweep goes on.
* ``advance_sweep`` leaves on record how far it came. Recovery: repeat it. Deleting twice does no harm.
* ``end_sweep`` leaves on record what the store refused to delete, or that nothing is left. Recovery: repeat it.
* ``check_links`` is part of ``put_staged``: an object that a mark may hold is not linked.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Select, and_, exists, func, insert, not_, or_, select, update

from lakeops.catalog.clock import believe
from lakeops.catalog.database import run_again
from lakeops.catalog.guards import (
    CatalogPart,
    check_writable,
    deadline_of,
    delete_rows,
    find_repository,
    grace_of,
    lock_repository,
)
from lakeops.catalog.rows import AnyRow, decoding, from_ticks, ticks
from lakeops.catalog.tables import COMMIT, MARK, REFLOG, REPOSITORY
from lakeops.model.errors import (
    BranchMoved,
    MarkRefused,
    NotFound,
    Transient,
)
from lakeops.model.marks import BEGUN, UNPROVED, Mark, MarkState

KEEP = timedelta(days=30)
"""For how long a mark that is done with stays on record."""

SWEEPABLE = timedelta(days=7)
"""How old a mark may be when its sweep begins."""


class Marks(CatalogPart):
    """Marks of garbage collection."""

    def begin_mark(self, repository_id: str, mark_id: str, *, cutoff: datetime) -> tuple[Mark, int]:
        """Open a mark. Returns it and the sequence of the newest move of a ref, for ``expire_by_mark``.

        Earlier marks that nobody began to sweep are over from then on: failed or stale. No attempt that began at or
        before ``cutoff`` links or publishes any more.
        Raises ``MarkRefused`` (``clock_in_doubt``), and ``MarkRefused`` when ``cutoff`` is within the grace period, or
        the repository was
        restored from a dump and not accepted.
        """

        def work(conn: Connection) -> tuple[Mark, int]:
            repository = lock_repository(conn, repository_id, exclusive=True)
            check_writable(conn, repository, action="mark")
            _check_accepted(repository)
            now = self.database.dialect.now(conn)
            _check_cutoff(repository, cutoff, now)
            here = MARK.c.repository_id == repository_id
            delete_rows(conn, MARK, here, MARK.c.id == mark_id)  # of an earlier run whose answer was lost
            _check_clock(conn, repository_id, now)
            believe(conn, now, self.clock)
            for old, new in _ENDS:
                conn.execute(update(MARK).where(here, MARK.c.state == old.value).values(state=new.value))
            delete_rows(conn, MARK, here, MARK.c.created < ticks(now - KEEP), *_FORGETTABLE)
            mark = Mark(mark_id, MarkState.MARKING, now, cutoff)
            conn.execute(insert(MARK).values(_values(repository_id, mark)))
            self._record(conn, repository_id, "begin-mark", "mark", mark_id, None, mark.state.value)
            # From here on what they need may be garbage.
            unproved = (COMMIT.c.repository_id == repository_id, COMMIT.c.expired_by == UNPROVED)
            conn.execute(update(COMMIT).where(*unproved).values(expired_by=None))
            fence = max(ticks(cutoff), repository.fence or ticks(cutoff))
            conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(fence=fence))
            # Every transition before this one has ended, so none with a lower sequence can still appear.
            newest = select(func.max(REFLOG.c.sequence)).where(REFLOG.c.repository_id == repository_id)
            return mark, conn.execute(newest).scalar() or 0

        return self.database.write(work, settle=run_again)

    def finish_mark(
        self, repository_id: str, mark_id: str, *, digest: str, rows: int, objects: int, size_bytes: int, listed: int
    ) -> Mark:
        """Record the mark file. From then on the mark may be swept.

        Raises ``MarkRefused``, ``NotFound`` (``mark_not_found``).
        """

        def work(conn: Connection) -> Mark:
            repository = lock_repository(conn, repository_id)
            check_writable(conn, repository, action="mark")
            mark = find_mark(conn, repository_id, mark_id)
            if mark.state is MarkState.MARKED and mark.digest == digest:
                return mark
            if mark.state is MarkState.MARKING and conn.execute(_undecided(repository_id, mark_id)).first():
                raise MarkRefused(f"mark {mark_id} left out commits that an earlier mark had expired; make a new one")
            now = self.database.dialect.now(conn)
            deadline = deadline_of(repository, now)
            if mark.state is MarkState.MARKING and not timedelta(0) <= now - mark.created <= deadline:
                raise MarkRefused(
                    f"mark {mark_id} took longer than {deadline}, or the database's clock jumped; make a new one"
                )
            found = {"digest": digest, "rows": rows, "objects": objects, "bytes": size_bytes, "listed": listed}
            if not _leave_marking(conn, repository_id, mark_id, state=MarkState.MARKED.value, **found):
                state = find_mark(conn, repository_id, mark_id).state.value
                raise MarkRefused(
                    f"mark {mark_id} is {state}: it was restored, another one began, or it took too long; make one anew"
                )
            return self._record_state(conn, repository_id, mark, "finish-mark")

        return self.database.write(work, settle=run_again)

    def restore_mark(self, repository_id: str, mark_id: str) -> Mark:
        """End a mark for good before it is swept: it is being restored then. One that is over is left as it is.

        Raises ``MarkRefused`` once its sweep has begun, ``NotFound`` (``mark_not_found``).
        """

        def work(conn: Connection) -> Mark:
            check_writable(conn, lock_repository(conn, repository_id, exclusive=True), action="restore")
            mark = find_mark(conn, repository_id, mark_id)
            if mark.state in BEGUN:
                raise MarkRefused(
                    f"mark {mark_id} is {mark.state.value}: its sweep has begun, what its commits need may be gone, so "
                    "it cannot be restored"
                )
            if mark.state in _OPEN or (mark.state in _OVER and not _any_open(conn, repository_id)):
                update_mark(conn, repository_id, mark_id, state=MarkState.RESTORING.value)
            return self._record_state(conn, repository_id, mark, "restore-mark")

        return self.database.write(work, settle=run_again)

    def begin_sweep(self, repository_id: str, mark_id: str) -> Mark:
        """Let a sweep of this mark begin or go on. Raises ``NotFound`` (``mark_not_found``), ``MarkRefused``.

        Earlier marks whose sweep did not end are carried from then on: this one's list holds what they left.
        """

        def work(conn: Connection) -> Mark:
            check_writable(conn, lock_repository(conn, repository_id, exclusive=True), action="sweep")
            mark = find_mark(conn, repository_id, mark_id)
            now = self.database.dialect.now(conn)
            _check_clock(conn, repository_id, now)
            believe(conn, now, self.clock)
            if mark.state is MarkState.MARKED:
                if now - mark.created > SWEEPABLE:
                    raise MarkRefused(
                        f"mark {mark_id} is stale: it is older than {SWEEPABLE.days} days; make a new one"
                    )
                _take_over(conn, repository_id, mark)
                update_mark(conn, repository_id, mark_id, state=MarkState.SWEEPING.value)
            elif mark.state not in BEGUN:
                raise MarkRefused(f"mark {mark_id} {_WHY[mark.state]}; nothing was deleted")
            return self._record_state(conn, repository_id, mark, "begin-sweep")

        return self.database.write(work, settle=run_again)

    def advance_sweep(self, repository_id: str, mark_id: str, swept: int) -> Mark:
        """Record that the mark's first ``swept`` rows are deleted."""

        def work(conn: Connection) -> Mark:
            lock_repository(conn, repository_id)
            mark = find_mark(conn, repository_id, mark_id)
            if mark.state in _GOING_ON:
                update_mark(conn, repository_id, mark_id, swept=max(mark.swept, swept))
            return find_mark(conn, repository_id, mark_id)

        return self.database.write(work, settle=run_again)

    def end_sweep(
        self, repository_id: str, mark_id: str, *, refused: int = 0, failures: Sequence[tuple[str, str]] = ()
    ) -> Mark:
        """Record that every row was deleted, but for ``refused`` ones. ``failures`` are some of these, with reasons."""

        def work(conn: Connection) -> Mark:
            lock_repository(conn, repository_id)
            mark = find_mark(conn, repository_id, mark_id)
            if mark.state in _GOING_ON:
                state = MarkState.INCOMPLETE if refused else MarkState.SWEPT
                values = {"refused": refused, "failures": [list(failure) for failure in failures]}
                swept = mark.swept if refused else mark.rows
                update_mark(conn, repository_id, mark_id, state=state.value, swept=swept, **values)
            return self._record_state(conn, repository_id, mark, "end-sweep")

        return self.database.write(work, settle=run_again)

    def _record_state(self, conn: Connection, repository_id: str, mark: Mark, action: str) -> Mark:
        """The mark as it is now. When its state is another one than before, the audit has it."""
        now = find_mark(conn, repository_id, mark.id)
        if now.state is not mark.state:
            after = f"{now.state.value}, {now.rows} files, {now.bytes} bytes"
            self._record(conn, repository_id, action, "mark", mark.id, mark.state.value, after)
        return now

    def get(self, repository_id: str, mark_id: str) -> Mark:
        """The mark. Raises ``NotFound`` (``mark_not_found``)."""

        def work(conn: Connection) -> Mark:
            find_repository(conn, repository_id)
            return find_mark(conn, repository_id, mark_id)

        return self.database.read(work)

    def on_record(self, repository_id: str, *, lasting: bool = False) -> list[Mark]:
        """Marks on record, newest first; with ``lasting`` without those that a mark made now would forget."""
        query = (
            select(MARK).where(MARK.c.repository_id == repository_id).order_by(MARK.c.created.desc(), MARK.c.id.desc())
        )

        def work(conn: Connection) -> list[Mark]:
            find_repository(conn, repository_id)
            oldest = ticks(self.database.dialect.now(conn) - KEEP)
            mine = query.where(not_(and_(MARK.c.created < oldest, *_FORGETTABLE))) if lasting else query
            return [_record(row) for row in conn.execute(mine)]

        return self.database.read(work)


def check_links(conn: Connection, repository_id: str, cleared: frozenset[str], since: datetime) -> None:
    """Refuse to link old objects while there is a mark that may hold them and was not looked into.

    Marks that were swept count too: one may have been made and swept since the caller looked.

    Args:
        conn: the transition's transaction, which holds the repository's row.
        repository_id: the repository.
        cleared: marks that hold none of the objects and never will, or were swept before the caller saw the objects.
        since: a mark that was begun before this has taken too long, and is failed here.

    Raises:
        Transient: ``collection_running``: what a mark will hold is being worked out.
        BranchMoved: there is a mark that the caller does not know yet.
    """
    deadly = [state.value for state in (MarkState.MARKING, MarkState.MARKED, *BEGUN)]
    for row in conn.execute(select(MARK).where(MARK.c.repository_id == repository_id, MARK.c.state.in_(deadly))):
        mark = _record(row)
        if mark.id in cleared:
            continue
        if mark.state is MarkState.MARKING:
            if mark.created >= since or not _leave_marking(conn, repository_id, mark.id, state=MarkState.FAILED.value):
                raise Transient(
                    f"garbage collection is working out what nobody needs (mark {mark.id}), and an object that was "
                    "written long ago cannot be linked meanwhile; try again in a few minutes",
                    kind="collection_running",
                )
        else:
            raise BranchMoved(f"garbage collection made the mark {mark.id} meanwhile; try again")


_WHY = {
    MarkState.MARKING: "is not finished: it is still being made, or its run was killed; make a new one",
    MarkState.FAILED: "was never finished: its run was killed; make a new one",
    MarkState.STALE: "is stale: a newer one was made; sweep that one",
    MarkState.RESTORING: "is being restored; make a new one",
    MarkState.RESTORED: "was restored; make a new one",
}

_ENDS = (
    (MarkState.MARKING, MarkState.FAILED),
    (MarkState.MARKED, MarkState.STALE),
    (MarkState.RESTORING, MarkState.STALE),
)
"""What becomes of earlier marks when another one begins."""

_GOING_ON = (MarkState.SWEEPING, MarkState.INCOMPLETE)
_OPEN = (MarkState.MARKING, MarkState.MARKED)
_OVER = (MarkState.FAILED, MarkState.STALE)

# A mark that has pending commits stays on record: without it, nobody could tell whether they were swept.
_HAS_PENDING = exists().where(COMMIT.c.repository_id == MARK.c.repository_id, COMMIT.c.expired_by == MARK.c.id)
_FORGETTABLE = (
    MARK.c.state.not_in([state.value for state in _GOING_ON]),
    or_(MARK.c.state.in_([state.value for state in BEGUN]), ~_HAS_PENDING),
)


def _check_clock(conn: Connection, repository_id: str, now: datetime) -> None:
    query = select(MARK.c.created).where(MARK.c.repository_id == repository_id, MARK.c.created > ticks(now)).limit(1)
    later = conn.execute(query).scalar()
    if later is not None:
        raise MarkRefused(
            f"the database's clock says {now:%Y-%m-%d %H:%M:%S} UTC, but a mark was made at "
            f"{from_ticks(later):%Y-%m-%d %H:%M:%S}: it was set back; nothing is deleted until it is right again, or "
            "until somebody confirms it with `lakeops gc confirm-clock`",
            kind="clock_in_doubt",
        )


def _check_accepted(repository: AnyRow) -> None:
    """Refuse to collect what a lost catalog may have had commits of, or staged rows, that its dump lacks."""
    if repository.restored is not None:
        raise MarkRefused(
            f"repository {repository.id!r} was restored from a dump of "
            f"{from_ticks(repository.restored):%Y-%m-%d %H:%M:%S} UTC, and what was committed later is not known here: "
            "nothing is collected until somebody has looked (`lakeops fsck`, `lakeops gc mark --dry-run`) and runs "
            "`lakeops refs accept`"
        )


def _check_cutoff(repository: AnyRow, cutoff: datetime, now: datetime) -> None:
    grace = grace_of(repository).at(now)
    if cutoff > now - grace:
        raise MarkRefused(
            f"the grace period of repository {repository.id!r} is {grace}, and the mark looks at what was begun "
            f"{now - cutoff} ago: the grace period or the clock was changed meanwhile; make a new mark"
        )


def _leave_marking(conn: Connection, repository_id: str, mark_id: str, **values: object) -> bool:
    """Change a mark that is still being made; whether it was. Of two that try at once, one does."""
    mine = (MARK.c.repository_id == repository_id, MARK.c.id == mark_id, MARK.c.state == MarkState.MARKING.value)
    return conn.execute(update(MARK).where(*mine).values(**values)).rowcount == 1


def _any_open(conn: Connection, repository_id: str) -> bool:
    """Whether there is a mark that may still be finished or swept: it has the commits of those before it."""
    mine = (MARK.c.repository_id == repository_id, MARK.c.state.in_([state.value for state in _OPEN]))
    return conn.execute(select(MARK.c.id).where(*mine).limit(1)).first() is not None


def _undecided(repository_id: str, mark_id: str) -> Select[Any]:
    """Pending commits of other marks."""
    unswept = [state.value for state in MarkState if state not in BEGUN]
    others = select(MARK.c.id).where(
        MARK.c.repository_id == repository_id, MARK.c.id != mark_id, MARK.c.state.in_(unswept)
    )
    here = COMMIT.c.repository_id == repository_id
    return select(COMMIT.c.id).where(here, COMMIT.c.expired_by.in_(others)).limit(1)


def _take_over(conn: Connection, repository_id: str, mark: Mark) -> None:
    """What earlier sweeps left is on this mark's list: it was there when the store was listed, and nobody links it."""
    left = (MARK.c.state.in_([state.value for state in _GOING_ON]), MARK.c.cutoff <= ticks(mark.cutoff))
    carried = update(MARK).where(MARK.c.repository_id == repository_id, *left)
    conn.execute(carried.values(state=MarkState.CARRIED.value))


def find_mark(conn: Connection, repository_id: str, mark_id: str) -> Mark:
    """The mark as a transaction sees it. Raises ``NotFound`` (``mark_not_found``)."""
    query = select(MARK).where(MARK.c.repository_id == repository_id, MARK.c.id == mark_id)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NotFound(
            f"repository {repository_id!r} has no mark {mark_id!r}; `lakeops gc list` shows them", kind="mark_not_found"
        )
    return _record(row)


def update_mark(conn: Connection, repository_id: str, mark_id: str, **values: object) -> None:
    """Change columns of a mark."""
    conn.execute(update(MARK).where(MARK.c.repository_id == repository_id, MARK.c.id == mark_id).values(**values))


@decoding(MARK, "id")
def _record(row: AnyRow) -> Mark:
    return Mark(
        row.id, MarkState(row.state), from_ticks(row.created), from_ticks(row.cutoff),
        row.digest, row.rows, row.objects, row.bytes, row.listed, row.swept,
        row.refused, tuple((key, reason) for key, reason in row.failures),
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
        "refused": mark.refused,
        "failures": [list(failure) for failure in mark.failures],
    }
