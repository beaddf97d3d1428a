"""Branches and tags: creating, moving, deleting, protecting, checking. None of it reads or copies an object."""

from __future__ import annotations

from collections.abc import Callable

from lakeops.catalog.hooks import Hooks
from lakeops.catalog.records import BranchState, Pinned
from lakeops.model import graph
from lakeops.model.errors import (
    AlreadyExists,
    BranchMoved,
    InvalidInput,
    PreconditionFailed,
    RefNotFound,
)
from lakeops.model.names import check_branch, check_tag
from lakeops.model.records import (
    CHECK_PROTECTION,
    TAG_PROTECTION,
    Commit,
    HookEvent,
    IdempotentRequest,
    PassedCheck,
    RefRecord,
    check_asked,
)
from lakeops.model.text import excerpt
from lakeops.ops.context import Context
from lakeops.ops.hooks import changing
from lakeops.ops.resolve import check_name, lookup, require_stageable, resolve_commit, resolve_id

MAX_CHECK_NAME = 100


def create_branch(ctx: Context, name: str, source: str) -> RefRecord:
    """A new branch at what ``source`` means now.

    Raises:
        InvalidInput, AlreadyExists: ``invalid_name``: the name breaks the rules, or a branch or a tag has it.
        RefNotFound, CommitExpired: there is no such commit to read.
        PreconditionFailed: ``read_only_repository``: the repository takes no changes.
    """
    check_branch(name)
    commit_id, token = resolve_id(ctx, source), ctx.ids.new()
    changing(
        ctx,
        "create-branch",
        name,
        lambda: HookEvent(ctx.repository_id, "create-branch", name, None, commit_id),
        lambda hooks: ctx.catalog.refs.create_branch(
            ctx.repository_id, name, commit_id, token=token, actor=ctx.actor, hooks=hooks
        ),
    )
    return RefRecord(name, commit_id)


def delete_branch(ctx: Context, name: str, *, pinned: Pinned | None = None) -> RefRecord:
    """Delete a branch and its uncommitted changes. Returns where it was.

    Its commits stay until retention rules let them expire.

    Args:
        pinned: what ``Branch.pin`` gave before somebody looked at the branch. One that changed since stays.

    Raises:
        PreconditionFailed: ``default_branch``, ``protected_branch``, ``read_only_repository``: the branch stays
            whatever happens.
        NotAsSeen: the branch, or what is uncommitted on it, is not what was pinned.
        RefNotFound: there is no such branch.
    """
    return drop_branch(ctx, check_asked(name, "a branch"), pinned=pinned)


