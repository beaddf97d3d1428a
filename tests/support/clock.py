"""A clock that stands still until it is told to move."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lakeops.model.clock import Uptime


class ManualClock:
    """Tells one moment; ``advance`` lets time pass, ``jump`` sets the clock while the machine counts on as it did."""

    def __init__(self, moment: datetime | None = None) -> None:
        self.moment = moment or datetime(2026, 1, 1, tzinfo=UTC)
        self.boot = "first"
        self.passed = timedelta()

    def now(self) -> datetime:
        return self.moment

    def advance(self, **by: float) -> None:
        self.moment += timedelta(**by)
        self.passed += timedelta(**by)

    def jump(self, **by: float) -> None:
        self.moment += timedelta(**by)

    def uptime(self) -> Uptime:
        return Uptime(self.boot, self.passed // timedelta(microseconds=1))

    @property
    def seconds(self) -> int:
        """Unix seconds."""
        return int(self.moment.timestamp())
