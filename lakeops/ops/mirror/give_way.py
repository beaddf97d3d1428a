"""When a candidate gives way to a newer head: replication may never bring an object, and the branch must go on.

A candidate is not replaced as long as something of it arrives: a mirror of a busy source would begin again all the
time. When nothing has arrived for the mirror's patience, newer heads are looked at, at every pass: the newest one, and
some that the source showed since.

* One that is complete takes the candidate's place. It is shown at once, so nobody waits longer for it.
* Otherwise the newest takes it when it is further along, or when nothing has arrived for twice as long. Each such
  exchange doubles the time until the next one, and a promotion sets it back. So whatever the delay of replication is,
  the branch comes to wait for a candidate for longer than that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from lakeops.catalog.records import Pending
from lakeops.model import graph
from lakeops.model.mirrors import MirrorRecord, MirrorRef, MirrorState, Remaining, Wait
from lakeops.ops.context import Context
from lakeops.ops.mirror.inspection import CandidateInspection, inspect, merged
from lakeops.ops.resolve import lookup

TRIED = 3
"""How many of the remembered heads a pass looks at."""

MOST_STEPS = 4_096
"""How many first parents back earlier heads are searched for."""

NO_TICKET = 0
"""What is recorded under it is no look at a candidate, and only remembers what arrived."""


def record(ctx: Context, ref: MirrorRef, found: CandidateInspection, *, ticket: int | None = None) -> MirrorRef | None:
    """Remember what a look at a candidate found. The ref, if it is still waited for."""
    return ctx.catalog.record_arrivals(
        ctx.repository_id,
        ref.ref,
        ref.ticket if ticket is None else ticket,
        found.arrived,
        missing_objects=found.missing_objects,
        missing_bytes=found.missing_bytes,
        remaining=found.remaining,
        missing=found.missing,
        error=None if found.error is None else found.error.message,
    )


def give_way(ctx: Context, state: MirrorState, ref: MirrorRef, remembered: Pending) -> bool:
    """Let a candidate of which nothing arrives any more give way to the newest head, if that is better; whether it did.

    Args:
        ctx: the mirror.
        state: its refs. What they show is complete.
        ref: a ref, as the last look left it.
        remembered: what was remembered of earlier looks.
    """
    wait = ref.wait
    if wait is None or ref.candidate is None or ref.candidate == ref.source_head:
        return False
    now = ctx.seconds()
    if not is_stalled(state.mirror, wait, now):
        return False
    newest: CandidateInspection | None = None
    for head in _newer_heads(ctx, state.mirror, ref, wait):
        found = inspect(ctx, state, ref, ctx.catalog.commit(ctx.repository_id, head), remembered)
        record(ctx, ref, found, ticket=NO_TICKET)
        remembered = merged(remembered, found.arrived)
        newest = newest or found
        if found.complete:
            return _take(ctx, ref, head, stalled=False)
    if newest is None or not is_due(state.mirror, wait, now, newest.remaining):
        return False
    return _take(ctx, ref, ref.source_head, stalled=True)


def _newer_heads(ctx: Context, mirror: MirrorRecord, ref: MirrorRef, wait: Wait) -> Iterator[str]:
    """What to look at in place of the candidate: the newest head, and some that it descends from, newest first.

    Each pass takes others of them. What the source was taken back from is not shown.
    """
    yield ref.source_head
    if wait.heads:
        start = mirror.sequence % len(wait.heads)
        turn = {(start + number * len(wait.heads) // TRIED) % len(wait.heads) for number in range(TRIED)}
        wanted = {wait.heads[number] for number in turn} - {ref.source_head}
        behind = islice(graph.first_parents(lookup(ctx).get, ref.source_head), MOST_STEPS)
        yield from (commit.id for commit in behind if commit.id in wanted and not commit.expired)


def _take(ctx: Context, ref: MirrorRef, head: str, *, stalled: bool) -> bool:
    given = ctx.catalog.give_up_candidate(ctx.repository_id, ref.ref, ref.ticket, to=head, stalled=stalled)
    return given is not None


def is_stalled(mirror: MirrorRecord, wait: Wait, now: int) -> bool:
    """Whether nothing has arrived for longer than the mirror's patience."""
    return now - wait.progressed >= mirror.patience


def is_due(mirror: MirrorRecord, wait: Wait, now: int, newest: Remaining) -> bool:
    """Whether a head that lacks ``newest`` takes the candidate's place although it is not complete."""
    idle = now - wait.progressed
    patience = mirror.patience << wait.given_way
    further = wait.best is not None and newest < wait.best
    return idle >= (patience if further else 2 * patience)
