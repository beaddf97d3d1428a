"""Catalogs as tests need them: what is the same for each is done once a process, and nothing waits for a disk.

Most tests open a catalog of their own. The migrations take alembic about 50 ms, the statements that come out of them
3 ms. SQLAlchemy compiles 65 statements for a first commit, which takes longer than the commit. A SQLite transaction
that waits for the disk takes 4 ms more. Killed processes lose nothing without that wait, only machines do.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Dialect, Engine, event
from sqlalchemy.pool import Pool
from sqlalchemy.util import LRUCache

from lakeops.catalog.database import VERSION_TABLE
from lakeops.catalog.migrations import run

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
        cursor = conn.connection.cursor()  # SQLAlchemy would take as long again for them as SQLite does
        for statement in statements:
            cursor.execute(statement)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "run_migrations", make)
        yield


@contextmanager
def statements_compiled_once() -> Iterator[None]:
    """Inside the block, all engines of this process share the statements that any of them has compiled.

    SQLAlchemy keeps them for each engine, by its dialect. Here dialects of one class stand for each other: tests
    configure none.
    """
    compiled: LRUCache[Any, Any] = LRUCache(2000)
    shared = property(lambda _engine: compiled, lambda _engine, _own: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_compiled_cache", shared, raising=False)
        patch.setattr(Dialect, "__hash__", lambda dialect: hash(type(dialect)), raising=False)
        patch.setattr(Dialect, "__eq__", lambda dialect, other: type(dialect) is type(other), raising=False)
        yield


@contextmanager
def no_waits_for_the_disk(*, wanted: bool = True) -> Iterator[None]:
    """Inside the block, SQLite connections of this process do not wait for the disk, or do when ``wanted`` is false."""
    change = event.listen if wanted else event.remove
    undo = event.remove if wanted else event.listen
    change(Pool, "connect", _hurry_at_first)
    change(Pool, "checkout", _hurry)
    try:
        yield
    finally:
        undo(Pool, "connect", _hurry_at_first)
        undo(Pool, "checkout", _hurry)


def _hurry_at_first(driver: Any, _record: Any) -> None:
    # The catalog's own setting comes after it has turned the write-ahead log on, which waits for the disk too.
    if type(driver) is sqlite3.Connection:
        driver.execute("PRAGMA synchronous = OFF")


def _hurry(driver: Any, record: Any, _proxy: Any) -> None:
    # At each checkout and not at the connect, where the catalog's own setting would come later.
    if type(driver) is sqlite3.Connection and "hurries" not in record.info:
        driver.execute("PRAGMA synchronous = OFF")
        record.info["hurries"] = True


def _tables(conn: Connection) -> list[str]:
    """The statements that make the tables and indexes that are there."""
    theirs = "sql IS NOT NULL AND name NOT LIKE 'sqlite%'"
    return list(conn.exec_driver_sql(f"SELECT sql FROM sqlite_master WHERE {theirs}").scalars())
