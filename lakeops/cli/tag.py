"""``lakeops tag``: names that stay at one commit."""

from __future__ import annotations

import typer

from lakeops.cli.options import RefUri, RepositoryUri, TagUri
from lakeops.cli.output import SHORT_ID, commit_id
from lakeops.cli.session import Session, command

app = typer.Typer(help="Create, list, show and delete tags.", add_completion=False)


@command(app, "create", example="tag create lakefs://flights/v1 lakefs://flights/main")
def create(session: Session, uri: TagUri, ref: RefUri) -> None:
    """Create a tag at any ref."""
    repository, name, target = session.two_refs(uri, ref)
    tag = repository.create_tag(name, target)
    session.answer(tag, ["Tag ", (name, "green"), " created at ", (tag.commit_id, "yellow")])


@command(app, "list")
def list_all(session: Session, uri: RepositoryUri) -> None:
    """List the tags of a repository and the commits they point to."""
    tags = session.repository(uri).tags()
    session.table(tags, ("Tag", "Commit"), lambda ref: ((ref.id, "cyan"), commit_id(ref.commit_id)))


@command(app, "show")
def show(session: Session, uri: TagUri) -> None:
    """Show the commit that a tag points to."""
    repository, name = session.named(uri)
    tag = repository.tag(name)
    session.answer(tag, ["Tag:    ", (tag.id, "cyan")], ["Commit: ", (tag.commit_id, "yellow")])


@command(app, "delete", asks=True)
def delete(session: Session, uri: TagUri) -> None:
    """Delete a tag. The answer names its commit, so that it can be created again."""
    repository, name = session.named(uri)
    tag = repository.tag(name)

    def show() -> None:
        session.message("This deletes ", (name, "red"), ", now at ", (tag.commit_id[:SHORT_ID], "yellow"), ".")

    session.confirm(f"Delete tag {name!r}?", show, optional=True)
    tag = repository.delete_tag(name)
    session.answer(tag, ["Tag ", (name, "green"), " deleted; it was at ", (tag.commit_id, "yellow")])
