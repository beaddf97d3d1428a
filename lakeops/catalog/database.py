"""The one door to the database: transactions, their retries, and errors in the catalog's own words.

A transition is a function of a connection. ``write`` runs it in one transaction and again, a few times with random
delays, when the database rolled it back for reasons of its own (deadlock, lock timeout, broken connection). The one
failure that may not simply be repeated is a COMMIT whose answer was lost: the caller says how to find out what
happened, or the error says that nobody knows. No message holds a password, a statement or a parameter.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from sqlalchemy import JSON, URL, BigInteger, Boolean, Column, Connection, Engine, Integer, Row, Table, Text
from sqlalchemy import Dialect as EngineDialect
from sqlalchemy.engine import result_tuple
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import Pool
from sqlalchemy.types import TypeDecorator

from lakeops.model.clock import Ids, pause, stopwatch
from lakeops.model.errors import CatalogError, LakeopsError, Transient
from lakeops.model.names import next_prefix

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("lakeops.catalog")


class TransactionFailure(Enum):
    """The meaning of a driver's error for the transaction that it ended."""

    RETRY = "retry"
    """Rolled back, through no fault of its own. The same transaction may work now."""
    LOST = "lost"
    """The connection broke: rolled back, unless it was the answer to COMMIT that was lost."""
    DENIED = "denied"
    """The login lacks the right. See ``roles``."""
    REFUSED = "refused"
    """The database will not do it until somebody changes something."""


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
        """The operating system's user of this process. None where the database has logins and a clock itself."""

    def engine(self, url: URL) -> Engine:
        """An engine whose connections are set up for the catalog. Nothing is connected yet."""

    def reader(self, engine: Engine) -> Engine:
        """An engine over the connections of ``engine`` whose transactions read one snapshot and write nothing."""
        return engine

    def begin(self, conn: Connection, *, write: bool) -> None:
        """Begin a transaction on a connection. Called by hand: an engine that anybody listens to is slower."""

    def now(self, conn: Connection) -> datetime:
        """The database's time, now and not at the transaction's beginning: aware, in UTC."""

    def failure_of(self, error: BaseException) -> TransactionFailure:
        """The meaning of an error of the driver."""

    def explain(self, engine: Engine, error: BaseException) -> str:
        """Words to add to an error: who holds the lock that was not given, or which files may not be written."""

    def lock_schema(self, conn: Connection) -> None:
        """Wait until no other process changes the schema, unless a writing transaction is alone anyway."""

    def facts(self, conn: Connection) -> dict[str, str]:
        """The server's version and settings that matter, for ``doctor``."""

    def identify(self, conn: Connection) -> dict[str, str]:
        """Facts that tell this database from a copy of it. A fact that the server does not give is left out."""

    def copy_in(self, conn: Connection, rows: pa.Table) -> None:
        """Send staged rows (``model.arrow.STAGING_COLUMNS``) to the server, before a branch is locked."""

    def load(self, conn: Connection, repository_id: str, token: str, rows: pa.Table) -> None:
        """Insert or replace the rows that were copied in, under a token."""

    def unload(self, conn: Connection, repository_id: str, token: str, prefix: str) -> pa.Table:
        """A token's rows under a prefix, sorted by path (``model.arrow.STAGING_COLUMNS``)."""


T = TypeVar("T")
P = ParamSpec("P")
Part = TypeVar("Part", bound="_HasDatabase")
AnyRow = Row[*tuple[Any, ...]]

TRIES = 5
PATIENCE_SECONDS = 45
"""No new try begins later than this after the first one."""

_SECRETS = ("password", "sslpassword")
_engines: WeakSet[Engine] = WeakSet()
_abandoned: list[Pool] = []
"""Connections inherited over a fork: never used, and never closed either, for they are the parent's."""


class _RetryableError(Exception):
    """The transaction was rolled back and may be tried again."""

    outage = False
    """Whether the database did not answer at all."""


class _UnknownError(Exception):
    """The connection broke while COMMIT was under way."""


