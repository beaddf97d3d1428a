"""Publish one day of flights and weather: write to a branch, audit it there, and only then merge it into main.

A day that fails its audit never reaches main. Its branch stays, so that somebody can look at what was wrong; the
teardown drops a branch only when main has everything that is on it.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param, dag, task
from airflow.sdk.exceptions import AirflowFailException

from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.operators import (
    LakeopsCommitOperator,
    LakeopsCreateBranchOperator,
    LakeopsDeleteBranchOperator,
    LakeopsMergeOperator,
    failing_at_once,
)

if TYPE_CHECKING:
    from airflow.sdk import DagRun

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
    """Create a branch, write a day to it, audit, commit, merge, drop the branch."""
    repo = "{{ params.repository }}"
    day = "{{ day_of(dag_run, params) }}"
    branch = "{{ branch_of(dag_run, params) }}"

    @task
    def write(repo: str, branch: str, day: str, damage: str) -> dict[str, int]:
        """Row counts of the day's tables, written to the branch as Parquet."""
        import pyarrow.parquet as pq

        from lakeops.airflow.example_flights.source import read_day

        with failing_at_once(), LakeopsHook().get_conn() as lake:
            target = lake.repository(repo).branch(branch)
            tables = read_day(date.fromisoformat(day), damage)._asdict()
            for name, table in tables.items():
                with target.output(f"{name}/day={day}/", mode="replace") as url:
                    pq.write_table(table, f"{url}/part-0.parquet")
        return {name: table.num_rows for name, table in tables.items()}

    @task
    def audit(repo: str, branch: str, day: str) -> dict[str, str]:
        """What was found by each rule, on the data as it lies on the branch."""
        import pyarrow.parquet as pq

        from lakeops.airflow.example_flights.audit import audit as check
        from lakeops.airflow.example_flights.source import Tables, read_known

        with failing_at_once(), LakeopsHook().get_conn() as lake:
            ref = lake.repository(repo).ref(branch)
            tables = []
            for name in Tables._fields:
                with ref.open(f"{name}/day={day}/part-0.parquet") as file:
                    tables.append(pq.read_table(file))
            checks = check(date.fromisoformat(day), Tables(*tables), read_known())
        for verdict in checks:
            print(f"{'ok    ' if verdict.holds else 'FAILED'} {verdict.rule}: {verdict.found}")  # noqa: T201 - the task's log
        broken = [f"{verdict.rule}: {verdict.found}" for verdict in checks if not verdict.holds]
        if broken:
            raise AirflowFailException(f"{day} is not published; look at branch {branch}. {'; '.join(broken)}")
        return {verdict.rule: verdict.found for verdict in checks}

    create = LakeopsCreateBranchOperator(task_id="create_branch", repo=repo, branch=branch, source="main").as_setup()
    written = write(repo, branch, day, "{{ params.damage }}")
    audited = audit(repo, branch, day)
    commit = LakeopsCommitOperator(
        task_id="commit",
        repo=repo,
        branch=branch,
        message=f"Flights and weather of {day}",
        metadata={"day": day, "flights": f"{written['flights']}", "weather": f"{written['weather']}"},
    )
    merge = LakeopsMergeOperator(
        task_id="merge",
        repo=repo,
        source=branch,
        destination="main",
        message=f"Publish {day}",
        metadata={"day": day},
    )
    drop = LakeopsDeleteBranchOperator(task_id="drop_branch", repo=repo, branch=branch, merged_into="main")
    create >> written >> audited >> commit >> merge >> drop.as_teardown(setups=create)


publish_flights()
