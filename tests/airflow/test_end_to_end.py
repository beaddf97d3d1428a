"""Airflow as it is run: scheduler, triggerer, DAG processor and API server, each a process of its own, on loopback.

What ``dag.test`` cannot show: that the triggerer finds the triggers, that tasks resume, that a watcher starts DAGs and
its cursor outlives a triggerer that is killed, that a person's answer ends up in a merge, that events start DAGs.
"""

import json
import shutil
import sys
import time
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from services.process import stopped_by

from lakeops import Lake

ROOT = Path(__file__).resolve().parents[2]
SERVE = ROOT / "demo" / "airflow" / "serve.py"
sys.path.insert(0, str(SERVE.parent))

from rest import Rest  # noqa: E402
from serve import Server  # noqa: E402

from lakeops.airflow.triggers import CURSOR  # noqa: E402

ASSET = "lakefs://flights/main"
DEADLINE = 280
SECRET = "kept-from-every-log"
QUICK = {
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "LAKEOPS_FSYNC": "false",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("airflow")
    connection = {"conn_type": "lakeops", "host": str(home / "lakeops"), "password": SECRET}
    settings = {**QUICK, "AIRFLOW_CONN_LAKEOPS_DEFAULT": json.dumps(connection)}
    running = Server(home, ROOT / "tests" / "support" / "airflow_dags", settings)
    with stopped_by([sys.executable, str(SERVE), "down", "--home", str(home)]):
        running.start()
        try:
            yield running
            assert not running.exposed(), "it listens on loopback alone"
        finally:
            running.stop()
            assert not running.running()
    logs = [path for path in (*running.logs.rglob("*"), *(home / "logs").rglob("*")) if path.is_file()]
    assert len(logs) > len(QUICK)
    assert [path for path in logs if SECRET in path.read_text(errors="replace")] == []


def until(holds, what):
    deadline = time.monotonic() + DEADLINE
    while not (found := holds()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {DEADLINE} s: {what}")
        time.sleep(0.5)  # each look costs the web server more than the wait costs the test
    return found


def commit_outside(flights, path):
    flights.branch("main").put(path, b"by hand")
    return flights.branch("main").commit("by hand").id


def place(repository):
    return Path(repository.storage_namespace.removeprefix("file://"))


def seen(flights):
    """The prefixes that were told of each commit, one entry a run that was told."""
    found: dict[str, list[str]] = {}
    for entry in flights.ref("seen").list():
        found.setdefault(entry.path.partition("/")[0], []).append(flights.ref("seen").read(entry.path).decode())
    return found


@pytest.mark.timeout(900)
def test_waiting_watching_and_publishing_in_a_real_airflow(server):
    with Rest(server.url, server.password) as rest, Lake.open(home=server.lake_home) as lake:
        flights = lake.create_repository("flights")
        for branch in ("seen", "told"):
            flights.create_branch(branch)
        shop = lake.create_repository("shop")
        for dag in ("on_commit", "wait_for_tag", "publish_approved", "mistake", "publish_iceberg"):
            rest.wait_for_dag(dag, DEADLINE)

        def state(run, task="wait", dag="wait_for_tag"):
            return rest.task_states(dag, run).get(task, "")

        for tag in ("soon", "never", "late"):
            rest.trigger("wait_for_tag", tag, None, {"tag": tag})
        rest.trigger("publish_approved", "one", None, {})
        rest.trigger("mistake", "one", None, {})
        for run, damage in (("one", "none"), ("two", "lost")):  # one after the other
            rest.trigger("publish_iceberg", run, None, {"damage": damage, "day": "2026-01-01"})
        until(lambda: rest.asset_state(ASSET).get(CURSOR), "the watcher has taken its first look")

        # A commit that Airflow knows nothing of starts the DAG that follows the branch.
        first = commit_outside(flights, "flights/a")
        until(lambda: first in seen(flights), "the first commit was told of")

        # A deferred task ends when what it waits for comes true, and by hand.
        until(lambda: {state(tag) for tag in ("soon", "never", "late")} == {"deferred"}, "three tasks are deferred")
        flights.create_tag("soon", "main")
        rest.mark("wait_for_tag", "never", "wait", "failed")
        until(lambda: state("soon") == "success", "the tag was seen")
        assert rest.result("wait_for_tag", "soon", "wait") == {"id": "soon", "commit_id": first}
        until(lambda: rest.run_states("wait_for_tag")["never"] == "failed", "the run is failed by hand")

        # A user's mistake is one line of the log, without a traceback and without a second try.
        until(lambda: rest.run_states("mistake")["one"] == "failed", "the mistake is told")
        log = rest.log("mistake", "one", "merge")
        (line,) = (line for line in log if line.get("level") == "error")
        assert line["event"].startswith("Task failed with exception: ref_not_found: source: no branch, tag")
        assert f"{server.url}/lakeops/lakeops_default/flights/diff?left=main&right=nosuch" in line["event"]
        assert not line.get("error_detail")
        assert "Traceback" not in str(log)
        assert flights.branch("told").read("exception").startswith(b'LakeopsFailure("ref_not_found: source: no branch')

        # A person is shown the diff; the answer is in the merge, whose event starts the same DAG.
        ask = "publish.approve"
        until(lambda: state("one", ask, "publish_approved") == "awaiting_input", "somebody is asked")
        assert "| added | `weather/part-0` | 4 |" in rest.question("publish_approved", "one", ask)["body"]

        # Answered at once, Airflow 3.3 often fails the try that asked. The one answer counts all the same.
        rest.answer("publish_approved", "one", ask, "Approve")
        until(lambda: rest.run_states("publish_approved")["one"] == "success", "the table is published")
        merged = flights.branch("main").head
        assert merged.metadata["approved_by"] == "admin"
        assert flights.ref("main").read("weather/part-0") == b"rain"
        until(lambda: merged.id in seen(flights), "the merge was told of")

        # Two Iceberg tables: the question names their rows, and readers see both of them or none.
        until(lambda: state("one", "approve", "publish_iceberg") == "awaiting_input", "somebody is asked about tables")
        shown = rest.question("publish_iceberg", "one", "approve")["body"]
        for name, number in (("lines", 200), ("orders", 100)):
            assert f"`table warehouse/web/{name}: rows: {number} added, 0 deleted; " in shown
        assert list(shop.ref("main").list()) == []
        rest.answer("publish_iceberg", "one", "approve", "Approve")
        until(lambda: rest.run_states("publish_iceberg")["one"] == "success", "both tables are published")
        until(lambda: rest.run_states("publish_iceberg")["two"] == "failed", "lost lines are found")
        assert rest.task_states("publish_iceberg", "two")["audit"] == "failed"
        properties = {"py-catalog-impl": "lakeops.iceberg.RefCatalog", "lakeops.home": str(server.lake_home)}
        main = load_catalog("shop", **properties, warehouse="lakefs://shop/main/warehouse")
        read = {name: main.load_table(f"web.{name}").scan().to_arrow().num_rows for name in ("orders", "lines")}
        assert read == {"orders": 100, "lines": 200}
        assert len([*shop.log("main", first_parent=True)]) == 2

        # A triggerer that dies loses no wait and no commit, and repeats none.
        assert state("late") == "deferred"
        server.kill("triggerer")
        second = commit_outside(flights, "top")
        flights.create_tag("late", "main")
        server.revive("triggerer")
        until(lambda: second in seen(flights), "the commit that was made meanwhile was told of")
        until(lambda: state("late") == "success", "the wait went on")

        assert {commit: len(runs) for commit, runs in seen(flights).items()} == {first: 1, merged.id: 1, second: 1}
        assert seen(flights) == {first: ["['flights/']"], merged.id: ["['weather/']"], second: ["['top']"]}
        events = [event.get("payload", event) for event in rest.asset_events(ASSET)]
        assert [event["commit_id"] for event in events] == [first, merged.id, second]

        # A mirror that is idle starts nothing. What its source shows then is discovered, and shown when it is there.
        assert rest.run_states("lakeops_mirror") == {}
        replica = lake.create_mirror("replica", source=f"{server.lake_home}#flights")
        shutil.copytree(place(flights), place(replica), dirs_exist_ok=True)
        until(lambda: replica.branch("main").commit_id == second, "the triggerer found something to do")
