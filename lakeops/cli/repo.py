"""``lakeops repo``: create, list and forget repositories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli.ask import agree
from lakeops.cli.options import Json, RepositoryUri, Yes
from lakeops.cli.output import Output
from lakeops.cli.session import open_lake
from lakeops.cli.text import counted, moment

if TYPE_CHECKING:
    from lakeops.lake import Repository

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


def _show(out: Output, repository: Repository) -> None:
    branches = counted(sum(1 for _ in repository.branches()), "branch")
    tags = counted(sum(1 for _ in repository.tags()), "tag")
    out.say("This forgets ", (f"lakefs://{repository.id}", "red"), f" with {branches}, {tags} and all history.")
    out.say("Objects stay in ", repository.storage_namespace)
