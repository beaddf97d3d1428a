"""What SQLite and PostgreSQL do differently: connecting, beginning, telling the time, and what their failures mean."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import URL, Connection, Engine

if TYPE_CHECKING:
    from types import ModuleType


class Failure(Enum):
    """What a driver's error means for the transaction that it ended."""

    RETRY = "retry"
    """Rolled back, through no fault of its own; the same transaction may work now."""
    LOST = "lost"
    """The connection broke: rolled back, unless it was the answer to COMMIT that was lost."""
    REFUSED = "refused"
    """The database will not do it until somebody changes something."""


@dataclass(frozen=True, slots=True)
class Described:
    """A failure and the driver's own words for it: one line, no statement, no parameters."""

    failure: Failure
    words: str


class Dialect(Protocol):
    """One kind of database."""

    name: str

    def engine(self, url: URL) -> Engine:
        """An engine whose connections are set up for the catalog; nothing is connected yet."""
        ...

    def reader(self, engine: Engine) -> Engine:
        """The same connections, for transactions that read one snapshot and write nothing."""
        ...

    def begin(self, conn: Connection, *, write: bool) -> None:
        """Begin a transaction, the first thing that happens on a connection; closing the connection rolls it back.

        Called by hand, because an engine that anybody listens to is slower at every statement.
        """
        ...

    def now(self, conn: Connection) -> datetime:
        """The database's time, now and not at the transaction's beginning: aware, in UTC."""
        ...

    def describe_failure(self, error: BaseException) -> Described:
        """What an error of the driver means."""
        ...

    def lock_schema(self, conn: Connection) -> None:
        """Wait until no other process changes the schema, and keep them waiting until the transaction ends."""
        ...

    def facts(self, conn: Connection) -> dict[str, str]:
        """The server's version and settings that matter, for ``doctor``."""
        ...

    def whereabouts(self, conn: Connection) -> dict[str, str]:
        """What tells this database from a copy of it; a fact that the server does not give is left out."""
        ...

    def bulk(self) -> ModuleType:
        """The module that moves Arrow tables in and out of the staging table. Imports pyarrow."""
        ...


def first_line(error: BaseException) -> str:
    """What the driver said, in one line."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
