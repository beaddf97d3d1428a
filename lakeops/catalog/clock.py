"""Whether the clock can be believed: what expires or deletes by age asks first.

A clock that jumped a year ahead makes everything look old at once. No setting tells that from a year in which nobody
worked, so the catalog keeps the latest time that it has seen and lets nothing be collected until somebody confirms.

* ``believe`` is part of every transition that expires or deletes by age. It needs a time that is not before what was
  seen, and not after it by more than ``BOUND``. Leaves it as seen. Recovery: repeat it.
* ``check_clock`` does the same for what has several transactions.
* ``confirm_clock`` leaves the present time as seen, whatever was seen before, and takes back what the catalog recorded
  as ahead of it: fences and marks. Recovery: repeat it.

What was seen: the last time that was believed, then every move of a ref since, of all repositories. A commit a day is
evidence enough, and nothing has to be written for it. Jumps are looked for between one move and the next. A wait that
is too long is no jump where the machine proves it: it has been running since the last time that was believed, and has
counted as many seconds as its clock says.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, func, insert, select, update

from lakeops.catalog.database import run_again
from lakeops.catalog.guards import CatalogPart
from lakeops.catalog.rows import AnyRow, from_ticks, ticks
from lakeops.catalog.tables import CLOCK, MARK, REFLOG, REPOSITORY
from lakeops.model.clock import Clock, SystemClock, Uptime, uptime_of
from lakeops.model.errors import (
    MarkRefused,
)
from lakeops.model.marks import MarkState

BOUND = timedelta(hours=60)
"""How long a catalog may be idle before somebody has to say that it was: a nightly job may miss one night and half a
day. A jump that stays below it costs no data that anybody is writing, and takes as much off the retention."""

SLACK = timedelta(minutes=1)
"""What clocks may differ by."""

_DRIFT = 0.001
"""The share by which a machine's two clocks may run apart."""

_ROW = "latest"


class Clocks(CatalogPart):
    """The time, as far as it can be believed."""

    @property
    def has_own_clock(self) -> bool:
        """Whether ``now`` is a server's time, and not what the catalog was opened with."""
        return self.database.dialect.name == "postgresql"

    @property
    def has_real_clock(self) -> bool:
        """Whether ``now`` is what a server or this machine says, and not a clock that somebody holds."""
        return self.has_own_clock or isinstance(self.clock, SystemClock)

    def check_clock(self) -> datetime:
        """The time, for what expires or deletes by age. See ``catalog.clock``.

        Raises ``MarkRefused`` (``clock_in_doubt``).
        """
        return self.database.write(lambda conn: believe(conn, self.database.dialect.now(conn), self.clock))

    def confirm_clock(self) -> datetime:
        """Let the time be believed whatever was seen before. Returns it. Somebody has looked at the clock."""

        def work(conn: Connection) -> datetime:
            now = self.database.dialect.now(conn)
            later = REPOSITORY.c.fence > ticks(now)
            conn.execute(update(REPOSITORY).where(later).values(fence=ticks(now)))
            ahead = (MARK.c.created > ticks(now), MARK.c.state.in_([MarkState.MARKING.value, MarkState.MARKED.value]))
            conn.execute(update(MARK).where(*ahead).values(state=MarkState.STALE.value))
            conn.execute(update(MARK).where(MARK.c.created > ticks(now)).values(created=ticks(now)))
            _keep(conn, now, uptime_of(self.clock))
            self._record(conn, "", "confirm-clock", "clock", "", None, "confirmed")
            return now

        return self.database.write(work, settle=run_again)


def first_seen(conn: Connection, now: datetime, clock: Clock) -> None:
    """Begin to keep the time, where nothing has been seen yet."""
    if _find(conn) is None:
        _keep(conn, now, uptime_of(clock))


def believe(conn: Connection, now: datetime, clock: Clock) -> datetime:
    """The time, which the catalog has seen from then on. Raises ``MarkRefused`` (``clock_in_doubt``)."""
    row, uptime = _find(conn), uptime_of(clock)
    waits = _waits_until(conn, row, now)
    latest = max((end for wait in waits for end in wait if end is not now), default=now)
    if now < latest - SLACK:
        raise MarkRefused(
            f"the database's clock says {_spell(now)}, but something happened at {_spell(latest)}: it was set back; "
            f"nothing is deleted until it is right again, {_CONFIRM}",
            kind="clock_in_doubt",
        )
    before, after = max(waits, key=lambda wait: wait[1] - wait[0])
    if after - before > BOUND and not _proven(row, now, uptime):
        raise MarkRefused(
            f"the database's clock says {_spell(now)}; nothing happened between {_spell(before)} and {_spell(after)}, "
            f"{(after - before).days} days: either nobody worked, or a clock jumped ahead and everything looks old; "
            f"nothing is expired or deleted until it is set right, {_CONFIRM}",
            kind="clock_in_doubt",
        )
    _keep(conn, now, uptime)
    return now


_CONFIRM = "or until somebody confirms the clock with `lakeops gc confirm-clock`"


def _waits_until(conn: Connection, row: AnyRow | None, now: datetime) -> list[tuple[datetime, datetime]]:
    """Between what was seen and now: the first and the last wait for a ref to move, and the longest between them."""
    at = REFLOG.c.at
    since = REFLOG.c.sequence > (-1 if row is None else row.sequence)
    first, last = conn.execute(select(func.min(at), func.max(at)).where(since)).one()
    if first is None:
        return [(now if row is None else from_ticks(row.seen), now)]
    wait = (at - func.lag(at).over(order_by=at)).label("wait")
    steps = select(at, wait).where(since).subquery()
    within = select(steps.c.at - steps.c.wait, steps.c.at).where(steps.c.wait.is_not(None))
    longest = conn.execute(within.order_by(steps.c.wait.desc()).limit(1)).first()
    waits = [(_second(last), now)]
    if longest is not None:
        waits.append((_second(longest[0]), _second(longest[1])))
    if row is not None:
        waits.append((from_ticks(row.seen), _second(first)))
    return waits


def _second(count: int) -> datetime:
    return from_ticks(count * 1_000_000)


def _proven(row: AnyRow | None, now: datetime, uptime: Uptime | None) -> bool:
    """Whether this machine has counted the time since the last time that was believed."""
    if row is None or uptime is None or row.uptime is None or row.boot != uptime.boot:
        return False
    passed, counted = ticks(now) - row.seen, uptime.microseconds - row.uptime
    return bool(abs(passed - counted) <= SLACK / timedelta(microseconds=1) + _DRIFT * abs(counted))


def _find(conn: Connection) -> AnyRow | None:
    return conn.execute(select(CLOCK).where(CLOCK.c.id == _ROW)).one_or_none()


def _keep(conn: Connection, now: datetime, uptime: Uptime | None) -> None:
    values = {
        "seen": ticks(now),
        "sequence": conn.execute(select(func.coalesce(func.max(REFLOG.c.sequence), 0))).scalar_one(),
        "boot": None if uptime is None else uptime.boot,
        "uptime": None if uptime is None else uptime.microseconds,
    }
    if not conn.execute(update(CLOCK).where(CLOCK.c.id == _ROW).values(values)).rowcount:
        conn.execute(insert(CLOCK).values(id=_ROW, **values))


def _spell(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
