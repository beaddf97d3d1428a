"""Marks of garbage collection, and the check of the clock by which files and commits are old.

``begin_mark`` raises the repository's GC watermark (column ``fence``) to the mark's cutoff: no attempt that began at or
before it links or publishes any more. Every transition may be repeated. A mark that a crash left open fails when the
next one begins, and keeps links of old objects waiting until then or the deadline.

A clock that jumped ahead makes everything look old at once. So the catalog looks for jumps between the last time that
it trusted, every move of a ref since, and now. Nothing is collected over a jump until somebody confirms the clock, or
the machine has counted as many seconds since as its clock says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, insert, not_, or_, select, update

from lakeops.catalog.database import AnyRow, read_transaction, write_transaction, write_transaction_once
from lakeops.catalog.guards import CatalogPart, check_writable, deadline_of, find_repository, grace_of, lock_repository
from lakeops.catalog.records import ExpectedState, decoding, epoch_micros, from_epoch_micros
from lakeops.catalog.tables import CLOCK, COMMIT, MARK, REFLOG, REPOSITORY
from lakeops.model.clock import Clock, SystemClock, Uptime, uptime_of
from lakeops.model.errors import BranchMoved, MarkRefused, NotFound, Transient
from lakeops.model.marks import BEGUN, OPEN, UNPROVED, Mark, MarkState

KEEP = timedelta(days=30)
"""For how long a mark that is done with stays on record."""

SWEEPABLE = timedelta(days=7)
"""How old a mark may be when its sweep begins."""

BOUND = timedelta(hours=60)
"""How long a catalog may be idle before somebody has to say that it was: a nightly job may miss one night and half a
day. A jump that stays below it costs no data that anybody is writing, and takes as much off the retention."""

SLACK = timedelta(minutes=1)
"""The most that clocks may differ by."""

_DRIFT = 0.001
"""The share by which a machine's two clocks may run apart."""

_ENDS = {MarkState.MARKING: MarkState.FAILED, MarkState.MARKED: MarkState.STALE, MarkState.RESTORING: MarkState.STALE}
"""States of earlier marks, and their next ones when another mark begins."""

_WHY = {
    MarkState.MARKING: "is not finished: it is still being made, or its run was killed; make a new one",
    MarkState.FAILED: "was never finished: its run was killed; make a new one",
    MarkState.STALE: "is stale: a newer one was made; sweep that one",
    MarkState.RESTORING: "is being restored; make a new one",
    MarkState.RESTORED: "was restored; make a new one",
}
_GOING_ON = (MarkState.SWEEPING, MarkState.INCOMPLETE)

# A mark that has pending commits stays on record: without it, nobody could tell whether they were swept.
_HAS_PENDING = exists().where(COMMIT.c.repository_id == MARK.c.repository_id, COMMIT.c.expired_by == MARK.c.id)
_FORGETTABLE = (
    MARK.c.state.not_in([state.value for state in _GOING_ON]),
    or_(MARK.c.state.in_([state.value for state in BEGUN]), ~_HAS_PENDING),
)


