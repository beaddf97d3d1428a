"""Changes of a diff, counted, with the first of them: what fits into a log, an XCom or a form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lakeops.model.records import Change, ChangeType

SIGNS = {ChangeType.ADDED: "+", ChangeType.REMOVED: "-", ChangeType.CHANGED: "~", ChangeType.CONFLICT: "!"}


@dataclass(frozen=True)
class Tally:
    """How many changes of each kind there are, and the first ones in path order. As text: a line each."""

    counts: dict[str, int]
    first: list[Change]

    @classmethod
    def of(cls, changes: Iterable[Change], most: int) -> Tally:
        """The tally of a diff, which is read to its end; at most ``most`` changes are kept."""
        counts: Counter[str] = Counter()
        first: list[Change] = []
        for change in changes:
            counts[change.type.value] += 1
            if len(first) < most:
                first.append(change)
        return cls({kind.value: counts[kind.value] for kind in ChangeType}, first)

    @property
    def total(self) -> int:
        """All changes."""
        return sum(self.counts.values())

    def to_json(self) -> dict[str, Any]:
        """Counts, and the first changes as the contract's records."""
        return {
            "total": self.total,
            **self.counts,
            "changes": [change.to_json() for change in self.first],
            "truncated": self.total > len(self.first),
        }

    def __str__(self) -> str:
        counted = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items() if count)
        lines = [f"{self.total:,} changes: {counted}" if counted else "No changes"]
        lines += [f"{SIGNS[change.type]} {change.path} ({change.size_bytes:,} B)" for change in self.first]
        if self.total > len(self.first):
            lines.append(f"... and {self.total - len(self.first):,} more")
        return "\n".join(lines)
