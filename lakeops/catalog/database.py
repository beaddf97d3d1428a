"""The one door to the database: transactions, their retries, and errors in the catalog's own words.

A transition is a function of a connection. ``write`` runs it in one transaction and again, a few times with random
delays, when the database rolled it back for reasons of its own (deadlock, lock timeout, broken connection). The one
failure that may not simply be repeated is a COMMIT whose answer was lost: the caller says how to find out what
happened, or the error says that nobody knows. No message holds a password, a statement or a parameter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from weakref import WeakSet

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import Pool
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, stop_after_delay

from lakeops.catalog.dialect import Dialect, Failure, first_line
from lakeops.model.clock import Ids, pause
from lakeops.model.errors import CatalogError, CatalogUnavailable

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


class Database:
    """An engine, how to begin reads and writes on it, and how to read its failures.

    Attributes:
        engine: SQLAlchemy's engine; tests listen to its events.
        shown: the URL without user, password and options, for messages.
    """

    def __init__(self, url: URL, dialect: Dialect) -> None:
        self.dialect = dialect
        self.shown = _shown(url)
        self._hidden = [str(value) for value in (url.password, *(url.query.get(name) for name in _SECRETS)) if value]
        self.engine: Engine = dialect.engine(url)
        self._reader = dialect.reader(self.engine)
        self._ids = Ids()
        # Bulk loads talk to the driver's own cursors, so its errors arrive without SQLAlchemy's wrapping.
        self._driver_errors: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        _engines.add(self.engine)

    def read(self, work: Callable[[Connection], T]) -> T:
        """What ``work`` returns, run on one snapshot."""
        return self._retrying(lambda: self._read_once(work))

    def write(self, work: Callable[[Connection], T], *, settle: Callable[[Connection], T | None] | None = None) -> T:
        """What ``work`` returns, run as one transaction.

        Args:
            work: the transition. It may run several times; nothing of a run that failed stays.
            settle: reads whether a COMMIT without an answer happened: its result, or None for "run it again".
        """
        return self._retrying(lambda: self._write_once(work, settle))

    def close(self) -> None:
        """Give back all connections."""
        self.engine.dispose()

    def _read_once(self, work: Callable[[Connection], T]) -> T:
        with self._speaking(), self._reader.connect() as conn:
            return work(conn)

    def _write_once(self, work: Callable[[Connection], T], settle: Callable[[Connection], T | None] | None) -> T:
        try:
            with self._speaking(), self.engine.connect() as conn:
                result = work(conn)
                self._commit(conn)
                return result
        except _UnknownError as lost:
            if settle is None:
                raise CatalogUnavailable(
                    f"{lost}; whether the change was made is not known: look before trying again"
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
            if described.failure is Failure.LOST:
                raise _UnknownError(self._sentence("lost the catalog while committing", described.words)) from None
            raise

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            # Two transactions inserted the same key; the second try sees the first one's row and says so properly.
            raise _AgainError(self._sentence("lost a race", first_line(_driver_error(error)))) from None
        except (DBAPIError, self._driver_errors) as error:
            described = self.dialect.describe_failure(_driver_error(error))
            if described.failure is Failure.REFUSED:
                raise CatalogError(self._sentence("the catalog refused", described.words)) from None
            raise _AgainError(self._sentence("the catalog is not available", described.words)) from None
        except PoolTimeout:
            raise _AgainError(self._sentence("the catalog is not available", "all connections are in use")) from None

    def _retrying(self, run: Callable[[], T]) -> T:
        tries = Retrying(
            retry=retry_if_exception_type(_AgainError),
            stop=stop_after_attempt(TRIES) | stop_after_delay(PATIENCE_SECONDS),
            wait=self._wait,
            sleep=pause,
            reraise=True,
        )
        try:
            return tries(run)
        except _AgainError as error:
            raise CatalogUnavailable(str(error)) from None

    def _wait(self, state: RetryCallState) -> float:
        return self._ids.jitter(min(2.0, 0.05 * 2**state.attempt_number))

    def _sentence(self, what: str, words: str) -> str:
        for secret in self._hidden:
            words = words.replace(secret, "***")
        line = words.strip().splitlines()[0] if words.strip() else "no reason given"
        return f"{what} ({self.shown}): {line}"


def _driver_error(error: Exception) -> BaseException:
    return (error.orig or error) if isinstance(error, DBAPIError) else error


def _shown(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return f"sqlite {url.database}"
    place = url.host or url.query.get("host") or ""
    return f"{url.get_backend_name()} {place if isinstance(place, str) else place[0]}/{url.database or ''}"


def _abandon_connections() -> None:
    for engine in _engines:
        _abandoned.append(engine.pool)
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_abandon_connections)
