"""A real PgBouncer before a test's PostgreSQL, which hands connections out by transaction."""

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from services.process import die_with_parent

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

NOBODY = 65534
"""The user that owns nothing."""

CONFIG = """\
[databases]
* = host={server} user=postgres
[pgbouncer]
listen_addr =
unix_socket_dir = {place}
listen_port = 5432
auth_type = any
admin_users = postgres
pool_mode = transaction
max_client_conn = 100
log_connections = 0
log_disconnections = 0
{settings}
"""


@dataclass(frozen=True)
class Pooler:
    """A PgBouncer that runs.

    Attributes:
        place: the directory of its socket.
    """

    place: Path

    def url(self, database: str) -> str:
        """The catalog URL of a database behind it."""
        return f"postgresql+psycopg://postgres@/{database}?host={quote(str(self.place))}"

    def drop_connections(self, database: str) -> None:
        """Break off all connections of a database, to both sides, and take new ones."""
        with psycopg.connect(f"host={self.place} user=postgres dbname=pgbouncer", autocommit=True) as console:
            console.execute(f"KILL {database}")
            console.execute(f"RESUME {database}")


@contextmanager
def pgbouncer(server: str, **settings: int) -> Iterator[Pooler]:
    """A PgBouncer that runs inside this block, before the server whose socket is in the directory ``server``."""
    if PGBOUNCER is None:
        pytest.skip("PgBouncer is not installed (Debian: apt-get install pgbouncer)")
    # PgBouncer refuses to run as root.
    owner = Path(server).stat().st_uid if Path(server).exists() else os.geteuid() or NOBODY
    place = Path(tempfile.mkdtemp(prefix="lakeops-pgbouncer-"))
    try:
        config = place / "pgbouncer.ini"
        chosen = "\n".join(f"{name} = {value}" for name, value in settings.items())
        config.write_text(CONFIG.format(server=server, place=place, settings=chosen))
        if owner != os.geteuid():
            os.chown(place, owner, -1)
            os.chown(config, owner, -1)
        with subprocess.Popen(
            [PGBOUNCER, str(config)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            user=owner if owner != os.geteuid() else None,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - tests start it before their threads
        ) as process:
            assert process.stderr
            said = []
            while line := process.stderr.readline():
                said.append(line)
                if "process up" in line:
                    break
            assert process.poll() is None, "".join(said)
            drain = threading.Thread(target=process.stderr.read)
            drain.start()
            try:
                yield Pooler(place)
            finally:
                process.kill()
                drain.join()
    finally:
        shutil.rmtree(place, ignore_errors=True)
