"""A year of a commit a minute: how large a catalog grows, and what its verbs take before and after pruning.

::

    PYTHONPATH=.:tests python -m bench.year               525,600 commits, SQLite and PostgreSQL
    PYTHONPATH=.:tests python -m bench.year --commits 20000 --database sqlite

History is written in bulk through the catalog's own tables, so only its size is simulated, not how it came about: a
commit a minute under an idempotency key, expired but for the last thirty days, as a daily mark would have left it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from services.postgres import postgres_url
from sqlalchemy import insert, text, update

from lakeops import Commit, Lake, Repository, Settings
from lakeops.catalog.records import commit_values
from lakeops.catalog.tables import BRANCH, COMMIT, KEY, REFLOG, RETIRED
from lakeops.model.clock import Ids, SystemClock, unix_seconds
from lakeops.model.ids import make_commit

MINUTE, DAY = 60, 86_400
KEPT_DAYS = 30
RULES = {"default_retention_days": KEPT_DAYS, "log_days": KEPT_DAYS, "key_days": KEPT_DAYS}
BATCH = 10_000


def fill(repo: Repository, commits: int) -> None:
    """Put a line of commits on the main branch, one a minute, the last one now."""
    catalog: Any = repo._ctx.catalog
    now, ids = unix_seconds(catalog.now()), Ids()
    head = repo.ref("main").commit
    for start in range(0, commits, BATCH):
        rows: dict[Any, list[dict[str, Any]]] = {COMMIT: [], REFLOG: [], KEY: [], RETIRED: []}
        for number in range(start, min(start + BATCH, commits)):
            at = now - (commits - number) * MINUTE
            commit = next_commit(head, number, at)
            rows[COMMIT].append({**commit_values(repo.id, commit), "expired": at < now - KEPT_DAYS * DAY})
            rows[REFLOG].append(
                {
                    "repository_id": repo.id,
                    "kind": "branch",
                    "ref": "main",
                    "old": head.id,
                    "new": commit.id,
                    "action": "commit",
                    "actor": "ada",
                    "at": at,
                }
            )
            rows[KEY].append(
                {
                    "repository_id": repo.id,
                    "key": f"dag run {number}",
                    "fingerprint": "f" * 64,
                    "commit_id": commit.id,
                    "at": at,
                }
            )
            rows[RETIRED].append({"repository_id": repo.id, "token": ids.new(), "commit_id": commit.id, "purged": True})
            head = commit
        catalog.database.write(lambda conn, rows=rows: store(conn, rows))
    move = update(BRANCH).where(BRANCH.c.repository_id == repo.id, BRANCH.c.name == "main").values(commit_id=head.id)
    expired = update(COMMIT).where(COMMIT.c.repository_id == repo.id, COMMIT.c.generation == 1).values(expired=True)
    catalog.database.write(lambda conn: store(conn, {}, move, expired))


def next_commit(head: Commit, number: int, at: int) -> Commit:
    return make_commit(
        parents=[head],
        committer="ada",
        message=f"run {number}",
        metadata={"dag": "ingest", "run": str(number)},
        creation_date=at,
        meta_range_id=head.meta_range_id,
        meta_range_file=head.meta_range_file,
        meta_range_digest=head.meta_range_digest,
    )


def store(conn: Any, rows: dict[Any, list[dict[str, Any]]], *statements: Any) -> bool:
    for table, some in rows.items():
        conn.execute(insert(table), some)
    for statement in statements:
        conn.execute(statement)
    return True


def size(repo: Repository) -> int:
    """Bytes that the database takes, after it has given back what it can."""
    database = repo._ctx.catalog.database  # type: ignore[attr-defined]
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        if database.dialect.name == "sqlite":
            conn.execute(text("VACUUM"))
            return conn.execute(text("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")).scalar()
        conn.execute(text("VACUUM FULL"))
        return conn.execute(text("SELECT pg_database_size(current_database())")).scalar()


def put_and_commit(repo: Repository, number: int) -> None:
    repo.branch("main").put(f"f{number}", b"x")
    repo.branch("main").commit("more", idempotency_key=Ids().new())


def merge(repo: Repository, number: int) -> None:
    repo.branch(f"b{number}").put(f"merged {number}", b"x")
    repo.branch(f"b{number}").commit("of a branch")
    repo.merge(f"b{number}", "main", message="merge")
    repo.delete_branch(f"b{number}")


VERBS: dict[str, Callable[[Repository, int], Any]] = {
    "put and commit": put_and_commit,
    "log, 100 commits": lambda repo, _: list(repo.log("main", amount=100)),
    "list branches": lambda repo, _: list(repo.branches()),
    "create a branch": lambda repo, number: repo.create_branch(f"b{number}", "main"),
    "merge": merge,
    "reflog of a branch, 100": lambda repo, _: list(islice(repo.reflog("main"), 100)),
    "a commit by prefix": lambda repo, _: repo.ref(repo.ref("main").commit.id[:12]).commit,
}


def timed(repo: Repository, first: int) -> dict[str, float]:
    """The best of ten, in milliseconds, after a round that leaves history of the same shape everywhere."""
    found: dict[str, float] = {}
    for start in (first, first + 10):
        for name, verb in VERBS.items():
            times = []
            for number in range(start, start + 10):
                began = perf_counter()
                verb(repo, number)
                times.append(perf_counter() - began)
            found[name] = min(times) * 1000
    return found


def measure(settings: Settings, commits: int) -> None:
    with Lake.open(settings=settings, clock=SystemClock()) as lake:
        fresh = timed(lake.create_repository("fresh"), 0)
        repo = lake.create_repository("year")
        repo.gc.set_rules(RULES)
        began = perf_counter()
        fill(repo, commits)
        print(f"  filled in {perf_counter() - began:.0f} s")
        before = size(repo)
        full = timed(repo, 100)
        began = perf_counter()
        done = repo.gc.prune()
        took = perf_counter() - began
        began = perf_counter()
        repo.gc.prune()
        again = perf_counter() - began
        after = size(repo)
        rest = timed(repo, 200)
    print(f"  {before / 1e6:.0f} MB before pruning, {after / 1e6:.0f} MB after")
    print(f"  removed {done.to_json()} in {took:.1f} s; the next prune took {again:.2f} s")
    print(f"  {'ms':28}{'new':>8}{'full':>8}{'pruned':>8}")
    for name in VERBS:
        print(f"  {name:28}{fresh[name]:8.1f}{full[name]:8.1f}{rest[name]:8.1f}")


@contextmanager
def database(name: str, home: Path) -> Iterator[Settings]:
    if name == "sqlite":
        yield Settings.load(home=home)
    else:
        with postgres_url() as url:
            yield Settings.load(home=home, database_url=url)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=365 * 24 * 60)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], action="append")
    given = parser.parse_args()
    for name in given.database or ["sqlite", "postgresql"]:
        print(f"{name}, {given.commits:,} commits")
        with tempfile.TemporaryDirectory() as home, database(name, Path(home)) as settings:
            measure(settings, given.commits)


if __name__ == "__main__":
    main()
