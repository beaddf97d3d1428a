"""Publish one day of flights and weather: write to a branch, audit it there, and only then merge it into main.

A day that fails its audit never reaches main. Its branch stays, so that somebody can look at what was wrong; the
teardown drops a branch only when main has everything that is on it.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param, dag
from airflow.sdk.exceptions import AirflowFailException

from lakeops.airflow.publish import WriteAuditPublish

if TYPE_CHECKING:
    from airflow.sdk import DagRun

    from lakeops.lake import Ref

DAMAGES = ["none", "unknown-carrier", "impossible-times", "lost-rows"]


def day_of(run: DagRun, params: dict[str, Any]) -> str:
    """The day that a run publishes: the ``day`` parameter, or else its logical date."""
    if params["day"]:
        return date.fromisoformat(params["day"]).isoformat()
    if run.logical_date is None:
        raise AirflowFailException("say which day to publish: set the parameter 'day', or a logical date")
    return run.logical_date.date().isoformat()


def branch_of(run: DagRun, params: dict[str, Any]) -> str:
    """A branch of the run's own, so that two runs of one day never audit each other's data."""
    import hashlib

    return f"day-{day_of(run, params)}-{hashlib.sha256(run.run_id.encode()).hexdigest()[:6]}"


@dag(
    schedule=None,  # the data is of 2013: a schedule would ask for days that it does not have
    max_active_runs=4,
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    params={
        "day": Param(
            None,
            type=["null", "string"],
            format="date",
            title="Day",
            description="A day of 2013. Empty: the run's logical date.",
        ),
        "repository": Param("flights", type="string", minLength=3, title="Repository"),
        "damage": Param(
            "none",
            type="string",
            enum=DAMAGES,
            title="Damage",
            description="Spoil the day on purpose, to see the audit stop it.",
        ),
    },
    user_defined_macros={"day_of": day_of, "branch_of": branch_of},
    tags=["lakeops", "example"],
    doc_md=__doc__,
)
def publish_flights() -> None:
    """Write two tables to a branch of the run's own, audit them, publish both at once."""
    day = "{{ day_of(dag_run, params) }}"
    with WriteAuditPublish(
        repo="{{ params.repository }}",
        branch="{{ branch_of(dag_run, params) }}",
        destination="main",
        commit_message=f"Flights and weather of {day}",
        message=f"Publish {day}",
        metadata={
            "day": day,
            "flights": "{{ ti.xcom_pull(task_ids='flights') }}",
            "weather": "{{ ti.xcom_pull(task_ids='weather') }}",
        },
        prefix_group_id=False,
    ) as publish:

        @publish.output(f"flights/day={day}/")
        def flights(url: str, day: str, damage: str) -> int:
            """Rows of the day's flights, written as Parquet."""
            import pyarrow.parquet as pq
            from example_flights.source import read_day

            table = read_day(date.fromisoformat(day), damage).flights
            pq.write_table(table, f"{url}/part-0.parquet")
            return table.num_rows

        @publish.output(f"weather/day={day}/")
        def weather(url: str, day: str) -> int:
            """Rows of the day's weather, written as Parquet."""
            import pyarrow.parquet as pq
            from example_flights.source import read_day

            table = read_day(date.fromisoformat(day)).weather
            pq.write_table(table, f"{url}/part-0.parquet")
            return table.num_rows

        @publish.check
        def audit(ref: Ref, day: str) -> list[str]:
            """The rules that the day breaks, as the data lies on the branch."""
            import pyarrow.parquet as pq
            from example_flights.audit import audit as verdicts
            from example_flights.source import Tables, read_known

            tables = []
            for name in Tables._fields:
                with ref.open(f"{name}/day={day}/part-0.parquet") as file:
                    tables.append(pq.ParquetFile(file).read(use_threads=False))
            found = verdicts(date.fromisoformat(day), Tables(*tables), read_known())
            for verdict in found:
                print(f"{'ok    ' if verdict.holds else 'FAILED'} {verdict.rule}: {verdict.found}")  # noqa: T201 - the task's log
            return [f"{verdict.rule}: {verdict.found}" for verdict in found if not verdict.holds]

        flights(day, "{{ params.damage }}")
        weather(day)
        audit(day)


publish_flights()
