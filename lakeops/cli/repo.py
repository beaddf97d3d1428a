"""``lakeops repo``: create, list and forget repositories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli.options import Json, RepositoryUri, Yes
from lakeops.cli.output import Output, counted, moment, safe
from lakeops.cli.session import agree, open_lake

if TYPE_CHECKING:
    from lakeops.lake import Repository
    from lakeops.model.owner import Owner

app = typer.Typer(help="Create, list and delete repositories.", add_completion=False)


@app.command("create", epilog="Example: lakeops repo create lakefs://flights s3://bucket/flights")
def create(
    uri: RepositoryUri,
    namespace: Annotated[
        str | None,
        typer.Argument(
            metavar="NAMESPACE",
            help="Where its objects go: file:///path or s3://bucket/prefix; below LAKEOPS_HOME when left out.",
            show_default=False,
        ),
    ] = None,
    default_branch: Annotated[str, typer.Option(metavar="NAME", help="The first branch.")] = "main",
    json: Json = False,
) -> None:
    """Create a repository with one initial commit."""
    out = Output(json)
    name = uri.only_repository()
    with open_lake(out) as lake:
        repository = lake.create_repository(name, namespace, default_branch=default_branch).record
    out.answer(
        repository,
        ["Repository ", (f"lakefs://{name}", "green"), " created in ", repository.storage_namespace],
        ["Default branch: ", repository.default_branch],
    )


@app.command("list")
def list_all(json: Json = False) -> None:
    """List all repositories."""
    out = Output(json)
    with open_lake(out) as lake:
        out.table(
            (repository.record for repository in lake.repositories()),
            ("Repository", "Default branch", "Created", "Storage namespace"),
            lambda record: (
                (record.id, "cyan"),
                record.default_branch,
                moment(record.creation_date)[:10],
                record.storage_namespace + (" (read-only)" if record.read_only else ""),
            ),
        )


@app.command("adopt", epilog="Example: lakeops repo adopt lakefs://flights --yes")
def adopt(uri: RepositoryUri, yes: Yes = False, json: Json = False) -> None:
    """Let this catalog collect garbage of a repository, in place of the catalog that may now.

    For a catalog that was restored or moved. The other catalog stops at its next mark or sweep.
    """
    out = Output(json)
    name = uri.only_repository()
    with open_lake(out) as lake:
        repository = lake.repository(name)
        owner, ours = repository.owner()
        if not ours:
            agree(out, yes, f"Take {repository.storage_namespace} over?", lambda: _show_owner(out, repository, owner))
        done = repository.adopt()
    said = "was this catalog's already" if ours else f"is this catalog's now (epoch {done.owner.epoch})"
    before = [] if ours or done.before is None else [["It was the catalog's at ", done.before.identity.shown]]
    out.answer(done, ["The right to delete in ", repository.storage_namespace, f" {said}."], *before)


@app.command("delete")
def delete(uri: RepositoryUri, yes: Yes = False, json: Json = False) -> None:
    """Forget a repository: its branches, tags and history. Its objects stay where they are."""
    out = Output(json)
    name = uri.only_repository()
    with open_lake(out) as lake:
        repository = lake.repository(name)
        agree(out, yes, f"Delete repository {name!r}?", lambda: _show(out, repository))
        lake.delete_repository(name)
    out.answer(
        repository.record,
        ["Repository ", (f"lakefs://{name}", "green"), " deleted; its objects stay in ", repository.storage_namespace],
    )


def _show_owner(out: Output, repository: Repository, owner: Owner | None) -> None:
    if owner is None:
        out.say("In ", repository.storage_namespace, " no catalog may delete now: there is no owner record.")
        return
    out.say("In ", repository.storage_namespace, " another catalog may delete now:")
    out.say("  ", (safe(owner.identity.shown), "red"), f", repository {safe(owner.repository)}, {moment(owner.at)}")
    out.say("It will collect no garbage there any more. Go on if it is gone, or if it is the copy.")


def _show(out: Output, repository: Repository) -> None:
    branches = counted(sum(1 for _ in repository.branches()), "branch")
    tags = counted(sum(1 for _ in repository.tags()), "tag")
    out.say("This forgets ", (f"lakefs://{repository.id}", "red"), f" with {branches}, {tags} and all history.")
    out.say("Objects stay in ", repository.storage_namespace)
