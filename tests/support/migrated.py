"""SQLite catalogs whose schema the migrations made once: each later one repeats the statements that came out.

The migrations take alembic about 50 ms, the statements 3 ms, and most tests open a catalog of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection

from lakeops.catalog.migrations import run
from lakeops.catalog.tables import VERSION_TABLE

run_migrations = run.run_migrations


@contextmanager
def schema_made_once() -> Iterator[None]:
    """Inside the block, only the first new SQLite catalog of this process runs the migrations."""
    statements: list[str] = []

    def make(conn: Connection) -> None:
        if conn.dialect.name != "sqlite" or _tables(conn):
            run_migrations(conn)
            return
        if not statements:
            run_migrations(conn)
            statements.extend(_tables(conn))
            (version,) = conn.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalars()
            statements.append(f"INSERT INTO {VERSION_TABLE} VALUES ('{version}')")
            return
        for statement in statements:
            conn.exec_driver_sql(statement)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "run_migrations", make)
        yield


def _tables(conn: Connection) -> list[str]:
    """The statements that make the tables and indexes that are there."""
    theirs = "sql IS NOT NULL AND name NOT LIKE 'sqlite%'"
    return list(conn.exec_driver_sql(f"SELECT sql FROM sqlite_master WHERE {theirs}").scalars())
