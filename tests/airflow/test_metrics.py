"""Metrics of tasks: what a StatsD server receives of Airflow's own client, and what the documentation says."""

import re
import socket
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from support.airflow_tasks import with_garbage
from support.dags import known

sdk = pytest.importorskip("airflow.sdk")
pytest.importorskip("statsd")

from airflow.providers.common.compat.sdk import AirflowFailException  # noqa: E402
from airflow.sdk.observability import stats  # noqa: E402
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory  # noqa: E402

from lakeops.airflow.metrics import Metric  # noqa: E402
from lakeops.airflow.operators import (  # noqa: E402
    LakeopsCommitOperator,
    LakeopsGcSweepOperator,
    LakeopsMergeOperator,
    LakeopsMirrorDiscoverOperator,
)
from lakeops.airflow.publish import WriteAuditPublish  # noqa: E402
from lakeops.model.errors import Transient  # noqa: E402

pytestmark = pytest.mark.needs_airflow("3.3")
DOCS = Path(__file__).resolve().parents[2] / "docs" / "airflow.md"


@pytest.fixture
def received(monkeypatch):
    """The metrics of lakeops that a StatsD server has received since the last look, summed up by name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        given = {"ON": "True", "HOST": "127.0.0.1", "PORT": str(server.getsockname()[1]), "INFLUXDB_ENABLED": "True"}
        for name, value in given.items():
            monkeypatch.setenv(f"AIRFLOW__METRICS__STATSD_{name}", value)
        client = get_stats_factory()()
        stats.initialize(factory=lambda: client, export_legacy_names=False)  # as a task's process does

        def look(*, tags=False):
            found: Counter[str] = Counter()
            stats.incr("the.last")
            while b"the.last" not in (packet := server.recv(65536)):
                sent = re.fullmatch(r"airflow\.(lakeops\.[^:]+):([0-9.]+)\|[cg]", packet.decode())
                if sent is not None:
                    found[sent[1] if tags else sent[1].partition(",")[0]] += float(sent[2])
            return dict(found)

        server.settimeout(10)
        yield look
        client.statsd.close()
    monkeypatch.undo()
    stats.initialize(factory=get_stats_factory(), export_legacy_names=False)


def change(repository, branch, text):
    repository.branch(branch).put("a", text)


def commit(**more):
    return LakeopsCommitOperator(task_id="commit", repo="flights", branch="dev", message="load", **more)


def merge(**more):
    return LakeopsMergeOperator(task_id="merge", repo="flights", source="dev", **more)


def test_a_server_receives_what_tasks_do(flights, run, received):
    flights.create_branch("dev")
    change(flights, "dev", b"1")
    run(commit())
    assert received() == {"lakeops.commits": 1}
    run(commit(), try_number=2)
    assert received() == {"lakeops.commits": 1}, "as its event, which comes again too"
    run(LakeopsCommitOperator(task_id="again", repo="flights", branch="dev", message="nothing"))
    assert received() == {}
    run(merge())
    assert received() == {"lakeops.commits": 1}


def test_conflicts_and_rejections_are_counted(flights, run, received):
    flights.create_branch("dev")
    change(flights, "dev", b"1")
    run(commit(checks=["positive"]))
    received()
    with pytest.raises(AirflowFailException, match="missing_check"):
        run(merge())
    assert received() == {"lakeops.rejected": 1}
    flights.create_branch("other")
    for branch in ("other", "main"):
        change(flights, branch, branch.encode())
        flights.branch(branch).commit("other")
    with pytest.raises(AirflowFailException, match="conflict"):
        run(LakeopsMergeOperator(task_id="conflicting", repo="flights", source="other"))
    assert received() == {"lakeops.conflicts": 1}


def test_tries_that_may_pass_are_counted(flights, run, received, monkeypatch):
    def fails(*_):
        raise Transient("it does not answer", kind="catalog_unavailable")

    monkeypatch.setattr(LakeopsMergeOperator, "run_verb", fails)
    for try_number in (1, 2):
        with pytest.raises(Transient):
            run(merge(), try_number=try_number)
    assert received() == {"lakeops.retries": 2}


def test_a_sweep_tells_how_much_it_freed(lake, run, received):
    with_garbage("one")
    mark = lake.repository("one").gc.mark()
    done = run(LakeopsGcSweepOperator(task_id="sweep", repo="one", mark_id=mark.id))
    assert done["bytes"] > 0
    assert received() == {"lakeops.gc.bytes_freed": done["bytes"]}


def test_a_mirror_tells_how_far_it_is_behind(lake, flights, run, received):
    lake.create_mirror("copy", source=lake, source_repository="flights")
    change(flights, "main", b"1")
    flights.branch("main").commit("one")
    status = run(LakeopsMirrorDiscoverOperator(task_id="discover", repo="copy"))
    told = received()
    assert told.keys() >= {"lakeops.mirror.lag_seconds"}
    (main,) = status["branches"]
    assert told["lakeops.mirror.lag_seconds"] == main["lag_seconds"]


def test_a_failed_check_is_told_with_its_task(flights, airflow_database, received):
    with sdk.DAG("told", schedule=None) as dag, WriteAuditPublish(repo="flights", message="Publish") as publish:

        @publish.output("data/")
        def write(url):
            Path(f"{url}/part-0".removeprefix("file://")).write_text("data")

        @publish.check
        def positive(ref):
            return ["amount -1"]

        write()
        positive()
    assert str(known(dag).test().state) == "failed"
    told = {"lakeops.commits": "task_id=publish.commit", "lakeops.rejected": "check=positive,task_id=publish.positive"}
    assert {name.partition(",")[0]: set(name.split(",")[1:]) for name in received(tags=True)} == {
        name: {"dag_id=told", "repository=flights", *tags.split(",")} for name, tags in told.items()
    }


def test_the_documentation_has_every_metric():
    rows = re.findall(r"^\| `(lakeops\.[a-z_.]+)` \|", DOCS.read_text(), re.MULTILINE)
    assert rows == list(get_args(Metric))
