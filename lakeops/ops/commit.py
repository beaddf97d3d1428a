"""Committing: the rows of the staging area become part of an immutable snapshot.

``commit`` below is the whole protocol, step by step. A crash leaves sealed tokens, which the next commit covers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.records import Intent
from lakeops.model import graph
from lakeops.model.arrow import in_one
from lakeops.model.errors import KeyReused, LakeopsError, NoChanges, PreconditionFailed, Transient
from lakeops.model.ids import check_commit_metadata, check_message
from lakeops.model.records import DECLARED, Commit, IdempotentRequest
from lakeops.model.sanitising import excerpt
from lakeops.ops.checks import check_names
from lakeops.ops.context import Context, check_name, history_of, when_moved
from lakeops.ops.diff import effective
from lakeops.ops.publish import CommitPlan, CommitResult, covered, find_by_key, publish, publish_in_queue, write_ranges
from lakeops.ranges.apply import apply


def commit(
    ctx: Context,
    branch: str,
    message: str,
    metadata: Mapping[str, str] | None = None,
    *,
    idempotency_key: str | None = None,
    allow_empty: bool = False,
    checks: Sequence[str] = (),
) -> Commit:
    """Publish the uncommitted changes of the branch as one commit.

    What others stage meanwhile stays staged. When a commit that runs at the same time covers these changes, that commit
    is the result: they are published once. Its ``along`` then holds this call's committer, message and metadata.

    Args:
        idempotency_key: a second call with the same key returns the first call's commit. It also drops those changes of
            that commit that were staged again.
        allow_empty: commit even when nothing changed.
        checks: names of checks that the commit declares: no merge takes it before they have passed.

    Raises:
        NoChanges: there is nothing to commit, and ``allow_empty`` is not set.
        PreconditionFailed: ``protected_branch``, ``read_only_repository``: the branch takes no commits.
        KeyReused: the key stands for another branch, message, metadata or content.
        BranchMoved: others moved the branch, and this call's turn did not come in time. Try again.
    """
    declared = {DECLARED: "\n".join(names)} if (names := check_names(checks)) else {}
    name, pairs = check_name(branch), {**check_commit_metadata(metadata), **declared}
    request = IdempotentRequest("commit", name, {}, check_message(message), pairs, idempotency_key)
    intent = Intent(ctx.actor, message, tuple(pairs.items()), idempotency_key, request.fingerprint)
    own: tuple[str, ...] | None = None  # the sealed tokens that hold this call's rows

    def committed_by_other() -> Commit | None:
        """The commit of somebody else that has this call's rows."""
        commit_id = ctx.catalog.staging.consumed_by(ctx.repository_id, own[0]) if own and not allow_empty else None
        return None if commit_id is None else ctx.catalog.commits.get(ctx.repository_id, commit_id)

    def attempt(publisher: str | None) -> CommitResult:
        nonlocal own
        # 1. Look up the key: an earlier call may have made this commit. 2. Seal: others write to a new token now.
        sealed = ctx.catalog.staging.seal(
            ctx.repository_id,
            name,
            token=ctx.ids.new(),
            key=idempotency_key,
            fingerprint=intent.fingerprint,
            intent=intent if own is None else None,
        )
        if sealed.earlier is not None:
            return CommitResult(sealed.earlier, by_key=True)
        state, head = sealed.state, sealed.head
        newest = state.sealed_tokens.index(own[0]) if own and own[0] in state.sealed_tokens else None
        other = committed_by_other() if own and newest is None else None
        if other is not None:
            return covered(ctx, request, other)
        # 3. The plan: this call's rows and older ones, if they are still there. Newer ones are left to their callers.
        tokens = state.sealed_tokens[newest:] if own is None or newest is not None else ()
        own = tokens if own is None else own
        staged = ctx.catalog.staging.staged_table(ctx.repository_id, name, tokens=tokens).staged
        # 4. The changed ranges are written, and 5. the metarange.
        work = partial(apply, base=ctx.metarange(head), changes=staged)
        metarange, summary = write_ranges(ctx, "commit", (head,), sealed.started, work)
        if not summary.total and not allow_empty:
            if tokens:
                ctx.catalog.staging.discard(state, tokens)
            raise NoChanges(f"branch {name!r} has no changes to commit")
        # 6. One transaction checks the branch and moves its head.
        plan = CommitPlan(metarange, (head,), message, pairs, summary, consumed=tokens, intent=intent)
        return publish(ctx, request, sealed, plan, publisher)

    try:
        # 7. Run the attempt once, and again in the branch's queue when others moved the head meanwhile.
        result = publish_in_queue(ctx, request, attempt, committed_by_other=committed_by_other)
    except NoChanges:
        known = find_by_key(ctx, request)  # another call under the key may cover the changes by now
        if known is None:
            raise
        return known
    except Transient:  # the caller may repeat it, so it stays a co-author of its rows
        raise
    except Exception:
        # Nothing was committed. This call's rows stay sealed. The commit that covers them does not name this call.
        with suppress(LakeopsError):  # the first error is the one to show
            ctx.catalog.staging.withdraw(ctx.repository_id, name, intent)
        raise
    # If the key's commit consumed the token of this call, nothing was staged again.
    if result.by_key and not (own and ctx.catalog.staging.consumed_by(ctx.repository_id, own[0]) == result.commit.id):
        when_moved(ctx)(_drop_repeated, ctx, request, result.commit)
    return result.commit


def _drop_repeated(ctx: Context, request: IdempotentRequest, known: Commit) -> None:
    """Drop the rows that were staged again, which the key's commit holds or change nothing. Raises ``KeyReused``."""
    found = ctx.catalog.staging.staged_table(ctx.repository_id, request.branch)
    _refuse_other(ctx, request, known, found.head, found.staged)
    if not found.staged.num_rows:
        return
    try:
        sealed = ctx.catalog.staging.seal(ctx.repository_id, request.branch, token=ctx.ids.new())
        tokens = sealed.state.sealed_tokens
        found = ctx.catalog.staging.staged_table(ctx.repository_id, request.branch, tokens=tokens)
        _refuse_other(ctx, request, known, sealed.head, found.staged)
        ctx.catalog.staging.discard(sealed.state, tokens)
    except PreconditionFailed as error:
        if error.kind != "read_only_repository":  # then nobody can commit these rows
            raise


def _refuse_other(ctx: Context, request: IdempotentRequest, known: Commit, head: Commit, staged: pa.Table) -> None:
    """Raise ``KeyReused`` for staged rows that a commit would publish and that the key's commit does not hold.

    What it holds counts only while the branch has it.
    """
    for batch in effective(ctx, head, staged):
        rows = staged.filter(pc.is_in(staged["path"], value_set=in_one(batch["path"])))
        held = not known.expired and graph.is_ancestor(history_of(ctx), known.id, head.id)
        other = next(effective(ctx, known, rows), None) if held else batch
        if other is not None:
            path = excerpt(other["path"][0].as_py())
            mine = f"content ({path} for one; if somebody else staged it, that commit is the result of this call)"
            raise KeyReused(request.key or "", known.id, [mine])
