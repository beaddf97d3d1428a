"""Differences between two refs' commits: two-way, and since the merge base."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow.compute as pc

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
    return of_merge(ctx, history.merge_base(ctx, left, right), theirs, ours, prefix=prefix)


def of_merge(ctx: Context, base: Commit, theirs: Commit, ours: Commit, *, prefix: str = "") -> Iterator[Change]:
    """What a merge of ``theirs`` into ``ours`` over ``base`` would change, by path, and its conflicts."""
    source, destination = ctx.metarange(theirs), ctx.metarange(ours)
    common = ctx.metarange(base)
    incoming = chain.from_iterable(changes(batch) for batch in diff(ctx.reader, common, source, prefix=prefix))
    if destination.id == common.id:
        return incoming
    return _classified(incoming, three_way(ctx.reader, common, source, destination, None))


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


@dataclass(frozen=True)
class Changed:
    """A difference in short.

    ``prefixes`` are the top-level folders (``flights/``) and top-level objects that changed, in byte order, the first
    ``limit`` of them; ``partitions`` the values of one ``name=value`` folder level among the changed paths.
    """

    summary: Summary
    prefixes: tuple[str, ...]
    more_prefixes: bool
    partitions: tuple[str, ...]


def changed(ctx: Context, left: str, right: str, *, partition_by: str | None = None, limit: int = 100) -> Changed:
    """What differs between two commits, in short; costs what the changes cost, and no record a path."""
    pair = (ctx.metarange(resolve_commit(ctx, left)), ctx.metarange(resolve_commit(ctx, right)))
    counts = dict.fromkeys(ChangeType, 0)
    found: dict[str, set[str]] = {"top": set(), "value": set()}
    patterns = {"top": "^(?P<top>[^/]*/?)"}
    if partition_by is not None:
        patterns["value"] = f"(?:^|/){re.escape(partition_by)}=(?P<value>[^/]+)/"
    for batch in diff(ctx.reader, *pair):
        for group in pc.value_counts(batch["type"].combine_chunks()).to_pylist():
            counts[ChangeType(group["values"])] += group["counts"]
        for name, pattern in patterns.items():
            values = pc.struct_field(pc.extract_regex(batch["path"], pattern), name)
            found[name].update(value for value in pc.unique(values).to_pylist() if value is not None)
    prefixes = sorted(found["top"], key=str.encode)
    return Changed(
        Summary(counts[ChangeType.ADDED], counts[ChangeType.REMOVED], counts[ChangeType.CHANGED]),
        tuple(prefixes[:limit]),
        len(prefixes) > limit,
        tuple(sorted(found["value"], key=str.encode)),
    )
