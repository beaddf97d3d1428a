"""Committing: the staging area's rows become part of an immutable snapshot."""

from __future__ import annotations

from collections.abc import Mapping

from lakeops.model import metadata as texts
from lakeops.model.errors import InvalidInput, NoChanges
from lakeops.model.records import Commit
from lakeops.ops.context import Context
from lakeops.ops.publish import AlreadyPublished, Attempt, Draft, Move, publish, replay
from lakeops.ops.resolve import require_branch
from lakeops.ops.write import apply_changes


def commit(
    ctx: Context,
    branch: str,
    message: str,
    *,
    metadata: Mapping[str, str] | None = None,
    key: str | None = None,
    allow_empty: bool = False,
) -> Commit:
    """Publish a branch's uncommitted changes as one commit.

    What others stage meanwhile stays staged. When a commit that runs at the same time takes these changes along, that
    commit is the result: they are published once.

    Args:
        ctx: the repository.
        branch: the branch's name.
        message: what the commit is about; not empty.
        metadata: key/value pairs kept with the commit.
        key: an idempotency key; a second call under it returns the first one's commit.
        allow_empty: commit even when nothing changed.

    Raises:
        NoChanges: there is nothing to commit.
        BranchMoved: others moved the branch at every try.
    """
    check_message(message)
    pairs = texts.check_metadata(metadata, at_most=texts.COMMIT_METADATA_BYTES)
    move = Move(require_branch(ctx, branch), "commit", key=key)
    known = replay(ctx, move)
    if known is not None:
        return known
    mine: list[str] = []

    def plan(attempt: Attempt) -> Draft:
        state = attempt.state
        taken = _taken(ctx, mine, state.sealed_tokens)
        if taken is not None and not allow_empty:
            raise AlreadyPublished(taken)
        mine[:] = mine or state.sealed_tokens
        _, staged = ctx.catalog.staged_table(ctx.repository_id, branch, tokens=state.sealed_tokens)
        metarange, summary = apply_changes(ctx, attempt.head, staged, started=attempt.started)
        if not summary.total and not allow_empty:
            ctx.catalog.discard(state, state.sealed_tokens)
            raise NoChanges(f"branch {branch!r} has no changes to commit")
        return Draft(metarange, (attempt.head,), message, pairs, summary)

    return publish(ctx, move, plan).commit


def check_message(message: str) -> str:
    """The message, when it says something and is not longer than 64 KiB."""
    if not texts.check_message(message).strip():
        raise InvalidInput("the commit message is empty; say what the commit is about")
    return message


def _taken(ctx: Context, mine: list[str], sealed: tuple[str, ...]) -> Commit | None:
    """The commit that took all of these tokens along, when none of them is on the branch any more."""
    if not mine or set(mine) & set(sealed):
        return None
    commit_id = ctx.catalog.taken_by(ctx.repository_id, mine[0])
    return None if commit_id is None else ctx.catalog.commit(ctx.repository_id, commit_id)
