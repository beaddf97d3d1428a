"""Opening a catalog: the URL decides the database, and the schema is made or checked before anything else."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError

from lakeops.catalog.commits import Commits
from lakeops.catalog.database import PREFIX, VERSION_TABLE, Database, Dialect
from lakeops.catalog.postgres import SERVER_ENCODING, Postgres
from lakeops.catalog.records import Caller
from lakeops.catalog.refs import Refs
from lakeops.catalog.repositories import Repositories
from lakeops.catalog.sqlite import Sqlite
from lakeops.catalog.staging import Staging
from lakeops.model.clock import Clock
from lakeops.model.errors import PreconditionFailed, Transient, invalid_settings

if TYPE_CHECKING:
    from lakeops.catalog.audit import Audit
    from lakeops.catalog.backups import Backups
    from lakeops.catalog.marks import Marks
    from lakeops.catalog.mirrors import Mirrors
    from lakeops.catalog.retention import Retention
    from lakeops.catalog.roles import Roles

T = TypeVar("T")

DEFAULT_GRACE_SECONDS = 24 * 3600
"""The grace period of new repositories, where nothing else is set."""


class Catalog:
    """One catalog: a database of repositories, over SQLite or PostgreSQL. Its attributes are its parts.

    Every method of a part is one transaction. Each transition locks the repository's row shared first (so that expiry,
    which locks it exclusively, sees all or nothing of it), then the branch's row. Two rules hold for all of them:

    * A repository that is read-only refuses everything but mirror transitions. A protected branch refuses staging,
      commits, reverts and cherry-picks, and takes merges.
    * A transition that rests on a commit refuses one that is expired. Publishing and linking refuse an attempt that
      began at or before the cutoff of any mark of the repository (the *GC watermark*), or longer ago than the deadline,
      which is half of the repository's grace period.

    Time is the database's: ``now()`` gives it, and ``started`` parameters are values that it gave. With SQLite it is
    that of ``clock``, which also tells how long this machine has been running.
    """

    backups: Backups
    retention: Retention
    marks: Marks
    mirrors: Mirrors
    audit: Audit
    roles: Roles

    def __init__(self, database: Database, new_grace: timedelta, clock: Clock, caller: Caller) -> None:
        self.database, self.clock, self.caller = database, clock, caller
        given = self._given = (database, new_grace, clock, caller)
        self.repositories = Repositories(*given)
        self.refs = Refs(*given)
        self.commits = Commits(*given)
        self.staging = Staging(*given)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - makes the parts declared above, which few verbs need
        if name not in Catalog.__annotations__:
            raise AttributeError(f"a catalog has no part {name!r}")
        part = getattr(import_module(f"lakeops.catalog.{name}"), name.capitalize())
        return self.__dict__.setdefault(name, part(*self._given))

    def now(self) -> datetime:
        """The database's time, aware, in UTC (with SQLite: the clock that the catalog was opened with)."""
        return self.database.read(self.database.dialect.now)

    def in_snapshot(self, work: Callable[[], T]) -> T:
        """Run ``work``, which may run several times. All that it reads in this thread comes from one snapshot."""
        return self.database.in_snapshot(work)

    def upgrade(self) -> None:
        """Bring the schema to this code's revision, in one transaction. Others that try meanwhile find it done.

        Raises ``PreconditionFailed`` (``catalog_version``) where it is unknown, and as ``check_encoding``.
        """
        from lakeops.catalog.migrations.run import run_migrations

        dialect = self.database.dialect

        def work(conn: Connection) -> None:
            dialect.lock_schema(conn)
            found = revision(dialect, conn)
            if found is None or check_revision(found, upgrade_first=True):
                check_encoding(dialect.facts(conn))
                run_migrations(conn)

        self.database.write(work, resolve=lambda _conn: None)

    def describe(self) -> dict[str, str]:
        """Facts for ``doctor``: dialect, server version, schema revision, journal mode. No secrets."""
        dialect = self.database.dialect
        known = {"dialect": dialect.name, "database": self.database.shown}
        return self.database.read(
            lambda conn: {**known, "schema_revision": revision(dialect, conn) or "none", **dialect.facts(conn)}
        )

    def close(self) -> None:
        """Give back all connections."""
        self.database.close()