def drop_branch(
    ctx: Context, name: str, expected: BranchState | None = None, *, pinned: Pinned | None = None
) -> RefRecord:
    """Delete a branch. With ``expected`` only one that is still in that state, and has nothing staged."""

    def event() -> HookEvent:
        return HookEvent(
            ctx.repository_id, "delete-branch", name, ctx.catalog.refs.branch(ctx.repository_id, name).commit_id
        )

    def change(hooks: Hooks) -> str:
        return ctx.catalog.refs.delete_branch(
            ctx.repository_id, name, actor=ctx.actor, expected=expected, pinned=pinned, hooks=hooks
        )

    return RefRecord(name, changing(ctx, "delete-branch", name, event, change))


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
        idempotency_key: a second call with the same key returns what the first call did, and moves nothing.
        on_head: called with the head that the branch is about to leave, again whenever somebody moves the branch
            first. What it raises ends the call, and nothing is moved.

    Raises:
        PreconditionFailed: ``not_forward``: the commit does not descend from the head, and ``force`` is not set.
        PreconditionFailed: ``dirty_branch``: the branch has uncommitted changes.
        PreconditionFailed: ``protected_branch``, ``read_only_repository``: the branch takes no moves.
        RefNotFound, CommitExpired: there is no such branch, or no such commit to read.
        KeyReused: the key stands for another call.
        BranchMoved: others kept moving the branch. Try again.
    """
    from lakeops.ops.publish import (
        CommitRequest,
        read_first,
        require_clean_and_drop_noops,
        when_moved,
    )  # late: reads ranges

    request = CommitRequest(
        IdempotentRequest("move-branch", check_name(name), {"source": ref, "force": str(force)}), idempotency_key
    )
    commit = read_first(ctx, request, lambda: resolve_commit(ctx, ref))
    if not isinstance(commit, Commit):
        return RefRecord(name, commit.commit.id)

    def attempt() -> RefRecord:
        head = require_stageable(ctx, name).head
        if not force and not is_forward(ctx, head, commit):
            raise PreconditionFailed(
                f"commit {commit.id[:16]} does not descend from {head.id[:16]}, the head of branch {name!r}: moving it "
                "there takes commits out of its history; set force (--force) if it shall",
                kind="not_forward",
            )
        state = require_clean_and_drop_noops(ctx, name)
        if state.commit_id != head.id:
            raise BranchMoved(f"branch {name!r} moved meanwhile; it was not moved")
        if on_head is not None:
            on_head(state.commit_id)
        asked = request.request.fingerprint
        if state.commit_id != commit.id or request.key is not None:
            return changing(
                ctx,
                "move-branch",
                name,
                lambda: HookEvent(ctx.repository_id, "move-branch", name, state.commit_id, commit.id),
                lambda hooks: ctx.catalog.refs.move_branch(
                    state, commit.id, actor=ctx.actor, key=request.key, fingerprint=asked, hooks=hooks
                ),
            )
        return RefRecord(name, commit.id)

    return when_moved(ctx)(attempt)


def is_forward(ctx: Context, head: Commit, commit: Commit) -> bool:
    """Whether a branch that moves from ``head`` to a commit keeps all of its history."""
    get = lookup(ctx).get
    return ctx.catalog.in_snapshot(lambda: graph.is_ancestor(get, head.id, commit.id))


def create_tag(ctx: Context, name: str, ref: str, *, idempotency_key: str | None = None) -> RefRecord:
    """A new tag at the commit that ``ref`` means.

    With a key, that is what ``ref`` meant when the key was first used. A call that is repeated after a crash puts the
    tag where the first call would have put it, although a branch moved meanwhile, and finds its own tag.

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
    from lakeops.ops.publish import (
        CommitRequest,
        find_by_key,
    )  # late: reads ranges, which listing branches does not need

    request = CommitRequest(IdempotentRequest("create-tag", name, {"source": ref}), idempotency_key)
    known = find_by_key(ctx, request)
    if known is None:
        commit = resolve_commit(ctx, ref)
        ctx.catalog.commits.remember_key(ctx.repository_id, idempotency_key, request.request.fingerprint, commit.id)
        known = find_by_key(ctx, request) or commit
    try:
        return _make_tag(ctx, name, known.id)
    except AlreadyExists as taken:
        try:
            tag = ctx.catalog.refs.tag(ctx.repository_id, name)
        except RefNotFound:
            raise taken from None  # a branch has the name
        if tag.commit_id != known.id:
            raise
        return tag


def _make_tag(ctx: Context, name: str, commit_id: str) -> RefRecord:
    return changing(
        ctx,
        "create-tag",
        name,
        lambda: HookEvent(ctx.repository_id, "create-tag", name, None, commit_id),
        lambda hooks: ctx.catalog.refs.create_tag(ctx.repository_id, name, commit_id, actor=ctx.actor, hooks=hooks),
    )


def move_tag(
    ctx: Context, name: str, ref: str, *, old: str | None = None, idempotency_key: str | None = None
) -> RefRecord:
    """Point a tag at another commit. The reflog tells where it was.

    Who reads by the tag's name sees the other commit from then on.

    Args:
        name: a tag that exists.
        ref: where to. It is resolved once, at the start.
        old: the id of the commit that it is moved from. A tag that is elsewhere stays.
        idempotency_key: a second call with the same key returns what the first call did, and moves nothing.

    Raises:
        RefNotFound, CommitExpired: there is no such tag, or no such commit to read.
        NotAsSeen: the tag is not at ``old``.
        PreconditionFailed: ``read_only_repository``: the repository takes no changes.
        KeyReused: the key stands for another call.
    """
    from lakeops.ops.publish import CommitRequest, find_by_key  # late: reads ranges

    check_tag(name)
    request = CommitRequest(IdempotentRequest("move-tag", name, {"source": ref}), idempotency_key)
    known = find_by_key(ctx, request)
    if known is not None:
        return RefRecord(name, known.id)
    target, asked = resolve_id(ctx, ref), request.request.fingerprint
    return changing(
        ctx,
        "move-tag",
        name,
        lambda: _leaving_event(ctx, "move-tag", name, target),
        lambda hooks: ctx.catalog.refs.move_tag(
            ctx.repository_id, name, target, actor=ctx.actor, old=old, key=request.key, fingerprint=asked, hooks=hooks
        ),
    )


