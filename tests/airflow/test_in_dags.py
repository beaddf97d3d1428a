"""Operators inside DAGs that Airflow runs: XComs, mapping, retries and what a teardown does."""

import os
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

sdk = pytest.importorskip("airflow.sdk")

from airflow.providers.common.compat.sdk import AirflowFailException  # noqa: E402
from support.dags import known  # noqa: E402

from lakeops.airflow.assets import branch_asset  # noqa: E402
from lakeops.airflow.operators import (  # noqa: E402
    LakeopsCommitOperator,
    LakeopsCreateBranchOperator,
    LakeopsDeleteBranchOperator,
    LakeopsMergeOperator,
)

RunDag = Callable[[Any], dict[str, tuple[str, int]]]


@pytest.fixture(scope="module")
def run_dag(airflow_database):
    """Runs a DAG; gives state and tries by task id (and map index, where a task is mapped)."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    def run(dag):
        bag = DagBag(dag_folder=os.devnull, collect_dags=False, bundle_name="dags-folder")
        bag.bag_dag(dag)
        sync_bag_to_db(bag, "dags-folder", None)
        done = dag.test()
        return {
            task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]": (
                str(task.state),
                task.try_number,
            )
            for task in done.get_task_instances()
        }

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


def test_mapped_operators_each_do_their_own(flights, run_dag):
    names = ["one", "two", "three"]
    with sdk.DAG("mapped", schedule=None) as dag:
        create = LakeopsCreateBranchOperator.partial(task_id="create", repo="flights").expand(branch=names)
        commit = LakeopsCommitOperator.partial(
            task_id="commit", repo="flights", message="on {{ task.branch }}", on_empty="commit"
        ).expand(branch=names)
        create >> commit
    assert set(run_dag(dag).values()) == {("success", 1)}
    indexes = [flights.branch(name).head.metadata["airflow_map_index"] for name in names]
    assert indexes == ["0", "1", "2"]


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


def test_a_conflict_is_not_retried(flights, run_dag):
    flights.create_branch("dev").put("a", b"theirs")
    flights.branch("main").put("a", b"ours")
    for branch in ("dev", "main"):
        flights.branch(branch).commit("change")
    with sdk.DAG("conflict", schedule=None) as dag:
        LakeopsMergeOperator(task_id="merge", repo="flights", source="dev", retries=3, retry_delay=timedelta(seconds=0))
    assert run_dag(dag) == {"merge": ("failed", 1)}
    assert flights.ref("main").read("a") == b"ours"


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


@pytest.mark.parametrize("fails", [False, True])
def test_a_teardown_drops_only_what_is_published(flights, run_dag, fails):
    with sdk.DAG(f"teardown-{fails}", schedule=None) as dag:
        create = LakeopsCreateBranchOperator(task_id="create", repo="flights", branch="dev")

        @sdk.task
        def write():
            from lakeops import Lake

            with Lake.open() as lake:
                lake.repository("flights").branch("dev").put("a", b"1")
            if fails:
                raise AirflowFailException("the audit says no")

        commit = LakeopsCommitOperator(task_id="commit", repo="flights", branch="dev", message="load")
        merge = LakeopsMergeOperator(task_id="merge", repo="flights", source="dev")
        drop = LakeopsDeleteBranchOperator(task_id="drop", repo="flights", branch="dev", merged_into="main")
        create.as_setup() >> write() >> commit >> merge >> drop.as_teardown(setups=create)
    states = run_dag(dag)
    assert states["drop"] == ("success", 1), "a teardown runs after failures too"
    assert states["merge"][0] == ("upstream_failed" if fails else "success")
    assert flights.ref("main").exists("a") is not fails
    assert [branch.id for branch in flights.branches()] == (["dev", "main"] if fails else ["main"])


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
