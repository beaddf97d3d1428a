"""The publish DAG with the CeleryExecutor: a worker of its own, fed by a real broker, metadata in a real PostgreSQL.

Celery's provider and Redis are not among the test packages. ``make test-airflow`` installs the provider. Redis is the
distribution's ``redis-server``.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from services.process import die_with_parent, stopped_by

from lakeops import Lake

pytest.importorskip("airflow.providers.celery")
pytest.importorskip("redis")

from services.postgres import postgres_url

from lakeops.airflow.compat import KNOWN

ROOT = Path(__file__).resolve().parents[2]
SERVE = ROOT / "demo" / "airflow" / "serve.py"
sys.path.insert(0, str(SERVE.parent))

from rest import Rest  # noqa: E402
from serve import Server, free_port  # noqa: E402

REDIS = shutil.which("redis-server")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(REDIS is None, reason="needs redis-server"),
]
DEADLINE = 300


def until(holds, what):
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)  # each look costs the web server more than the wait costs the test


@pytest.fixture
def broker():
    """A Redis that keeps nothing on the disk."""
    port = free_port()
    command = [str(REDIS), "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent) as server:  # noqa: PLW1509 - as other services
        yield f"redis://127.0.0.1:{port}/0"
        server.terminate()


@pytest.fixture
def server(tmp_path, broker):
    home = tmp_path / "airflow"
    with postgres_url() as database, stopped_by([sys.executable, str(SERVE), "down", "--home", str(home)]):
        settings = {
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CELERY__BROKER_URL": broker,
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{database}",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": database,
            "AIRFLOW_CONN_LAKEOPS_DEFAULT": json.dumps({"conn_type": "lakeops", "host": str(home / "lakeops")}),
            "LAKEOPS_FSYNC": "false",
        }
        found = Server(home, ROOT / "tests" / "support" / "airflow_dags", settings)
        found.start()
        try:
            yield found
        finally:
            found.stop()


@pytest.fixture
def worker(server):
    """The worker: a process that has nothing but its environment and the broker."""
    port = json.loads(server.record.read_text())["port"]
    command = ["celery", "worker", "--concurrency", "2", "--skip-serve-logs", "--without-gossip", "--without-mingle"]
    process = server._launch("worker", command, server._environment(port))
    yield
    process.terminate()  # it lets its tasks end
    process.wait()


def test_a_run_is_published_by_celerys_workers(server, worker):
    with Rest(server.url, server.password) as rest, Lake.open(home=server.lake_home) as lake:
        flights = lake.create_repository("flights")
        flights.create_branch("seen")
        rest.wait_for_dag("publish_approved", DEADLINE)
        rest.trigger("publish_approved", "one", None, {})
        ask = "publish.approve"
        asking = "awaiting_input" if KNOWN >= (3, 3) else "deferred"
        until(lambda: rest.task_states("publish_approved", "one").get(ask) == asking, "somebody is asked")
        rest.answer("publish_approved", "one", ask, "Approve")
        until(lambda: rest.run_states("publish_approved")["one"] in {"success", "failed"}, "the run ends")
        assert set(rest.task_states("publish_approved", "one").values()) == {"success"}
        assert flights.ref("main").read("weather/part-0") == b"rain"
        assert flights.ref("main").commit.metadata["approved_by"] == "admin"
        assert [branch.id for branch in flights.branches()] == ["main", "seen"]
    assert "succeeded in" in (server.logs / "worker.log").read_text()
