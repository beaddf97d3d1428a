"""The one door to the database: transactions, their retries, and errors in the catalog's own words.

A transition is a function of a connection. ``write`` runs it in one transaction and again, a few times with random
delays, when the database rolled it back for reasons of its own (deadlock, lock timeout, broken connection). The one
failure that may not simply be repeated is a COMMIT whose answer was lost: the caller says how to find out what
happened, or the error says that nobody knows. No message holds a password, a statement or a parameter.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakSet

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import Pool

from lakeops.catalog.tables import STAGED
from lakeops.model.clock import FIRST_WAIT, Ids, pause, retrying, stopwatch
from lakeops.model.errors import CatalogError, Transient

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("lakeops.catalog")


class TransactionFailure(Enum):
    """What a driver's error means for the transaction that it ended."""

    RETRY = "retry"
    """Rolled back, through no fault of its own. The same transaction may work now."""
    LOST = "lost"
    """The connection broke: rolled back, unless it was the answer to COMMIT that was lost."""
    DENIED = "denied"
    """The login lacks the right. See ``roles``."""
    REFUSED = "refused"
    """The database will not do it until somebody changes something."""


@dataclass(frozen=True, slots=True)
class Described:
    """A failure and the driver's own words for it: one line, no statement, no parameters."""

    failure: TransactionFailure
    words: str


class Dialect(Protocol):
    """One kind of database.

    Attributes:
        name: SQLAlchemy's name of it.
        table_names: the statement that names all tables of the database, or of the schema that new ones are made in.
        insert_staged: the statement that inserts or replaces staged rows, tuples of the table's columns.
    """

    name: str
    table_names: str
    insert_staged: str

    @property
    def account(self) -> str | None:
        """Whose process it is, where the database has no logins. None where it has, and knows the time too."""
        ...

    def engine(self, url: URL) -> Engine:
        """An engine whose connections are set up for the catalog. Nothing is connected yet."""
        ...

    def reader(self, engine: Engine) -> Engine:
        """An engine over the connections of ``engine`` whose transactions read one snapshot and write nothing."""
        ...

    def begin(self, conn: Connection, *, write: bool) -> None:
        """Begin a transaction, the first thing that happens on a connection. Closing the connection rolls it back.

        Called by hand, because an engine that anybody listens to is slower at every statement.
        """
        ...

    def now(self, conn: Connection) -> datetime:
        """The database's time, now and not at the transaction's beginning: aware, in UTC."""
        ...

    def describe_failure(self, error: BaseException) -> Described:
        """What an error of the driver means."""
        ...

    def lock_holder(self, engine: Engine, error: BaseException) -> str:
        """Words for who holds the lock that an error says was not given. Empty where the database does not tell."""
        ...

    def lock_schema(self, conn: Connection) -> None:
        """Wait until no other process changes the schema, and keep them waiting until the transaction ends."""
        ...

    def facts(self, conn: Connection) -> dict[str, str]:
        """The server's version and settings that matter, for ``doctor``."""
        ...

    def whereabouts(self, conn: Connection) -> dict[str, str]:
        """What tells this database from a copy of it. A fact that the server does not give is left out."""
        ...

    def bring(self, conn: Connection, rows: pa.Table) -> None:
        """Begin to load staged rows (``arrow.COLUMNS``): what needs no lock of a branch."""
        ...

    def load(self, conn: Connection, repository_id: str, token: str, rows: pa.Table) -> None:
        """Insert or replace the rows that were brought, under a token."""
        ...

    def unload(self, conn: Connection, repository_id: str, token: str, prefix: str) -> pa.Table:
        """A token's rows under a prefix, sorted by path, as the staging table keeps them (``arrow.COLUMNS``)."""
        ...


STAGED_VALUES = [column.name for column in STAGED.columns if column.name not in {"repository_id", "token"}]
"""The staging table's columns behind repository and token, in order."""


def insert_staged(source: str) -> str:
    """The statement that inserts or replaces staged rows. ``source`` gives the table's columns in order."""
    names = ", ".join(column.name for column in STAGED.columns)
    new = {column.name: f"excluded.{column.name}" for column in STAGED.columns if not column.primary_key}
    new["changes"] = f"{STAGED.name}.changes + 1"
    changes = ", ".join(f"{name} = {value}" for name, value in new.items())
    return (
        f"INSERT INTO {STAGED.name} ({names}) {source} ON CONFLICT (repository_id, token, path) DO UPDATE SET {changes}"
    )


def first_line(error: BaseException) -> str:
    """What the driver said, in one line."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


T = TypeVar("T")

TRIES = 5
PATIENCE_SECONDS = 45
"""No new try begins later than this after the first one."""

_SECRETS = ("password", "sslpassword")
_engines: WeakSet[Engine] = WeakSet()
_abandoned: list[Pool] = []
"""Connections inherited over a fork: never used, and never closed either, for they are the parent's."""


class _AgainError(Exception):
    """The transaction was rolled back and may be tried again."""


class _UnknownError(Exception):
    """The connection broke while COMMIT was under way."""


def run_again(_conn: Connection) -> None:
    """How to settle an unknown COMMIT of a transition that may be repeated: repeat it."""


class _Snapshot(threading.local):
    """The connection that this thread's reads go through, while it reads from one snapshot."""

    conn: Connection | None = None


class _Writes:
    """How many transactions this process has written, to any catalog."""

    count = 0


