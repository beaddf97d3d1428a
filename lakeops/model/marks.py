"""Marks of garbage collection, their states, and the owner records that say which catalog may delete.

::

    marking ------> marked ------> sweeping ------> swept
       |  |           |  |          ^     |
       |  +--> restoring +          |     v
       v         |    v             +- incomplete     the store refused to delete some of it
    failed       v  stale                 |
              restored                    v
                                        carried       a newer mark that is swept holds what was left

A mark lists the files that one run found and may delete. ``failed`` and ``stale`` are marks that a newer one followed
before they were swept. Only a marked one may begin to be swept, and a sweep that began may always go on. Until it
begins, the commits that the mark expired can be restored. From ``marking`` on, until nothing of it can be deleted any
more, no object that the mark may hold can be linked again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from lakeops.model.clock import unix_seconds

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """A catalog: its id, which a copy has too, what tells its database from a copy, and its name for people."""

    catalog: str
    database: Mapping[str, str]
    shown: str

    def is_same(self, other: Identity) -> bool:
        """Whether both are one database. A fact that only one of them has tells nothing."""
        facts = self.database.keys() & other.database.keys()
        return self.catalog == other.catalog and all(self.database[one] == other.database[one] for one in facts)


@dataclass(frozen=True, slots=True)
class Owner:
    """One owner record: the catalog that may delete, and the repository's name in it.

    ``epoch`` goes up by one each time that another catalog takes the namespace over, ``nonce`` goes out of use with the
    next mark. ``at`` is when it was written, in Unix seconds by the catalog's clock.
    """

    repository: str
    identity: Identity
    epoch: int
    nonce: str
    at: int

    def to_json(self) -> dict[str, Any]:
        """The record for programs."""
        whose = {"repository": self.repository, "catalog": self.identity.catalog, "database": self.identity.shown}
        return {**whose, "epoch": self.epoch, "at": self.at}

    def to_text(self) -> str:
        """The record as it is written."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)


def read_owner(text: str | bytes) -> Owner | None:
    """Read a record. None for a text that is none."""
    try:
        found = json.loads(text)
        identity = found["identity"]
        facts = {str(name): str(value) for name, value in identity["database"].items()}
        whose = Identity(str(identity["catalog"]), facts, str(identity["shown"]))
        return Owner(str(found["repository"]), whose, int(found["epoch"]), str(found["nonce"]), int(found["at"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


class MarkState(StrEnum):
    """A state of a mark's life."""

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


OPEN = (MarkState.MARKING, MarkState.MARKED)
"""Marks whose sweep has not begun. The newest one has decided about the commits of those before it."""

SWEEPABLE = frozenset({MarkState.MARKED, MarkState.SWEEPING, MarkState.INCOMPLETE})
"""Marks that a sweep may begin with, or go on with: there are never more than two or three."""

UNPROVED = "unproved"
"""Stands in place of a mark where a fail-over expired commits that nobody has looked at since."""

BEGUN = (MarkState.SWEEPING, MarkState.INCOMPLETE, MarkState.SWEPT, MarkState.CARRIED)
"""Marks that were swept, at least in part: the commits that they expired are gone for good."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark.

    Attributes:
        id: its id, which begins with the second that the run began in.
        created: when the run began to decide about commits, by the database's clock.
        cutoff: files that were begun after this are too young to be looked at.
        digest: the SHA-256 of the mark file, in hex. Empty until there is one.
        rows: how many files the mark holds, of which ``objects`` are objects, ``bytes`` in all.
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
        known = {"id": self.id, "state": self.state.value, "creation_date": unix_seconds(self.created)}
        counts = {"objects": self.objects, "bytes": self.bytes, "files": self.rows - self.objects}
        counts |= {name: getattr(self, name) for name in ("listed", "swept", "refused")}
        return {**known, **counts, "failures": [{"key": key, "reason": reason} for key, reason in self.failures]}
