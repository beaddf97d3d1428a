"""Merging: what the source changed since the merge base, applied to the destination, as one commit."""

from __future__ import annotations

from collections.abc import Mapping

from lakeops.engine.merging import plan_merge
from lakeops.model import graph
from lakeops.model.errors import InvalidInput, MergeConflict, NoMergeBase
from lakeops.model.metadata import COMMIT_METADATA_BYTES, check_metadata
from lakeops.model.records import Commit, MergeResult, Strategy, Summary
from lakeops.ops.commit import check_message
from lakeops.ops.context import Context
from lakeops.ops.diff import summary_of
from lakeops.ops.publish import Attempt, Draft, Move, publish, replay
from lakeops.ops.resolve import lookup, require_branch, resolve_commit
from lakeops.ops.write import apply_merge, require_clean
from lakeops.ranges.merge import MergePlan


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
    move = Move(require_branch(ctx, destination), "merge", (source, settle.value if settle else ""), key)
    known = replay(ctx, move)
    if known is not None:
        return _result(ctx, known, None)
    ours = resolve_commit(ctx, source)

    def plan(attempt: Attempt) -> Draft:
        base = base_of(ctx, attempt.head, ours, destination, source)
        if base.id == ours.id:
            raise UpToDate
        require_clean(ctx, attempt)
        decided = decide(ctx, base, ours, attempt.head, settle, (source, destination))
        metarange, summary = apply_merge(ctx, decided, ours, attempt.head, started=attempt.started)
        return Draft(metarange, (attempt.head, ours), text, pairs, summary, rests_on=(base,))

    try:
        published = publish(ctx, move, plan)
    except UpToDate:
        return MergeResult(None, up_to_date=True, summary=Summary())
    return _result(ctx, published.commit, published.summary)


def check_strategy(strategy: str | Strategy | None) -> Strategy | None:
    """The strategy that a name stands for. Raises ``InvalidInput``."""
    if strategy is None:
        return None
    try:
        return Strategy(strategy)
    except ValueError:
        known = ", ".join(member.value for member in Strategy)
        raise InvalidInput(f"unknown strategy {strategy!r}; choose one of {known}") from None


def base_of(ctx: Context, head: Commit, source: Commit, head_name: str, source_name: str) -> Commit:
    """The merge base of two commits. Raises ``NoMergeBase``."""
    get = lookup(ctx).get
    base = graph.merge_base(get, head.id, source.id)
    if base is None:
        raise NoMergeBase(f"{source_name!r} and {head_name!r} share no history")
    return get(base)


def decide(
    ctx: Context,
    base: Commit,
    source: Commit,
    destination: Commit,
    strategy: Strategy | None,
    names: tuple[str, str],
) -> MergePlan:
    """What to change in the destination, path by path. Raises ``MergeConflict`` with all conflicting paths."""
    old, new, here = (ctx.metarange(commit) for commit in (base, source, destination))
    plan = plan_merge(ctx.reader, old, new, here, strategy, engine=ctx.engine)
    if plan.conflicts:
        raise MergeConflict(*names, plan.conflicts)
    return plan


def _result(ctx: Context, commit: Commit, summary: Summary | None) -> MergeResult:
    return MergeResult(commit.id, up_to_date=False, summary=summary or summary_of(ctx, commit))
