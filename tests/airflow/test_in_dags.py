"""Operators inside DAGs that Airflow runs: XComs, mapping, retries and what a teardown does."""

import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

sdk = pytest.importorskip("airflow.sdk")

from support.dags import known, states, tries  # noqa: E402

from lakeops.airflow.assets import branch_asset  # noqa: E402
from lakeops.airflow.operators import (  # noqa: E402
    LakeopsCommitOperator,
    LakeopsCreateBranchOperator,
    LakeopsMergeOperator,
)

RunDag = Callable[[Any], dict[str, tuple[str, int]]]


@pytest.fixture(scope="module")
def run_dag(airflow_database):
    """Runs a DAG; gives state and tries by task id (and map index, where a task is mapped)."""

    def run(dag):
        done = known(dag).test()
        return {task: (state, tries(done)[task.partition("[")[0]]) for task, state in states(done).items()}

    return run


def test_each_key_of_a_record_is_an_xcom(flights, run_dag):
    with sdk.DAG("xcoms", schedule=None) as dag:
        create = LakeopsCreateBranchOperator(task_id="create", repo="flights", branch="dev")
        commit = LakeopsCommitOperator(
            task_id="commit", repo="flights", branch="dev", message="empty", on_empty="commit"
        )

        @sdk.task
        def check(commit_id, whole):
            assert commit_id == whole["id"]
            assert whole["metadata"]["airflow_task_id"] == "commit"

        create >> commit >> check(commit.output["id"], commit.output)
    assert run_dag(dag) == {"create": ("success", 1), "commit": ("success", 1), "check": ("success", 1)}
    assert flights.branch("dev").head.message == "empty"


@pytest.mark.needs_airflow("3.3")
@pytest.mark.parametrize(("connection", "questions"), [("lakeops_default", 2), ("theirs", 1)])
def test_a_task_asks_airflow_about_its_connection_once(flights, home, run_dag, monkeypatch, connection, questions):
    """Each message is a request to the API server. A missing connection is asked about again: see confirm_missing."""
    from airflow.models import Connection
    from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms
    from airflow.utils.session import create_session

    if connection == "theirs":
        with create_session() as session:
            session.add(Connection(conn_id=connection, conn_type="lakeops", host=str(home)))
    sent: Counter[str] = Counter()
    send = InProcessSupervisorComms.send
    monkeypatch.setattr(
        InProcessSupervisorComms, "send", lambda self, msg: [sent.update([type(msg).__name__]), send(self, msg)][1]
    )
    with sdk.DAG(f"asking-{connection}", schedule=None) as dag:
        LakeopsCreateBranchOperator(task_id="create", repo="flights", branch="dev", lakeops_conn_id=connection)
    assert run_dag(dag) == {"create": ("success", 1)}
    assert sent["GetConnection"] == questions
    assert sent["SetXCom"] == 4, "the record, each of its two keys, and a link"


def test_a_mistake_is_one_line_that_names_the_page(flights, run_dag, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "lakeops.airflow.plugin", ModuleType("plugin"))
    told: list[BaseException] = []
    with sdk.DAG("mistake", schedule=None) as dag:
        LakeopsMergeOperator(
            task_id="merge",
            repo="flights",
            source="nosuch",
            retries=3,
            retry_delay=timedelta(0),
            on_failure_callback=lambda context: told.append(context["exception"]),
        )
    assert run_dag(dag) == {"merge": ("failed", 1)}
    said = capfd.readouterr()
    (line,) = (line for line in (said.out + said.err).splitlines() if "nosuch" in line)
    assert "Task failed with exception: ref_not_found: source: no branch, tag or commit answers to 'nosuch'" in line
    assert "http://127.0.0.1:8080/lakeops/lakeops_default/flights/diff?left=main&right=nosuch" in line
    assert "Traceback" not in said.out + said.err
    assert [type(error).__name__ for error in told] == ["LakeopsFailure"]


def test_a_published_commit_is_an_event_and_a_link(flights, run_dag, monkeypatch):
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    import lakeops.airflow.plugin

    assert lakeops.airflow.plugin.PREFIX == "/lakeops"
    with sdk.DAG("follows", schedule=[branch_asset("flights")]) as follows:
        pass
    known(follows)
    with sdk.DAG("announces", schedule=None) as dag:
        LakeopsCommitOperator(task_id="commit", repo="flights", branch="main", message="empty", on_empty="commit")
    assert run_dag(dag) == {"commit": ("success", 1)}
    head = flights.branch("main").commit_id
    with create_session() as session:
        links = dict(
            session.execute(
                select(XComModel.key, XComModel.value).where(
                    XComModel.dag_id == "announces", XComModel.key.startswith("_link")
                )
            ).all()
        )
        events = session.execute(
            select(AssetModel.uri, AssetEvent.extra)
            .join(AssetEvent, AssetEvent.asset_id == AssetModel.id)
            .where(AssetEvent.source_dag_id == "announces")
        ).all()
    assert links == {
        "_link_LakeopsCommitLink": f"/lakeops/lakeops_default/flights/commit/{head}",
        "_link_LakeopsBranchLink": "/lakeops/lakeops_default/flights/ref/main",
    }
    told = sorted((uri, extra["commit_id"]) for uri, extra in events)
    assert told == [("lakefs://flights/main", head), ("lakeops", head)]
    pages = {extra["page"] for _, extra in events}
    assert pages == {f"http://127.0.0.1:8080/lakeops/lakeops_default/flights/commit/{head}"}, "an asset leads to it"
