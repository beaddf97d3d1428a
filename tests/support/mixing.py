"""Drives the writers of ``support.mixed``, kills them, and judges what is there afterwards by their logs."""

import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from services.process import die_with_parent
from services.radosgw import free_ports
from support.killing import GRACE_SECONDS, TESTS, Workers
from support.mixed import (
    DELTA,
    ICEBERG,
    REPOSITORY,
    ROWS,
    SPARK,
    WRITERS,
    Noted,
    Paths,
    iceberg_catalog,
    read_log,
    rows,
)
from support.served import KEYS
from support.soundness import worse_than_information

from lakeops import Commit, Lake, Repository, Split
from lakeops.fs import LakeopsFileSystem
from lakeops.gateway.app import serving

TABLES = ("tables/", "warehouse/")
EACH = [[name] for name in WRITERS if name != "spark"]
"""A process for each writer but Spark, whose session takes ten seconds and half a gigabyte."""
FEW = [["put", "upload", "copy", "delta"], ["replace", "append", "fsspec", "rename", "iceberg"],
       ["merge", "local", "commit", "garbage"]]  # fmt: skip
"""Three processes for all writers, since a process takes seconds to start."""


@dataclass
class Mixed(Workers):
    """Processes of writers, and the gateway that some of them write by. The last number is the gateway's."""

    groups: list[list[str]] = field(default_factory=lambda: EACH)
    count: int = 0
    port: int = 0

    def __post_init__(self) -> None:
        self.count = len(self.groups) + 1
        (self.port,) = free_ports(1)

    def prepare(self) -> None:
        with self.open() as lake, iceberg_closed():
            repo = lake.create_repository(REPOSITORY, split=Split(2, 4, 8))
            repo.gc.set_rules({"default_retention_days": 1, "branches": []})
            with serving(lake, write=True) as options:
                write_deltalake(f"s3://{REPOSITORY}/main/{DELTA}", rows("first"), storage_options=options)
            catalog = iceberg_catalog(lake.settings)
            catalog.create_namespace("web")
            catalog.create_table(ICEBERG, rows("first").schema).append(rows("first"))
            repo.branch("main").commit("first")

    @property
    def logs(self) -> list[Path]:
        return [self.log(number) for number in range(len(self.groups))]

    def log(self, number: int) -> Path:
        """The log of a worker. The gateway writes none, so it has that of a worker who writes by it."""
        return super().log(number if number < len(self.groups) else 0)

    def start(self, number: int) -> subprocess.Popen[str]:
        gateway = number == len(self.groups)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LAKEOPS_")}
        environment |= {"PYTHONPATH": str(TESTS), "LAKEOPS_GRACE_HOURS": str(GRACE_SECONDS / 3600)}
        environment |= {"LAKEOPS_FSYNC": "false", "LAKEOPS_HOME": str(self.home)}
        if self.url:
            environment["LAKEOPS_DATABASE_URL"] = self.url
        if gateway:
            environment |= {
                "LAKEOPS_GATEWAY_ACCESS_KEY": KEYS.access_key,
                "LAKEOPS_GATEWAY_SECRET_KEY": KEYS.secret_key,
            }
            with (self.home / "gateway-starts").open("a") as starts:
                starts.write("x")
            arguments = ["lakeops", "gateway", "--write", "--port", str(self.port)]
        else:
            arguments = ["support.mixed", str(self.home), self.url, str(self.port), f"w{number}"]
            arguments += [",".join(self.groups[number]), str(self.log(number)), str(self.stop)]
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=TESTS,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the driver has one thread
        )

    def end(self, child: subprocess.Popen[str], number: int) -> None:
        """Wait until a worker has ended its round; tell the gateway to end, which is the last."""
        if number < len(self.groups):
            super().end(child, number)
            return
        child.terminate()
        child.communicate(timeout=60)
        assert child.returncode in {0, -15}

    def check(self) -> None:
        with self.open() as lake:
            problems = evaluate_checks(lake, self.logs)
            assert problems == [], "\n".join(problems)
            counts = self.counts()
            silent = {name for group in self.groups for name in group if not counts[name]}
            assert not silent, f"{sorted(silent)} wrote nothing, so this shows nothing"

    def counts(self) -> Counter[str]:
        """Acknowledged writes of each writer, and how many were refused or got no answer."""
        total: Counter[str] = Counter()
        for each in every_note(self.logs):
            # Merges and clones commit what others have staged, to find the branch clean.
            name = "commit" if each.what.get("paths") == {} and "commit" in each.what else each.writer
            total[name if each.outcome == "done" else each.outcome] += 1
        return total


def every_note(logs: Iterable[Path]) -> Iterator[Noted]:
    for log in logs:
        yield from read_log(log)


