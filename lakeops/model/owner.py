"""The owner record: which catalog may delete in a storage namespace.

A catalog is known by its id and by where its database really is. A copy of the database has the same id and is
elsewhere. A copy that is the same byte by byte, its place included, is found out by the nonce: every begun mark
writes a fresh one into the namespace and into the catalog that made it, and the other one lacks it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """A catalog.

    Attributes:
        catalog: its id, which a copy of the database has too.
        database: what tells the database from a copy. What the server does not tell is left out.
        shown: the database for people, without user and password.
    """

    catalog: str
    database: Mapping[str, str]
    shown: str

    def is_same(self, other: Identity) -> bool:
        """Whether both are one database. A fact that only one of them has tells nothing."""
        facts = self.database.keys() & other.database.keys()
        return self.catalog == other.catalog and all(self.database[one] == other.database[one] for one in facts)


@dataclass(frozen=True, slots=True)
class Owner:
    """One owner record.

    Attributes:
        repository: the repository's name in the catalog.
        identity: the catalog that may delete.
        epoch: goes up by one each time that another catalog takes the namespace over.
        nonce: goes out of use with the next mark.
        at: when it was written, in Unix seconds by the catalog's clock.
    """

    repository: str
    identity: Identity
    epoch: int
    nonce: str
    at: int

    def again(self, nonce: str, at: int) -> Owner:
        """The record of the same owner with a fresh nonce."""
        return replace(self, nonce=nonce, at=at)

    def to_json(self) -> dict[str, Any]:
        """The record for programs."""
        return {
            "repository": self.repository,
            "catalog": self.identity.catalog,
            "database": self.identity.shown,
            "epoch": self.epoch,
            "at": self.at,
        }

    def to_text(self) -> str:
        """The record as it is written."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)


def read_owner(text: str | bytes) -> Owner | None:
    """The record that a text holds. None when it is none."""
    try:
        found = json.loads(text)
        identity = found["identity"]
        facts = {str(name): str(value) for name, value in identity["database"].items()}
        return Owner(
            str(found["repository"]),
            Identity(str(identity["catalog"]), facts, str(identity["shown"])),
            int(found["epoch"]),
            str(found["nonce"]),
            int(found["at"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