def delete_tag(ctx: Context, name: str, *, old: str | None = None) -> RefRecord:
    """Delete a tag. Returns where it was.

    Args:
        old: the id of the commit that it is known to be at. A tag that is elsewhere stays.

    Raises:
        RefNotFound: there is no such tag.
        NotAsSeen: the tag is not at ``old``.
        PreconditionFailed: ``protected_tag``, ``read_only_repository``: the tag stays whatever happens.
    """
    check_asked(name, "a tag")
    at = changing(
        ctx,
        "delete-tag",
        name,
        lambda: _leaving_event(ctx, "delete-tag", name, None),
        lambda hooks: ctx.catalog.refs.delete_tag(ctx.repository_id, name, actor=ctx.actor, old=old, hooks=hooks),
    )
    return RefRecord(name, at)


def _leaving_event(ctx: Context, action: str, tag: str, target: str | None) -> HookEvent:
    """What hooks are told of a tag that leaves its commit."""
    return HookEvent(ctx.repository_id, action, tag, ctx.catalog.refs.tag(ctx.repository_id, tag).commit_id, target)


def protect(ctx: Context, pattern: str) -> None:
    """Let branches that match a glob pattern such as ``main`` or ``release-*`` change through merges only."""
    ctx.catalog.refs.protect(ctx.repository_id, _pattern(pattern))


def protect_tags(ctx: Context, pattern: str) -> None:
    """Keep tags that match a glob pattern such as ``v*`` from being moved or deleted."""
    ctx.catalog.refs.protect(ctx.repository_id, _pattern(pattern), kind=TAG_PROTECTION)


def require_check(ctx: Context, pattern: str, name: str) -> None:
    """Let branches that match a glob pattern change through merges only, of commits that have passed a check.

    Raises:
        InvalidInput: ``invalid_name``: the pattern or the check's name breaks the rules.
    """
    ctx.catalog.refs.protect(ctx.repository_id, _pattern(pattern), kind=CHECK_PROTECTION, check=_check(name))


def pass_check(ctx: Context, ref: str, name: str, *, by: str | None = None) -> PassedCheck:
    """Record that the commit that ``ref`` means now has passed a check. What was recorded first stays.

    A commit id is the best ref: a branch may have moved since its check began.

    Args:
        name: the check.
        by: who says so. The user of Airflow, or the database login, when left out.

    Raises:
        InvalidInput: ``invalid_name``: the name breaks the rules.
        RefNotFound, CommitExpired: there is no such commit to read.
        PreconditionFailed: ``read_only_repository``: the repository takes no changes.
    """
    if by is not None:
        check_asked(by, "who passes a check")
    return ctx.catalog.refs.pass_check(ctx.repository_id, resolve_id(ctx, ref), _check(name), by=by)


def withdraw_check(ctx: Context, ref: str, name: str) -> None:
    """Forget that a commit has passed a check. Raises ``NotFound``."""
    ctx.catalog.refs.withdraw_check(ctx.repository_id, resolve_id(ctx, ref), check_asked(name, "a check"))


def passed_checks(ctx: Context, ref: str) -> list[PassedCheck]:
    """The checks that the commit that ``ref`` means now has passed, by name."""
    return ctx.catalog.refs.passed_checks(ctx.repository_id, resolve_id(ctx, ref))


def _pattern(pattern: str) -> str:
    check_asked(pattern, "a pattern")
    if not pattern or any(char in pattern for char in "/\0\n"):
        raise InvalidInput(
            f"{excerpt(pattern)} matches no name; use a name or a glob such as 'release-*'", kind="invalid_name"
        )
    return pattern


def _check(name: str) -> str:
    check_asked(name, "a check")
    if not 1 <= len(name) <= MAX_CHECK_NAME or not name.isprintable() or name != name.strip():
        raise InvalidInput(
            f"{excerpt(name)} cannot be a check: use 1 to {MAX_CHECK_NAME} printable characters", kind="invalid_name"
        )
    return name
