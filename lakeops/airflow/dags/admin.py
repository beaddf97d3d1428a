"""Forms for people: branch, merge, revert, tag, reset, sweep and import, each in Airflow's *Trigger* dialog.

Every form first shows what it would do, in the log of the task ``preview`` and in its XCom. With *Dry run* on, which it
is unless somebody turns it off, nothing else happens. Otherwise exactly that is done: refs mean the commits that they
meant in the preview, and where others have changed what was shown, nothing is done.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from datetime import timedelta
from functools import update_wrapper
from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task

from lakeops.airflow import operators
from lakeops.airflow.compat import LakeopsFailure
from lakeops.airflow.hook import DEFAULT_CONN_ID
from lakeops.airflow.task import LakeopsPageLink, linked
from lakeops.model.errors import InvalidInput

REPOSITORY = "^[a-z0-9][a-z0-9-]{2,62}$"
NAME = r"^(?!-)[^\s/~^?*\[\\]+$"
"""Branches and tags. The task says more precisely what is wrong with a name."""
REF = r"^\S+$"
SHOWN_FIRST = "The task `preview` shows what would be done. With *Dry run*, the default, nothing is done."
WHERE: dict[str, Any] = {"repo": "{{ params.repository or '' }}", "lakeops_conn_id": "{{ params.connection }}"}


def made(
    function: Callable[..., DAG],
    dag_id: str,
    arguments: Mapping[str, Any],
    fields: Mapping[str, Param],
    **defaults: Any,
) -> DAG:
    """Make a DAG with the documentation of the function that makes it, and a form with these fields.

    ``arguments`` are those of Airflow's ``DAG`` that the caller gave; they come before the ``defaults``. Their
    ``default_args`` are added to those here, and their ``params`` may give other defaults to fields of the form.
    """
    given = dict(arguments)
    shown = (inspect.getdoc(function) or "").partition("\n\nArgs:")[0]
    params = {name: deepcopy(field) for name, field in fields.items()}
    for name, value in dict(given.pop("params", None) or {}).items():
        if isinstance(value, Param):
            params[name] = value
        elif name in params:
            params[name].value = value
        else:
            raise InvalidInput(f"the form has no field {name!r}; it has {', '.join(map(repr, params))}")
    default_args = {**defaults.pop("default_args", {}), **(given.pop("default_args", None) or {})}
    shared = {"catchup": False, "description": shown.partition("\n")[0], "doc_md": shown}
    return DAG(dag_id, **{**shared, **defaults, **given, "default_args": default_args, "params": params})


def require_fields(params: Mapping[str, Any]) -> None:
    """Refuse values of fields that the form lacks. The field that was meant may narrow down what is done."""
    with suppress(RuntimeError):  # no task is running
        if unknown := {*params} - {*get_current_context()["task"].params}:
            raise LakeopsFailure(f"the form has no field {', '.join(map(repr, sorted(unknown)))}, so nothing was done")


def text(title: str, description: str, default: str | None = None, **schema: Any) -> Param:
    """A field that must be filled in."""
    given: dict[str, Any] = {} if default is None else {"default": default}
    return Param(**given, type="string", title=title, description=description, minLength=1, **schema)


def maybe(title: str, description: str, default: str | None = None, **schema: Any) -> Param:
    """A field that may stay empty."""
    return Param(default, type=["null", "string"], title=title, description=description, **schema)


def connection_field(default: str = DEFAULT_CONN_ID) -> Param:
    """The field for the connection."""
    return text("Connection", "Airflow's connection to the lake.", default, pattern=r"^\S+$", section="Connection")


def switch(title: str, description: str, *, on: bool = False) -> Param:
    """A field that is on or off."""
    return Param(on, type="boolean", title=title, description=description)


Form = Callable[..., DAG]
"""A function that makes a form. It takes the name of the DAG, and arguments of Airflow's ``DAG``."""


