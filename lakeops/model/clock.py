"""Time, randomness, waiting and grace periods.

Nothing else in the package asks for the time, a random number or a pause, so a test can hold them still. The catalog
has a clock of its own, the database's, and deadlines are decided by that one. With SQLite the two are the same.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lakeops.model.errors import InvalidInput
from lakeops.model.sanitising import excerpt

if TYPE_CHECKING:
    from tenacity import Retrying

T = TypeVar("T")

FIRST_WAIT = 0.05
LONGEST_WAIT = 2.0
"""Seconds that a call waits at most before it is tried again."""

_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = [one + other for one in _DIGITS for other in _DIGITS]
"""Ten bits in two characters: every put takes a name, and single digits take twice as long."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """A clock."""

    def now(self) -> datetime:
        """The present moment: aware, in UTC."""
        ...


@dataclass(frozen=True, slots=True)
class Uptime:
    """For how long a machine has been running since it was started, sleep included, and the name of that start."""

    boot: str
    microseconds: int


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The present moment: aware, in UTC."""
        return datetime.now(UTC)

    def uptime(self) -> Uptime | None:
        """How long the machine runs, however its clock is set meanwhile. None where the system does not tell."""
        try:
            boot = _BOOT.read_text().strip()
            return Uptime(boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000)
        except (OSError, AttributeError):
            return None


def uptime_of(clock: Clock) -> Uptime | None:
    """How long a clock's machine runs. None when the clock does not tell."""
    tell = getattr(clock, "uptime", None)
    found: Uptime | None = None if tell is None else tell()
    return found


class Ids:
    """Fresh names and random delays, from the operating system's randomness, or a seeded ``random.Random`` in tests."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._random = source or random.SystemRandom()

    def new(self) -> str:
        """A fresh name: 20 characters of ``[0-9a-v]``, 100 random bits, never used before."""
        bits = self._random.getrandbits(100)
        return "".join([_PAIRS[(bits >> shift) & 1023] for shift in range(90, -1, -10)])

    def jitter(self, seconds: float) -> float:
        """A random share of ``seconds``, to keep retries of several processes apart."""
        return self._random.random() * seconds

    def backoff(self, tries: int) -> float:
        """A random wait after so many tries: up to twice as long each time, and at most ``LONGEST_WAIT``."""
        return self.jitter(min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(tries, 10)))  # 2**1024 is no float


def retrying(
    when: Callable[[BaseException], bool], ids: Ids, *, tries: int | None = None, seconds: float | None = None
) -> Retrying:
    """Calls a function again after errors that may pass (``when``): the one policy of the package.

    It is called at most ``tries`` times, and not after so many ``seconds``. Waits are as in ``backoff``. The last error
    is raised as it was.
    """
    import tenacity

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(when),
        stop=tenacity.stop_any(
            tenacity.stop_never if tries is None else tenacity.stop_after_attempt(tries),
            tenacity.stop_never if seconds is None else tenacity.stop_after_delay(seconds),
        ),
        wait=lambda state: ids.backoff(state.attempt_number),
        sleep=pause,
        reraise=True,
    )


def retry(attempt: Callable[[], T | None], tries: int, otherwise: Callable[[], Exception]) -> T:
    """Repeat a compare-and-swap at once while it loses. ``attempt`` returns None when it lost.

    Raises what ``otherwise`` makes after so many ``tries``.
    """
    for _ in range(tries):
        done = attempt()
        if done is not None:
            return done
    raise otherwise()


def pause(seconds: float) -> None:
    """Wait between two tries. With ``pause_async`` the only wait in the package."""
    time.sleep(seconds)


async def pause_async(seconds: float) -> None:
    """Sleep in an event loop, which goes on meanwhile."""
    import asyncio

    await asyncio.sleep(seconds)


def stopwatch() -> Callable[[], float]:
    """Start to count seconds. The returned function tells how many have passed, whatever the clock is set to."""
    begun = time.monotonic()
    return lambda: time.monotonic() - begun


def unix_seconds(moment: datetime) -> int:
    """A moment as whole Unix seconds, the precision that records keep."""
    return int(moment.timestamp())


LONGEST = 366 * 86_400
"""The longest grace period, in seconds."""

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
"""Seconds of a unit of time."""


@dataclass(frozen=True, slots=True)
class Grace:
    """A grace period, and the longer one that still counts ``until`` a moment (None: there is none)."""

    seconds: int
    before: int | None = None
    until: datetime | None = None

    def at(self, moment: datetime) -> timedelta:
        """The grace period that counts at a moment."""
        before = self.before if self.until is not None and moment < self.until else None
        return timedelta(seconds=max(self.seconds, before or 0))

    def changed(self, seconds: int, now: datetime) -> Grace:
        """Set the grace period to ``seconds``. A longer one that counts now stays for as long as it was promised."""
        old = int(self.at(now).total_seconds())
        if seconds == self.seconds:
            return self
        return Grace(seconds) if seconds >= old else Grace(seconds, old, now + timedelta(seconds=old))

    def to_json(self, now: datetime) -> dict[str, Any]:
        """The grace period now, the one that follows, and from when on."""
        counts = int(self.at(now).total_seconds())
        waits = counts != self.seconds and self.until is not None
        return {
            "grace_seconds": counts,
            "pending_seconds": self.seconds if waits else None,
            "pending_from": unix_seconds(self.until) if waits and self.until else None,
        }


def parse_grace(text: str | float) -> int:
    """A grace period in seconds, from a number of seconds or a text such as ``24h``. Raises ``InvalidInput``."""
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([smhd]?)", str(text).strip())
    seconds = int(float(found[1]) * UNITS[found[2]]) if found else 0
    if not 0 < seconds <= LONGEST:
        raise InvalidInput(f"{excerpt(str(text))} is no grace period: give seconds, or 90m, 24h, 7d; at most 366 days")
    return seconds
