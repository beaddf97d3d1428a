"""What the catalog's parts share: the database, the deadline, and the two rows that several transitions write."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Connection, Insert, Table, bindparam, exists, insert, select

from lakeops.catalog.database import Database
from lakeops.catalog.guards import check_live, find_repository, under
from lakeops.catalog.tables import BRANCH, COMMIT, REFLOG, RETIRED
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import AlreadyExists
from lakeops.model.records import Ref

# Built once: building a statement takes as long as running it.
_NEW_BRANCH = insert(BRANCH)
_NEW_RECORD = insert(REFLOG)


def new_ref(table: Table, **more: ColumnElement[Any]) -> Insert:
    """A statement that inserts a ref, unless its name is taken or its commit is not live: all in one look.

    Parameters ``repository``, ``ref``, ``commit``, and what is in ``more``: further columns of the table.
    """
    here: BindParameter[str] = bindparam("repository")
    name: BindParameter[str] = bindparam("ref", type_=table.c.name.type)
    taken = exists().where(table.c.repository_id == here, table.c.name == name)
    values = {"repository_id": COMMIT.c.repository_id, "name": name, "commit_id": COMMIT.c.id, **more}
    live = select(*values.values()).where(
        COMMIT.c.repository_id == here, COMMIT.c.id == bindparam("commit"), COMMIT.c.expired.is_(False), ~taken
    )
    statement = insert(table).from_select(list(values), live)
    return statement.execution_options(preserve_rowcount=True)  # psycopg forgets it with the cursor


class Part:
    """A group of transitions over one database.

    Attributes:
        database: where transactions run.
        deadline: how old an attempt may be when it publishes or links.
    """

    def __init__(self, database: Database, deadline: timedelta) -> None:
        self.database = database
        self.deadline = deadline

    def _refs(self, table: Table, repository_id: str, prefix: str, after: str, limit: int) -> list[Ref]:
        """A page of branches or tags by name in byte order."""
        name = table.c.name
        mine = (table.c.repository_id == repository_id, name > after, *under(name, prefix))
        query = select(name, table.c.commit_id).where(*mine).order_by(name).limit(limit)

        def work(conn: Connection) -> list[Ref]:
            find_repository(conn, repository_id)
            return [Ref(row.name, row.commit_id) for row in conn.execute(query)]

        return self.database.read(work)

    @staticmethod
    def _insert_branch(conn: Connection, repository_id: str, name: str, commit_id: str, token: str) -> None:
        """A branch with an empty staging area."""
        conn.execute(
            _NEW_BRANCH,
            {
                "repository_id": repository_id,
                "name": name,
                "commit_id": commit_id,
                "staging_token": token,
                "sealed_tokens": [],
                "resets": 0,
            },
        )

    def _insert_ref(self, conn: Connection, new: Insert, word: str, values: dict[str, str]) -> None:
        """Run a statement of ``new_ref``. Raises ``AlreadyExists``, ``CommitExpired``, ``RefNotFound``."""
        if conn.execute(new, values).rowcount:
            return
        taken = select(new.table.c.name).where(
            new.table.c.repository_id == values["repository"], new.table.c.name == values["ref"]
        )
        if not conn.execute(taken).first():
            check_live(conn, values["repository"], [values["commit"]])
        raise AlreadyExists(f"{word} {values['ref']!r} exists already in repository {values['repository']!r}")

    def _record_move(
        self, conn: Connection, repository_id: str, ref: str, old: str | None, new: str | None, action: str, actor: str
    ) -> None:
        conn.execute(
            _NEW_RECORD,
            {
                "repository_id": repository_id,
                "ref": ref,
                "old": old,
                "new": new,
                "action": action,
                "actor": actor,
                "at": unix_seconds(self.database.dialect.now(conn)),
            },
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
