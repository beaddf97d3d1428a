"""Checks: every week, each repository is checked from its refs down."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param

from lakeops.airflow.dags.gc import repositories
from lakeops.airflow.dags.making import REPOSITORY, connection_field, made, maybe
from lakeops.airflow.hook import DEFAULT_CONN_ID
from lakeops.airflow.operators import LakeopsFsckOperator
from lakeops.airflow.operators.gc import FailOn


def fsck_dag(
    dag_id: str = "lakeops_fsck",
    *,
    schedule: Any = "@weekly",
    connection: str = DEFAULT_CONN_ID,
    repository: str | None = None,
    parallel: int = 2,
    fail_on: FailOn = "error",
    **arguments: Any,
) -> DAG:
    """Checks: everything from the refs of a repository down to the rows of its ranges is read and verified.

    Nothing is changed. Every finding is in the log of a task, with what to do about it. With *Data*, the objects are
    read too.

    Args:
        dag_id: the DAG's name.
        schedule: when it runs.
        connection: the connection that the form begins with.
        repository: the repository that the form begins with; all of them, but mirrors, when left out.
        parallel: how many repositories are checked at a time.
        fail_on: the least severity that fails a task; see ``LakeopsFsckOperator``.
        **arguments: of Airflow's ``DAG``: ``default_args``, ``tags``, ``params``, and so on.
    """
    defaults: dict[str, Any] = {
        "schedule": schedule,
        "max_active_runs": 1,
        "default_args": {"retries": 1, "retry_delay": timedelta(minutes=1)},
        "tags": ["lakeops"],
    }
    fields = {
        "repository": maybe("Repository", "Its name. Empty: all of them, but mirrors.", repository, pattern=REPOSITORY),
        "data": Param(False, type="boolean", title="Data", description="Read the objects too, all of them."),
        "connection": connection_field(connection),
    }
    with made(fsck_dag, dag_id, arguments, fields, **defaults) as dag:
        LakeopsFsckOperator.partial(
            task_id="fsck",
            data="{{ params.data }}",
            fail_on=fail_on,
            lakeops_conn_id="{{ params.connection }}",
            max_active_tis_per_dagrun=parallel,
            map_index_template="{{ task.repo }}",
        ).expand(repo=repositories())
    return dag
