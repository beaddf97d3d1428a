"""Where time, randomness and waiting come from, so that a test can hold them still.

Nothing else in the package asks for the time, a random number or a pause. The catalog has a clock of its own (the
database's); deadlines are decided by that one. With SQLite the two are the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Anything that tells the time."""

    def now(self) -> datetime:
        """The present moment: aware, in UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The present moment: aware, in UTC."""
        return datetime.now(UTC)


class Ids:
    """Fresh names and random delays.

    Args:
        source: the randomness; the operating system's by default. Tests pass a seeded ``random.Random``.
    """

    def __init__(self, source: random.Random | None = None) -> None:
        self._random = source or random.SystemRandom()

    def new(self) -> str:
        """A fresh name: 20 characters of ``[0-9a-v]``, 100 random bits, never used before."""
        bits = self._random.getrandbits(100)
        digits = "0123456789abcdefghijklmnopqrstuv"
        return "".join(digits[(bits >> shift) & 31] for shift in range(95, -1, -5))

    def jitter(self, seconds: float) -> float:
        """A random share of ``seconds``, to keep retries of several processes apart."""
        return self._random.random() * seconds


def pause(seconds: float) -> None:
    """Wait between two tries. With ``pause_async`` the only wait in the package."""
    time.sleep(seconds)


async def pause_async(seconds: float) -> None:
    """The same in an event loop, which goes on meanwhile."""
    import asyncio

    await asyncio.sleep(seconds)


def stopwatch() -> Callable[[], float]:
    """Tells how many seconds have passed since now, however the machine's clock is set meanwhile."""
    begun = time.monotonic()
    return lambda: time.monotonic() - begun


def unix_seconds(moment: datetime) -> int:
    """A moment as whole Unix seconds, the precision that records keep."""
    return int(moment.timestamp())
