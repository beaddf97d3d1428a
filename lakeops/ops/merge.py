"""Merging: what the source changed since the merge base, applied to the destination, as one commit."""

from __future__ import annotations

from collections.abc import Mapping

from lakeops.model.ids import COMMIT_METADATA_BYTES, check_metadata
from lakeops.model.records import Commit, MergeResult, Strategy, Summary
from lakeops.model.requests import Request
from lakeops.ops.clean import require_clean
from lakeops.ops.commit import check_message
from lakeops.ops.context import Context
from lakeops.ops.diff import summary_of
from lakeops.ops.overtaken import overtaken
from lakeops.ops.publish import Attempt, Draft, Move, publish, replay
from lakeops.ops.resolve import require_branch, resolve_commit
from lakeops.ops.sides import check_strategy, decide, sides_of_merge
from lakeops.ops.write import apply_merge


class UpToDate(Exception):
    """The source brings no commit that the destination does not have."""


def merge(
    ctx: Context,
    source: str,
    destination: str,
    *,
    strategy: str | Strategy | None = None,
    message: str | None = None,
    metadata: Mapping[str, str] | None = None,
    key: str | None = None,
) -> MergeResult:
    """Merge a ref into a branch.

    The source is resolved once, at the start; the destination is whatever its branch points to when the merge is
    published. Uncommitted changes of the source are not part of it.

    Raises:
        MergeConflict: with every conflicting path; nothing is published.
        DirtyBranch: the destination has uncommitted changes.
        NoMergeBase, RefNotFound, BranchMoved.
    """
    settle = check_strategy(strategy)
    text = check_message(message) if message is not None else f"Merge {source!r} into {destination!r}"
    pairs = check_metadata(metadata, at_most=COMMIT_METADATA_BYTES)
    parts = {"source": source, "strategy": settle.value if settle else ""}
    move = Move(Request("merge", require_branch(ctx, destination), parts, message, pairs), key)
    known = replay(ctx, move)
    if known is not None:
        return _result(ctx, known, None)
    ours = resolve_commit(ctx, source)

    def plan(attempt: Attempt) -> Draft:
        names = (source, destination)
        sides = sides_of_merge(ctx, ours, attempt.head, names)
        if sides.up_to_date:
            raise UpToDate
        require_clean(ctx, attempt.state.id, attempt.head, attempt.staged)
        with overtaken(ctx, sides.commits):
            decision = decide(ctx, sides, settle, names)
            metarange, summary = apply_merge(ctx, decision.plan, ours, attempt.head, started=attempt.started)
        return Draft(metarange, (attempt.head, ours), text, pairs, summary, rests_on=decision.rests_on)

    try:
        published = publish(ctx, move, plan, clean=True)
    except UpToDate:
        return MergeResult(None, up_to_date=True, summary=Summary())
    return _result(ctx, published.commit, published.summary)


def _result(ctx: Context, commit: Commit, summary: Summary | None) -> MergeResult:
    return MergeResult(commit.id, up_to_date=False, summary=summary or summary_of(ctx, commit))