def run_again(_conn: Connection) -> None:
    """Resolve an unknown COMMIT by running the transition again, for transitions that may be repeated."""


class _Snapshot(threading.local):
    conn: Connection | None = None
    """The connection that this thread's reads go through, while it reads from one snapshot."""


class Database:
    """An engine, and transactions on it. ``shown`` is the URL without user, password and options, for messages."""

    _written = 0  # transactions of this process, in any catalog

    def __init__(self, url: URL, dialect: Dialect, patience_seconds: float = 0) -> None:
        self.dialect = dialect
        self._patience = patience_seconds
        self.shown: str = url_for_message(url)
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
        """Run ``work`` on one snapshot."""
        conn = self._snapshot.conn
        return self._retrying(partial(self._run, self._reader, work)) if conn is None else work(conn)

    def in_snapshot(self, work: Callable[[], T]) -> T:
        """Run ``work``, which may run several times. All that it reads in this thread comes from one snapshot."""

        def on_one(conn: Connection) -> T:
            self._snapshot.conn = conn
            try:
                return work()
            finally:
                self._snapshot.conn = None

        return work() if self._snapshot.conn is not None else self.read(on_one)

    def write(self, work: Callable[[Connection], T], *, resolve: Callable[[Connection], T | None] | None = None) -> T:
        """Run a transition as one transaction. It may run several times. Nothing of a run that failed stays.

        ``resolve`` reads whether a COMMIT without an answer happened: its result, or None for "run it again". Such a
        COMMIT may still be under way then, so a later run that is refused asks again.
        """
        if self._snapshot.conn is not None:
            raise RuntimeError("a snapshot is for reading: this would be written outside of it")
        try:
            return self._retrying(partial(self._run, self.engine, work, resolve, [], write=True))
        finally:
            Database._written += 1

    def writes(self) -> int:
        """A counter that changes whenever this process has written, or may have written, to any catalog."""
        return self._written

    def close(self) -> None:
        """Give back all connections."""
        self.engine.dispose()

    def _run(
        self,
        engine: Engine,
        work: Callable[[Connection], T],
        resolve: Callable[[Connection], T | None] | None = None,
        unknown: list[str] | None = None,
        *,
        write: bool = False,
    ) -> T:
        try:
            with engine.connect() as conn:
                self.dialect.begin(conn, write=write)
                result = work(conn)
                if not write:
                    return result
                try:
                    conn.commit()
                except DBAPIError as error:
                    if self.dialect.failure_of(_driver_error(error)) is TransactionFailure.LOST:
                        raise _UnknownError(self._sentence("lost the catalog while committing", error)) from None
                    raise
                return result
        except self._failures as error:
            raise self._translate(error) from None
        except LakeopsError:
            done = self.read(resolve) if resolve and unknown else None
            if done is None:
                raise
            return done
        except _UnknownError as lost:
            if resolve is None or unknown is None:
                raise Transient(
                    f"{lost}; whether the change was made is not known: look before trying again",
                    kind="catalog_unavailable",
                ) from None
            done = self.read(resolve)
            if done is not None:
                return done
            unknown.append(str(lost))
            raise _RetryableError(str(lost)) from None

    def _translate(self, error: Exception) -> Exception:
        """A failure of the database in the catalog's own words, and whether to try again."""
        if isinstance(error, PoolTimeout):
            return _RetryableError(f"the catalog is not available ({self.shown}): all connections are in use")
        if isinstance(error, IntegrityError):
            # Two transactions inserted the same key. The second try sees the first one's row and says so properly.
            return _RetryableError(self._sentence("lost a race", error))
        failure = self.dialect.failure_of(_driver_error(error))
        if failure is TransactionFailure.DENIED:
            return CatalogError(self._sentence("this login may not do that", error), kind="permission_denied")
        words = self.dialect.explain(self.engine, _driver_error(error))
        if failure is TransactionFailure.REFUSED:
            return CatalogError(self._sentence("the catalog refused", error) + words)
        again = _RetryableError(self._sentence("the catalog is not available", error) + words)
        again.outage = failure is TransactionFailure.LOST
        return again

    def _retrying(self, run: Callable[[], T]) -> T:
        waited, lost = stopwatch(), 0
        while True:  # by hand: no command need import tenacity
            try:
                return run()
            except _RetryableError as error:
                lost += 1
                bridged = error.outage and self._patience > 0
                _log.warning("%s; try %d%s lost after %.1f s", error, lost, "" if bridged else f" of {TRIES}", waited())
                patient = error.outage and waited() < self._patience
                if not patient and (lost >= TRIES or waited() >= PATIENCE_SECONDS):
                    raise Transient(
                        f"{error}; waited {waited():.1f} s in {lost} tries", kind="catalog_unavailable"
                    ) from None
            pause(self._ids.backoff(lost))

    def _sentence(self, what: str, error: Exception) -> str:
        """A sentence with the first line of the driver's own words: no statement, no parameters, no secrets."""
        words = str(_driver_error(error)).strip() or type(_driver_error(error)).__name__
        for secret in self._hidden:
            words = words.replace(secret, "***")
        return f"{what} ({self.shown}): {words.splitlines()[0]}"


