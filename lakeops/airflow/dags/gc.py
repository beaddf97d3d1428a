"""Garbage collection: every day, each repository lets idle branches go, marks what nothing needs, and sweeps it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task, task_group

from lakeops.airflow.approval import LakeopsGcApprovalOperator
from lakeops.airflow.dags.making import REPOSITORY, connection_field, dry_run, made, maybe
from lakeops.airflow.hook import DEFAULT_CONN_ID, LakeopsHook
from lakeops.airflow.operators import (
    LakeopsExpireRefsOperator,
    LakeopsGcMarkOperator,
    LakeopsGcSweepOperator,
    failing_at_once,
)

GIB = 1 << 30


def above(gib: float | None) -> str:
    """The limit in bytes, for a template; empty for none."""
    return "" if gib is None else str(round(gib * GIB))


def gc_dag(
    dag_id: str = "lakeops_gc",
    *,
    schedule: Any = "@daily",
    connection: str = DEFAULT_CONN_ID,
    repository: str | None = None,
    parallel: int = 4,
    only_show: bool = False,
    **arguments: Any,
) -> DAG:
    """Garbage collection: idle branches go, and what nothing needs is marked and swept.

    What would be deleted is in the log of each `mark` task, and in its XCom. The form's *Dry run*, which is on unless
    somebody turns it off, changes nothing, neither branches nor commits nor objects. Scheduled runs do the work. With
    *Ask above*, a person has to agree before a larger sweep; *Leave it*, and no answer in time, take the mark back, and
    its commits live again. Retention rules are the repository's: `lakeops gc rules set lakefs://REPO FILE`. A
    repository without rules keeps every commit, and loses only what was never committed.

    Args:
        dag_id: the DAG's name.
        schedule: when it runs.
        connection: the connection that the form begins with.
        repository: the repository that the form begins with; all of them, but mirrors, when left out.
        parallel: how many repositories are worked on at a time.
        only_show: let scheduled runs change nothing either.
        **arguments: of Airflow's ``DAG``: ``default_args``, ``tags``, ``params``, and so on.
    """
    defaults: dict[str, Any] = {
        "schedule": schedule,
        "max_active_runs": 1,  # so one run at a time works on a repository
        "default_args": {"retries": 2, "retry_delay": timedelta(minutes=1)},
        "user_defined_macros": {"above": above},
        "tags": ["lakeops"],
    }
    with made(gc_dag, dag_id, arguments, _form(connection, repository), **defaults) as dag:
        show = f"{{{{ {only_show} if dag_run.run_type == 'scheduled' else params.dry_run }}}}"
        collect.partial(show=show, parallel=parallel).expand(repo=repositories())
    return dag


def _form(connection: str, repository: str | None) -> dict[str, Param]:
    return {
        "repository": maybe("Repository", "Its name. Empty: all of them, but mirrors.", repository, pattern=REPOSITORY),
        "dry_run": dry_run("Show what would go, and change nothing."),
        "force": Param(
            False,
            type="boolean",
            title="Force",
            description="Sweep also when a mark holds more than 30 % of a repository's objects.",
        ),
        "ask_above_gib": Param(
            None,
            type=["null", "number"],
            minimum=0,
            title="Ask above (GiB)",
            description="A person must agree before a sweep that deletes more. Empty: nobody is asked.",
        ),
        "connection": connection_field(connection),
    }


@task
def repositories(params: dict[str, Any] | None = None) -> list[str]:
    """The repositories to work on."""
    given = params or {}
    hook = LakeopsHook(given["connection"])
    with failing_at_once(), hook.get_conn() as lake, hook.naming(lake):
        if given["repository"]:
            return [lake.repository(given["repository"]).id]
        return [found.id for found in lake.repositories() if not found.record.read_only]


@task_group
def collect(repo: str, show: str, parallel: int) -> None:
    """One repository: expire refs and commits, maybe ask, sweep."""
    where: dict[str, Any] = {
        "repo": repo,
        "lakeops_conn_id": "{{ params.connection }}",
        "max_active_tis_per_dagrun": parallel,
        "map_index_template": "{{ task.repo }}",
    }
    expire = LakeopsExpireRefsOperator(task_id="expire", only_show=show, **where)
    mark = LakeopsGcMarkOperator(task_id="mark", only_show=show, **where)
    mark_id = "{{ ti.xcom_pull(task_ids='collect.mark', map_indexes=ti.map_index)['id'] or '' }}"
    approve = LakeopsGcApprovalOperator(
        task_id="approve",
        mark_id=mark_id,
        above_bytes="{{ above(params.ask_above_gib) }}",
        only_show=show,
        **where,
    )
    sweep = LakeopsGcSweepOperator(task_id="sweep", mark_id=mark_id, force="{{ params.force }}", **where)
    expire >> mark >> approve >> sweep
