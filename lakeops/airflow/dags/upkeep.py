"""DAGs that keep repositories in order: garbage collection every day, fsck every week, mirrors when they are due."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task, task_group

from lakeops.airflow import operators
from lakeops.airflow.dags.admin import REPOSITORY, connection_field, made, maybe, require_fields, switch, text
from lakeops.airflow.hook import DEFAULT_CONN_ID, LakeopsHook
from lakeops.airflow.operators.upkeep import FailOn

ALL = "Its name. Empty: all repositories except mirrors."
ANSWER = timedelta(hours=20)
"""The time for the answer of a person. A daily run ends before the next one."""


def _defaults(schedule: Any, retries: int, delay: timedelta, **more: Any) -> dict[str, Any]:
    retried = {"retries": retries, "retry_delay": delay}
    # One run at a time works on a repository.
    return {"schedule": schedule, "max_active_runs": 1, "default_args": retried, "tags": ["lakeops"], **more}


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
    """Collect garbage: delete idle branches and branches of deleted or failed runs, then mark and sweep.

    The report of each mark is in the log of its `mark` task, and in its XCom. The form's *Dry run*, which is on unless
    somebody turns it off, changes neither branches nor commits nor objects. Runs that a schedule or an asset starts do
    the work. With *Ask above*, a person has to agree before a larger sweep; *Leave it*, and no answer within 20 hours,
    take the mark back, and its commits live again. Retention rules are the repository's: `lakeops gc rules set
    lakefs://REPO FILE`. A repository without rules keeps every commit, and loses only what was never committed.
    Branches of runs that are deleted or have failed go some days after their last change; the log of `expire` names
    them.

    With ``only_show``, scheduled runs change nothing either.
    """
    fields = {
        "repository": maybe("Repository", ALL, repository, pattern=REPOSITORY),
        "dry_run": switch("Dry run", "Show what would be deleted, and change nothing.", on=True),
        "force": switch("Force", "Sweep also when a mark holds more than 30 % of a repository's objects."),
        "ask_above_gib": Param(
            None,
            type=["null", "number"],
            minimum=0,
            title="Ask above (GiB)",
            description="Ask a person before a sweep that deletes more than this. Empty: ask nobody.",
        ),
        "abandoned_after_days": Param(
            7,
            type=["null", "integer"],
            minimum=0,
            title="Branches of runs (days)",
            description="Delete branches of deleted or failed runs this many days after the last change. Empty: never.",
        ),
        "connection": connection_field(connection),
    }
    defaults = _defaults(schedule, 2, timedelta(minutes=1))
    with made(gc_dag, dag_id, arguments, fields, **defaults) as dag:
        scheduled = "dag_run.run_type in ('scheduled', 'asset_triggered')"
        show = f"{{{{ {only_show} if {scheduled} else params.dry_run }}}}"
        collect.partial(show=show, parallel=parallel).expand(repo=repositories())
    return dag


@task
def repositories(params: dict[str, Any] | None = None) -> list[str]:
    """The repositories to work on."""
    given = params or {}
    require_fields(given)
    hook = LakeopsHook(given["connection"])
    with operators.failing_at_once(), hook.get_conn() as lake, hook.naming(lake):
        if given["repository"]:
            return [lake.repository(given["repository"]).id]
        return [found.id for found in lake.repositories() if not found.record.read_only]


@task_group
def collect(repo: str, show: str, parallel: int) -> None:
    """Collect the garbage of one repository: expire refs and commits, maybe ask, sweep."""
    from lakeops.airflow.approval import LakeopsGcApprovalOperator  # late: files with other DAGs do not need it

    where: dict[str, Any] = {
        "repo": repo,
        "lakeops_conn_id": "{{ params.connection }}",
        "max_active_tis_per_dagrun": parallel,
        "map_index_template": "{{ task.repo }}",
    }
    abandoned = "{{ '' if params.abandoned_after_days is none else params.abandoned_after_days }}"
    expire = operators.LakeopsExpireRefsOperator(
        task_id="expire", only_show=show, abandoned_after_days=abandoned, **where
    )
    mark = operators.LakeopsGcMarkOperator(task_id="mark", only_show=show, **where)
    gib = "{{ '' if params.ask_above_gib is none else (params.ask_above_gib * 1073741824) | round | int }}"
    pulled = "{{{{ ti.xcom_pull(task_ids='collect.{}', map_indexes=ti.map_index)['{}'] or '' }}}}"
    asked: dict[str, Any] = {"mark_id": pulled.format("mark", "id"), "above_bytes": gib, "response_timeout": ANSWER}
    approve = LakeopsGcApprovalOperator(task_id="approve", only_show=show, **asked, **where)
    # The answer, and not the state of its task, lets a mark through.
    answered = pulled.format("approve", "mark_id")
    sweep = operators.LakeopsGcSweepOperator(task_id="sweep", mark_id=answered, force="{{ params.force }}", **where)
    expire >> mark >> approve >> sweep


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
    """Run fsck: read and verify a repository, from its refs down to the rows of its ranges.

    Nothing is changed. Every finding is in the log of a task, with what to do about it. With *Data*, the objects are
    read too.
    """
    defaults = _defaults(schedule, 1, timedelta(minutes=1))
    fields = {
        "repository": maybe("Repository", ALL, repository, pattern=REPOSITORY),
        "data": switch("Data", "Also read all objects, and verify their contents."),
        "connection": connection_field(connection),
    }
    with made(fsck_dag, dag_id, arguments, fields, **defaults) as dag:
        operators.LakeopsFsckOperator.partial(
            task_id="fsck",
            data="{{ params.data }}",
            fail_on=fail_on,
            lakeops_conn_id="{{ params.connection }}",
            max_active_tis_per_dagrun=parallel,
            map_index_template="{{ task.repo }}",
        ).expand(repo=repositories())
    return dag


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
    """Sync mirrors: record the refs of each source, wait for their files, and promote complete commits.

    A run starts when there is something to do: the source shows something new, a branch or tag waits for what has not
    arrived, or a source cannot be reached. `discover` copies commit records; each branch and tag then waits in the
    triggerer on its own. What has not arrived within 45 seconds is skipped, and the next run waits for it. What arrived
    damaged, and what nothing arrives of any more, fails the run and says what is missing. DAGs scheduled on
    `lakefs://MIRROR/BRANCH` start when a branch moves.
    """
    from lakeops.airflow.assets import mirrors_due

    when = [mirrors_due(connection)] if schedule == WHEN_DUE else schedule
    defaults = _defaults(when, 2, timedelta(seconds=10))
    fields = {
        "mirror": maybe("Mirror", "Its name. Empty: all of them.", mirror, pattern=REPOSITORY),
        "connection": connection_field(connection),
    }
    with made(mirror_dag, dag_id, arguments, fields, **defaults) as dag:
        # The next run tries again; a source that does not answer must not hold the other mirrors up.
        discover = operators.LakeopsMirrorDiscoverOperator.partial(
            task_id="discover", retries=0, execution_timeout=LIMIT, map_index_template="{{ task.repo }}", **WHERE
        ).expand(repo=mirrors())
        discover >> discovered()
        follow.expand_kwargs(waiting(discover.output["waiting"]))  # type: ignore[index]  # Airflow declares less
    return dag


def create_mirror_dag(
    dag_id: str = "lakeops_create_mirror", *, connection: str = DEFAULT_CONN_ID, **arguments: Any
) -> DAG:
    """Create a mirror: a read-only repository that follows one of another lake.

    It shows nothing before its first promotion, and can be deleted: its objects stay where they are.
    """
    fields = {
        "mirror": text("Mirror", "Its name here.", pattern=REPOSITORY),
        "source": text("Source", "airflow:CONNECTION#REPO, or another address of a lake, without a password."),
        "storage_namespace": text("Place", "Where the source's objects are replicated to: s3://bucket/prefix."),
        "connection": connection_field(connection),
    }
    with made(create_mirror_dag, dag_id, arguments, fields, schedule=None, tags=["lakeops", "admin"]) as dag:
        operators.LakeopsCreateMirrorOperator(
            task_id="create",
            repo="{{ params.mirror }}",
            source="{{ params.source }}",
            storage_namespace="{{ params.storage_namespace }}",
            **WHERE,
        )
    return dag


@task
def mirrors(params: dict[str, Any] | None = None, triggering_asset_events: Any = None) -> list[str]:
    """The mirrors to work on: the one that the form names, those that have something to do, or all."""
    given = params or {}
    require_fields(given)
    due: set[str] = set()
    for event in (event for events in dict(triggering_asset_events or {}).values() for event in events):
        extra = event.extra or {}
        due.update(extra.get("payload", extra).get("mirrors", ()))
    hook = LakeopsHook(given["connection"])
    with operators.failing_at_once(), hook.get_conn() as lake, hook.naming(lake):
        if given["mirror"]:
            return [lake.mirror(given["mirror"]).id]
        following = [found.repository_id for found in lake.catalog.mirrors.all() if found.promoted_writable is None]
        return [name for name in following if name in due or not due]


@task(trigger_rule="all_done")
def waiting(found: list[list[dict[str, Any]]] | None) -> list[dict[str, Any]]:
    """The refs that wait, of all mirrors that were discovered."""
    return [ref for refs in found or () for ref in refs or ()]


@task
def discovered() -> None:
    """Fail the run when a mirror could not be seen; the others go on meanwhile."""


@task_group
def follow(repo: str, branch: str | None, tag: str | None) -> None:
    """Wait for a branch or a tag, and show it."""
    from lakeops.airflow.sensors import LakeopsReplicationSensor  # late: files with other DAGs do not need it

    ref: dict[str, Any] = {"repo": repo, "branch": branch, "tag": tag, "map_index_template": SHOWN, **WHERE}
    waits: dict[str, Any] = {"poke_interval": 10, "timeout": WAIT.total_seconds()}
    arrived = LakeopsReplicationSensor(task_id="arrived", deferrable=True, soft_fail=True, **waits, **ref)
    commit_id = arrived.output["commit_id"]  # type: ignore[index]
    operators.LakeopsMirrorPromoteOperator(task_id="promote", commit_id=commit_id, **ref)
