"""Pruning: the catalog's rows that no rule asks for any more, removed in small steps beside writers.

Expired commits, moves of refs, idempotency keys and retired tokens would otherwise stay for ever. How long each is
kept is in the retention rules (``log_days``, ``key_days``). Without rules the defaults hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lakeops.catalog.records import PrunePlan
from lakeops.model.clock import unix_seconds
from lakeops.model.json_record import JsonRecord
from lakeops.model.retention import DAY
from lakeops.model.rules import KEY_DAYS, LOG_DAYS
from lakeops.ops.context import Context
from lakeops.ops.gc.rules import get_rules

STEP = 2_000
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
    now = unix_seconds(ctx.catalog.now() if dry_run else ctx.catalog.check_clock())
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
    grace_days = -(-int(ctx.catalog.grace(ctx.repository_id).at(ctx.catalog.now()).total_seconds()) // DAY)
    return {
        "tokens": max(TOKEN_DAYS, grace_days),
        "keys": key_days,
        "moves": log_days,
        "commits": max(log_days, key_days),
    }


def _prune_in_steps(ctx: Context, plan: PrunePlan, *, dry_run: bool) -> int:
    count = 0
    while True:
        step = ctx.catalog.prune(ctx.repository_id, plan, limit=STEP, dry_run=dry_run)
        count += step.count
        ctx.progress(f"pruning {plan.kind}", count, 0)
        if step.after is None:
            return count
        plan = replace(plan, after=step.after, gone=plan.gone | step.gone)
