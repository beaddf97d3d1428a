"""A master and two workers: the same commits as in process, whatever happens to workers meanwhile."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from services.spark import CODE, until
from services.spark import SPARK_CONF as CONF
from support.errors import has_kind
from support.references import LISTED, found, referring, rows
from support.rows import SMALL, entry_table, numbered, prepared
from support.spark_work import (
    held_rewrite,
    killed_at_first,
    out_of_memory_at_first,
    slow_first_reading,
    slow_first_rows,
    slow_first_try,
    unavailable,
)

import lakeops.spark
from lakeops import Lake, Settings
from lakeops.engine.spark.engine import SparkEngine
from lakeops.engine.spark.session import active
from lakeops.model.clock import Ids
from lakeops.model.errors import MergeConflict, StoreUnavailable, Transient
from lakeops.ops.gc import unreferenced
from lakeops.store.layout import RANGES, TASKS
from lakeops.testing import ManualClock

pytestmark = pytest.mark.spark


@contextmanager
def lake(home: Path, engine: str) -> Iterator[Lake]:
    """A lake whose every name is the same wherever it works."""
    settings = Settings.load(home=home, engine=engine, fsync=False, committer="tester")
    with Lake.open(settings=settings, clock=ManualClock(), ids=Ids(random.Random(1))) as opened:
        yield opened


@pytest.fixture
def source(tmp_path) -> str:
    """A directory to import."""
    for number in range(300):
        file = tmp_path / "source" / f"{number % 7}" / f"{number:03}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x" * (number % 5))
    return (tmp_path / "source").as_uri()


@pytest.fixture
def expected(tmp_path) -> str:
    """The id of the second commit of a repository, made in process."""
    with lake(tmp_path / "local", "local") as opened:
        return prepared(opened, 500, SMALL).branch("main").commit("second").id


def history(opened: Lake, source: str) -> list[str]:
    """A repository with commits, an import and merges; its log."""
    repo = opened.create_repository("repo", split=SMALL)
    main = repo.branch("main")
    main.stage(entry_table(numbered(range(500))))
    main.commit("first")
    dev = repo.create_branch("dev", source="main")
    dev.stage(entry_table(numbered(range(0, 700, 3), "1")))
    dev.commit("dev")
    main.stage(entry_table(numbered(range(1, 400, 3), "2")))
    for number in range(2, 200, 3):
        main.delete(f"{'ab'[number % 2]}/{number:05}")
    main.commit("main")
    main.import_objects(source, "from/", "import")
    repo.merge("dev", "main")
    dev.stage(entry_table(numbered([1], "3")))
    dev.commit("conflicting")
    with pytest.raises(MergeConflict):
        repo.merge("dev", "main")
    repo.merge("dev", "main", strategy="source-wins")
    return [commit.id for commit in repo.log("main")]


def test_a_cluster_without_room_is_said_in_bounded_time(master, monkeypatch):
    monkeypatch.setattr("lakeops.engine.spark.engine.PATIENCE", 2.0)
    engine = SparkEngine(master.url, conf=CONF | {"spark.executor.memory": "100g"})
    with pytest.raises(
        Transient,
        match="gave no worker within 2 s: see whether the cluster has free cores",
        check=has_kind("engine_unavailable"),
    ):
        engine.group(100)
    assert active() is None


DRIVER = """
import sys
from pathlib import Path
from support.spark_work import held_rewrite
import lakeops.ranges.apply
from test_cluster import lake
from services.spark import SPARK_CONF
from lakeops.engine.spark.engine import SparkEngine

lakeops.ranges.apply.run_task = held_rewrite
with lake(Path(sys.argv[1]), "spark") as opened:
    opened._engine = SparkEngine(sys.argv[2], conf=SPARK_CONF)
    opened.repository("repo").branch("main").commit("second")
"""


def test_a_killed_driver_publishes_nothing_and_the_next_one_all(master, expected, tmp_path):
    """Its workers are in the middle of their tasks. The application that holds the cluster's cores ends first."""
    master.have(2)
    home = tmp_path / "spark"
    with lake(home, "local") as opened:
        repo = prepared(opened, 500, SMALL)
        head, root = repo.branch("main").commit_id, Path(opened.stores().at(repo.storage_namespace).root)
    path = os.pathsep.join([CODE, str(Path(__file__).parent)])
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(home), master.url], env=os.environ | {"PYTHONPATH": path}
    )
    try:
        until(lambda: [*root.glob("began-*")], "a task that has begun", within=180)
    finally:
        driver.kill()
        driver.wait()
    (root / "released").touch()
    with lake(home, "local") as opened:
        main = opened.repository("repo").branch("main")
        assert main.commit_id == head
        assert len(list(main.uncommitted())) == 500
        assert main.commit("second").id == expected
        assert [finding for finding in opened.repository("repo").fsck() if finding.severity == "error"] == []


