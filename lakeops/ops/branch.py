"""Branches and tags: creating, moving, deleting, protecting, checking. None of it reads or copies an object."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import takewhile
from operator import attrgetter

from lakeops.catalog.guards import Verdicts
from lakeops.catalog.records import ExpectedState
from lakeops.model import graph
from lakeops.model.errors import AlreadyExists, BranchMoved, PreconditionFailed, RefNotFound
from lakeops.model.names import check_asked, check_branch, check_glob, check_prefix, check_tag
from lakeops.model.protection import CHECK_PROTECTION, TAG_PROTECTION, HookEvent
from lakeops.model.records import Commit, IdempotentRequest, RefRecord
from lakeops.ops.checks import check_of, evaluate_checks
from lakeops.ops.context import Context, check_name, history_of, resolve_commit, resolve_id, when_moved
from lakeops.ops.hooks import run_with_hooks

MOST_MOVES = 10_000
"""Moves of a branch that are searched for a commit that it has shown."""


def create_branch(ctx: Context, name: str, source: str) -> RefRecord:
    """A new branch at what ``source`` means now."""
    check_branch(name)
    commit_id, token = resolve_id(ctx, source), ctx.ids.new()
    run_with_hooks(
        ctx,
        HookEvent(ctx.repository_id, "create-branch", name, None, commit_id),
        lambda hooks, _: ctx.catalog.refs.create_branch(
            ctx.repository_id, name, commit_id, token=token, actor=ctx.actor, hooks=hooks
        ),
    )
    return RefRecord(name, commit_id)


def delete_branch(ctx: Context, name: str, *, pinned: ExpectedState | None = None) -> RefRecord:
    """Delete a branch and its uncommitted changes. Returns where it was.

    Its commits stay until retention rules let them expire.

    Args:
        pinned: what ``Branch.pin`` gave before somebody looked at the branch. One that changed since stays.

    Raises:
        PreconditionFailed: ``default_branch``, ``protected_branch``, ``read_only_repository``: the branch stays.
        NotAsSeen: the branch, or what is uncommitted on it, is not what was pinned.
        RefNotFound: there is no such branch.
    """
    check_asked(name, "a branch")
    delete = partial(ctx.catalog.refs.delete_branch, ctx.repository_id, name, actor=ctx.actor, expect=pinned)
    at = run_with_hooks(
        ctx,
        HookEvent(ctx.repository_id, "delete-branch", name),
        lambda hooks, old: delete(old=old, hooks=hooks),
        old=lambda: ctx.catalog.refs.branch(ctx.repository_id, name).commit_id,
    )
    return RefRecord(name, at)


def move_branch(
    ctx: Context,
    name: str,
    ref: str,
    *,
    force: bool = False,
    idempotency_key: str | None = None,
    on_head: Callable[[str], None] | None = None,
) -> RefRecord:
    """Point the branch at another commit, one that descends from its head. Nothing is copied.

    The reflog tells where it was, and a move back with ``force`` undoes it.

    Args:
        ref: where to. It is resolved once, at the start.
        force: move back or sideways too. Commits that no other ref leads to leave the history then, and retention
            expires them after the undo window.
        idempotency_key: a second call with the same key returns what the first did, and moves only a new branch.
        on_head: called with the head that the branch is about to leave, again whenever somebody moves the branch
            first. What it raises ends the call, and nothing is moved.

    Raises:
        PreconditionFailed: ``not_forward``: the commit does not descend from the head, and ``force`` is not set.
            ``dirty_branch``: the branch has uncommitted changes. ``protected_branch``, ``read_only_repository``: it
            takes no moves.
        RefNotFound, CommitExpired: there is no such branch, or no such commit to read.
        KeyReused: the key stands for another call.
        BranchMoved: others kept moving the branch. Try again.
    """
    from lakeops.ops.publish import find_by_key_or, require_clean_and_drop_noops, snapshot  # late: reads ranges

    options = {"source": ref, "force": str(force)}
    request = IdempotentRequest("move-branch", check_name(name), options, key=idempotency_key)
    commit = find_by_key_or(ctx, request, lambda: resolve_commit(ctx, ref))
    if not isinstance(commit, Commit):
        known = commit.commit.id
        shown = _has_shown(ctx, name, known)
        return RefRecord(name, known) if shown else move_branch(ctx, name, known, force=force, on_head=on_head)

    def attempt() -> RefRecord:
        head, get = snapshot(ctx, name, stageable=True).head, history_of(ctx)
        if not force and not ctx.catalog.in_snapshot(lambda: graph.is_ancestor(get, head.id, commit.id)):
            raise PreconditionFailed(
                f"commit {commit.id[:16]} does not descend from {head.id[:16]}, the head of branch {name!r}: moving it "
                "there takes commits out of its history; use force (--force) if you want that",
                kind="not_forward",
            )
        state = require_clean_and_drop_noops(ctx, name)
        if state.commit_id != head.id:
            raise BranchMoved(f"branch {name!r} moved meanwhile; it was not moved")
        passed = _check_move(ctx, name, head, commit)
        if on_head is not None:
            on_head(state.commit_id)
        move = partial(ctx.catalog.refs.move_branch, state, commit.id, actor=ctx.actor, rests_on=passed)
        if state.commit_id != commit.id or request.key is not None:
            return run_with_hooks(
                ctx,
                HookEvent(ctx.repository_id, "move-branch", name, state.commit_id, commit.id),
                lambda hooks, _: move(key=request.key, fingerprint=request.fingerprint, hooks=hooks),
            )
        return RefRecord(name, commit.id)

    return when_moved(ctx)(attempt)


def _has_shown(ctx: Context, name: str, commit_id: str) -> bool:
    """Whether a branch or tag has pointed to a commit since it was made."""
    moves = ctx.catalog.refs.reflog(ctx.repository_id, name, limit=MOST_MOVES)
    return any(one.new == commit_id for one in takewhile(attrgetter("new"), moves))


def _check_move(ctx: Context, name: str, head: Commit, commit: Commit) -> Verdicts:
    """The checks that a move rests on. Refuses a commit that no merge would take and the branch has never shown."""

    def found() -> list[Commit]:
        get = history_of(ctx, ahead=100)
        return list(graph.exclusive_commits(get, commit.id, [head.id]))

    try:
        return evaluate_checks(ctx, ctx.catalog.in_snapshot(found)).passed
    except PreconditionFailed:
        moves = ctx.catalog.refs.reflog(ctx.repository_id, name, limit=MOST_MOVES)
        if not any(commit.id == one.new for one in moves):
            raise
        return ()


def create_tag(ctx: Context, name: str, ref: str, *, idempotency_key: str | None = None) -> RefRecord:
    """A new tag at the commit that ``ref`` means.

    With a key, that is what ``ref`` meant when the key was first used. A call that is repeated after a crash finds its
    own tag, or puts it where the first call would have, although a branch moved meanwhile.

    Raises:
        InvalidInput: ``invalid_name``: the name breaks the rules.
        RefNotFound, CommitExpired: there is no such commit to read.
        PreconditionFailed: ``read_only_repository``: the repository takes no changes.
        AlreadyExists: there is such a tag. With a key: there is one at another commit.
        KeyReused: the key stands for another call.
    """
    check_tag(name)
    if idempotency_key is None:
        return _make_tag(ctx, name, resolve_id(ctx, ref))
    from lakeops.ops.publish import find_by_key  # late: reads ranges, which listing branches does not need

    request = IdempotentRequest("create-tag", name, {"source": ref}, key=idempotency_key)
    known = find_by_key(ctx, request)
    if known is None:
        commit = resolve_commit(ctx, ref)
        ctx.catalog.commits.remember_key(ctx.repository_id, idempotency_key, request.fingerprint, commit.id)
        known = find_by_key(ctx, request) or commit
    try:
        return _make_tag(ctx, name, known.id)
    except AlreadyExists:
        with suppress(RefNotFound):  # a branch may have the name
            tag = ctx.catalog.refs.tag(ctx.repository_id, name)
            if tag.commit_id == known.id:
                return tag
        raise


def _make_tag(ctx: Context, name: str, commit_id: str) -> RefRecord:
    return run_with_hooks(
        ctx,
        HookEvent(ctx.repository_id, "create-tag", name, None, commit_id),
        lambda hooks, _: ctx.catalog.refs.create_tag(ctx.repository_id, name, commit_id, actor=ctx.actor, hooks=hooks),
    )


def move_tag(
    ctx: Context, name: str, ref: str, *, old: str | None = None, idempotency_key: str | None = None
) -> RefRecord:
    """Point a tag at another commit, which its readers see from then on. The reflog tells where it was.

    Args:
        ref: where to. It is resolved once, at the start.
        old: the id of the commit that it is moved from. A tag that is elsewhere stays.
        idempotency_key: a second call with the same key returns what the first did, and moves only a new tag.

    Raises:
        RefNotFound, CommitExpired: there is no such tag, or no such commit to read.
        NotAsSeen: the tag is neither at ``old`` nor there already.
        PreconditionFailed: ``read_only_repository``: the repository takes no changes.
        KeyReused: the key stands for another call.
    """
    from lakeops.ops.publish import find_by_key  # late: reads ranges

    check_tag(name)
    request = IdempotentRequest("move-tag", name, {"source": ref}, key=idempotency_key)
    known = find_by_key(ctx, request)
    if known is not None:
        shown = _has_shown(ctx, name, known.id)
        return RefRecord(name, known.id) if shown else move_tag(ctx, name, known.id, old=old)
    target, asked = resolve_id(ctx, ref), request.fingerprint
    move = partial(ctx.catalog.refs.move_tag, ctx.repository_id, name, target, actor=ctx.actor, key=request.key)
    return run_with_hooks(
        ctx,
        HookEvent(ctx.repository_id, "move-tag", name, None, target),
        lambda hooks, at: move(old=at or old, fingerprint=asked, hooks=hooks),
        old=lambda: ctx.catalog.refs.tag(ctx.repository_id, name).commit_id if old is None else old,
    )


def delete_tag(ctx: Context, name: str, *, old: str | None = None) -> RefRecord:
    """Delete a tag. Returns where it was.

    Args:
        old: the id of the commit that it is known to be at. A tag that is elsewhere stays.

    Raises:
        RefNotFound: there is no such tag.
        NotAsSeen: the tag is not at ``old``.
        PreconditionFailed: ``protected_tag``, ``read_only_repository``: the tag stays.
    """
    check_asked(name, "a tag")
    delete = partial(ctx.catalog.refs.delete_tag, ctx.repository_id, name, actor=ctx.actor)
    at = run_with_hooks(
        ctx,
        HookEvent(ctx.repository_id, "delete-tag", name),
        lambda hooks, at: delete(old=at or old, hooks=hooks),
        old=lambda: ctx.catalog.refs.tag(ctx.repository_id, name).commit_id if old is None else old,
    )
    return RefRecord(name, at)


def protect(ctx: Context, pattern: str) -> None:
    """Let branches that match a glob pattern such as ``main`` or ``release-*`` change through merges only."""
    ctx.catalog.refs.protect(ctx.repository_id, check_glob(pattern, "a pattern", "name"))


def protect_tags(ctx: Context, pattern: str) -> None:
    """Keep tags that match a glob pattern such as ``v*`` from being moved or deleted."""
    ctx.catalog.refs.protect(ctx.repository_id, check_glob(pattern, "a pattern", "name"), kind=TAG_PROTECTION)


def require_check(ctx: Context, pattern: str, name: str, *, prefix: str = "") -> None:
    """Let branches that match a glob pattern change through merges only, of commits that have passed a check.

    Args:
        pattern: a name, or a glob such as ``release-*``.
        prefix: ask for the check only where a merge changes something below this prefix.
    """
    row = {"kind": CHECK_PROTECTION, "check": check_of(name), "prefix": check_prefix(prefix)}
    ctx.catalog.refs.protect(ctx.repository_id, check_glob(pattern, "a pattern", "name"), **row)
