"""Marks: what one run of garbage collection found and may delete, and how far that has come.

::

    marking ------> marked ------> sweeping ------> swept
       |  |           |  |          ^     |
       |  +--> restoring +          |     v
       v         |    v             +- incomplete     the store refused to delete some of it
    failed       v  stale                 |
              restored                    v
                                        carried       a newer mark that is swept holds what was left

``failed`` and ``stale`` are marks that a newer one followed before they were swept. Only a marked one may begin to be
swept, and a sweep that began may always go on. Until it begins, the commits that the mark expired can be restored. From
``marking`` on, until nothing of it can be deleted any more, no object that the mark may hold can be linked again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from lakeops.model.clock import unix_seconds


class MarkState(StrEnum):
    """Where a mark is in its life."""

    MARKING = "marking"
    MARKED = "marked"
    SWEEPING = "sweeping"
    INCOMPLETE = "incomplete"
    SWEPT = "swept"
    CARRIED = "carried"
    STALE = "stale"
    FAILED = "failed"
    RESTORING = "restoring"
    RESTORED = "restored"


UNPROVED = "unproved"
"""Stands in place of a mark where a fail-over expired commits that nobody has looked at since."""

BEGUN = (MarkState.SWEEPING, MarkState.INCOMPLETE, MarkState.SWEPT, MarkState.CARRIED)
"""What was swept, at least in part: the commits that it expired are gone for good."""

HOLDING = (MarkState.MARKED, MarkState.SWEEPING, MarkState.INCOMPLETE)
"""What has a list and may still delete what is on it. There are never more than two or three of these."""

PENDING = (MarkState.MARKING, *HOLDING)
"""What may still delete something."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One run of garbage collection.

    Attributes:
        id: the run; begins with the second that it began in.
        state: where it is.
        created: when it began to decide about commits, by the database's clock.
        cutoff: what was begun after this is too young to be looked at.
        digest: the SHA-256 of the mark file, in hex; empty until there is one.
        rows: how many files the mark holds, metadata files included.
        objects: how many of them are objects, and ``bytes`` how large these are together.
        listed: how many objects there were in all.
        swept: how many of its rows, from the first, are known to be deleted.
        refused: how many files the store refused to delete, and ``failures`` some of them: key and reason.
    """

    id: str
    state: MarkState
    created: datetime
    cutoff: datetime
    digest: str = ""
    rows: int = 0
    objects: int = 0
    bytes: int = 0
    listed: int = 0
    swept: int = 0
    refused: int = 0
    failures: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The mark for programs."""
        return {
            "id": self.id,
            "state": self.state.value,
            "creation_date": unix_seconds(self.created),
            "objects": self.objects,
            "bytes": self.bytes,
            "files": self.rows - self.objects,
            "listed": self.listed,
            "swept": self.swept,
            "refused": self.refused,
            "failures": [{"key": key, "reason": reason} for key, reason in self.failures],
        }
