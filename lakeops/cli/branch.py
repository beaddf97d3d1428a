"""``lakeops branch``: create, list, show and delete branches, and take back what happened on one."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli import protect
from lakeops.cli.diff import change_line
from lakeops.cli.options import BranchUri, Json, ParentNumber, RepositoryUri, Yes, ref_in
from lakeops.cli.output import SHORT_ID, Output, commit_id, counted
from lakeops.cli.session import SHOWN, agree, open_lake
from lakeops.model.errors import InvalidInput
from lakeops.model.records import Ref
from lakeops.model.retention import UNDO_DAYS

if TYPE_CHECKING:
    from lakeops.lake import Branch

app = typer.Typer(help="Create, list, delete, reset, revert and protect branches.", add_completion=False)
app.add_typer(protect.app)


@app.command("create", epilog="Example: lakeops branch create lakefs://flights/dev --source lakefs://flights/main")
def create(
    uri: BranchUri,
    source: Annotated[
        str,
        typer.Option(
            "--source", "-s", metavar="lakefs://REPO/REF", help="Where it begins: any ref.", show_default=False
        ),
    ],
    json: Json = False,
) -> None:
    """Create a branch at any ref. Nothing is copied."""
    out = Output(json)
    repository_id, name = uri.only_ref()
    with open_lake(out) as lake:
        branch = lake.repository(repository_id).create_branch(name, ref_in(repository_id, source))
        ref = Ref(name, branch.commit_id)
    out.answer(ref, ["Branch ", (name, "green"), " created at ", (ref.commit_id, "yellow")])


@app.command("list")
def list_all(uri: RepositoryUri, json: Json = False) -> None:
    """List the branches of a repository and the commits they point to."""
    out = Output(json)
    with open_lake(out) as lake:
        branches = lake.repository(uri.only_repository()).branches()
        out.table(branches, ("Branch", "Commit"), lambda ref: ((ref.id, "cyan"), commit_id(ref.commit_id)))


@app.command("show")
def show(uri: BranchUri, json: Json = False) -> None:
    """Show the commit that a branch points to."""
    out = Output(json)
    repository_id, name = uri.only_ref()
    with open_lake(out) as lake:
        ref = Ref(name, lake.repository(repository_id).branch(name).commit_id)
    out.answer(ref, ["Branch: ", (ref.id, "cyan")], ["Commit: ", (ref.commit_id, "yellow")])


@app.command("delete")
def delete(uri: BranchUri, yes: Yes = False, json: Json = False) -> None:
    """Delete a branch and its uncommitted changes."""
    out = Output(json)
    repository_id, name = uri.only_ref()
    with open_lake(out) as lake:
        repository = lake.repository(repository_id)
        branch = repository.branch(name)
        agree(out, yes, f"Delete branch {name!r}?", lambda: _show_deletion(out, branch))
        ref = repository.delete_branch(name)
    out.answer(ref, ["Branch ", (name, "green"), " deleted; it was at ", (ref.commit_id, "yellow")])
    out.note(f"For {UNDO_DAYS} days at least: lakeops branch create {uri} --source {ref.commit_id}")


@app.command("reset", epilog="Example: lakeops branch reset lakefs://flights/dev --prefix raw/ --yes")
def reset(
    uri: BranchUri,
    prefix: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="Only changes under this prefix.", show_default=False)
    ] = None,
    path: Annotated[
        str | None,
        typer.Option("--object", metavar="PATH", help="Only the change of this object.", show_default=False),
    ] = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Drop uncommitted changes: all, those under a prefix, or one object's."""
    out = Output(json)
    repository_id, name = uri.only_ref()
    if prefix is not None and path is not None:
        raise InvalidInput("give --prefix or --object, not both")
    with open_lake(out) as lake:
        branch = lake.repository(repository_id).branch(name)
        agree(out, yes, f"Reset branch {name!r}?", lambda: _show_changes(out, branch, prefix, path))
        count = branch.reset(prefix=prefix, path=path)
        ref = Ref(name, branch.commit_id)
    out.answer(
        {**ref.to_json(), "reset": count},
        ["Branch ", (name, "green"), f" reset: {counted(count, 'uncommitted change')} dropped"],
    )


@app.command("revert", epilog="Example: lakeops branch revert lakefs://flights/main main~1")
def revert(
    uri: BranchUri,
    ref: Annotated[str, typer.Argument(metavar="REF", help="The commit to undo.", show_default=False)],
    parent_number: ParentNumber = None,
    json: Json = False,
) -> None:
    """Undo what a commit did, with a new commit."""
    out = Output(json)
    repository_id, name = uri.only_ref()
    with open_lake(out) as lake:
        branch = lake.repository(repository_id).branch(name)
        commit = branch.revert(ref_in(repository_id, ref), parent_number)
    out.answer(commit, ["Reverted ", ref, " on ", (name, "green"), ": commit ", (commit.id, "yellow")])


def _show_deletion(out: Output, branch: Branch) -> None:
    out.say("This deletes ", (branch.id, "red"), ", now at ", (branch.commit_id[:SHORT_ID], "yellow"), ".")
    _show_changes(out, branch)


def _show_changes(out: Output, branch: Branch, prefix: str | None = None, path: str | None = None) -> None:
    """List uncommitted changes that would be lost."""
    changes = branch.uncommitted(prefix=prefix or path or "")
    if path is not None:
        changes = (change for change in changes if change.path == path)
    first = list(islice(changes, SHOWN))
    rest = sum(1 for _ in changes)
    out.say(f"{counted(len(first) + rest, 'uncommitted change')} would be lost{':' if first else '.'}")
    for change in first:
        out.say("  ", *change_line(change))
    if rest:
        out.say(f"  ... and {rest:,} more")
