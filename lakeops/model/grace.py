"""The grace period of a repository: the age below which garbage collection touches nothing.

It belongs to the repository, so every process goes by the same one. A longer one counts at once. A shorter one counts
once the old one has passed: until then an attempt that began under the old one keeps the time that it was given.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lakeops.model.clock import unix_seconds
from lakeops.model.errors import InvalidInput
from lakeops.model.text import excerpt

LONGEST = 366 * 86_400
"""The longest grace period, in seconds."""

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Grace:
    """A grace period, and the longer one that still counts ``until`` a moment (None: there is none)."""

    seconds: int
    before: int | None = None
    until: datetime | None = None

    def at(self, moment: datetime) -> timedelta:
        """What counts at a moment."""
        if self.before is None or self.until is None or moment >= self.until:
            return timedelta(seconds=self.seconds)
        return timedelta(seconds=max(self.seconds, self.before))

    def changed(self, seconds: int, now: datetime) -> Grace:
        """The grace period once it is set to ``seconds``. What counts now stays as long as it was promised."""
        old = int(self.at(now).total_seconds())
        if seconds == self.seconds:
            return self
        return Grace(seconds) if seconds >= old else Grace(seconds, old, now + timedelta(seconds=old))

    def to_json(self, now: datetime) -> dict[str, Any]:
        """What counts now, and what it is going to be from when on, for programs."""
        counts = int(self.at(now).total_seconds())
        waits = counts != self.seconds and self.until is not None
        return {
            "grace_seconds": counts,
            "pending_seconds": self.seconds if waits else None,
            "pending_from": unix_seconds(self.until) if waits and self.until is not None else None,
        }


def parse_grace(text: str | float) -> int:
    """A grace period in seconds, from a number of seconds or a text such as ``24h``. Raises ``InvalidInput``."""
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([smhd]?)", str(text).strip())
    seconds = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if not 0 < seconds <= LONGEST:
        raise InvalidInput(f"{excerpt(str(text))} is no grace period: give seconds, or 90m, 24h, 7d; at most 366 days")
    return seconds
