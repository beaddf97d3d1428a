"""Sweep: delete exactly what a mark holds, then the catalog's rows that are past their time.

A sweep that was killed goes on where it was: the catalog knows how far it came, and deleting twice does no harm. What
the store refuses is tried once more, then named: the mark is incomplete, and the next one holds it too. A sweep that
another mark's sweep overtook stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from lakeops.catalog.retention import PrunePlan
from lakeops.model.clock import unix_seconds
from lakeops.model.encoding import JsonRecord
from lakeops.model.errors import MarkRefused, SweepIncomplete
from lakeops.model.marks import OPEN, Mark, MarkState
from lakeops.model.names import check_asked
from lakeops.model.protection import REFS_DUMP
from lakeops.model.retention import DAY, KEY_DAYS, LOG_DAYS
from lakeops.ops.context import Context
from lakeops.ops.deletion_limit import SHARE, exceeded
from lakeops.ops.gc.files import check_managed, opened
from lakeops.ops.gc.plan import get_rules
from lakeops.ops.owner import check_owner
from lakeops.ops.refs.dump import dump
from lakeops.store.in_flight import in_flight

BATCH = 1000
"""Files of one request."""

STEP = 8 * BATCH
"""Files after which it is written down how far the sweep came."""

_THREADS = 8
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Swept(JsonRecord):
    """The result of a sweep: the mark as it is now, the files and bytes that this call deleted, of whatever kind.

    ``mark.refused`` counts what the store did not let go, and ``mark.failures`` names some. ``versioned`` says that the
    bucket keeps what was deleted as noncurrent versions.
    """

    mark: Mark
    deleted: int
    bytes: int
    versioned: bool


def sweep(ctx: Context, mark_id: str, *, force: bool = False) -> Swept:
    """Delete exactly what a mark holds. Goes on where an earlier sweep of it ended. A mark is swept once.

    What the store refuses to delete is named in ``mark.failures`` of the result, and the next mark holds it too.

    Args:
        force: sweep even a mark that holds a large share of the repository.

    Raises:
        NotFound: ``mark_not_found``: this repository has no such mark.
        PreconditionFailed: ``not_the_owner``: another catalog may delete in the namespace, or took it over meanwhile.
        MarkRefused: it is stale or unfinished, holds too much, or the database's clock was set back.
        Corrupted: its list was altered or is gone.
        SweepIncomplete: the store refused every deletion.
        PreconditionFailed: ``read_only_repository``: the repository is a mirror.
        StoreError, StoreUnavailable: the store refused, or does not answer.
    """
    mark = ctx.catalog.marks.get(ctx.repository_id, check_asked(mark_id, "a mark"))
    check_owner(ctx)
    if mark.state is MarkState.MARKED:
        # Checked before the catalog records its sweep: after that, links no longer wait for the mark.
        check_share(mark, force=force)
        with opened(ctx, mark):
            pass
    versioned = ctx.store.keeps_versions()
    mark = ctx.catalog.marks.begin_sweep(ctx.repository_id, mark_id)
    if mark.state in (MarkState.SWEPT, MarkState.CARRIED):
        return Swept(mark, 0, 0, versioned)
    if REFS_DUMP in ctx.catalog.repositories.get(ctx.repository_id).hooks:
        dump(ctx)  # what the mark expired is expired there by now, so the dump refers to nothing that is deleted
    seen, deleted, size_bytes = mark.swept, 0, 0
    failed: dict[str, int] = {}
    with opened(ctx, mark) as file:
        for rows in _skip_rows(file.iter_batches(STEP), mark.swept):
            addresses = rows.column("physical_address")
            check_managed(ctx, mark, addresses)
            check_owner(ctx)
            sizes: dict[str, int] = dict(zip(addresses.to_pylist(), rows.column("size_bytes").to_pylist(), strict=True))
            refused = _delete(ctx, [*sizes])
            if len(refused) == rows.num_rows and not deleted:
                count = mark.rows - seen
                mark = _end(ctx, mark, refused, count)
                raise SweepIncomplete(mark.id, [*refused.items()][:_SHOWN], count)
            failed |= {key: sizes.pop(key) for key in refused}
            deleted, size_bytes = deleted + len(sizes), size_bytes + sum(sizes.values())
            seen += rows.num_rows
            if not failed:  # else a sweep that goes on here would leave these out
                mark = ctx.catalog.marks.advance_sweep(ctx.repository_id, mark.id, seen)
            ctx.progress("deleting", seen, mark.rows)
            if mark.state is MarkState.CARRIED:
                break
        if failed:
            check_owner(ctx)
        refused = _delete(ctx, [*failed])  # once more
        deleted += len(failed) - len(refused)
        size_bytes += sum(size for key, size in failed.items() if key not in refused)
        mark = _end(ctx, mark, refused, len(refused))
    prune(ctx)
    return Swept(mark, deleted, size_bytes, versioned)


def check_share(mark: Mark, *, force: bool) -> None:
    """Refuse the first sweep of a mark that holds a large share of all objects (``MarkRefused``)."""
    if mark.state is MarkState.MARKED and not force and exceeded(mark.objects, mark.listed):
        raise MarkRefused(
            f"mark {mark.id} holds {mark.objects:,} of {mark.listed:,} objects, more than "
            f"{SHARE:.0%}: look at its report, and sweep it with --force if that is meant"
        )


def _skip_rows(batches: Iterator[pa.RecordBatch], skip: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rest = batch.slice(min(skip, batch.num_rows))
        skip -= batch.num_rows - rest.num_rows
        if rest.num_rows:
            yield rest


def _delete(ctx: Context, keys: list[str]) -> dict[str, str]:
    """Delete files, several requests at a time. Returns the keys that the store refused, and why."""
    requests = [keys[start : start + BATCH] for start in range(0, len(keys), BATCH)]
    answers = in_flight(ctx.store.delete, requests, _THREADS)
    return {failure.key: failure.reason for some in answers for failure in some}


def _end(ctx: Context, mark: Mark, refused: dict[str, str], count: int) -> Mark:
    failures = [*refused.items()][:_SHOWN]
    return ctx.catalog.marks.end_sweep(ctx.repository_id, mark.id, refused=count, failures=failures)


PRUNE_STEP = 2_000
"""Rows that one transaction looks at."""

TOKEN_DAYS = 7
"""For how long it is known which commit took a token along: far longer than a commit can be in flight."""


@dataclass(frozen=True, slots=True)
class Pruned(JsonRecord):
    """How many rows were removed, or would be."""

    commits: int
    moves: int
    keys: int
    tokens: int
    dry_run: bool


def prune(ctx: Context, *, dry_run: bool = False) -> Pruned:
    """Remove rows of the catalog that are past their time. Every sweep does so at its end.

    These are expired commits and moves of refs older than ``log_days``, idempotency keys older than ``key_days``, and
    retired staging tokens. Logs then end where history was pruned.

    Args:
        dry_run: only count the rows.

    Raises:
        PreconditionFailed: ``read_only_repository``: the repository is a mirror.
        MarkRefused: ``clock_in_doubt``: the clock jumped, and everything may look old.
    """
    now = unix_seconds(ctx.catalog.marks.read_clock() if dry_run else ctx.catalog.marks.check_clock())
    rules = get_rules(ctx)
    key_days = KEY_DAYS if rules is None else rules.key_days
    log_days = LOG_DAYS if rules is None else max(rules.log_days, rules.mirror_lag_days)
    grace_days = -(-int(ctx.catalog.retention.grace(ctx.repository_id).at(ctx.catalog.now()).total_seconds()) // DAY)
    days = {  # tokens and keys go first: they point to commits
        "tokens": max(TOKEN_DAYS, grace_days),
        "keys": key_days,
        "moves": log_days,
        "commits": max(log_days, key_days),
    }
    counts = dict.fromkeys(days, 0)
    for kind, kept in days.items():
        plan: PrunePlan | None = PrunePlan(kind, now - kept * DAY)
        while plan is not None:
            step = ctx.catalog.retention.prune(ctx.repository_id, plan, limit=PRUNE_STEP, dry_run=dry_run)
            counts[kind] += step.count
            ctx.progress(f"pruning {kind}", counts[kind], 0)
            plan = None if step.after is None else replace(plan, after=step.after, gone=plan.gone | step.gone)
    return Pruned(**counts, dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class RestoredMark(JsonRecord):
    """The result of a restore: the mark as it is now, and how many commits are live again.

    ``newer`` is the mark that took over this one's commits, when another one began since: that is the one to restore.
    """

    mark: Mark
    commits: int
    newer: str | None = None


def restore(ctx: Context, mark_id: str) -> RestoredMark:
    """Take back a mark before its sweep begins: its commits live again, and it can never be swept.

    Raises:
        NotFound: ``mark_not_found``: this repository has no such mark.
        MarkRefused: its sweep has begun.
        PreconditionFailed: ``read_only_repository``: the repository is a mirror.
    """
    mark = ctx.catalog.marks.restore_mark(ctx.repository_id, check_asked(mark_id, "a mark"))
    if mark.state in (MarkState.STALE, MarkState.FAILED):
        marks = ctx.catalog.marks.on_record(ctx.repository_id)
        return RestoredMark(mark, 0, next((found.id for found in marks if found.state in OPEN), None))
    commits = 0
    while mark.state is MarkState.RESTORING:
        mark, some = ctx.catalog.retention.restore_commits(ctx.repository_id, mark_id)
        commits += some
        ctx.progress("restoring", commits, 0)
    return RestoredMark(mark, commits)
