"""What runs left on record for people to look at: the last check of a repository, and how far behind a mirror was.

Nothing rests on a report. It may be missing, and what it says was so when it was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ReportKind(StrEnum):
    """What a report is about."""

    CHECK = "check"
    LAG = "lag"


KEPT = {ReportKind.CHECK: 1, ReportKind.LAG: 300}
"""How many reports of a kind a repository keeps."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a run found.

    Attributes:
        at: when, in Unix seconds.
        actor: who ran it.
        found: what it found, as the kind has it.
    """

    at: int
    actor: str
    found: Mapping[str, Any]

    def number(self, name: str) -> int:
        """A number of what was found; 0 where it is none."""
        value = self.found.get(name)
        return value if isinstance(value, int) else 0
