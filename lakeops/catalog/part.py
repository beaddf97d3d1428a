"""What the catalog's parts share: the database, the deadline, and the two rows that several transitions write."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from sqlalchemy import Connection, insert

from lakeops.catalog.database import Database
from lakeops.catalog.tables import REFLOG, RETIRED
from lakeops.model.clock import unix_seconds


class Part:
    """A group of transitions over one database.

    Attributes:
        database: where transactions run.
        deadline: how old an attempt may be when it publishes or links.
    """

    def __init__(self, database: Database, deadline: timedelta) -> None:
        self.database = database
        self.deadline = deadline

    def _record_move(
        self, conn: Connection, repository_id: str, ref: str, old: str | None, new: str | None, action: str, actor: str
    ) -> None:
        conn.execute(
            insert(REFLOG).values(
                repository_id=repository_id,
                ref=ref,
                old=old,
                new=new,
                action=action,
                actor=actor,
                at=unix_seconds(self.database.dialect.now(conn)),
            )
        )

    def _retire(
        self, conn: Connection, repository_id: str, tokens: Iterable[str], *, commit_id: str | None = None
    ) -> None:
        rows = [
            {"repository_id": repository_id, "token": token, "commit_id": commit_id, "purged": False}
            for token in tokens
        ]
        if rows:
            conn.execute(insert(RETIRED), rows)