def form(**fields: Param) -> Callable[[Callable[[], None]], Form]:
    """A decorator for a function that makes a form's tasks. ``fields`` stand between those that all forms share."""

    def decorate(tasks: Callable[[], None]) -> Form:
        def make(
            dag_id: str = f"lakeops_{tasks.__name__.removesuffix('_dag')}",
            repository: str | None = None,
            connection: str = DEFAULT_CONN_ID,
            **arguments: Any,
        ) -> DAG:
            where = "Its name, without lakefs://. Empty: the connection's default repository."
            params = {
                "repository": maybe("Repository", where, repository, pattern=REPOSITORY),
                **fields,
                "dry_run": switch("Dry run", "Show what would be done, and do nothing.", on=True),
                "connection": connection_field(connection),
            }
            with made(make, dag_id, arguments, params, schedule=None, tags=["lakeops", "admin"]) as dag:
                tasks()
            return dag

        made_by = update_wrapper(make, tasks)
        made_by.__doc__ = f"{inspect.getdoc(tasks)}\n\n{SHOWN_FIRST}"
        return made_by

    return decorate


def pinned(*names: str) -> dict[str, str]:
    """Templates for arguments of an operator, with the values that the preview has pinned."""
    return {name: f"{{{{ ti.xcom_pull(task_ids='preview', key='pinned')['{name}'] }}}}" for name in names}


def given(*names: str) -> dict[str, str]:
    """Templates for arguments of an operator, with the values of the form's fields of these names."""
    return {name: f"{{{{ params.{name} or '' }}}}" for name in names}


def action(description: str) -> Param:
    """The field for the action, where a form creates, moves and deletes."""
    return Param("create", type="string", enum=["create", "move", "delete"], title="Action", description=description)


@task.short_circuit(retries=2, retry_delay=timedelta(seconds=5))
def preview(verb: str, params: Any = None) -> bool:
    """Preview the form's verb. Returns False for a dry run, which ends the run here."""
    from lakeops.airflow.previews import preview as look

    require_fields(params)
    shown = look(verb, params, lakeops_conn_id=params["connection"])
    dry = params["dry_run"]
    print(f"Dry run, nothing is done. This {shown.text}" if dry else f"This {shown.text}")  # noqa: T201 - the task's log
    instance = get_current_context()["ti"]
    instance.xcom_push(key="preview", value=shown.text)
    if not dry:
        instance.xcom_push(key="pinned", value=shown.pinned)
    return not dry


linked(preview, LakeopsPageLink())


@task.branch
def chosen(params: Any = None) -> str:
    """The id of the task for the action."""
    return str(params["action"])


def do(verb: str, operator: Callable[..., Any], **arguments: Any) -> Any:
    """A task that does what the preview has shown."""
    return operator(task_id=verb, retries=2, retry_delay=timedelta(seconds=5), **WHERE, **arguments)


def do_one_of(noun: str, *actions: Any) -> None:
    """Order a form's tasks: the preview, the choice, and a task for each action."""
    preview(f"{{{{ params.action }}}} {noun}") >> chosen() >> list(actions)


@form(
    action=action(
        "Move points the branch to any commit, such as an older one of its reflog. Delete also drops uncommitted "
        "changes. Commits stay as long as the retention rules say."
    ),
    branch=text("Branch", "The branch to create, move or delete.", pattern=NAME),
    source=maybe("Source", "The ref that the branch starts at, or moves to. Empty: the default branch.", pattern=REF),
)
def branch_dag() -> None:
    """Create, move or delete a branch."""
    to = pinned("source")["source"]
    do_one_of(
        "branch",
        do("create", operators.LakeopsCreateBranchOperator, source=to, **given("branch")),
        do("move", operators.LakeopsMoveBranchOperator, ref=to, **given("branch"), **pinned("shown")),
        do("delete", operators.LakeopsDeleteBranchOperator, **given("branch"), **pinned("shown")),
    )


