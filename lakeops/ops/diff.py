"""Differences between two refs' commits: two-way, and since the merge base."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from lakeops.model.records import Change, ChangeType, Commit, Summary
from lakeops.ops import history
from lakeops.ops.context import Context
from lakeops.ops.resolve import resolve_commit
from lakeops.ranges.diff import changes, diff, summary
from lakeops.ranges.merge import MergePlan, three_way


def two_way(ctx: Context, left: str, right: str, *, prefix: str = "") -> Iterator[Change]:
    """What differs between two commits, from left to right, by path; read as it is asked for."""
    pair = (ctx.metarange(resolve_commit(ctx, left)), ctx.metarange(resolve_commit(ctx, right)))
    return chain.from_iterable(changes(batch) for batch in diff(ctx.reader, *pair, prefix=prefix))


def since_merge_base(ctx: Context, left: str, right: str, *, prefix: str = "") -> Iterator[Change]:
    """What ``right`` changed since the merge base with ``left``, by path.

    A path that both sides changed differently is a conflict; one that ``left`` has the same way already is left out.
    """
    ours, theirs = resolve_commit(ctx, left), resolve_commit(ctx, right)
    base, source = ctx.metarange(history.merge_base(ctx, left, right)), ctx.metarange(theirs)
    destination = ctx.metarange(ours)
    incoming = chain.from_iterable(changes(batch) for batch in diff(ctx.reader, base, source, prefix=prefix))
    if destination.id == base.id:
        return incoming
    return _classified(incoming, three_way(ctx.reader, base, source, destination, None))


def _classified(incoming: Iterator[Change], plan: MergePlan) -> Iterator[Change]:
    """Changes of the source that a merge would apply, and its conflicts; not what the destination has already."""
    conflicts = set(plan.conflicts)
    applied = set(plan.changes["path"].to_pylist())
    for change in incoming:
        if change.path in conflicts:
            yield Change(ChangeType.CONFLICT, change.path, change.size_bytes)
        elif change.path in applied:
            yield change


def summary_of(ctx: Context, commit: Commit) -> Summary:
    """What a commit changed against its first parent. Nothing when retention expired either."""
    if not commit.parents:
        return Summary()
    parent = ctx.catalog.commit(ctx.repository_id, commit.parents[0])
    if commit.expired or parent.expired:
        return Summary()
    return summary(ctx.reader, ctx.metarange(parent), ctx.metarange(commit))
