"""``lakeops tag``: names that stay at one commit until somebody moves them."""

from __future__ import annotations

import typer

from lakeops.cli.options import IdempotencyKey, Pattern, Protection, RefUri, RepositoryUri, TagUri
from lakeops.cli.output import SHORT_ID, commit_id
from lakeops.cli.session import Session, command

app: typer.Typer = typer.Typer(help="Create, list, show, move, delete and protect tags.", add_completion=False)


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


@command(app, "move", example="tag move lakefs://flights/latest lakefs://flights/main", asks=True)
def move(session: Session, uri: TagUri, ref: RefUri, idempotency_key: IdempotencyKey = None) -> None:
    """Point a tag at another commit. Readers of the tag see that commit from then on."""
    repository, name, target = session.two_refs(uri, ref)
    old, new = repository.tag(name), repository.ref(target).commit

    def show() -> None:
        session.message("This moves ", (name, "red"), " from ", (old.commit_id[:SHORT_ID], "yellow"), " to ",
                        (new.id[:SHORT_ID], "yellow"), ": ", new.message.partition("\n")[0])  # fmt: skip

    asked = session.confirm(f"Move tag {name!r}?", show, optional=True)
    moved = repository.move_tag(
        name,
        new.id if idempotency_key is None else target,
        old=old.commit_id if asked else None,
        idempotency_key=idempotency_key,
    )
    session.answer(
        {**moved.to_json(), "old": old.commit_id}, ["Tag ", (name, "green"), " is at ", (moved.commit_id, "yellow")]
    )
    if moved.commit_id != old.commit_id:
        session.note(f"To undo: lakeops tag move {uri} lakefs://{uri.repository}/{old.commit_id}")


@command(app, "protect", example="tag protect lakefs://flights 'v*'")
def protect(session: Session, uri: RepositoryUri, pattern: Pattern) -> None:
    """Keep tags that match a pattern from being moved or deleted."""
    session.repository(uri).protect_tags(pattern)
    session.answer(Protection(pattern), ["Tags that match ", (pattern, "green"), " can no longer be moved or deleted"])


@command(app, "unprotect")
def unprotect(session: Session, uri: RepositoryUri, pattern: Pattern) -> None:
    """Remove a protection pattern."""
    session.repository(uri).unprotect_tags(pattern)
    session.answer(Protection(pattern), ["Pattern ", (pattern, "green"), " no longer protects tags"])


@command(app, "protections")
def protections(session: Session, uri: RepositoryUri) -> None:
    """List the patterns of protected tags."""
    patterns = map(Protection, session.repository(uri).tag_protections())
    session.table(patterns, ("Pattern",), lambda pattern: ((pattern, "cyan"),))


@command(app, "delete", asks=True)
def delete(session: Session, uri: TagUri) -> None:
    """Delete a tag. The answer names its commit, so that it can be created again."""
    repository, name = session.named(uri)
    tag = repository.tag(name)

    def show() -> None:
        session.message("This deletes ", (name, "red"), ", now at ", (tag.commit_id[:SHORT_ID], "yellow"), ".")

    asked = session.confirm(f"Delete tag {name!r}?", show, optional=True)
    tag = repository.delete_tag(name, old=tag.commit_id if asked else None)
    session.answer(tag, ["Tag ", (name, "green"), " deleted; it was at ", (tag.commit_id, "yellow")])