class Marks(CatalogPart):
    """Marks of garbage collection, and the clock."""

    @write_transaction
    def begin_mark(self, conn: Connection, repository_id: str, mark_id: str, *, cutoff: datetime) -> tuple[Mark, int]:
        """Open a mark. Returns it and the sequence of the newest move of a ref, for ``expire_by_mark``.

        Earlier marks that nobody began to sweep are over, and unproved commits (a fail-over's) cannot be proved any
        more. Raises ``MarkRefused``: the clock is in doubt (``clock_in_doubt``), ``cutoff`` is within the grace period,
        or the repository was restored from a dump and not accepted.
        """
        repository = lock_repository(conn, repository_id, exclusive=True)
        check_writable(conn, repository, action="mark")
        now = self.database.dialect.now(conn)
        _check_cutoff(repository, cutoff, now)
        here = MARK.c.repository_id == repository_id
        conn.execute(delete(MARK).where(here, MARK.c.id == mark_id))  # of an earlier run whose answer was lost
        _check_marks_are_past(conn, repository_id, now)
        check_clock_skew(conn, now, self.clock)
        for old, new in _ENDS.items():
            conn.execute(update(MARK).where(here, MARK.c.state == old.value).values(state=new.value))
        conn.execute(delete(MARK).where(here, MARK.c.created < epoch_micros(now - KEEP), *_FORGETTABLE))
        mark = Mark(mark_id, MarkState.MARKING, now, cutoff)
        times = {"created": epoch_micros(now), "cutoff": epoch_micros(cutoff)}
        values = {**asdict(mark), **times, "state": mark.state.value, "failures": []}
        conn.execute(insert(MARK).values(repository_id=repository_id, **values))
        self.record(conn, repository_id, "begin-mark", "mark", mark_id, None, mark.state.value)
        # From here on the files of unproved commits may be garbage.
        unproved = update(COMMIT).filter_by(repository_id=repository_id, expired_by=UNPROVED)
        conn.execute(unproved.values(expired_by=None))
        watermark = max(epoch_micros(cutoff), repository.fence or epoch_micros(cutoff))
        conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(fence=watermark))
        # Every transition before this one has ended, so none with a lower sequence can still appear.
        newest = select(func.max(REFLOG.c.sequence)).where(REFLOG.c.repository_id == repository_id)
        return mark, conn.execute(newest).scalar() or 0

    @write_transaction
    def finish_mark(
        self,
        conn: Connection,
        repository_id: str,
        mark_id: str,
        *,
        digest: str,
        rows: int,
        objects: int,
        size_bytes: int,
        listed: int,
    ) -> Mark:
        """Record the mark file of the open mark, which has all pending commits. From then on it may be swept.

        Raises ``MarkRefused``, ``NotFound`` (``mark_not_found``).
        """
        repository = lock_repository(conn, repository_id)
        check_writable(conn, repository, action="mark")
        mark = find_mark(conn, repository_id, mark_id)
        if mark.state is MarkState.MARKED and mark.digest == digest:
            return mark
        if mark.state is MarkState.MARKING and _others_have_pending(conn, repository_id, mark_id):
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

    @write_transaction
    def restore_mark(self, conn: Connection, repository_id: str, mark_id: str) -> Mark:
        """End a mark for good before it is swept: it is being restored then. One that is over is left as it is.

        Raises ``MarkRefused`` once its sweep has begun, ``NotFound`` (``mark_not_found``).
        """
        check_writable(conn, lock_repository(conn, repository_id, exclusive=True), action="restore")
        mark = find_mark(conn, repository_id, mark_id)
        if mark.state in BEGUN:
            raise MarkRefused(
                f"mark {mark_id} is {mark.state.value}: its sweep has begun, what its commits need may be gone, so "
                "it cannot be restored"
            )
        over = mark.state in (MarkState.FAILED, MarkState.STALE)
        # A mark that is still open has the commits of those before it.
        opened = select(MARK.c.id).where(*_in_states(repository_id, OPEN)).limit(1)
        if mark.state in OPEN or (over and not conn.execute(opened).first()):
            update_mark(conn, repository_id, mark_id, state=MarkState.RESTORING.value)
        return self._record_state(conn, repository_id, mark, "restore-mark")

    @write_transaction
    def begin_sweep(self, conn: Connection, repository_id: str, mark_id: str) -> Mark:
        """Let a sweep of this mark begin or go on. Raises ``NotFound`` (``mark_not_found``), ``MarkRefused``.

        Earlier marks whose sweep did not end are carried from then on: this one's list holds what they left.
        """
        check_writable(conn, lock_repository(conn, repository_id, exclusive=True), action="sweep")
        mark = find_mark(conn, repository_id, mark_id)
        now = self.database.dialect.now(conn)
        _check_marks_are_past(conn, repository_id, now)
        check_clock_skew(conn, now, self.clock)
        if mark.state is MarkState.MARKED:
            if now - mark.created > SWEEPABLE:
                raise MarkRefused(f"mark {mark_id} is stale: it is older than {SWEEPABLE.days} days; make a new one")
            # Files that earlier sweeps left were in the store when this mark listed it, and no writer links them.
            left = (*_in_states(repository_id, _GOING_ON), MARK.c.cutoff <= epoch_micros(mark.cutoff))
            conn.execute(update(MARK).where(*left).values(state=MarkState.CARRIED.value))
            update_mark(conn, repository_id, mark_id, state=MarkState.SWEEPING.value)
        elif mark.state not in BEGUN:
            raise MarkRefused(f"mark {mark_id} {_WHY[mark.state]}; nothing was deleted")
        return self._record_state(conn, repository_id, mark, "begin-sweep")

    @write_transaction
    def advance_sweep(self, conn: Connection, repository_id: str, mark_id: str, swept: int) -> Mark:
        """Record that the mark's first ``swept`` rows are deleted."""
        lock_repository(conn, repository_id)
        mark = find_mark(conn, repository_id, mark_id)
        if mark.state in _GOING_ON:
            update_mark(conn, repository_id, mark_id, swept=max(mark.swept, swept))
        return find_mark(conn, repository_id, mark_id)

    @write_transaction
    def end_sweep(
        self,
        conn: Connection,
        repository_id: str,
        mark_id: str,
        *,
        refused: int = 0,
        failures: Sequence[tuple[str, str]] = (),
    ) -> Mark:
        """Record that every row was deleted, but for ``refused`` ones. ``failures`` are some of these, with reasons."""
        lock_repository(conn, repository_id)
        mark = find_mark(conn, repository_id, mark_id)
        if mark.state in _GOING_ON:
            state = MarkState.INCOMPLETE if refused else MarkState.SWEPT
            values = {"refused": refused, "failures": [list(failure) for failure in failures]}
            swept = mark.swept if refused else mark.rows
            update_mark(conn, repository_id, mark_id, state=state.value, swept=swept, **values)
        return self._record_state(conn, repository_id, mark, "end-sweep")

    @read_transaction
    def get(self, conn: Connection, repository_id: str, mark_id: str) -> Mark:
        """The mark. Raises ``NotFound`` (``mark_not_found``)."""
        find_repository(conn, repository_id)
        return find_mark(conn, repository_id, mark_id)

    @read_transaction
    def on_record(self, conn: Connection, repository_id: str, *, lasting: bool = False) -> list[Mark]:
        """Marks on record, newest first; with ``lasting`` without those that a mark made now would forget."""
        find_repository(conn, repository_id)
        query = select(MARK).filter_by(repository_id=repository_id).order_by(MARK.c.created.desc(), MARK.c.id.desc())
        if lasting:
            oldest = epoch_micros(self.database.dialect.now(conn) - KEEP)
            query = query.where(not_(and_(MARK.c.created < oldest, *_FORGETTABLE)))
        return [_record(row) for row in conn.execute(query)]

    def has_real_clock(self, *, remote: bool) -> bool:
        """Whether ``now`` comes from a real clock: PostgreSQL's, or this machine's when the store is ``remote``."""
        return self.database.dialect.name == "postgresql" or (remote and isinstance(self.clock, SystemClock))

    @write_transaction_once
    def check_clock(self, conn: Connection) -> datetime:
        """The time, for what expires or deletes by age. Raises ``MarkRefused`` (``clock_in_doubt``)."""
        return check_clock_skew(conn, self.database.dialect.now(conn), self.clock)

    @read_transaction
    def read_clock(self, conn: Connection) -> datetime:
        """The time, for a dry run, which raises as ``check_clock`` does and keeps nothing."""
        return check_clock_skew(conn, self.database.dialect.now(conn), self.clock, keep=False)

    @write_transaction
    def confirm_clock(self, conn: Connection) -> datetime:
        """Trust the present time, which a person checked, and return it. Resets watermarks and marks ahead of it."""
        now = self.database.dialect.now(conn)
        at = epoch_micros(now)
        conn.execute(update(REPOSITORY).where(REPOSITORY.c.fence > at).values(fence=at))
        ahead = (MARK.c.created > at, MARK.c.state.in_([state.value for state in OPEN]))
        conn.execute(update(MARK).where(*ahead).values(state=MarkState.STALE.value))
        conn.execute(update(MARK).where(MARK.c.created > at).values(created=at))
        _keep_time(conn, now, uptime_of(self.clock))
        self.record(conn, "", "confirm-clock", "clock", "", None, "confirmed")
        return now

    def _record_state(self, conn: Connection, repository_id: str, mark: Mark, action: str) -> Mark:
        """The mark as it is now. When its state is another one than before, the audit has it."""
        now = find_mark(conn, repository_id, mark.id)
        if now.state is not mark.state:
            after = f"{now.state.value}, {now.rows} files, {now.bytes} bytes"
            self.record(conn, repository_id, action, "mark", mark.id, mark.state.value, after)
        return now