class _HasDatabase(Protocol):
    database: Database


class Transaction:
    """A decorator that makes a method of a part of the catalog one transaction. Callers leave its connection out."""

    def __init__(self, run: Callable[[Database, Callable[[Connection], Any]], Any]) -> None:
        self._run = run

    def __call__(self, method: Callable[Concatenate[Part, Connection, P], T]) -> Callable[Concatenate[Part, P], T]:
        """The method as a transaction."""

        @wraps(method)
        def transaction(self_: Part, /, *args: P.args, **kwargs: P.kwargs) -> T:
            found: T = self._run(self_.database, lambda conn: method(self_, conn, *args, **kwargs))
            return found

        return transaction


read_transaction = Transaction(Database.read)
write_transaction = Transaction(partial(Database.write, resolve=run_again))
"""One that may run again although its COMMIT happened."""
write_transaction_once = Transaction(Database.write)
"""One of which it stays unknown whether an unanswered COMMIT happened."""


def _driver_error(error: Exception) -> BaseException:
    return (error.orig or error) if isinstance(error, DBAPIError) else error


def url_for_message(url: URL) -> str:
    """A database's URL without user, password and options."""
    if url.get_backend_name() == "sqlite":
        return f"sqlite {url.database}"
    place = url.host or url.query.get("host") or ""
    return f"{url.get_backend_name()} {place if isinstance(place, str) else place[0]}/{url.database or ''}"


def _abandon_connections() -> None:
    for engine in _engines:
        _abandoned.append(engine.pool)
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_abandon_connections)


_PARAMETER = re.compile(r":(\w+)")

MakeRow = Callable[[Sequence[Any]], AnyRow]


class Lookup:
    """A query of fixed text: the columns that it selects, in order, and what stands behind ``FROM``.

    Attributes of a row have the columns' names. Parameters are written ``:name``. Threads may share it.
    """

    def __init__(self, columns: Iterable[Column[Any]], source: str) -> None:
        self._columns = tuple(columns)
        names = ", ".join(f'{column.table.name}."{column.name}"' for column in self._columns)
        self._text = f"SELECT {names} FROM {source}"  # noqa: S608 - of names that are written down in the program
        # By the dialect's name: all catalogs of a kind of database are opened alike.
        self._made: dict[str, tuple[str, MakeRow]] = {}

    def all(self, conn: Connection, values: Mapping[str, Any]) -> list[AnyRow]:
        """The rows, with these values of the parameters, others left out. A ``HeldRepository`` gives ``namespace``."""
        held = getattr(values.get("repository"), "namespace", "")
        text, make_row = self._made.get(conn.dialect.name) or self._prepared(conn.dialect)
        # The driver's own tuples: describing a result to SQLAlchemy takes longer than reading a row.
        cursor: Any = conn.exec_driver_sql(text, {**values, "namespace": held}).cursor
        return list(map(make_row, cursor.fetchall()))

    def one(self, conn: Connection, values: Mapping[str, Any]) -> AnyRow | None:
        """The row of a query that finds one at most, by a key."""
        rows = self.all(conn, values)
        return rows[0] if rows else None

    def _prepared(self, dialect: EngineDialect) -> tuple[str, MakeRow]:
        # SQLite's driver knows ":name", PostgreSQL's "%(name)s".
        text = self._text if dialect.paramstyle == "qmark" else _PARAMETER.sub(r"%(\1)s", self._text)
        processors = [column.type.dialect_impl(dialect).result_processor(dialect, None) for column in self._columns]
        converted = [(place, process) for place, process in enumerate(processors) if process is not None]
        named = result_tuple([column.name for column in self._columns])

        def make_row(row: Sequence[Any]) -> AnyRow:
            values = list(row)
            for place, process in converted:
                values[place] = process(values[place])
            return named(values)

        made = self._made[dialect.name] = (text, make_row)
        return made


