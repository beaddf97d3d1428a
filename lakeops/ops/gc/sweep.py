"""Sweep: delete exactly what a mark holds, then the catalog's rows that are past their time.

A sweep that was killed goes on where it was: how far it came is in the catalog, and deleting twice does no harm. What
the store refuses is tried once more, then named and given up: the mark is incomplete. It is garbage still, so the next
mark holds it too, and once that one is swept this one is over. A sweep that another mark's sweep overtook stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.records import PrunePlan
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import Corrupted, MarkRefused, SweepIncomplete
from lakeops.model.marks import Mark, MarkState
from lakeops.model.records import REFS_DUMP, JsonRecord, check_asked
from lakeops.model.retention import DAY, KEY_DAYS, LOG_DAYS
from lakeops.ops import copying
from lakeops.ops.context import Context
from lakeops.ops.gc.files import check_ours, opened
from lakeops.ops.gc.plan import get_rules
from lakeops.ops.owner import check_owner
from lakeops.ops.refs.dump import dump
from lakeops.store.base import DeleteFailure
from lakeops.store.in_flight import in_flight

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
    now = unix_seconds(ctx.catalog.now() if dry_run else ctx.catalog.marks.check_clock())
    counts = {
        kind: _prune_in_steps(ctx, PrunePlan(kind, now - days * DAY), dry_run=dry_run)
        for kind, days in _days(ctx).items()
    }
    return Pruned(**counts, dry_run=dry_run)


def _days(ctx: Context) -> dict[str, int]:
    """For how many days each kind of row is kept. Tokens and keys go first: they point to commits."""
    rules = get_rules(ctx)
    key_days = KEY_DAYS if rules is None else rules.key_days
    log_days = LOG_DAYS if rules is None else max(rules.log_days, rules.mirror_lag_days)
    grace_days = -(-int(ctx.catalog.retention.grace(ctx.repository_id).at(ctx.catalog.now()).total_seconds()) // DAY)
    return {
        "tokens": max(TOKEN_DAYS, grace_days),
        "keys": key_days,
        "moves": log_days,
        "commits": max(log_days, key_days),
    }


def _prune_in_steps(ctx: Context, plan: PrunePlan, *, dry_run: bool) -> int:
    count = 0
    while True:
        step = ctx.catalog.retention.prune(ctx.repository_id, plan, limit=PRUNE_STEP, dry_run=dry_run)
        count += step.count
        ctx.progress(f"pruning {plan.kind}", count, 0)
        if step.after is None:
            return count
        plan = replace(plan, after=step.after, gone=plan.gone | step.gone)


BATCH = 1000
"""Files of one request."""

STEP = 8 * BATCH
"""Files after which it is written down how far the sweep came."""

_THREADS = 8
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Swept(JsonRecord):
    """What a sweep did: the mark as it is now, the files and bytes that this call deleted, of whatever kind.

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
        mark_id: the mark's id.
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
    if mark.state is MarkState.MARKED and not force:
        _check_limit(mark)
    versioned = ctx.store.keeps_versions()
    if mark.state is MarkState.MARKED:
        with opened(ctx, mark):  # before the catalog says that it is being swept: then links wait for it no more
            pass
        if REFS_DUMP in ctx.catalog.repositories.get(ctx.repository_id).hooks:
            dump(ctx)  # so that the dump refers to nothing that is deleted now
    mark = ctx.catalog.marks.begin_sweep(ctx.repository_id, mark_id)
    if mark.state in (MarkState.SWEPT, MarkState.CARRIED):
        return Swept(mark, 0, 0, versioned)
    with opened(ctx, mark) as file:
        if file.metadata.num_rows != mark.rows:
            raise Corrupted(f"mark {mark_id} holds {file.metadata.num_rows} rows and not {mark.rows}; not swept")
        run = _Sweep(ctx, mark)
        for rows in _skip_rows(file.iter_batches(STEP), mark.swept):
            run.delete(rows)
            ctx.progress("deleting", run.seen, mark.rows)
            if run.mark.state is MarkState.CARRIED:
                break
        run.end()
    prune(ctx)
    return Swept(run.mark, run.deleted, run.size_bytes, versioned)


def _check_limit(mark: Mark) -> None:
    if copying.exceeded(mark.objects, mark.listed):
        raise MarkRefused(
            f"mark {mark.id} holds {mark.objects:,} of {mark.listed:,} objects, more than "
            f"{copying.SHARE:.0%}: look at its report, and sweep it with --force if that is meant"
        )


