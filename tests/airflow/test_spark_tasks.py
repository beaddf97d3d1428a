"""Operators on Spark: killed while Spark is at work they leave no process and no commit, and the next try commits."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from services.spark import QUICK_JVM, TESTS, cluster, until
from support.errors import raising

from lakeops import Split

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def repo(lake):
    """Uncommitted changes to what is committed already, so that there are ranges to rewrite."""
    repo = lake.create_repository("repo", split=Split(2, 4, 8))
    main = repo.branch("main")
    for text in (b"old", b"new"):
        for number in range(20):
            main.put(f"f{number:03}", text)
        if text == b"old":
            main.commit("first")
    return repo


@pytest.fixture
def two_workers(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    with cluster(folder) as running:
        yield running


class Task:
    """Runs ``support.spark_task`` with a connection to an engine."""

    def __init__(self, home, place, **engine):
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        self._environment = os.environ | {
            "AIRFLOW_CONN_MINE": json.dumps({"conn_type": "lakeops", "host": str(home), "extra": engine}),
            "PYTHONPATH": path.rstrip(os.pathsep),
            "SPARK_SUBMIT_OPTS": QUICK_JVM,
            "TMPDIR": str(place),
        }

    def start(self, how):
        return subprocess.Popen(
            [sys.executable, "-m", "support.spark_task", how],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self):
        """The id of the commit."""
        with self.start("free") as running:
            out, err = running.communicate(timeout=180)
        assert running.returncode == 0, err
        return out.split()[-1]


def kill_at_work(task, repo, number):
    """Kill a task while Spark works for it; returns what it wrote to stderr, once it and what it started is gone."""
    folder = Path(repo.storage_namespace.removeprefix("file://"))
    with task.start("held") as running:
        try:

            def began():
                assert running.poll() is None, running.communicate()[1]
                return any(folder.glob("began-*"))

            until(began, "work on Spark", within=150)
            started = psutil.Process(running.pid).children(recursive=True)
            assert any("java" in process.name() for process in started)
            running.send_signal(number)
            _, err = running.communicate(timeout=120)
        finally:
            running.kill()
            (folder / "released").touch()
    assert running.returncode != 0
    _, left = psutil.wait_procs(started, timeout=60)
    assert left == [], "Spark outlived its task"
    return err


def messages(repo):
    return [commit.message for commit in repo.log("main", first_parent=True)][:-1]


def test_a_task_that_is_asked_to_stop_takes_spark_along(home, repo, tmp_path):
    said = kill_at_work(Task(home, tmp_path, engine="spark", spark_master="local[1]"), repo, signal.SIGTERM)
    assert "task 'commit' was killed" in said
    assert messages(repo) == ["first"]
    assert len(list(repo.branch("main").uncommitted())) == 20
    made = Task(home, tmp_path, engine="local").run()
    assert (messages(repo), repo.branch("main").commit_id) == (["on spark", "first"], made), "another engine goes on"


@pytest.mark.slow
def test_a_task_that_is_lost_on_a_cluster_starts_over_there(home, repo, tmp_path, two_workers):
    task = Task(home, tmp_path, engine="spark", spark_master=two_workers.url)
    kill_at_work(task, repo, signal.SIGKILL)
    assert messages(repo) == ["first"]
    until(lambda: not two_workers.state()["activeapps"], "the cluster to give up the lost application")
    made = task.run()
    assert messages(repo) == ["on spark", "first"]
    assert task.run() == made == repo.branch("main").commit_id, "cleared: the same commit, without Spark"


def test_a_master_that_is_not_there_is_left_to_the_retries(home, repo, run, monkeypatch):
    from lakeops.airflow.operators import LakeopsCommitOperator

    extra = {"engine": "spark", "spark_master": "spark://127.0.0.1:1"}
    monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps({"conn_type": "lakeops", "host": str(home), "extra": extra}))
    with raising("engine_unavailable", "no Spark master answers"):
        run(LakeopsCommitOperator(task_id="t", repo="repo", branch="main", message="m", lakeops_conn_id="mine"))
    assert messages(repo) == ["first"]
