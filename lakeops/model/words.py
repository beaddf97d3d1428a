"""Words for people: nothing that a terminal would obey, and sizes and times as people read them.

Paths, messages and metadata come from whoever wrote them. What is printed keeps no control character, so no name can
move the cursor, recolour the screen, forge a line of a log or turn text around. JSON escapes them by itself.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from lakeops.model.errors import InvalidInput
from lakeops.model.ids import EARLIEST, LATEST

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1 controls: newlines and escape sequences among them
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that turn the direction of text
    "\u2028\u2029\ud800-\udfff]"  # line and paragraph separators, lone surrogates
)


def safe(text: str) -> str:
    """The text on one line, with every control character written as Python escapes it."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


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
    """A time in UTC, written like ``2026-11-02 13:48:37 +0000 UTC``; in seconds, where there is no such date."""
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
    return int(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]
