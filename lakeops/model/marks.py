"""Marks: what one run of garbage collection found and may delete, and how far that has come.

::

    marking ---> marked ---> sweeping ---> swept
       |            |
       v            v
    failed        stale        a newer mark began

Only a marked one may be swept, and a sweep that began may always go on. From ``marking`` until ``swept``, no object
that the mark may hold can be linked again.
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
    SWEPT = "swept"
    STALE = "stale"
    FAILED = "failed"


PENDING = (MarkState.MARKING, MarkState.MARKED, MarkState.SWEEPING)
"""What may still delete something."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One run of garbage collection.

    Attributes:
        id: the run; begins with the second that it began in.
        state: where it is.
        created: when its roots were defined, by the database's clock.
        cutoff: what was begun after this is too young to be looked at.
        digest: the SHA-256 of the mark file, in hex; empty until there is one.
        rows: how many files the mark holds, metadata files included.
        objects: how many of them are objects, and ``bytes`` how large these are together.
        listed: how many objects there were in all.
        swept: how many of its rows, from the first, are known to be deleted.
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
        }
