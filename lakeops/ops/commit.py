"""Committing: the staging area's rows become part of an immutable snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.records import Intent
from lakeops.model import graph
from lakeops.model import ids as texts
from lakeops.model.arrays import in_one
from lakeops.model.errors import InvalidInput, KeyReused, NoChanges, ProtectedBranch, ReadOnlyRepository
from lakeops.model.records import Commit
from lakeops.model.requests import Request
from lakeops.model.text import excerpt
from lakeops.ops.apply import apply_changes
from lakeops.ops.context import Context
from lakeops.ops.diff import effective
from lakeops.ops.publish import AlreadyPublished, Attempt, Draft, Move, publish, replay, when_moved
from lakeops.ops.resolve import check_name, lookup


def commit(
    ctx: Context,
    branch: str,
    message: str,
    metadata: Mapping[str, str] | None = None,
    *,
    idempotency_key: str | None = None,
    allow_empty: bool = False,
) -> Commit:
    """Publish the uncommitted changes of the branch as one commit.

    What others stage meanwhile stays staged. When a commit that runs at the same time takes these changes along, that
    commit is the result: they are published once. Its ``along`` then holds this call's committer, message and metadata.

    Args:
        message: what the commit is about; not empty.
        metadata: key/value pairs kept with the commit.
        idempotency_key: a second call with the same key returns the first call's commit. It also drops those changes of
            that commit that were staged again.
        allow_empty: commit even when nothing changed.

    Raises:
        NoChanges: there is nothing to commit, and ``allow_empty`` is not set.
        ProtectedBranch, ReadOnlyRepository: the branch takes no commits.
        KeyReused: the key stands for another branch, message, metadata or content.
        BranchMoved: others moved the branch, and this call's turn did not come in time. Try again.
    """
    check_message(message)
    pairs = texts.check_commit_metadata(metadata)
    request = Request("commit", check_name(branch), message=message, metadata=pairs)
    asked = Intent(ctx.actor, message, tuple(pairs.items()), idempotency_key, request.fingerprint)
    move = Move(request, idempotency_key, asked)
    mine: list[str] = []

    def plan(attempt: Attempt) -> Draft:
        state = attempt.state
        taken = _find_taken_along(ctx, mine, state.sealed_tokens)
        if taken is not None and not allow_empty:
            raise AlreadyPublished(taken)
        # What was sealed after this call's own rows is left to those who sealed it: a commit a caller.
        newest = next((place for place, token in enumerate(state.sealed_tokens) if token in mine), 0)
        tokens = state.sealed_tokens[newest:]
        mine[:] = mine or tokens
        _, staged = ctx.catalog.staged_table(ctx.repository_id, branch, tokens=tokens)
        metarange, summary = apply_changes(ctx, attempt.head, staged, started=attempt.started)
        if not summary.total and not allow_empty:
            ctx.catalog.discard(state, tokens)
            raise NoChanges(f"branch {branch!r} has no changes to commit")
        return Draft(metarange, (attempt.head,), message, pairs, summary, consumed=tokens)

    def overtaken() -> Commit | None:
        commit_id = ctx.catalog.taken_by(ctx.repository_id, mine[0]) if mine and not allow_empty else None
        return None if commit_id is None else ctx.catalog.commit(ctx.repository_id, commit_id)

    try:
        published = publish(ctx, move, plan, overtaken=overtaken)
    except NoChanges:
        known = replay(ctx, move)  # another call under the key may have taken the changes along meanwhile
        if known is None:
            raise
        return known
    known = published.commit
    # Where the key's commit has what this call sealed, somebody took it along. Nothing was staged again.
    if not published.by_key or (mine and ctx.catalog.taken_by(ctx.repository_id, mine[0]) == known.id):
        return known
    return _find_by_key(ctx, move, known)


def _find_by_key(ctx: Context, move: Move, known: Commit) -> Commit:
    """The commit that an earlier call under the key published, once the branch is as that call left it.

    Rows that were staged again are dropped: those that the commit holds, and those that change nothing over the head.

    Raises:
        KeyReused: something else is staged on the branch.
    """
    with suppress(ProtectedBranch, ReadOnlyRepository):  # then nobody can commit these rows either
        when_moved(ctx)(_drop_repeated, ctx, move, known)
    return known


def _drop_repeated(ctx: Context, move: Move, known: Commit) -> None:
    found, staged = ctx.catalog.staged_table(ctx.repository_id, move.branch)
    _refuse_other(ctx, move, known, found.head, staged)
    if not staged.num_rows:
        return
    sealed = ctx.catalog.seal(ctx.repository_id, move.branch, token=ctx.ids.new())
    tokens = sealed.state.sealed_tokens
    _, staged = ctx.catalog.staged_table(ctx.repository_id, move.branch, tokens=tokens)
    _refuse_other(ctx, move, known, sealed.head, staged)
    ctx.catalog.discard(sealed.state, tokens)


def _refuse_other(ctx: Context, move: Move, known: Commit, head: Commit, staged: pa.Table) -> None:
    """Raise ``KeyReused`` for staged rows that a commit would publish and that the key's commit does not hold.

    What it holds counts only while the branch has it: one that was deleted and made anew has lost it.
    """
    for batch in effective(ctx, head, staged):
        rows = staged.filter(pc.is_in(staged["path"], value_set=in_one(batch["path"])))
        held = not known.expired and graph.merge_base(lookup(ctx).get, head.id, known.id) == known.id
        other = next(effective(ctx, known, rows), None) if held else batch
        if other is not None:
            raise KeyReused(move.key or "", known.id, [f"content ({excerpt(other['path'][0].as_py())} for one)"])


def check_message(message: str) -> str:
    """The message, when it says something and is not longer than 64 KiB."""
    if not texts.check_message(message).strip():
        raise InvalidInput("the commit message is empty; say what the commit is about")
    return message


def _find_taken_along(ctx: Context, mine: list[str], sealed: tuple[str, ...]) -> Commit | None:
    """The commit that took all of these tokens along, when none of them is on the branch any more."""
    if not mine or set(mine) & set(sealed):
        return None
    commit_id = ctx.catalog.taken_by(ctx.repository_id, mine[0])
    return None if commit_id is None else ctx.catalog.commit(ctx.repository_id, commit_id)
