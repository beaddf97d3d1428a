"""The lag of a mirror, from what the last pass recorded. The source need not be reachable."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice

from lakeops.catalog.records import Pending
from lakeops.model import graph
from lakeops.model.errors import Corrupted, NotFound, ObjectNotFound
from lakeops.model.graph import CommitSource
from lakeops.model.mirrors import (
    SAMPLE,
    MirrorRecord,
    MirrorRef,
    MirrorState,
    MirrorStatus,
    RefKind,
    RefStatus,
    Remaining,
    Wait,
)
from lakeops.ops.context import Context, pages
from lakeops.ops.mirror.inspection import CandidateInspection, inspect, merged, terms
from lakeops.ops.mirror.presence import Terms, plan, prove
from lakeops.ops.resolve import lookup
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader


def status(ctx: Context) -> MirrorStatus:
    """The progress of each ref, as the last pass saw it. Seconds count up to now. The source is not asked."""

    def found() -> MirrorStatus:
        state = ctx.catalog.mirrors.mirror_state(ctx.repository_id)
        now, get = ctx.seconds(), lookup(ctx).get
        refs = [ref_status(get, state.mirror, ref, now) for ref in state.refs]
        return MirrorStatus(
            state.mirror,
            {ref.id: ref for ref in refs if ref.kind is RefKind.BRANCH},
            {ref.id: ref for ref in refs if ref.kind is RefKind.TAG},
            state.mirrors,
        )

    return ctx.catalog.in_snapshot(found)


def ref_status(get: CommitSource, mirror: MirrorRecord, ref: MirrorRef, now: int) -> RefStatus:
    """The progress of one ref. ``get`` gives commits that the source's head descends from."""
    commits, since = behind(get, ref.source_head, ref.promoted)
    if since is None and ref.promoted != ref.source_head:
        since = ref.noticed
    return RefStatus(
        id=ref.name,
        kind=ref.kind,
        promoted=ref.promoted,
        candidate=ref.candidate,
        source_head=ref.source_head,
        lag_commits=commits,
        lag_seconds=0 if since is None else max(0, now - since),
        missing_objects=ref.missing_objects,
        missing_bytes=ref.missing_bytes,
        last_check=ref.checked,
        error=ref.error,
        wait=ref.wait,
        stalled=ref.wait is not None and is_stalled(mirror, ref.wait, now),
    )


def behind(get: CommitSource, head: str, promoted: str | None) -> tuple[int | None, int | None]:
    """How many commits lead from ``promoted`` to ``head``, and when the oldest of them was made. None for no way."""
    if promoted is None:
        return None, None
    if promoted == head:
        return 0, None
    try:
        lowest, oldest = get(promoted).generation, get(head)
    except NotFound:
        return None, None
    for distance, commit in enumerate(graph.first_parents(get, head)):
        if commit.id == promoted:
            return distance, oldest.creation_date
        if commit.generation <= lowest:
            break
        oldest = commit
    return None, None


def check_promoted(ctx: Context) -> list[str]:
    """What is missing or damaged of everything that the mirror shows, in words. Empty when all is complete.

    It relies on nothing that earlier passes remembered, so the cost grows with all that is shown. Use it after a
    fail-over.
    """
    commits: dict[str, str] = {}
    for kind, listing in (("branch", ctx.catalog.refs.branches), ("tag", ctx.catalog.refs.tags)):
        for ref in pages(partial(listing, ctx.repository_id)):
            commits.setdefault(ref.commit_id, f"{kind} {ref.id!r}")
    how = terms(ctx, ctx.catalog.mirrors.get(ctx.repository_id))
    found: list[str] = []
    known = Metarange.empty()
    for commit_id, name in commits.items():
        commit = ctx.catalog.commits.get(ctx.repository_id, commit_id)
        try:
            wanted = RangeReader(ctx.store).metarange(commit)
        except (ObjectNotFound, Corrupted) as error:
            found.append(f"{name}: {error.message}")
            continue
        flaws = list(_flaws(ctx, how, wanted, known))
        found += [f"{name}: {flaw}" for flaw in flaws]
        known = known if flaws else wanted
    return found


def _flaws(ctx: Context, how: Terms, wanted: Metarange, known: Metarange) -> Iterator[str]:
    for proof in prove(plan(wanted, known, {}), engine=ctx.engine, store=ctx.store, terms=how):
        wrong = proof.damage or proof.refused or proof.mismatch
        if wrong is not None:
            yield wrong
        elif not proof.arrived:
            yield f"range {proof.file} is missing"
        elif proof.missing_objects:
            some = ", ".join(repr(one.path) for one in proof.missing[:SAMPLE])
            yield f"{proof.missing_objects:,} objects are missing, such as those of {some}"


TRIED = 3
"""How many of the remembered heads a pass looks at."""


MOST_STEPS = 4_096
"""How many first parents back earlier heads are searched for."""


NO_TICKET = 0
"""What is recorded under it is no look at a candidate, and only remembers what arrived."""


def record(ctx: Context, ref: MirrorRef, found: CandidateInspection, *, ticket: int | None = None) -> MirrorRef | None:
    """Remember what a look at a candidate found. The ref, if it is still waited for."""
    return ctx.catalog.mirrors.record_arrivals(
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
        found = inspect(ctx, state, ref, ctx.catalog.commits.get(ctx.repository_id, head), remembered)
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
    given = ctx.catalog.mirrors.give_up_candidate(ctx.repository_id, ref.ref, ref.ticket, to=head, stalled=stalled)
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
