"""A year's bill: requests, bytes, statements and CPU of each verb as measured, times how often it runs, at list prices.

::

    PYTHONPATH=.:tests python -m bench.bill
    PYTHONPATH=.:tests python -m bench.bill --entries 20000 --commits 2000

A commit a minute on fifty tables, 2,000 new files a day, garbage collection each day, a mirror. The repository that is
measured has as many entries as such a one has on average over the year. Each task is a new process, so nothing is
remembered from the one before, and its CPU is counted without the start of Python. Objects themselves and their
replication cost the same whoever keeps their versions, but for copies, so they are left out.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from services.postgres import postgres_url
from support.statements import ours, statements

from bench.dataset import DataSet
from bench.run import machine
from bench.year import fill, size
from lakeops import Lake, Repository, Settings
from lakeops.catalog.open import open_catalog
from lakeops.model.clock import SystemClock
from lakeops.store.base import ObjectStore, StoreSettings
from lakeops.store.local import LocalStore
from lakeops.store.open import Stores

DAYS, COMMITS_A_DAY, TABLES, FILES_A_DAY = 365, 24 * 60, 50, 2_000
KEPT_DAYS = 30
FILE_MB = 32
PASSES_A_DAY = 24 * 12
READS_A_DAY = 24 * 60 * 10
"""Tasks that list a table's files at a commit, to read them."""
HOURS = 24 * DAYS
COMMIT, LISTING, COLLECTION, PRUNE, PASS = (
    "commit of the minute's files",
    "listing of a table",
    "gc mark and sweep",
    "gc prune",
    "mirror sync",
)

PRICES = {
    "1,000 PUT, COPY, POST or LIST": 0.005,
    "1,000 GET or HEAD": 0.0004,
    "GB of S3 Standard for a month": 0.023,
    "GB to another region": 0.02,
    "hour of PostgreSQL (db.t4g.medium, two zones)": 0.129,
    "GB of the database's disk for a month": 0.23,
    "hour of a processor in a task (Fargate)": 0.04048,
    "hour of a server for lakeFS (t3.large, two of them)": 0.0832,
    "hour of a load balancer": 0.0225,
}
"""Dollars, AWS on demand in us-east-1. ``--price 'NAME=DOLLARS'`` changes one."""


@dataclass
class Took:
    """What some runs of a verb asked for, or one on average."""

    requests: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("PUT", "GET", "HEAD", "LIST"), 0.0))
    read: float = 0
    written: float = 0
    statements: float = 0
    cpu: float = 0

    def share(self, runs: int) -> None:
        """From the sum of some runs to their mean."""
        self.requests = {kind: count / runs for kind, count in self.requests.items()}
        for name in ("read", "written", "statements", "cpu"):
            setattr(self, name, getattr(self, name) / runs)


class CountingStore(LocalStore):
    """A directory that counts what a bucket would be asked. A page of a listing has 1,000 keys."""

    remote = True

    def __init__(self, root: Path, took: Took) -> None:
        super().__init__(root, fsync=False)
        self._took = took

    def get(self, key: str) -> bytes:
        data = super().get(key)
        self._count("GET", read=len(data))
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = super().get_range(key, start, length)
        self._count("GET", read=len(data))
        return data

    def put(self, key: str, data: Any, **options: Any) -> Any:
        done = super().put(key, data, **options)
        self._count("PUT", written=done.size_bytes)
        return done

    def swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        self._count("PUT", written=len(data))
        return super().swap(key, data, expected=expected)

    def head(self, key: str) -> Any:
        self._count("HEAD")
        return super().head(key)

    def list(self, prefix: str = "", after: str = "") -> Iterator[Any]:
        found = [*super().list(prefix, after)]
        self._count("LIST", max(1, math.ceil(len(found) / 1000)))
        return iter(found)

    def scan(self, **given: Any) -> Iterator[Any]:
        found = [*super().scan(**given)]
        self._count("LIST", max(1, math.ceil(sum(len(one.keys) for one in found) / 1000)))
        return iter(found)

    def _count(self, kind: str, times: int = 1, *, read: int = 0, written: int = 0) -> None:
        self._took.requests[kind] += times
        self._took.read += read
        self._took.written += written


