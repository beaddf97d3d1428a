"""Applying changes to a commit's metarange: the new files are written to the namespace, and nothing is published."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict

from lakeops.engine.base import Engine
from lakeops.model.changes import Summary
from lakeops.model.records import Commit, Split
from lakeops.ops.context import Context
from lakeops.ranges.apply import Applied, ApplyPlan, OnPlan, OnProgress, apply
from lakeops.ranges.apply import merge as apply_plan
from lakeops.ranges.merge import MergePlan
from lakeops.ranges.write import MetarangeFile, write_metarange
from lakeops.store import layout
from lakeops.store.base import ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


def apply_changes(ctx: Context, head: Commit, changes: pa.Table, *, started: datetime) -> tuple[MetarangeFile, Summary]:
    """The head's metarange with staged changes applied, written to the namespace by an attempt that ``started``."""
    attempt = layout.attempt(started, ctx.ids)
    how = _how_to_apply(ctx, "commit", attempt)
    with ctx.writing() as reader:
        applied = apply(reader, ctx.metarange(head), changes, **how)
        return _written(reader.store, applied, (head,), attempt), applied.summary


def apply_merge(
    ctx: Context, plan: MergePlan, source: Commit, destination: Commit, *, started: datetime
) -> tuple[MetarangeFile, Summary]:
    """The destination's metarange with a merge's changes applied, written to the namespace likewise."""
    attempt = layout.attempt(started, ctx.ids)
    how = _how_to_apply(ctx, "merge", attempt)
    with ctx.writing() as reader:
        applied = apply_plan(reader, plan, ctx.metarange(source), **how)
        return _written(reader.store, applied, (destination, source), attempt), applied.summary


class _How(TypedDict):
    engine: Engine
    split: Split
    attempt: str
    on_plan: OnPlan
    on_progress: OnProgress


def _how_to_apply(ctx: Context, verb: str, attempt: str) -> _How:
    """How changes are applied here. Says what is going to be rewritten, and where, before it begins."""
    label = verb

    def on_plan(plan: ApplyPlan) -> None:
        nonlocal label
        label = f"{verb}: {plan.describe(ctx.engine)}"
        _log.info("%s", label)
        ctx.progress(label, 0, len(plan.touched))

    def on_progress(done: int, total: int) -> None:
        ctx.progress(label, done, total)

    return _How(
        engine=ctx.engine, split=ctx.repository.split, attempt=attempt, on_plan=on_plan, on_progress=on_progress
    )


def _written(store: ObjectStore, applied: Applied, known: tuple[Commit, ...], attempt: str) -> MetarangeFile:
    """The metarange's file: one that a parent has already when the content is the same, a new one otherwise."""
    for commit in known:
        if commit.meta_range_id == applied.metarange.id:
            return MetarangeFile(commit.meta_range_id, commit.meta_range_file, commit.meta_range_digest)
    return write_metarange(store, applied.metarange, attempt)
