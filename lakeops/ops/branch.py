"""Branches and tags: creating, deleting, protecting. None of it reads or copies an object."""

from __future__ import annotations

from lakeops.model.errors import AlreadyExists, InvalidName
from lakeops.model.names import check_branch, check_tag
from lakeops.model.records import Ref
from lakeops.model.requests import Request, check_asked
from lakeops.model.text import excerpt
from lakeops.ops.context import Context
from lakeops.ops.resolve import resolve_commit, resolve_id


def create_branch(ctx: Context, name: str, source: str) -> Ref:
    """A new branch at what ``source`` means now.

    Raises:
        InvalidName, AlreadyExists, RefNotFound, CommitExpired, ReadOnlyRepository.
    """
    check_branch(name)
    commit_id = resolve_id(ctx, source)
    ctx.catalog.create_branch(ctx.repository_id, name, commit_id, token=ctx.ids.new(), actor=ctx.actor)
    return Ref(name, commit_id)


def delete_branch(ctx: Context, name: str) -> Ref:
    """Delete a branch and its uncommitted changes. Returns where it was.

    Its commits stay until retention rules let them expire.
    """
    return Ref(name, ctx.catalog.delete_branch(ctx.repository_id, check_asked(name, "a branch"), actor=ctx.actor))


def create_tag(ctx: Context, name: str, ref: str, *, idempotency_key: str | None = None) -> Ref:
    """A new tag at the commit that ``ref`` means.

    With a key, that is what ``ref`` meant when the key was first used. A call that is repeated after a crash puts the
    tag where the first call would have put it, although a branch moved meanwhile, and finds its own tag.

    Raises:
        InvalidName: the name breaks the rules.
        RefNotFound, CommitExpired: there is no such commit to read.
        ReadOnlyRepository: the repository takes no changes.
        AlreadyExists: there is such a tag. With a key: there is one at another commit.
        KeyReused: the key stands for another call.
    """
    check_tag(name)
    if idempotency_key is None:
        return ctx.catalog.create_tag(ctx.repository_id, name, resolve_id(ctx, ref), actor=ctx.actor)
    from lakeops.ops.publish import Move, replay  # late: reads ranges, which listing branches does not need

    move = Move(Request("create-tag", name, {"source": ref}), idempotency_key)
    known = replay(ctx, move)
    if known is None:
        commit = resolve_commit(ctx, ref)
        ctx.catalog.remember_key(ctx.repository_id, idempotency_key, move.request.fingerprint, commit.id)
        known = replay(ctx, move) or commit
    try:
        return ctx.catalog.create_tag(ctx.repository_id, name, known.id, actor=ctx.actor)
    except AlreadyExists:
        tag = ctx.catalog.tag(ctx.repository_id, name)
        if tag.commit_id != known.id:
            raise
        return tag


def delete_tag(ctx: Context, name: str) -> Ref:
    """Delete a tag. Returns where it was."""
    return Ref(name, ctx.catalog.delete_tag(ctx.repository_id, check_asked(name, "a tag"), actor=ctx.actor))


def protect(ctx: Context, pattern: str) -> None:
    """Protect branches that match a glob pattern such as ``main`` or ``release-*``."""
    check_asked(pattern, "a pattern")
    if not pattern or any(char in pattern for char in "/\0\n"):
        raise InvalidName(f"{excerpt(pattern)} matches no branch name; use a name or a glob such as 'release-*'")
    ctx.catalog.protect(ctx.repository_id, pattern)
