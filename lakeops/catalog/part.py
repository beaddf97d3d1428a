"""What the catalog's parts share: the database, and the two rows that several transitions write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Connection, Insert, Table, bindparam, exists, insert, select

from lakeops.catalog.database import Database
from lakeops.catalog.digests import DIGEST, note_insert, row_digest
from lakeops.catalog.guards import check_live, find_repository, under
from lakeops.catalog.tables import BRANCH, COMMIT, REFLOG, RETIRED
from lakeops.model.clock import Clock, unix_seconds
from lakeops.model.errors import AlreadyExists
from lakeops.model.mirrors import RefKind
from lakeops.model.records import Ref

# Built once: building a statement takes as long as running it.
_NEW_BRANCH = insert(BRANCH)
_NEW_RECORD = insert(REFLOG)


def new_ref(table: Table, **more: ColumnElement[Any]) -> Insert:
    """A statement that inserts a ref, unless its name is taken or its commit is not live: all in one look.

    Parameters ``repository``, ``ref``, ``commit``, ``row_digest``, and what is in ``more``: further columns of the
    table.
    """
    here: BindParameter[str] = bindparam("repository")
    name: BindParameter[str] = bindparam("ref", type_=table.c.name.type)
    taken = exists().where(table.c.repository_id == here, table.c.name == name)
    values = {"repository_id": COMMIT.c.repository_id, "name": name, "commit_id": COMMIT.c.id, **more}
    values[DIGEST] = bindparam(DIGEST, type_=table.c[DIGEST].type)
    live = select(*values.values()).where(
        COMMIT.c.repository_id == here, COMMIT.c.id == bindparam("commit"), COMMIT.c.expired.is_(False), ~taken
    )
    statement = insert(table).from_select(list(values), live)
    return statement.execution_options(preserve_rowcount=True)  # psycopg forgets it with the cursor


class Part:
    """A group of transitions over one database.

    Attributes:
        database: where transactions run.
        new_grace: the grace period of repositories that are made from here.
        clock: what tells how long this machine has been running; with SQLite also what time it is.
    """

    def __init__(self, database: Database, new_grace: timedelta, clock: Clock) -> None:
        self.database = database
        self.new_grace = new_grace
        self.clock = clock

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
                "sealed_resets": 0,
            },
        )

    def _insert_ref(
        self, conn: Connection, table: Table, new: Insert, values: dict[str, str], more: Mapping[str, Any]
    ) -> None:
        """Run a statement of ``new_ref``; ``more`` are the further columns.

        Raises:
            AlreadyExists, CommitExpired, RefNotFound.
        """
        row = {"repository_id": values["repository"], "name": values["ref"], "commit_id": values["commit"], **more}
        if conn.execute(new, {**values, DIGEST: row_digest(table, row)}).rowcount:
            note_insert(conn, table, row)
            return
        taken = select(table.c.name).where(table.c.repository_id == values["repository"], table.c.name == values["ref"])
        if not conn.execute(taken).first():
            check_live(conn, values["repository"], [values["commit"]])
        word = "branch" if table is BRANCH else "tag"
        raise AlreadyExists(f"{word} {values['ref']!r} exists already in repository {values['repository']!r}")

    def _record_move(
        self,
        conn: Connection,
        repository_id: str,
        ref: str,
        old: str | None,
        new: str | None,
        action: str,
        actor: str,
        *,
        kind: RefKind = RefKind.BRANCH,
    ) -> None:
        conn.execute(
            _NEW_RECORD,
            {
                "repository_id": repository_id,
                "kind": str(kind),
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
