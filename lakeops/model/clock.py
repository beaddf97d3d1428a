"""Where time, randomness and waiting come from, so that a test can hold them still.

Nothing else in the package asks for the time, a random number or a pause. The catalog has a clock of its own (the
database's). Deadlines are decided by that one. With SQLite the two are the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

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
    """Anything that tells the time."""

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
        """What the machine has counted, however its clock is set meanwhile. None where the system does not tell."""
        try:
            boot = _BOOT.read_text().strip()
            return Uptime(boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000)
        except (OSError, AttributeError):
            return None


def uptime_of(clock: Clock) -> Uptime | None:
    """What a clock's machine has counted. None when the clock does not tell."""
    tell = getattr(clock, "uptime", None)
    found: Uptime | None = None if tell is None else tell()
    return found


class Ids:
    """Fresh names and random delays.

    Args:
        source: the randomness. The operating system's by default. Tests pass a seeded ``random.Random``.
    """

    def __init__(self, source: random.Random | None = None) -> None:
        self._random = source or random.SystemRandom()

    def new(self) -> str:
        """A fresh name: 20 characters of ``[0-9a-v]``, 100 random bits, never used before."""
        bits = self._random.getrandbits(100)
        return "".join([_PAIRS[(bits >> shift) & 1023] for shift in range(90, -1, -10)])

    def jitter(self, seconds: float) -> float:
        """A random share of ``seconds``, to keep retries of several processes apart."""
        return self._random.random() * seconds


def retrying(
    when: Callable[[BaseException], bool], ids: Ids, *, tries: int | None = None, seconds: float | None = None
) -> Retrying:
    """Calls a function again after errors that may pass: the one policy of the package.

    The waits are random, and up to twice as long each time. The last error is raised as it was.

    Args:
        when: whether an error may pass.
        ids: where the random waits come from.
        tries: how often the function is called at most.
        seconds: after how long it is not called again.
    """
    import tenacity

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(when),
        stop=tenacity.stop_any(
            tenacity.stop_never if tries is None else tenacity.stop_after_attempt(tries),
            tenacity.stop_never if seconds is None else tenacity.stop_after_delay(seconds),
        ),
        wait=lambda state: ids.jitter(min(LONGEST_WAIT, FIRST_WAIT * 2**state.attempt_number)),
        sleep=pause,
        reraise=True,
    )


def retry(attempt: Callable[[], T | None], tries: int, otherwise: Callable[[], Exception]) -> T:
    """Try a compare-and-swap at once again while others are quicker, which ``attempt`` says by returning None.

    Returns its first other result. Raises what ``otherwise`` makes after so many ``tries``.
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
    """Tells how many seconds have passed since now, however the machine's clock is set meanwhile."""
    begun = time.monotonic()
    return lambda: time.monotonic() - begun


def unix_seconds(moment: datetime) -> int:
    """A moment as whole Unix seconds, the precision that records keep."""
    return int(moment.timestamp())