def check_links(conn: Connection, repository_id: str, expect: ExpectedState, since: datetime) -> None:
    """Refuse to link objects while there is a mark that may hold them and was not looked into (``expect``).

    Marks that were swept count too: one may have been made and swept since the caller looked. A mark that was begun
    before ``since`` has taken too long, and is failed here. Raises ``Transient`` (``collection_running``) while a mark
    that may hold them is made, ``BranchMoved`` for a mark that the caller does not know yet.
    """
    for row in conn.execute(select(MARK).where(*_in_states(repository_id, (*OPEN, *BEGUN)))):
        mark = _record(row)
        if expect.marks is None or mark.id in expect.marks:
            continue
        if mark.state is MarkState.MARKING:
            if mark.created < since and _leave_marking(conn, repository_id, mark.id, state=MarkState.FAILED.value):
                continue
            if mark.id in expect.unclear:
                raise Transient(
                    f"garbage collection is making mark {mark.id}; until it has ended, an object that was "
                    "written before the mark's cutoff cannot be linked; try again in a few minutes, "
                    "or upload the contents anew",
                    kind="collection_running",
                )
        raise BranchMoved(f"garbage collection made the mark {mark.id} meanwhile; try again")


def find_mark(conn: Connection, repository_id: str, mark_id: str) -> Mark:
    """The mark as a transaction sees it. Raises ``NotFound`` (``mark_not_found``)."""
    row = conn.execute(select(MARK).filter_by(repository_id=repository_id, id=mark_id)).one_or_none()
    if row is None:
        raise NotFound(
            f"repository {repository_id!r} has no mark {mark_id!r}; `lakeops gc list` shows them", kind="mark_not_found"
        )
    return _record(row)