def test_commits_imports_and_merges_are_those_of_a_process(distributed, master, tmp_path, source):
    with lake(tmp_path / "local", "local") as opened:
        expected = history(opened, source)
    with lake(tmp_path / "spark", "spark") as opened:
        assert history(opened, source) == expected
    assert [app["state"] for app in master.state()["activeapps"]] == ["RUNNING"]


def test_a_twin_of_a_slow_task_changes_nothing(distributed, expected, tmp_path, monkeypatch):
    with lake(tmp_path / "spark", "spark") as opened:
        repo = prepared(opened, 500, SMALL)
        monkeypatch.setattr("lakeops.ranges.apply.run_task", slow_first_try)
        assert repo.branch("main").commit("second").id == expected


@pytest.mark.parametrize("work", [out_of_memory_at_first, killed_at_first])
def test_a_worker_out_of_memory_changes_nothing(distributed, expected, tmp_path, monkeypatch, work):
    with lake(tmp_path / "spark", "spark") as opened:
        repo = prepared(opened, 500, SMALL)
        monkeypatch.setattr("lakeops.ranges.apply.run_task", work)
        assert repo.branch("main").commit("second").id == expected
        assert [finding for finding in repo.fsck() if finding.severity == "error"] == []
        root = Path(opened.stores().at(repo.storage_namespace).root)
        assert (root / "killed").exists() == (work is killed_at_first)


def test_a_task_that_fails_at_every_try_publishes_nothing(distributed, tmp_path, monkeypatch):
    with lake(tmp_path / "home", "spark") as opened:
        repo = prepared(opened, 500, SMALL)
        head = repo.branch("main").commit_id
        with monkeypatch.context() as patched:
            patched.setattr("lakeops.ranges.apply.run_task", unavailable)
            with pytest.raises(StoreUnavailable, match="503"):
                repo.branch("main").commit("second")
        assert repo.branch("main").commit_id == head
        assert len(list(repo.branch("main").uncommitted())) == 500
        store = opened.stores().at(repo.storage_namespace)
        assert list(store.list(TASKS)) == []
        assert len(list(store.list("tries/"))) >= 4
        repo.branch("main").commit("second")
        assert len(list(repo.log("main"))) == 3


def test_tables_of_refs_whose_tasks_run_twice(distributed, tmp_path):
    """The first task gets a twin, which is done first: each row is in the table once, whoever writes.

    Both workers have to be there, so it comes before the test that kills one.
    """
    session = SparkSession.builder.getOrCreate()
    lakeops.spark.register(session)
    with lake(tmp_path / "home", "local") as opened:
        main = opened.create_repository("repo").branch("main")

        def twice(name: str) -> DataFrame:
            folder = tmp_path / name
            folder.mkdir()
            work = partial(slow_first_rows, folder=str(folder))
            return session.range(100, numPartitions=2).mapInArrow(work, "id bigint")

        assert lakeops.spark.write(twice("own"), "lakefs://repo/main/own/", lake=opened) == 2
        python = twice("python").write.format("lakeops").option("home", str(tmp_path / "home"))
        python.mode("append").save("lakefs://repo/main/python/")
        assert len(list(main.list())) == 4
        for name in ("own", "python"):
            assert [mark.name for mark in (tmp_path / name).iterdir()] == ["twin-done"]
            written = [pq.ParquetFile(BytesIO(main.read(item.path))).read() for item in main.list(f"{name}/")]
            assert sorted(number for table in written for number in table["id"].to_pylist()) == [*range(100)]


@pytest.mark.usefixtures("slices")
def test_a_twin_of_a_join_changes_nothing(distributed, store, monkeypatch):
    metarange = referring(store, LISTED[::2])
    monkeypatch.setattr(unreferenced, "read_references", slow_first_reading)
    files = [item.key for item in store.list(RANGES)]
    got, *counts = found(store, distributed, LISTED, metarange.table)
    assert got == rows(LISTED[1::2])
    assert counts == [1_500, 750]
    assert [item.key for item in store.list(RANGES)] == files


def test_a_killed_worker_and_its_executor_change_nothing(distributed, expected, master, tmp_path, monkeypatch):
    master.have(2)
    with lake(tmp_path / "spark", "spark") as opened, ThreadPoolExecutor(1) as pool:
        repo = prepared(opened, 500, SMALL)
        monkeypatch.setattr("lakeops.ranges.apply.run_task", held_rewrite)
        folder = Path(opened.stores().at(repo.storage_namespace).root)
        commit = pool.submit(repo.branch("main").commit, "second")
        try:
            began = until(lambda: two_processes(folder), "tasks in both executors")
            master.workers[0].kill()
        finally:
            (folder / "released").touch()
        assert commit.result(120).id == expected
        assert len(began) == 2
        assert len({mark.name for mark in folder.glob("began-*")}) > len(
            {mark.name.split("-")[1] for mark in folder.glob("began-*")}
        )
        assert [each.message for each in repo.log("main")][:2] == ["second", "first"]


def two_processes(folder: Path) -> set[str]:
    found = {mark.name.rsplit("-", 1)[1] for mark in folder.glob("began-*")}
    return found if len(found) >= 2 else set()
