"""From changes to a written metarange: the part that commits, merges, reverts and cherry-picks share."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict

from lakeops.engine.apply import Applied, OnPlan, OnProgress, apply
from lakeops.engine.apply import merge as apply_plan
from lakeops.engine.base import Engine
from lakeops.engine.plan import Plan
from lakeops.model.records import Commit, Split, Summary
from lakeops.ops.context import Context
from lakeops.ranges.merge import MergePlan
from lakeops.ranges.write import MetarangeFile, write_metarange
from lakeops.store import layout

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


def apply_changes(ctx: Context, head: Commit, changes: pa.Table, *, started: datetime) -> tuple[MetarangeFile, Summary]:
    """The head's metarange with staged changes applied, written to the namespace by an attempt that ``started``."""
    attempt = layout.attempt(started, ctx.ids)
    how = _how(ctx, "commit", attempt)
    applied = apply(ctx.reader, ctx.metarange(head), changes, **how)
    return _written(ctx, applied, (head,), attempt), applied.summary


def apply_merge(
    ctx: Context, plan: MergePlan, source: Commit, destination: Commit, *, started: datetime
) -> tuple[MetarangeFile, Summary]:
    """The destination's metarange with a merge's changes applied, written to the namespace likewise."""
    attempt = layout.attempt(started, ctx.ids)
    how = _how(ctx, "merge", attempt)
    applied = apply_plan(ctx.reader, plan, ctx.metarange(source), ctx.metarange(destination), **how)
    return _written(ctx, applied, (destination, source), attempt), applied.summary


class _How(TypedDict):
    engine: Engine
    split: Split
    attempt: str
    on_plan: OnPlan
    on_progress: OnProgress


def _how(ctx: Context, verb: str, attempt: str) -> _How:
    """How changes are applied here; says what is going to be rewritten, and where, before it begins."""
    label = verb

    def on_plan(plan: Plan) -> None:
        nonlocal label
        label = f"{verb}: {plan.describe(ctx.engine)}"
        _log.info("%s", label)
        ctx.progress(label, 0, len(plan.touched))

    def on_progress(done: int, total: int) -> None:
        ctx.progress(label, done, total)

    return _How(
        engine=ctx.engine, split=ctx.repository.split, attempt=attempt, on_plan=on_plan, on_progress=on_progress
    )


def _written(ctx: Context, applied: Applied, known: tuple[Commit, ...], attempt: str) -> MetarangeFile:
    """The metarange's file: one that a parent has already when the content is the same, a new one otherwise."""
    for commit in known:
        if commit.meta_range_id == applied.metarange.id:
            return MetarangeFile(commit.meta_range_id, commit.meta_range_file, commit.meta_range_digest)
    return write_metarange(ctx.store, applied.metarange, attempt)
