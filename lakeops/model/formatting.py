"""Sizes, times and counts as people read and write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from lakeops.model.clock import UNITS
from lakeops.model.errors import InvalidInput
from lakeops.model.ids import EARLIEST, LATEST


def human_size(size: int) -> str:
    """A number of bytes in decimal units: ``12 B``, ``4.4 kB``, ``1.2 GB``."""
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} EB"


def moment(unix_seconds: int) -> str:
    """A time in UTC, written like ``2026-11-02 13:48:37 +0000 UTC``. In seconds, where there is no such date."""
    if not EARLIEST <= unix_seconds <= LATEST:
        return f"{unix_seconds} s since 1970 UTC"
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S +0000 UTC")


def counted(count: int, noun: str) -> str:
    """A number and its noun: ``1 object``, ``3 objects``, ``2 branches``, ``4 entries``."""
    plural = noun[:-1] + "ies" if noun.endswith("ry") else noun + ("es" if noun.endswith(("s", "ch")) else "s")
    return f"{count:,} {noun if count == 1 else plural}"


def span(seconds: int) -> str:
    """A length of time in its largest unit: ``45 s``, ``12 min``, ``3 h``, ``5 days``."""
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 2 * 3600:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h" if seconds < 2 * 86_400 else f"{seconds // 86_400:,} days"


def seconds(text: str) -> int:
    """How many seconds ``90``, ``90s``, ``15m``, ``2h`` or ``1d`` are. Raises ``InvalidInput``."""
    found = re.fullmatch(r"(\d{1,9})([smhd]?)", text.strip())
    if found is None:
        raise InvalidInput(f"{text!r} is no length of time; write seconds, or 15m, 2h, 1d")
    return int(found[1]) * UNITS[found[2]]


def instant(text: str, now: int) -> datetime:
    """The moment that a text names, aware, in UTC: ``2026-11-02``, ``2026-11-02T13:48``, or ``3d`` ago.

    A date is its first moment. A time without a zone is in UTC. Raises ``InvalidInput``.
    """
    try:
        try:
            found = datetime.fromisoformat(text.strip())
        except ValueError:
            found = datetime.fromtimestamp(now - seconds(text), UTC)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{text!r} is no time; write 2026-11-02, 2026-11-02T13:48, or 15m, 2h, 3d ago") from None
