"""DAGs of the end-to-end run: one that follows a branch, one that waits, one that publishes when a person
agrees, one that makes a mistake, and one that looks after mirrors."""

from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, task

from lakeops.airflow.assets import watched_branch
from lakeops.airflow.dags import mirror_dag
from lakeops.airflow.events import published
from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.operators import LakeopsMergeOperator
from lakeops.airflow.publish import WriteAuditPublish
from lakeops.airflow.sensors import LakeopsTagSensor


@dag(schedule=[watched_branch("flights", "main", poll_interval=1)], catchup=False)
def on_commit() -> None:
    """Leave a mark for each commit and run, on a branch of its own."""

    @task(retries=2, retry_delay=1)
    def mark(triggering_asset_events: Any = None, run_id: Any = None) -> None:
        with LakeopsHook().repository("flights") as flights:
            for event in published(triggering_asset_events):
                flights.branch("seen").put(f"{event['commit_id']}/{run_id}", str(event["prefixes"]).encode())

    mark()


@dag(schedule=None, catchup=False, params={"tag": Param("v1", type="string")})
def wait_for_tag() -> None:
    """Wait without a worker slot."""
    LakeopsTagSensor(
        task_id="wait", repo="flights", tag="{{ params.tag }}", deferrable=True, poke_interval=1, timeout=600
    )


@dag(schedule=None, catchup=False)
def publish_approved() -> None:
    """Publish a table when somebody agrees."""
    with WriteAuditPublish(repo="flights", message="Publish", approval=True) as publish:

        @publish.output("weather/")
        def weather(url: str) -> None:
            Path(f"{url}/part-0".removeprefix("file://")).write_text("rain")

        weather()


def tell(context: Any) -> None:
    """Leave what a callback is told of a failure."""
    with LakeopsHook().repository("flights") as flights:
        flights.branch("told").put("exception", repr(context["exception"]).encode())


@dag(schedule=None, catchup=False)
def mistake() -> None:
    """Merge what does not exist."""
    LakeopsMergeOperator(
        task_id="merge", repo="flights", source="nosuch", retries=3, retry_delay=0, on_failure_callback=tell
    )


lakeops_mirror = mirror_dag()
on_commit()
wait_for_tag()
publish_approved()
mistake()
