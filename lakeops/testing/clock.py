"""A clock that stands still until it is told to move."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lakeops.model.clock import Uptime


class ManualClock:
    """Tells one moment until a test moves it. Hand it to ``Lake.open(clock=...)``.

    Args:
        moment: the first moment, aware. The beginning of 2026 when left out.

    Attributes:
        moment: what ``now`` tells.
        boot: the name of the machine's last start. Set another one to act a restart of the machine.
        passed: for how long the machine has been running.
    """

    def __init__(self, moment: datetime | None = None) -> None:
        self.moment: datetime = moment or datetime(2026, 1, 1, tzinfo=UTC)
        self.boot = "first"
        self.passed: timedelta = timedelta()

    def now(self) -> datetime:
        """Return ``moment``."""
        return self.moment

    def advance(self, **by: float) -> None:
        """Let time pass. Takes what ``timedelta`` takes: ``advance(days=1, hours=2)``."""
        self.moment += timedelta(**by)
        self.passed += timedelta(**by)

    def jump(self, **by: float) -> None:
        """Set the clock to another time, as a person or a time server does. No time passes for the machine."""
        self.moment += timedelta(**by)

    def uptime(self) -> Uptime:
        """Tell how long the machine has run since its last start. ``jump`` does not change it."""
        return Uptime(self.boot, self.passed // timedelta(microseconds=1))

    @property
    def seconds(self) -> int:
        """The moment as Unix seconds."""
        return int(self.moment.timestamp())
