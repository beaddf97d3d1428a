"""Sensors inside runs of DAGs: what Airflow itself remembers for them, and deferral from end to end."""

from datetime import UTC, datetime

import pytest

sdk = pytest.importorskip("airflow.sdk")

from support.dags import known, states  # noqa: E402

from lakeops.airflow import triggers  # noqa: E402
from lakeops.airflow.sensors import LakeopsCommitSensor, LakeopsTagSensor  # noqa: E402

pytestmark = pytest.mark.usefixtures("airflow_database")


def commit(flights):
    return flights.branch("main").commit("load", allow_empty=True).id


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_run_counts_from_the_commit_that_the_run_before_it_has_seen(flights, deferrable):
    with sdk.DAG(f"follow-{deferrable}", schedule=None, params={"since": ""}) as dag:
        LakeopsCommitSensor(
            task_id="wait", repo="flights", since="{{ params.since }}", timeout=0, deferrable=deferrable, retries=0
        )
    known(dag)
    flights.create_tag("start", "main")

    def run(day, since=""):
        done = dag.test(logical_date=datetime(2013, 1, day, tzinfo=UTC), run_conf={"since": since})
        return done.get_task_instance("wait")

    first = commit(flights)
    assert run(1, "start").xcom_pull(task_ids="wait")["id"] == first
    second = commit(flights)
    assert run(2).xcom_pull(task_ids="wait")["id"] == second
    if not deferrable:  # a deferral's timeout is kept by the scheduler, which this has none of
        assert str(run(3).state) == "failed", "nothing has come since"


def test_a_deferred_task_goes_on_with_what_its_trigger_found(flights, monkeypatch):
    async def tag_meanwhile(seconds):
        if not list(flights.tags()):
            flights.create_tag("v1", "main")

    monkeypatch.setattr(triggers, "pause_async", tag_meanwhile)
    with sdk.DAG("deferred", schedule=None) as dag:
        wait = LakeopsTagSensor(task_id="wait", repo="flights", tag="v1", deferrable=True, poke_interval=1)

        @sdk.task
        def use(commit_id, whole):
            assert whole == {"id": "v1", "commit_id": commit_id}

        use(wait.output["commit_id"], wait.output)
    assert states(known(dag).test()) == {"wait": "success", "use": "success"}