def update_mark(conn: Connection, repository_id: str, mark_id: str, **values: object) -> None:
    """Change columns of a mark."""
    conn.execute(update(MARK).filter_by(repository_id=repository_id, id=mark_id).values(**values))


def _in_states(repository_id: str, states: Iterable[MarkState]) -> tuple[ColumnElement[bool], ...]:
    return (MARK.c.repository_id == repository_id, MARK.c.state.in_([state.value for state in states]))


def _leave_marking(conn: Connection, repository_id: str, mark_id: str, **values: object) -> bool:
    """Change a mark that is still being made. Returns whether it did: of two concurrent calls only one does."""
    marking = update(MARK).filter_by(repository_id=repository_id, id=mark_id, state=MarkState.MARKING.value)
    return conn.execute(marking.values(**values)).rowcount == 1


def _others_have_pending(conn: Connection, repository_id: str, mark_id: str) -> bool:
    """Whether marks other than this one have pending commits."""
    unswept = [state for state in MarkState if state not in BEGUN]
    others = select(MARK.c.id).where(*_in_states(repository_id, unswept), MARK.c.id != mark_id)
    mine = (COMMIT.c.repository_id == repository_id, COMMIT.c.expired_by.in_(others))
    return conn.execute(select(COMMIT.c.id).where(*mine).limit(1)).first() is not None


def _check_marks_are_past(conn: Connection, repository_id: str, now: datetime) -> None:
    mine = (MARK.c.repository_id == repository_id, MARK.c.created > epoch_micros(now))
    later = conn.execute(select(MARK.c.created).where(*mine).limit(1)).scalar()
    if later is not None:
        raise _set_back(now, "a mark was made", from_epoch_micros(later))


def _check_cutoff(repository: AnyRow, cutoff: datetime, now: datetime) -> None:
    """Refuse a cutoff within the grace period, and any mark of a restored repository that is not accepted yet."""
    if repository.restored is not None:
        raise MarkRefused(
            f"repository {repository.id!r} was restored from a dump of "
            f"{from_epoch_micros(repository.restored):%Y-%m-%d %H:%M:%S} UTC, and what was committed later is not "
            "known here: nothing is collected until somebody has looked (`lakeops fsck`, `lakeops gc mark --dry-run`) "
            "and runs `lakeops refs accept`"
        )
    grace = grace_of(repository).at(now)
    if cutoff > now - grace:
        raise MarkRefused(
            f"the grace period of repository {repository.id!r} is {grace}, and the mark looks at what was begun "
            f"{now - cutoff} ago: the grace period or the clock was changed meanwhile; make a new mark"
        )