def open_catalog(
    database_url: str,
    *,
    clock: Clock,
    grace_seconds: int = DEFAULT_GRACE_SECONDS,
    upgrade: bool = False,
    must_exist: bool = False,
    caller: Caller = Caller(),  # noqa: B008 - frozen
    patience_seconds: float = 0,
) -> Catalog:
    """The catalog of a database: ``sqlite:////path/catalog.db`` or ``postgresql+psycopg://user@host/name``.

    SQLite's file and schema are made and brought up to date here. PostgreSQL's schema is made when the database has
    none. An older one is brought up to date only with ``upgrade``, because other programs of the team use it too. With
    ``must_exist`` the catalog belongs to somebody else: nothing of it is made or brought up to date. ``grace_seconds``
    is the grace period of repositories that are made from here. ``patience_seconds`` is how long each transaction waits
    for a database that does not answer, beyond a few tries.

    Raises:
        InvalidInput: ``invalid_settings``: the URL makes no sense.
        Transient: ``catalog_unavailable``: the database does not answer.
        PreconditionFailed: ``catalog_version``: this code does not know its schema, or it is older without ``upgrade``.
    """
    url = _parse(database_url)
    # Unlike Path.is_file, this raises nothing for what cannot be a name.
    found_file = os.path.isfile(url.database or "")  # noqa: PTH113
    if must_exist and url.get_backend_name() == "sqlite" and not found_file:
        raise Transient(f"there is no lakeops catalog at {url.database}", kind="catalog_unavailable")
    dialect: Dialect = Sqlite(clock) if url.get_backend_name() == "sqlite" else Postgres()
    database = Database(url, dialect, patience_seconds)
    catalog = Catalog(database, timedelta(seconds=grace_seconds), clock, caller)
    try:
        found = database.read(partial(revision, dialect))
        if must_exist and found is None:
            raise PreconditionFailed(
                "this database holds no lakeops catalog: check which database the URL names", kind="catalog_version"
            )
        may_upgrade = not must_exist and (upgrade or dialect.name == "sqlite")
        if found is None or check_revision(found, upgrade_first=may_upgrade):
            catalog.upgrade()
    except BaseException:
        catalog.close()
        raise
    return catalog


def _parse(database_url: str) -> URL:
    flaw = "the catalog's database URL cannot be read: percent-encode special characters in user and password"
    try:
        url = make_url(database_url)
    except (ArgumentError, ValueError):
        raise invalid_settings(flaw) from None
    if url.drivername in {"postgresql", "postgres"}:
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in {"sqlite", "sqlite+pysqlite", "postgresql+psycopg"}:
        flaw = f"catalog databases are sqlite:///... and postgresql+psycopg://..., not {url.drivername!r}"
        raise invalid_settings(flaw)
    if url.drivername.startswith("postgresql") and database_url.count("@") != int(url.username is not None):
        # A password with a bare "@" or "/": part of it would pass for the host, and be shown.
        raise invalid_settings(flaw)
    return url


REVISIONS = ("1",)
"""Every revision of the migrations, oldest first. The last one is what this code works with."""


def revision(dialect: Dialect, conn: Connection) -> str | None:
    """The database's schema revision, or None when it has no lakeops tables at all.

    Raises ``PreconditionFailed`` (``catalog_version``) when nothing says of which revision they are.
    """
    names = conn.exec_driver_sql(dialect.table_names).scalars().all()
    tables = {name for name in names if name.startswith(PREFIX)}
    if not tables:
        return None
    if VERSION_TABLE in tables:
        found: str | None = conn.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar()  # noqa: S608
        if found is not None:
            return found
    raise PreconditionFailed(
        "this database has lakeops tables without a schema revision: it is not a lakeops catalog",
        kind="catalog_version",
    )


def check_revision(found: str, *, upgrade_first: bool) -> bool:
    """Whether the schema is older than this code and may be brought up to date now.

    Raises ``PreconditionFailed`` (``catalog_version``) for an unknown one, and an older one without ``upgrade_first``.
    """
    if found == REVISIONS[-1]:
        return False
    if found in REVISIONS and upgrade_first:
        return True
    flaw = "none that this lakeops knows: it is newer, or of a development version; install that lakeops, or make the "
    flaw += "lake anew"
    if found in REVISIONS:
        flaw = f"older than {REVISIONS[-1]!r}, which this lakeops needs: back the database up and run "
        flaw += "`lakeops doctor --upgrade`"
    raise PreconditionFailed(f"the catalog's schema {found!r} is {flaw}", kind="catalog_version")


def check_encoding(facts: Mapping[str, str]) -> None:
    """Refuse a database that cannot keep every path, from what ``describe`` tells of it. Raises ``InvalidInput``."""
    encoding = facts.get(SERVER_ENCODING, "UTF8")
    if encoding not in {"UTF8", "UTF-8"}:
        raise invalid_settings(
            f"the database has the encoding {encoding}, which cannot hold every path; make one with ENCODING 'UTF8' "
            "TEMPLATE template0"
        )