def _skip_rows(batches: Iterator[pa.RecordBatch], skip: int) -> Iterator[pa.RecordBatch]:
    """The rows behind the first ``skip`` ones."""
    for batch in batches:
        rest = batch.slice(min(skip, batch.num_rows))
        skip -= batch.num_rows - rest.num_rows
        if rest.num_rows:
            yield rest


class _Sweep:
    """One sweep under way.

    Attributes:
        mark: the mark as last recorded.
        seen: how many rows from the first were gone through.
        deleted: how many files this run deleted, and ``size_bytes`` how large they were.
    """

    def __init__(self, ctx: Context, mark: Mark) -> None:
        self._ctx = ctx
        self.mark = mark
        self.seen = mark.swept
        self.deleted = 0
        self.size_bytes = 0
        self._failed: dict[str, str] = {}

    def delete(self, rows: pa.RecordBatch) -> None:
        """Delete the files of some rows. Write down how far that is, unless something was left."""
        addresses = rows.column("physical_address")
        check_ours(self._ctx, self.mark, addresses)
        check_owner(self._ctx)
        failed = {failure.key: failure.reason for failure in self._ask(addresses.to_pylist())}
        if len(failed) == rows.num_rows and not self.deleted:
            raise self._given_up(failed, self.mark.rows - self.seen)
        left = pc.is_in(addresses, pa.array([*failed], pa.string()))
        self.deleted += rows.num_rows - len(failed)
        self.size_bytes += pc.sum(rows.column("size_bytes").filter(pc.invert(left))).as_py() or 0
        self._failed |= failed
        self.seen += rows.num_rows
        if not self._failed:
            self._advance(self.seen)

    def end(self) -> None:
        """Try once more what was refused. Name what is refused again."""
        if self._failed:
            check_owner(self._ctx)
        failed = {failure.key: failure.reason for failure in self._ask([*self._failed])}
        self.deleted += len(self._failed) - len(failed)
        self._end(failed, len(failed))

    def _given_up(self, failed: dict[str, str], count: int) -> SweepIncomplete:
        self._end(failed, count)
        return SweepIncomplete(self.mark.id, [*failed.items()][:_SHOWN], count)

    def _end(self, failed: dict[str, str], count: int) -> None:
        some = [*failed.items()][:_SHOWN]
        self.mark = self._ctx.catalog.marks.end_sweep(
            self._ctx.repository_id, self.mark.id, refused=count, failures=some
        )

    def _ask(self, keys: list[str]) -> list[DeleteFailure]:
        """Delete files, several requests at a time. What the store refused comes back."""
        requests = [keys[start : start + BATCH] for start in range(0, len(keys), BATCH)]
        answers = in_flight(self._ctx.store.delete, requests, _THREADS)
        return [failure for some in answers for failure in some]

    def _advance(self, swept: int) -> None:
        self.mark = self._ctx.catalog.marks.advance_sweep(self._ctx.repository_id, self.mark.id, swept)


_OPEN = (MarkState.MARKING, MarkState.MARKED)
"""The newest mark, when it may still be swept: it has decided about the commits of those before it."""


@dataclass(frozen=True, slots=True)
class RestoredMark(JsonRecord):
    """What a restore did: the mark as it is now, and how many commits are live again.

    ``newer`` is the mark that took over this one's commits, when another one began since: that is the one to restore.
    """

    mark: Mark
    commits: int
    newer: str | None = None


def restore(ctx: Context, mark_id: str) -> RestoredMark:
    """Take back a mark before its sweep begins: its commits live again, and it can never be swept.

    Args:
        mark_id: the mark's id.

    Raises:
        NotFound: ``mark_not_found``: this repository has no such mark.
        MarkRefused: its sweep has begun.
        PreconditionFailed: ``read_only_repository``: the repository is a mirror.
    """
    mark = ctx.catalog.marks.restore_mark(ctx.repository_id, mark_id)
    if mark.state in (MarkState.STALE, MarkState.FAILED):
        marks = ctx.catalog.marks.on_record(ctx.repository_id)
        return RestoredMark(mark, 0, next((found.id for found in marks if found.state in _OPEN), None))
    commits = 0
    while mark.state is MarkState.RESTORING:
        mark, some = ctx.catalog.retention.restore_commits(ctx.repository_id, mark_id)
        commits += some
        ctx.progress("restoring", commits, 0)
    return RestoredMark(mark, commits)
