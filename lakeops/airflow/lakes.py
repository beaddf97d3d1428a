"""The lakes of Airflow's connections: which there are, how each is opened, and which of them somebody may see.

Whether somebody may see a repository of a lake is asked by the repository's name, and the lake has to tell it. A lake
may be slow or down. So lakes are asked in threads, and the first page waits for none of them for long.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from threading import BoundedSemaphore, Event, Lock, Thread
from typing import TYPE_CHECKING, NamedTuple

from lakeops.airflow.compat import AirflowNotFoundException
from lakeops.airflow.hook import DEFAULT_CONN_ID, LakeopsHook
from lakeops.lake import Lake
from lakeops.model.clock import stopwatch
from lakeops.model.errors import LakeopsError, NotFound
from lakeops.settings import CATALOG_FILE
from lakeops.web.finding import LOOKED_AT

if TYPE_CHECKING:
    from lakeops.airflow.rights import Rights
    from lakeops.settings import Settings

LISTED = 100
"""Connections that the first page lists."""
AT_ONCE = 8
"""Lakes that are asked for the names of their repositories at once."""
WAIT_SECONDS, ASK_SECONDS = 2.0, 4.0
"""For how long the first page waits for such names, and until when it asks the auth manager about them."""
NOT_ALL = "Not every lake has answered, so there may be more. Look again in a while."
TOO_MANY = f"There are over {LISTED} connections. The pages of each other one are at its own name."
IN_PART = "the repositories that you may see"
_ENVIRONMENT = "AIRFLOW_CONN_"
_log = logging.getLogger(__name__)


class Row(NamedTuple):
    """A lake on the first page: its connection, and what is said of it."""

    connection: str
    text: str


@contextmanager
def open_lake(connection: str) -> Iterator[Lake]:
    """A connection's lake. Nothing of it is made. Raises ``NotFound`` where there is none."""
    try:
        settings = LakeopsHook(connection).settings()
    except AirflowNotFoundException as error:
        raise NotFound(str(error)) from None
    _require_catalog(connection, settings)
    with Lake.open(settings=settings, must_exist=True) as lake:
        yield lake


def _require_catalog(connection: str, settings: Settings) -> None:
    """Refuse a home directory without a catalog: opening the lake would make one."""
    if settings.database_url is None and not (settings.home / CATALOG_FILE).exists():
        raise NotFound(f"connection {connection!r}: there is no lake in {settings.home}")


class RepositoryNames:
    """What the repositories of lakes are called.

    Names are read in threads, one a lake, whoever asks. A lake that does not give them in time counts with what it gave
    last. Who may see which of them is asked anew each time.

    Args:
        read: reads the names of a connection's lake.
    """

    def __init__(self, read: Callable[[str], Sequence[str]]) -> None:
        self._read = read
        self._places = BoundedSemaphore(AT_ONCE)
        self._lock = Lock()
        self._under_way: dict[str, Event] = {}
        self._last: dict[str, Sequence[str]] = {}

    def within(self, seconds: float, connections: Iterable[str]) -> dict[str, Sequence[str] | None]:
        """The names by connection, after so many seconds at most. None for a lake that has given none in time."""
        passed = stopwatch()
        asked = {connection: self._ask(connection) for connection in connections}
        for ended in asked.values():
            ended.wait(max(0.0, seconds - passed()))
        with self._lock:
            return {connection: self._last.get(connection) for connection in asked}

    def _ask(self, connection: str) -> Event:
        with self._lock:
            if connection not in self._under_way:
                self._under_way[connection] = Event()
                # A thread that hangs must not keep the web server from ending.
                Thread(target=self._listen, args=(connection,), name=f"lake {connection}", daemon=True).start()
            return self._under_way[connection]

    def _listen(self, connection: str) -> None:
        found = None
        try:
            with self._places:
                found = self._read(connection)
        except NotFound:
            found = ()
        except Exception as error:  # noqa: BLE001 - one lake, or one secrets backend, must not break the page
            _log.warning("The lake of connection %r did not name its repositories: %s", connection, error)
        finally:
            with self._lock:
                if found is not None:
                    self._last[connection] = found
                self._under_way.pop(connection).set()


def _first_names(connection: str) -> list[str]:
    with open_lake(connection) as lake:
        return [repository.id for repository in islice(lake.repositories(), LOOKED_AT)]


_names = RepositoryNames(_first_names)


def seen_by(rights: Rights) -> tuple[list[Row], str]:
    """The lakes that somebody may see, whole or in part, and what to say when not every lake was looked at."""
    found = connections()
    listed, note = found[:LISTED], TOO_MANY if len(found) > LISTED else ""
    whole = {connection for connection in listed if rights.lake(connection)}
    passed = stopwatch()
    others = [connection for connection in listed if connection not in whole] if rights.some else []
    names_by_lake = _names.within(WAIT_SECONDS, others)
    rows = []
    for connection in listed:
        if connection in whole:
            rows.append(Row(connection, _described(connection)))
            continue
        names = names_by_lake.get(connection, ())
        if names is None:
            note = NOT_ALL
            continue
        for name in names:
            if passed() > ASK_SECONDS:
                note = NOT_ALL
                break
            if rights.repository_alone(connection, name):
                rows.append(Row(connection, IN_PART))
                break
    return rows, note


def connections() -> list[str]:
    """Names of connections of type lakeops, as far as they can be listed: a secrets backend has no list.

    The first of them, and one more than are shown.
    """
    from airflow.models import Connection
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(Connection.conn_id).where(Connection.conn_type == LakeopsHook.conn_type)
        query = query.order_by(Connection.conn_id).limit(LISTED + 1)
        found = {str(name) for name in session.scalars(query)}
    given = {name.removeprefix(_ENVIRONMENT).lower() for name in os.environ if name.startswith(_ENVIRONMENT)}
    return sorted({*found, DEFAULT_CONN_ID, *(name for name in given if _is_lakeops(name))})


def _is_lakeops(name: str) -> bool:
    try:
        return LakeopsHook.get_connection(name).conn_type == LakeopsHook.conn_type
    except Exception:  # noqa: BLE001 - whatever is wrong with somebody else's variable
        return False


def _described(name: str) -> str:
    """What a connection leads to, or what is wrong with it; no lake is opened."""
    try:
        settings = LakeopsHook(name).settings()
        _require_catalog(name, settings)
    except LakeopsError as error:
        return error.message.removeprefix(f"connection {name!r}: ")
    except AirflowNotFoundException as error:
        return str(error)
    return "a catalog in a database" if settings.database_url is not None else f"a catalog in {settings.home}"