@contextmanager
def new_process(settings: Settings, took: Took) -> Iterator[Lake]:
    """A lake in which nothing is remembered, whose requests and statements are counted."""

    def counting(store: ObjectStore) -> ObjectStore:
        assert isinstance(store, LocalStore)
        return CountingStore(store.root, took)

    stores = Stores(StoreSettings(fsync=False), wrap=counting)
    with Lake(open_catalog(settings.catalog_url, clock=SystemClock()), settings, stores=stores) as lake:
        begun = time.process_time()
        with statements(lake.catalog) as seen:
            yield lake
        took.cpu += time.process_time() - begun
        took.statements += len(ours(seen))


def task(repo: Repository, number: int, files: int) -> None:
    """What happens each minute: files of one table, and a commit of them."""
    main = repo.branch("main")
    with main.batch() as batch:
        for one in range(files):
            batch.put(f"warehouse/clicks/new/{number:06}-{one}.parquet", b"x")
    main.commit(f"run {number}", metadata={"dag": "ingest"}, idempotency_key=f"run {number}")


def table_files(repo: Repository) -> int:
    """The files of a table at a commit, about as many as a table of fifty has."""
    return len(list(repo.ref(repo.ref("main").commit.id).list(prefix="warehouse/clicks/date=2000-01-02/")))


def make(settings: Settings, entries: int) -> None:
    """A repository of so many imported entries, and a mirror of it that shows them."""
    data = DataSet(entries)
    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("year")
        repo.gc.set_rules({"default_retention_days": KEPT_DAYS, "log_days": KEPT_DAYS, "key_days": KEPT_DAYS})
        for batch in data.batches():
            table = data.entries(batch)
            addresses = pc.binary_join_element_wise("s3://elsewhere/", table["physical_address"], "")
            repo.branch("main").stage(table.set_column(1, table.schema.field(1), addresses))
        repo.branch("main").commit("everything")
        lake.create_mirror("copy", source=lake, source_repository="year", check_imported=False)
        follow(lake)
        lake.mirror("copy").sync(lake)


def follow(lake: Lake) -> None:
    """What the bucket's own replication does."""
    lake.mirror("copy").replicate(lake)