class PageLookup:
    """Rows of a table by a text that tells them apart, in byte order, a page at a time. ``where`` says which."""

    def __init__(self, table: Table, key: str, where: str = "") -> None:
        start = f"{table.name} WHERE {where and where + ' AND'} {key} > :after AND {key} >= :prefix"
        end = f"ORDER BY {key} LIMIT :limit"
        self._all = Lookup(table.c, f"{start} {end}")
        self._below = Lookup(table.c, f"{start} AND {key} < :above {end}")

    def page(self, conn: Connection, values: Mapping[str, Any], *, prefix: str, after: str, limit: int) -> list[AnyRow]:
        """Up to ``limit`` rows whose key begins with a prefix and comes after another key."""
        above = next_prefix(prefix)
        query = self._all if above is None else self._below
        return query.all(conn, {**values, "prefix": prefix, "after": after, "limit": limit, "above": above})


PREFIX = "lakeops_"
VERSION_TABLE = "lakeops_version"
"""Where alembic keeps the revision: not ``alembic_version``, which a neighbour may own."""

BYTEWISE = Text().with_variant(Text(collation="C"), "postgresql")
COUNTER = BigInteger().with_variant(Integer(), "sqlite")
WHOLE, YES_OR_NO = BigInteger(), Boolean()
"""One type for all columns of a kind: what a database makes of a type is then found out once."""


class Unreadable:
    """A value of a JSON column that is no JSON. It fits nothing, so decoding its row fails."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __repr__(self) -> str:
        return f"text that is no JSON ({self.reason})"


class CheckedJson(TypeDecorator[Any]):
    """JSON. Text that cannot be parsed comes as ``Unreadable``, so that one damaged row stops no query."""

    impl: type[JSON] = JSON
    cache_ok: bool | None = True

    def result_processor(self, dialect: EngineDialect, coltype: object) -> Callable[[Any], Any] | None:
        """The dialect's own parser, with its errors caught."""
        parse = super().result_processor(dialect, coltype)
        if parse is None:
            return None

        def process(value: Any) -> Any:  # noqa: ANN401 - JSON is anything
            try:
                return parse(value)
            except (ValueError, TypeError) as error:
                return Unreadable(" ".join(str(error).split()))

        return process


CHECKED_JSON = CheckedJson()


def text(name: str | None = None, *, key: bool = False, null: bool = False) -> Column[str]:
    """Text, ordered by its bytes."""
    return Column(name, BYTEWISE, primary_key=key, nullable=null)


def number(name: str | None = None, *, key: bool = False, null: bool = False) -> Column[int]:
    """A whole number of 64 bits."""
    return Column(name, WHOLE, primary_key=key, nullable=null, autoincrement=False)


def flag(name: str | None = None) -> Column[bool]:
    """Yes or no."""
    return Column(name, YES_OR_NO, nullable=False)


def json(name: str | None = None) -> Column[Any]:
    """JSON."""
    return Column(name, CHECKED_JSON, nullable=False)


def counter(name: str | None = None) -> Column[int]:
    """A key that the database counts up."""
    return Column(name, COUNTER, primary_key=True, autoincrement=True)