@decoding(MARK, "id")
def _record(row: AnyRow) -> Mark:
    values = {one.name: getattr(row, one.name) for one in fields(Mark)}
    times = {name: from_epoch_micros(values[name]) for name in ("created", "cutoff")}
    failures = tuple((key, reason) for key, reason in row.failures)
    return Mark(**{**values, **times, "state": MarkState(row.state), "failures": failures})


# --- the clock ---


def first_seen(conn: Connection, now: datetime, clock: Clock) -> None:
    """Begin to keep the time, where nothing has been seen yet."""
    if conn.execute(select(CLOCK)).one_or_none() is None:
        _keep_time(conn, now, uptime_of(clock))


def check_clock_skew(conn: Connection, now: datetime, clock: Clock, *, keep: bool = True) -> datetime:
    """The time, which the catalog trusts from then on if ``keep``. Raises ``MarkRefused`` (``clock_in_doubt``)."""
    row, uptime = conn.execute(select(CLOCK)).one_or_none(), uptime_of(clock)
    waits = _waits_until(conn, row, now)
    latest = max((end for wait in waits for end in wait if end is not now), default=now)
    if now < latest - SLACK:
        raise _set_back(now, "something happened", latest)
    before, after = max(waits, key=lambda wait: wait[1] - wait[0])
    if after - before > BOUND and not _is_counted(row, now, uptime):
        raise MarkRefused(
            f"the database's clock says {_spell(now)}; nothing happened between {_spell(before)} and {_spell(after)}, "
            f"{(after - before).days} days: either nobody worked, or a clock jumped ahead and everything looks old; "
            f"nothing is expired or deleted until it is set right, {_CONFIRM}",
            kind="clock_in_doubt",
        )
    if keep:
        _keep_time(conn, now, uptime)
    return now


_CONFIRM = "or until somebody confirms the clock with `lakeops gc confirm-clock`"


def _set_back(now: datetime, what: str, latest: datetime) -> MarkRefused:
    return MarkRefused(
        f"the database's clock says {_spell(now)}, but {what} at {_spell(latest)}: it was set back; "
        f"nothing is deleted until it is right again, {_CONFIRM}",
        kind="clock_in_doubt",
    )


def _waits_until(conn: Connection, row: AnyRow | None, now: datetime) -> list[tuple[datetime, datetime]]:
    """Gaps between ref moves since the last trusted time: the first, the last, and the longest between them."""
    at = REFLOG.c.at
    since = REFLOG.c.sequence > (-1 if row is None else row.sequence)
    first, last = conn.execute(select(func.min(at), func.max(at)).where(since)).one()
    if first is None:
        return [(now if row is None else from_epoch_micros(row.seen), now)]
    wait = (at - func.lag(at).over(order_by=at)).label("wait")
    steps = select(at, wait).where(since).subquery()
    within = select(steps.c.at - steps.c.wait, steps.c.at).where(steps.c.wait.is_not(None))
    longest = conn.execute(within.order_by(steps.c.wait.desc()).limit(1)).first()
    begun, *between, ended = (datetime.fromtimestamp(each, UTC) for each in (first, *(longest or ()), last))
    waits = [(ended, now), *pairwise(between)]
    return waits if row is None else [*waits, (from_epoch_micros(row.seen), begun)]


def _is_counted(row: AnyRow | None, now: datetime, uptime: Uptime | None) -> bool:
    """Whether the machine's uptime confirms how much time has passed since the last trusted time."""
    if row is None or uptime is None or row.uptime is None or row.boot != uptime.boot:
        return False
    passed, counted = epoch_micros(now) - row.seen, uptime.microseconds - row.uptime
    return bool(abs(passed - counted) <= SLACK / timedelta(microseconds=1) + _DRIFT * abs(counted))


def _keep_time(conn: Connection, now: datetime, uptime: Uptime | None) -> None:
    values = {
        "seen": epoch_micros(now),
        "sequence": conn.execute(select(func.coalesce(func.max(REFLOG.c.sequence), 0))).scalar_one(),
        "boot": None if uptime is None else uptime.boot,
        "uptime": None if uptime is None else uptime.microseconds,
    }
    if not conn.execute(update(CLOCK).values(values)).rowcount:
        conn.execute(insert(CLOCK).values(id="latest", **values))


def _spell(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