def evaluate_checks(lake: Lake, logs: list[Path]) -> list[str]:
    """The faults: before the last uncommitted changes are committed, and after."""
    repo = lake.repository(REPOSITORY)
    notes = [*every_note(logs)]
    problems = wrong_objects(notes, contents(repo, "main"))
    with serving(lake) as options:
        found = DeltaTable(f"s3://{REPOSITORY}/main/{DELTA}", storage_options=options).to_pyarrow_table()
        problems += wrong_rows("delta", notes, found["value"].to_pylist())
    with iceberg_closed():
        scan = iceberg_catalog(lake.settings).load_table(ICEBERG).scan()
        problems += wrong_rows("iceberg", notes, scan.to_arrow()["value"].to_pylist())
    main = repo.ref("main")
    files = [pq.read_table(BytesIO(main.read(item.path))) for item in main.list(SPARK)]
    found = [value for file in files for value in file["value"].to_pylist()]
    problems += wrong_rows("spark", notes, ["first"] * ROWS + found)
    repo.branch("main").commit("last", allow_empty=True)
    problems += wrong_objects(notes, contents(repo, "main@"))
    problems += wrong_commits(notes, [*repo.log("main", first_parent=True)])
    problems += [f"fsck: {finding}" for finding in worse_than_information(repo, data=True)]
    return problems


def contents(repo: Repository, ref: str) -> dict[str, str]:
    """The contents of a ref. The files of tables are read, and left out."""
    handle = repo.ref(ref)
    texts = {item.path: handle.read(item.path) for item in handle.list()}
    return {path: text.decode() for path, text in texts.items() if not path.startswith(TABLES)}


def wrong_objects(notes: Iterable[Noted], found: dict[str, str]) -> list[str]:
    """Acknowledged writes that are not there, and objects that nobody wrote.

    Each worker owns its paths and writes them one after the other, so the last acknowledged write decides. One that got
    no answer is there whole or not at all, and its paths were left alone since.
    """
    sure: Paths = {}
    by: dict[str, str] = {}
    doubtful: list[Noted] = []
    for each in notes:
        if each.outcome == "done":
            sure |= each.what.get("paths", {})
            by |= dict.fromkeys(each.what.get("paths", {}), each.intent)
        elif each.outcome == "open":
            doubtful.append(each)
    problems = []
    for each in doubtful:
        wanted: Paths = each.what.get("paths", {})
        now = {path: found.get(path) for path in wanted}
        if now not in ({path: sure.get(path) for path in wanted}, wanted):
            problems.append(f"{each.intent} got no answer, and is there in part: {now}")
        sure |= now
    for path in sorted(sure.keys() | found.keys()):
        if found.get(path) != sure.get(path):
            problems.append(f"{path}: {by.get(path)} left {sure.get(path)}, and main has {found.get(path)}")
    return problems


def wrong_rows(table: str, notes: Iterable[Noted], found: list[str]) -> list[str]:
    """Appends that are not in a table as often as they should be."""
    there = Counter(found)
    allowed = {"first": {ROWS}}
    for each in notes:
        if each.what.get("table") == table:
            allowed[each.what["row"]] = {"done": {ROWS}, "refused": {0}, "open": {0, ROWS}}[each.outcome]
    return [
        f"{table} has {there[row]} rows of {row}, and should have one of {sorted(allowed.get(row, {0}))}"
        for row in sorted(allowed.keys() | there.keys())
        if there[row] not in allowed.get(row, {0})
    ]


def wrong_commits(notes: Iterable[Noted], chain: list[Commit]) -> list[str]:
    """Commits that are not in main's history as often as they should be. ``chain`` is newest first."""
    problems = [
        f"{older.id} comes after {newer.id}, whose parents are {newer.parents}"
        for newer, older in itertools.pairwise(chain)
        if newer.parents[:1] != (older.id,)
    ]
    problems += [
        f"{one} is {often} times in history" for one, often in Counter(one.id for one in chain).items() if often > 1
    ]
    ids = {one.id for one in chain}
    said = Counter(text for one in chain for text in [one.message, *(each.message for each in one.along)])
    allowed: dict[str, set[int]] = {}
    for each in notes:
        if key := each.what.get("commit"):
            # What needs a clean branch is tried again with the same message when it was refused.
            allowed[key] = {"done": {1}, "refused": {0}, "open": {0, 1}}[each.outcome]
            if each.outcome == "done" and each.answer["id"] not in ids:
                problems.append(f"{each.intent} made {each.answer['id']}, which is not in history")
    return problems + [
        f"the message {key} is {said[key]} times in history, and should be one of {sorted(often)}"
        for key, often in allowed.items()
        if said[key] not in often
    ]


@contextmanager
def iceberg_closed() -> Iterator[None]:
    """Close the lakes that Iceberg's files open in this process."""
    before = {**LakeopsFileSystem._opened}
    try:
        yield
    finally:
        for settings in LakeopsFileSystem._opened.keys() - before.keys():
            LakeopsFileSystem._opened.pop(settings).close()
