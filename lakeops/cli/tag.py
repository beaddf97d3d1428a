"""``lakeops tag``: names that stay at one commit."""

from __future__ import annotations

import typer

from lakeops.cli.options import Json, RefUri, RepositoryUri, TagUri, Yes, two_refs
from lakeops.cli.output import SHORT_ID, Output, commit_id
from lakeops.cli.session import agree, can_ask, open_lake

app = typer.Typer(help="Create, list, show and delete tags.", add_completion=False)


@app.command("create", epilog="Example: lakeops tag create lakefs://flights/v1 lakefs://flights/main")
def create(uri: TagUri, ref: RefUri, json: Json = False) -> None:
    """Create a tag at any ref."""
    out = Output(json)
    repository_id, name, target = two_refs(uri, ref)
    with open_lake(out) as lake:
        tag = lake.repository(repository_id).create_tag(name, target)
    out.answer(tag, ["Tag ", (name, "green"), " created at ", (tag.commit_id, "yellow")])


@app.command("list")
def list_all(uri: RepositoryUri, json: Json = False) -> None:
    """List the tags of a repository and the commits they point to."""
    out = Output(json)
    with open_lake(out) as lake:
        tags = lake.repository(uri.only_repository()).tags()
        out.table(tags, ("Tag", "Commit"), lambda ref: ((ref.id, "cyan"), commit_id(ref.commit_id)))


@app.command("show")
def show(uri: TagUri, json: Json = False) -> None:
    """Show the commit that a tag points to."""
    out = Output(json)
    repository_id, name = uri.only_ref()
    with open_lake(out) as lake:
        tag = lake.repository(repository_id).tag(name)
    out.answer(tag, ["Tag:    ", (tag.id, "cyan")], ["Commit: ", (tag.commit_id, "yellow")])


@app.command("delete")
def delete(uri: TagUri, yes: Yes = False, json: Json = False) -> None:
    """Delete a tag. The answer names its commit, so that it can be created again."""
    out = Output(json)
    repository_id, name = uri.only_ref()
    with open_lake(out) as lake:
        repository = lake.repository(repository_id)
        tag = repository.tag(name)
        agree(
            out,
            yes or not can_ask(out),
            f"Delete tag {name!r}?",
            lambda: out.say("This deletes ", (name, "red"), ", now at ", (tag.commit_id[:SHORT_ID], "yellow"), "."),
        )
        tag = repository.delete_tag(name)
    out.answer(tag, ["Tag ", (name, "green"), " deleted; it was at ", (tag.commit_id, "yellow")])
