"""Garbage collection: every day, each repository lets idle branches go, marks what nothing needs, and sweeps it.

What would be deleted is in the log of each `mark` task, and in its XCom. With *Dry run* nothing is changed, neither
branches nor commits nor objects. With *Ask above*, a person has to agree before a larger sweep; *Leave it*, and no
answer in time, take the mark back, and its commits live again. Retention rules are the repository's:
`lakeops gc rules set lakefs://REPO FILE`. A repository without rules keeps every commit, and loses only what was never
committed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task, task_group

from lakeops.airflow.approval import LakeopsGcApprovalOperator
from lakeops.airflow.hook import LakeopsHook
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


def gc_dag(dag_id: str = "lakeops_gc", **arguments: Any) -> DAG:
    """The DAG that collects garbage. ``arguments`` are those of Airflow's ``DAG``."""
    defaults: dict[str, Any] = {
        "schedule": "@daily",
        "catchup": False,
        "max_active_runs": 1,  # so one run at a time works on a repository
        "default_args": {"retries": 2, "retry_delay": timedelta(minutes=1)},
        "params": _form(),
        "user_defined_macros": {"above": above},
        "tags": ["lakeops"],
        "doc_md": __doc__,
    }
    with DAG(dag_id, **{**defaults, **arguments}) as made:
        collect.expand(repo=repositories())
    return made


def _form() -> dict[str, Param]:
    return {
        "repository": Param(
            None,
            type=["null", "string"],
            pattern="^[a-z0-9][a-z0-9-]{2,62}$",
            title="Repository",
            description="Its name. Empty: all of them, but mirrors.",
        ),
        "dry_run": Param(False, type="boolean", title="Dry run", description="Show what would go, and change nothing."),
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
        "connection": Param("lakeops_default", type="string", minLength=1, title="Connection", section="Advanced"),
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
def collect(repo: str) -> None:
    """One repository: expire refs and commits, maybe ask, sweep."""
    where: dict[str, Any] = {
        "repo": repo,
        "lakeops_conn_id": "{{ params.connection }}",
        "max_active_tis_per_dagrun": 4,
    }
    show = "{{ params.dry_run }}"
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
