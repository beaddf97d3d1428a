"""Branches and tags: creating, deleting, protecting. None of it reads or copies an object."""

from __future__ import annotations

from lakeops.model.errors import InvalidName
from lakeops.model.names import check_branch, check_tag
from lakeops.model.records import Ref
from lakeops.ops.context import Context
from lakeops.ops.resolve import resolve_commit


def create_branch(ctx: Context, name: str, source: str) -> Ref:
    """A new branch at what ``source`` means now.

    Raises:
        InvalidName, AlreadyExists, RefNotFound, CommitExpired, ReadOnlyRepository.
    """
    check_branch(name)
    commit = resolve_commit(ctx, source)
    ctx.catalog.create_branch(ctx.repository_id, name, commit.id, token=ctx.ids.new(), actor=ctx.actor)
    return Ref(name, commit.id)


def delete_branch(ctx: Context, name: str) -> Ref:
    """Delete a branch and its uncommitted changes; returns where it was. Commits stay until retention takes them."""
    return Ref(name, ctx.catalog.delete_branch(ctx.repository_id, name, actor=ctx.actor))


def create_tag(ctx: Context, name: str, ref: str) -> Ref:
    """A new tag at what ``ref`` means now."""
    check_tag(name)
    commit = resolve_commit(ctx, ref)
    return ctx.catalog.create_tag(ctx.repository_id, name, commit.id, actor=ctx.actor)


def delete_tag(ctx: Context, name: str) -> Ref:
    """Delete a tag; returns where it was."""
    return Ref(name, ctx.catalog.delete_tag(ctx.repository_id, name, actor=ctx.actor))


def protect(ctx: Context, pattern: str) -> None:
    """Protect branches that match a glob pattern such as ``main`` or ``release-*``."""
    if not pattern or any(char in pattern for char in "/\0\n"):
        raise InvalidName(f"{pattern!r} matches no branch name; use a name or a glob such as 'release-*'")
    ctx.catalog.protect(ctx.repository_id, pattern)
