"""Mirrors: see what a mirror's source shows, wait for replication, and show what has arrived.

The triggerer looks whether there is anything to do, so no task runs while there is nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task, task_group

from lakeops.airflow.assets import mirrors_due
from lakeops.airflow.dags.making import REPOSITORY, connection_field, made, maybe
from lakeops.airflow.hook import DEFAULT_CONN_ID, LakeopsHook
from lakeops.airflow.operators import LakeopsMirrorDiscoverOperator, LakeopsMirrorPromoteOperator, failing_at_once
from lakeops.airflow.sensors import LakeopsReplicationSensor

LIMIT = timedelta(minutes=1)
WAIT = timedelta(seconds=45)
WHEN_DUE = "when something is due"
"""The schedule of a DAG that runs when a mirror has something to do."""

WHERE: dict[str, Any] = {"lakeops_conn_id": "{{ params.connection }}"}
SHOWN = "{{ task.repo }}/{{ task.branch or task.tag }}"


def mirror_dag(
    dag_id: str = "lakeops_mirror",
    *,
    schedule: Any = WHEN_DUE,
    connection: str = DEFAULT_CONN_ID,
    mirror: str | None = None,
    **arguments: Any,
) -> DAG:
    """Mirrors: what each mirror's source shows is discovered, waited for, and shown when it has arrived.

    A run starts when there is something to do: the source shows something new, a branch or tag waits for what has not
    arrived, or a source cannot be reached. One run at a time. `discover` copies commit records and lists what is waited
    for; each branch and tag then waits in the triggerer on its own, and is shown when it is whole. What has not arrived
    within a minute is skipped and waited for by the next run, so nothing that is late holds anything else up. What
    arrived damaged, and what nothing arrives of any more, fails the run and says what is missing. DAGs scheduled on
    `lakefs://MIRROR/BRANCH` start when a branch moves.

    Args:
        dag_id: the DAG's name.
        schedule: when it runs; when there is something to do, if left out. The triggerer looks every ten seconds.
        connection: the connection that the form begins with.
        mirror: the mirror that the form begins with; all of them when left out.
        **arguments: of Airflow's ``DAG``: ``default_args``, ``tags``, ``params``, and so on.
    """
    defaults: dict[str, Any] = {
        "schedule": [mirrors_due(connection)] if schedule == WHEN_DUE else schedule,
        "max_active_runs": 1,
        "default_args": {"retries": 2, "retry_delay": timedelta(seconds=10)},
        "tags": ["lakeops"],
    }
    fields = {
        "mirror": maybe("Mirror", "Its name. Empty: all of them.", mirror, pattern=REPOSITORY),
        "connection": connection_field(connection),
    }
    with made(mirror_dag, dag_id, arguments, fields, **defaults) as dag:
        # The next run tries again; a source that does not answer must not hold the other mirrors up.
        discover = LakeopsMirrorDiscoverOperator.partial(
            task_id="discover", retries=0, execution_timeout=LIMIT, map_index_template="{{ task.repo }}", **WHERE
        ).expand(repo=mirrors())
        discover >> discovered()
        follow.expand_kwargs(waiting(discover.output["waiting"]))  # type: ignore[index]  # Airflow declares less
    return dag


@task
def mirrors(params: dict[str, Any] | None = None, triggering_asset_events: Any = None) -> list[str]:
    """The mirrors to work on: the one that the form names, those that have something to do, or all."""
    given = params or {}
    due = {name for events in dict(triggering_asset_events or {}).values() for event in events for name in named(event)}
    hook = LakeopsHook(given["connection"])
    with failing_at_once(), hook.get_conn() as lake, hook.naming(lake):
        if given["mirror"]:
            return [lake.mirror(given["mirror"]).id]
        following = [found.repository_id for found in lake.catalog.mirrors() if found.promoted_writable is None]
        return [name for name in following if name in due or not due]


def named(event: Any) -> list[str]:
    """The mirrors that an event of the trigger names."""
    extra = event.extra or {}
    return list(extra.get("payload", extra).get("mirrors", ()))


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
        map_index_template=SHOWN,
        **WHERE,
    )
    LakeopsMirrorPromoteOperator(
        task_id="promote",
        repo=repo,
        branch=branch,
        tag=tag,
        commit_id=arrived.output["commit_id"],  # type: ignore[index]
        map_index_template=SHOWN,
        **WHERE,
    )