class Database:
    """An engine, how to begin reads and writes on it, and how to read its failures.

    Attributes:
        engine: SQLAlchemy's engine. Tests listen to its events.
        shown: the URL without user, password and options, for messages.
    """

    def __init__(self, url: URL, dialect: Dialect) -> None:
        self.dialect = dialect
        self.shown: str = _for_message(url)
        self._hidden = [str(value) for value in (url.password, *(url.query.get(name) for name in _SECRETS)) if value]
        self.engine: Engine = dialect.engine(url)
        self._reader = dialect.reader(self.engine)
        self._ids = Ids()
        self._snapshot = _Snapshot()
        # Bulk loads talk to the driver's own cursors, so its errors arrive without SQLAlchemy's wrapping.
        driver: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        self._failures = (DBAPIError, driver, PoolTimeout)
        _engines.add(self.engine)

    def read(self, work: Callable[[Connection], T]) -> T:
        """What ``work`` returns, run on one snapshot."""
        conn = self._snapshot.conn
        return self._retrying(lambda: self._read_once(work)) if conn is None else work(conn)

    def in_snapshot(self, work: Callable[[], T]) -> T:
        """What ``work`` returns; all that it reads in this thread comes from one transaction, on one snapshot.

        ``work`` writes nothing, and may run several times.
        """

        def on_one(conn: Connection) -> T:
            self._snapshot.conn = conn
            try:
                return work()
            finally:
                self._snapshot.conn = None

        return work() if self._snapshot.conn is not None else self.read(on_one)

    def write(self, work: Callable[[Connection], T], *, settle: Callable[[Connection], T | None] | None = None) -> T:
        """What ``work`` returns, run as one transaction.

        Args:
            work: the transition. It may run several times. Nothing of a run that failed stays.
            settle: reads whether a COMMIT without an answer happened: its result, or None for "run it again".
        """
        if self._snapshot.conn is not None:
            raise RuntimeError("a snapshot is for reading: this would be written outside of it")
        try:
            return self._retrying(lambda: self._write_once(work, settle))
        finally:
            _Writes.count += 1

    def writes(self) -> int:
        """A number that is another one after this process wrote to any catalog, and whenever it may have."""
        return _Writes.count

    def close(self) -> None:
        """Give back all connections."""
        self.engine.dispose()

    def _read_once(self, work: Callable[[Connection], T]) -> T:
        try:
            with self._reader.connect() as conn:
                self.dialect.begin(conn, write=False)
                return work(conn)
        except self._failures as error:
            raise self._translate(error) from None

    def _write_once(self, work: Callable[[Connection], T], settle: Callable[[Connection], T | None] | None) -> T:
        try:
            with self.engine.connect() as conn:
                self.dialect.begin(conn, write=True)
                result = work(conn)
                self._commit(conn)
                return result
        except self._failures as error:
            raise self._translate(error) from None
        except _UnknownError as lost:
            if settle is None:
                raise Transient(
                    f"{lost}; whether the change was made is not known: look before trying again",
                    kind="catalog_unavailable",
                ) from None
            done = self.read(settle)
            if done is not None:
                return done
            raise _AgainError(str(lost)) from None

    def _commit(self, conn: Connection) -> None:
        try:
            conn.commit()
        except DBAPIError as error:
            described = self.dialect.describe_failure(_driver_error(error))
            if described.failure is TransactionFailure.LOST:
                raise _UnknownError(self._sentence("lost the catalog while committing", described.words)) from None
            raise

    def _translate(self, error: Exception) -> Exception:
        """A failure of the database in the catalog's own words, and whether to try again."""
        if isinstance(error, PoolTimeout):
            return _AgainError(self._sentence("the catalog is not available", "all connections are in use"))
        if isinstance(error, IntegrityError):
            # Two transactions inserted the same key. The second try sees the first one's row and says so properly.
            return _AgainError(self._sentence("lost a race", first_line(_driver_error(error))))
        described = self.dialect.describe_failure(_driver_error(error))
        if described.failure is TransactionFailure.DENIED:
            return CatalogError(self._sentence("this login may not do that", described.words), kind="permission_denied")
        if described.failure is TransactionFailure.REFUSED:
            return CatalogError(self._sentence("the catalog refused", described.words))
        holder = self.dialect.lock_holder(self.engine, _driver_error(error))
        return _AgainError(self._sentence("the catalog is not available", described.words) + holder)

    def _retrying(self, run: Callable[[], T]) -> T:
        waited, lost = stopwatch(), 0

        def attempt() -> T:
            nonlocal lost
            try:
                return run()
            except _AgainError as error:
                lost += 1
                _log.warning("%s; try %d of %d lost after %.1f s", error, lost, TRIES, waited())
                raise

        try:
            return attempt()  # tried once without tenacity: a command need not import it
        except _AgainError:
            pause(self._ids.jitter(FIRST_WAIT))
        again = retrying(
            lambda error: isinstance(error, _AgainError), self._ids, tries=TRIES - 1, seconds=PATIENCE_SECONDS
        )
        try:
            return again(attempt)
        except _AgainError as error:
            raise Transient(f"{error}; waited {waited():.1f} s in {lost} tries", kind="catalog_unavailable") from None

    def _sentence(self, what: str, words: str) -> str:
        for secret in self._hidden:
            words = words.replace(secret, "***")
        line = words.strip().splitlines()[0] if words.strip() else "no reason given"
        return f"{what} ({self.shown}): {line}"


def _driver_error(error: Exception) -> BaseException:
    return (error.orig or error) if isinstance(error, DBAPIError) else error


def _for_message(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return f"sqlite {url.database}"
    place = url.host or url.query.get("host") or ""
    return f"{url.get_backend_name()} {place if isinstance(place, str) else place[0]}/{url.database or ''}"


def _abandon_connections() -> None:
    for engine in _engines:
        _abandoned.append(engine.pool)
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_abandon_connections)