@form(
    source=text("Source", "What to merge: a branch, a tag, a commit id or any ref expression.", pattern=REF),
    destination=maybe("Destination", "The branch to merge into. Empty: the default branch.", pattern=NAME),
    strategy=Param(
        "fail",
        type="string",
        enum=["fail", "source-wins", "dest-wins"],
        values_display={
            "fail": "Publish nothing, and list the conflicts",
            "source-wins": "The source wins",
            "dest-wins": "The destination wins",
        },
        title="Conflicts",
        description="What to do where both sides changed a path.",
    ),
    message=maybe("Message", "The merge commit's message."),
    despite_checks=maybe(
        "Despite checks", "Merge without these declared checks, separated by commas. The merge commit names them."
    ),
)
def merge_dag() -> None:
    """Merge a ref into a branch."""
    preview("merge") >> do(
        "merge",
        operators.LakeopsMergeOperator,
        **pinned("source", "destination", "shown"),
        strategy="{{ '' if params.strategy == 'fail' else params.strategy }}",
        message="{{ params.message or 'Merge ' ~ params.source }}",
        despite_checks="{{ (params.despite_checks or '').split(',') | map('trim') | select | list }}",
    )


@form(
    branch=text("Branch", "The branch that gets the revert commit.", "main", pattern=NAME),
    ref=text("Commit", "The commit to revert. Give its id: main~1 is another commit tomorrow.", pattern=REF),
    parent_number=Param(
        None,
        type=["null", "integer"],
        minimum=1,
        title="Parent",
        description="For a merge commit: the number of the parent to go back to, usually 1.",
    ),
    message=maybe("Message", "The commit's message. Empty: Revert '...'."),
)
def revert_dag() -> None:
    """Revert a commit by a new commit."""
    arguments = {**given("branch", "parent_number", "message"), **pinned("ref", "shown")}
    preview("revert") >> do("revert", operators.LakeopsRevertOperator, **arguments)


@form(
    action=action("Readers of a tag see the new commit as soon as the tag is moved."),
    tag=text("Tag", "The tag to create, move or delete.", pattern=NAME),
    ref=maybe("Ref", "The ref that the tag names, or moves to. Empty: the default branch's head.", pattern=REF),
)
def tag_dag() -> None:
    """Create, move or delete a tag."""
    do_one_of(
        "tag",
        do("create", operators.LakeopsCreateTagOperator, **given("tag"), **pinned("ref")),
        do("move", operators.LakeopsMoveTagOperator, **given("tag"), **pinned("ref", "shown")),
        do("delete", operators.LakeopsDeleteTagOperator, **given("tag"), **pinned("shown")),
    )


@form(
    branch=text("Branch", "The branch whose uncommitted changes are dropped.", pattern=NAME),
    prefix=maybe("Prefix", "Drop only changes under this prefix. Empty: all changes."),
)
def reset_dag() -> None:
    """Drop uncommitted changes."""
    preview("reset") >> do(
        "reset", operators.LakeopsResetBranchOperator, **given("branch", "prefix"), **pinned("shown")
    )


@form(
    mark=text("Mark", "The mark's id, as the page of garbage collection has it.", pattern=REF),
    force=switch("Force", "Sweep also when the mark holds more than 30 % of the objects."),
)
def sweep_dag() -> None:
    """Delete what a mark of garbage collection holds."""
    arguments = {**pinned("mark_id"), "force": "{{ params.force }}"}
    preview("sweep") >> do("sweep", operators.LakeopsGcSweepOperator, **arguments)


@form(
    source=text(
        "Source",
        "s3://bucket/prefix, az://, gs:// or file:///directory. The objects stay where they are.",
        pattern="^(s3|az|gs|file)://.+$",
    ),
    branch=text("Branch", "The branch to import to.", "main", pattern=NAME),
    prefix=maybe("Prefix", "The folder that the imported objects replace. Empty: the whole branch."),
    message=maybe("Message", "The commit's message. Empty: Import ..."),
)
def import_dag() -> None:
    """Import the objects under a prefix of a bucket into a folder, without copying."""
    arguments = {**given("source", "branch", "prefix", "message"), **pinned("shown")}
    preview("import") >> do("import", operators.LakeopsImportOperator, **arguments)


def admin_dags(prefix: str = "lakeops_", **arguments: Any) -> list[DAG]:
    """All forms: branch, merge, revert, tag, reset, sweep and import. Their names begin with ``prefix``."""
    forms = (branch_dag, merge_dag, revert_dag, tag_dag, reset_dag, sweep_dag, import_dag)
    return [make(prefix + make.__name__.removesuffix("_dag"), **arguments) for make in forms]
