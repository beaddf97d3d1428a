"""Mirrors: every minute, see what each mirror's source shows, wait for replication, and show what has arrived.

One run at a time. `discover` copies commit records and lists what is waited for; each branch and tag then waits in the
triggerer on its own, and is shown when it is whole. What has not arrived when the next run is due is skipped and waited
for by that one, so nothing that is late holds anything else up. What arrived damaged, and what nothing arrives of any
more, fails the run and says what is missing. DAGs scheduled on `lakefs://MIRROR/BRANCH` start when a branch moves.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task, task_group

from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.operators import LakeopsMirrorDiscoverOperator, LakeopsMirrorPromoteOperator, failing_at_once
from lakeops.airflow.sensors import LakeopsReplicationSensor

EVERY = timedelta(minutes=1)
WAIT = timedelta(seconds=45)
WHERE: dict[str, Any] = {"lakeops_conn_id": "{{ params.connection }}"}


def mirror_dag(dag_id: str = "lakeops_mirror", **arguments: Any) -> DAG:
    """The DAG that keeps mirrors up to date. ``arguments`` are those of Airflow's ``DAG``."""
    defaults: dict[str, Any] = {
        "schedule": EVERY,
        "catchup": False,
        "max_active_runs": 1,
        "default_args": {"retries": 2, "retry_delay": timedelta(seconds=10)},
        "params": _form(),
        "tags": ["lakeops"],
        "doc_md": __doc__,
    }
    with DAG(dag_id, **{**defaults, **arguments}) as made:
        # The next run tries again; a source that does not answer must not hold the other mirrors up.
        discover = LakeopsMirrorDiscoverOperator.partial(
            task_id="discover", retries=0, execution_timeout=EVERY, **WHERE
        ).expand(repo=mirrors())
        discover >> discovered()
        follow.expand_kwargs(waiting(discover.output["waiting"]))  # type: ignore[index]  # Airflow declares less
    return made


def _form() -> dict[str, Param]:
    return {
        "mirror": Param(
            None,
            type=["null", "string"],
            pattern="^[a-z0-9][a-z0-9-]{2,62}$",
            title="Mirror",
            description="Its name. Empty: all of them.",
        ),
        "connection": Param("lakeops_default", type="string", minLength=1, title="Connection", section="Advanced"),
    }


@task
def mirrors(params: dict[str, Any] | None = None) -> list[str]:
    """The mirrors to work on."""
    given = params or {}
    hook = LakeopsHook(given["connection"])
    with failing_at_once(), hook.get_conn() as lake, hook.naming(lake):
        if given["mirror"]:
            return [lake.mirror(given["mirror"]).id]
        return [found.repository_id for found in lake.catalog.mirrors() if found.promoted_writable is None]


@task(trigger_rule="all_done")
def waiting(found: list[list[dict[str, Any]]] | None) -> list[dict[str, Any]]:
    """What is waited for, over all mirrors that could be seen."""
    return [ref for refs in found or () for ref in refs or ()]


@task
def discovered() -> None:
    """Fails the run when a mirror could not be seen; the others go on meanwhile."""


@task_group
def follow(repo: str, branch: str | None, tag: str | None) -> None:
    """Wait for a branch or a tag, and show it."""
    arrived = LakeopsReplicationSensor(
        task_id="arrived",
        repo=repo,
        branch=branch,
        tag=tag,
        deferrable=True,
        soft_fail=True,
        poke_interval=10,
        timeout=WAIT.total_seconds(),
        **WHERE,
    )
    LakeopsMirrorPromoteOperator(
        task_id="promote",
        repo=repo,
        branch=branch,
        tag=tag,
        commit_id=arrived.output["commit_id"],  # type: ignore[index]
        **WHERE,
    )
