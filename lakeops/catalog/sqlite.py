"""SQLite: the embedded catalog, with write-ahead logging and every commit forced to disk.

Writers begin with ``BEGIN IMMEDIATE``, and wait there for up to a minute (``?timeout=SECONDS`` in the URL changes it),
since a transaction that begins as a reader fails when it wants to write after somebody else. Readers see one snapshot.
SQLite keeps no queue, and its own wait asks less often the longer it takes, so newcomers overtake. The wait here asks
more often.
"""

from __future__ import annotations

import gc
import os
import pwd
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic_core
from sqlalchemy import URL, Connection, Engine, create_engine, event, select

from lakeops.catalog.database import Dialect, TransactionFailure
from lakeops.catalog.guards import under
from lakeops.catalog.records import STAGED_VALUES, insert_staged
from lakeops.catalog.tables import STAGED
from lakeops.model.clock import Clock, pause, stopwatch
from lakeops.model.errors import CatalogError, invalid_settings

if TYPE_CHECKING:
    import pyarrow as pa

BUSY_SECONDS = 60
FIRST_WAIT, SHORTEST_WAIT, AGING = 0.008, 0.0005, 0.05
"""Seconds between two requests for the write lock: at first, at least, and after how long a wait half as many."""

_BATCH = 10_000
_UNLOAD = select(*(STAGED.c[name] for name in STAGED_VALUES))
_AGAIN = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}


class Sqlite(Dialect):
    """A catalog in a file."""

    name = "sqlite"
    table_names: str = "SELECT name FROM sqlite_master WHERE type = 'table'"
    insert_staged: str = insert_staged(f"VALUES ({', '.join('?' * len(STAGED.columns))})")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @cached_property
    def account(self) -> str | None:
        """Whose process this is. Only what writes asks. The environment is not asked, because anybody sets it."""
        try:
            return pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:  # a container's user without a passwd entry
            return str(os.geteuid())

    def engine(self, url: URL) -> Engine:
        """An engine over the file. Its directory is made when it is missing."""
        file, wait = url.database, url.query.get("timeout", str(BUSY_SECONDS))
        strange = {*url.query} - {"timeout"} or not re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", str(wait))
        strange = strange or url != URL.create(url.drivername, database=file, query=url.query)  # a host: two slashes
        if strange or not file or "\0" in file or file == ":memory:" or file.startswith(("file:", "~")):
            flaw = "must name a file, no host, no ~, and no option but ?timeout=SECONDS: sqlite:////path/to/catalog.db"
            raise invalid_settings(f"the catalog's SQLite URL {flaw}")
        folder = os.path.dirname(file) or "."  # noqa: PTH120 - a path object takes longer than the look
        if not os.path.isdir(folder):  # noqa: PTH112
            try:
                Path(folder).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CatalogError(f"cannot make the catalog's directory {folder}: {error.strerror}") from None
        # Pydantic's parser comes with SQLModel. A log decodes two texts a commit, which took a third of its time.
        args, parse = {"timeout": float(str(wait))}, pydantic_core.from_json
        engine = create_engine(
            url.set(query={}), connect_args=args, max_overflow=-1, hide_parameters=True, json_deserializer=parse
        )
        event.listen(engine, "connect", _set_up)
        return engine

    def begin(self, conn: Connection, *, write: bool) -> None:
        # Straight to the driver: SQLAlchemy's way to a statement takes longer than a lookup by key.
        driver: Any = conn.connection.driver_connection
        if not write:
            driver.execute("BEGIN")
            return
        (patience,) = driver.execute("PRAGMA busy_timeout").fetchone()
        driver.execute("PRAGMA busy_timeout = 0")
        try:
            waited = stopwatch()
            while True:
                try:
                    driver.execute("BEGIN IMMEDIATE")
                    return
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or waited() * 1000 >= patience:
                        raise
                pause(max(SHORTEST_WAIT, FIRST_WAIT / (1 + waited() / AGING)))
        finally:
            driver.execute(f"PRAGMA busy_timeout = {patience}")

    def now(self, conn: Connection) -> datetime:  # noqa: ARG002 - the file has no time of its own
        return self._clock.now()

    def failure_of(self, error: BaseException) -> TransactionFailure:
        """The meaning of an SQLite error: retry for a locked file, refusal for all others (disk full, no database)."""
        code = getattr(error, "sqlite_errorcode", None)
        locked = code is not None and code & 0xFF in _AGAIN
        return TransactionFailure.RETRY if locked else TransactionFailure.REFUSED

    def explain(self, engine: Engine, error: BaseException) -> str:  # noqa: ARG002
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_READONLY:
            return ""
        return ": this user has to be able to write the file, its folder, and the files -wal and -shm beside it"

    def lock_schema(self, conn: Connection) -> None:
        pass  # the transaction began with the write lock

    def copy_in(self, conn: Connection, rows: pa.Table) -> None:
        pass  # the database is in this process

    def facts(self, conn: Connection) -> dict[str, str]:
        return {
            "server_version": sqlite3.sqlite_version,
            "journal_mode": str(conn.exec_driver_sql("PRAGMA journal_mode").scalar_one()),
            "synchronous": str(conn.exec_driver_sql("PRAGMA synchronous").scalar_one()),
        }

    def identify(self, conn: Connection) -> dict[str, str]:
        """The file's real path and inode: a copy of the file has another one of either."""
        file = Path(conn.engine.url.database or "").resolve()
        return {"path": str(file), "inode": str(file.stat().st_ino)}

    def load(self, conn: Connection, repository_id: str, token: str, rows: pa.Table) -> None:
        with _many_tuples():
            for batch in rows.to_batches(max_chunksize=_BATCH):
                same = [[repository_id] * batch.num_rows, [token] * batch.num_rows]
                columns = [*same, *(column.to_pylist() for column in batch.columns), [1] * batch.num_rows]
                values = list(zip(*columns, strict=True))
                if values:  # Arrow may give a batch without any
                    conn.exec_driver_sql(self.insert_staged, values)

    def unload(self, conn: Connection, repository_id: str, token: str, prefix: str) -> pa.Table:
        import pyarrow as pa

        from lakeops.model.arrow import STAGING_COLUMNS, array

        where = (STAGED.c.repository_id == repository_id, STAGED.c.token == token, *under(STAGED.c.path, prefix))
        cursor: Any = conn.execute(_UNLOAD.where(*where).order_by(STAGED.c.path)).cursor
        batches = []
        with _many_tuples():
            while rows := cursor.fetchmany(_BATCH):
                path, tombstone, *others = zip(*rows, strict=True)
                values = (path, list(map(bool, tombstone)), *others)
                batches.append(pa.record_batch(list(map(array, values, STAGING_COLUMNS.types)), STAGING_COLUMNS))
        return pa.Table.from_batches(batches, STAGING_COLUMNS)


def _set_up(connection: sqlite3.Connection, _record: Any) -> None:  # noqa: ANN401 - SQLAlchemy's pool record
    connection.isolation_level = None  # or the driver would begin and commit by itself
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")


@contextmanager
def _many_tuples() -> Iterator[None]:
    """Run without Python's search for cycles, which so many tuples set off and which takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