def measured(settings: Settings, repeats: int) -> dict[str, Took]:
    """The mean of some runs of each verb, each in a lake that remembers nothing."""
    files, numbers = math.ceil(FILES_A_DAY / COMMITS_A_DAY), iter(range(10**6))

    def tasks(lake: Lake) -> None:
        for _ in range(COMMITS_A_DAY // PASSES_A_DAY):
            task(lake.repository("year"), next(numbers), files)
        follow(lake)

    verbs: dict[str, tuple[Callable[[Lake], object], Callable[[Lake], object]]] = {
        COMMIT: (lambda _: None, lambda lake: task(lake.repository("year"), next(numbers), files)),
        LISTING: (lambda _: None, lambda lake: table_files(lake.repository("year"))),
        COLLECTION: (tasks, lambda lake: lake.repository("year").gc.sweep(lake.repository("year").gc.mark().id)),
        PRUNE: (tasks, lambda lake: lake.repository("year").gc.prune()),
        PASS: (tasks, lambda lake: lake.mirror("copy").sync(lake)),
    }
    found = {}
    for name, (before, verb) in verbs.items():
        found[name] = took = Took()
        for _ in range(repeats):
            with Lake.open(settings=settings) as lake:
                before(lake)
            with new_process(settings, took) as lake:
                verb(lake)
        took.share(repeats)
    return found


def bytes_a_commit(settings: Settings, commits: int) -> float:
    """What a commit takes in the catalog, with its move, key, token and record of the audit."""
    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("long")
        before = size(repo)
        fill(repo, commits)
        return (size(repo) - before) / commits


def bill(found: dict[str, Took], row: float, entries: int, prices: dict[str, float]) -> Iterator[tuple[str, ...]]:
    """What each item comes to in a year: what it is, and dollars of lakeops, lakeFS and a copy a day."""
    put, get, stored, moved, database, disk, cpu, server, balancer = prices.values()
    times = {COMMIT: COMMITS_A_DAY, LISTING: READS_A_DAY, COLLECTION: 1, PRUNE: 1, PASS: PASSES_A_DAY}
    kinds: Counter[str] = Counter()
    for name, each in times.items():
        for kind, count in found[name].requests.items():
            kinds[kind] += round(count * each * DAYS)
    kinds["LIST"] += round(entries / 1000) * DAYS  # the entries have no objects here
    writes, reads = kinds["PUT"] + kinds["LIST"], kinds["GET"] + kinds["HEAD"]
    commit = found[COMMIT]
    kept = commit.written * COMMITS_A_DAY * KEPT_DAYS / 1e9
    copied = commit.requests["PUT"] * COMMITS_A_DAY * DAYS
    rows = row * COMMITS_A_DAY * KEPT_DAYS / 1e9
    hours = sum(found[name].cpu * each * DAYS for name, each in times.items()) / 3600
    data = entries * FILE_MB / 1000
    own: list[tuple[str, float, float | None, float | None]] = [
        (f"{writes:,} PUT and LIST of metadata", writes / 1000 * put, None, 0),
        (f"{reads:,} GET and HEAD of metadata", reads / 1000 * get, None, 0),
        (f"{kept:.1f} GB of metadata, {KEPT_DAYS} days of commits", kept * stored * 12, None, 0),
        (
            f"metadata to the mirror: {copied:,.0f} PUT, {commit.written * COMMITS_A_DAY * DAYS / 1e9:,.0f} GB",
            copied / 1000 * put + commit.written * COMMITS_A_DAY * DAYS / 1e9 * moved,
            None,
            None,
        ),
        ("PostgreSQL", database * HOURS, database * HOURS, 0),
        (f"its disk: {rows:.2f} GB, of which 20 GB are the least", max(rows, 20) * disk * 12, 20 * disk * 12, 0),
        (f"{hours:,.0f} hours of a processor in tasks", hours * cpu, None, None),
        ("two servers and a load balancer", 0, (2 * server + balancer) * HOURS, 0),
        (
            f"{KEPT_DAYS} copies of {data:,.0f} GB, one made a day",
            0,
            0,
            KEPT_DAYS * data * stored * 12 + entries * DAYS / 1000 * put,
        ),
    ]
    for what, *dollars in own:
        yield what, *("not counted" if one is None else f"{one:,.0f}" for one in dollars)
    yield "**a year**", *(f"**{sum(one[side] or 0 for one in own):,.0f}**" for side in (1, 2, 3))  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=FILES_A_DAY * DAYS // 2, help="on average over the year")
    parser.add_argument("--commits", type=int, default=20_000, help="rows of the catalog are measured over so many")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--price", action="append", default=[], metavar="NAME=DOLLARS")
    given = parser.parse_args()
    prices = PRICES | {name: float(value) for name, _, value in (one.rpartition("=") for one in given.price)}
    if prices.keys() != PRICES.keys():
        parser.error(f"no such price; these are known: {', '.join(PRICES)}")
    with tempfile.TemporaryDirectory() as home, postgres_url() as url:
        settings = Settings.load(home=Path(home), database_url=url, committer="bench", fsync=False, disk_cache_mb=0)
        make(settings, given.entries)
        found = measured(settings, given.repeats)
        row = bytes_a_commit(settings, given.commits)
    facts = machine()
    print(
        f"{COMMITS_A_DAY:,} commits a day on {TABLES} tables, {FILES_A_DAY:,} files of {FILE_MB} MB a day, "
        f"{READS_A_DAY:,} listings of a table a day, garbage collection a day, a mirror's pass each "
        f"{24 * 60 // PASSES_A_DAY} minutes, {KEPT_DAYS} days kept; {given.entries:,} entries on average. "
        f"{facts['cores']} cores, load {os.getloadavg()[0]:.1f}, Python {facts['python']}. "
        f"`python -m bench.bill --entries {given.entries} --commits {given.commits} --repeats {given.repeats}`\n"
    )
    print("| measured, a run | PUT | GET | HEAD | LIST | kB read | kB written | statements | CPU ms |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, took in found.items():
        kinds = " | ".join(f"{took.requests[kind]:.1f}" for kind in ("PUT", "GET", "HEAD", "LIST"))
        sizes = f"{took.read / 1e3:,.0f} | {took.written / 1e3:,.0f} | {took.statements:.0f} | {took.cpu * 1e3:,.0f}"
        print(f"| {name} | {kinds} | {sizes} |")
    print(f"\nA commit takes {row:,.0f} bytes of the catalog: {row * COMMITS_A_DAY * DAYS / 1e6:,.0f} MB in a year,")
    print(f"{row * COMMITS_A_DAY * KEPT_DAYS / 1e6:,.0f} MB when it is pruned to {KEPT_DAYS} days.\n")
    print("| dollars a year | lakeops | lakeFS | a copy a day |\n|---|--:|--:|--:|")
    for cells in bill(found, row, given.entries, prices):
        print(f"| {' | '.join(cells)} |")
    print("\n| dollars each | |\n|---|--:|")
    for name, price in prices.items():
        print(f"| {name} | {price:g} |")


if __name__ == "__main__":
    main()
