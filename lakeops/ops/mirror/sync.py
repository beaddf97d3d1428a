"""One pass over a mirror: discover, look, promote. It never waits; whoever runs it runs it again.

The order is the safety:

1. the source's heads are read and recorded, and each ref that waits for nothing takes its head as its candidate;
2. the source is told which commits the mirror shows and waits for, and agrees to keep them, or refuses;
3. only then is anything looked for, and only what it agreed to keep is promoted.

So garbage collection at the source, whose deletes are replicated, never takes what a mirror shows. A mirror that may
only read its source cannot tell it anything: there the source's rules keep what was a head within some days
(``mirror_lag_days``), and a candidate that expired meanwhile is not promoted.

Passes may overlap, be killed anywhere, and come back late; see ``catalog.mirroring``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager

from lakeops.catalog.mirroring import Pending
from lakeops.engine.presence import Terms
from lakeops.model.errors import CommitExpired, Corrupted, LakeopsError, MirrorOvertaken, RefNotFound, Transient
from lakeops.model.mirrors import Mirror, MirrorRef, MirrorState, MirrorStatus, RefName
from lakeops.model.records import Commit
from lakeops.ops.context import Context
from lakeops.ops.mirror.claim import check_claim
from lakeops.ops.mirror.copy import BATCH, copy_history
from lakeops.ops.mirror.create import SOURCE_ETAG
from lakeops.ops.mirror.look import Look, look, merged
from lakeops.ops.mirror.source import Source
from lakeops.ops.mirror.status import status

ROUNDS = 2
"""What was promoted may have a next candidate that is complete as well: one more look, no more."""

TRIES = 8
"""How often heads are read again when the source or another pass went on meanwhile."""


Reach = Callable[[], AbstractContextManager[Source]]
"""Opens the source for one pass."""


def sync(ctx: Context, reach: Reach, *, only: Collection[RefName] | None = None) -> MirrorStatus:
    """Bring the mirror as far as what has arrived allows; returns how far that is.

    Args:
        ctx: the mirror.
        reach: opens the source.
        only: refs to look at; all of them when None. What the source shows is recorded of all in any case.

    Raises:
        NotAMirror: the repository follows no source.
        NotAReplica: source or namespace belong to another repository.
        ReplicaMismatch, Corrupted: something arrived that is not what the source recorded; refs that do not need it
            have gone on.
        CatalogUnavailable, CatalogError: the source cannot be reached.
    """
    with _noted(ctx) as mirror, reach() as source:
        errors: list[LakeopsError] = []
        source.check_same(mirror, ctx.catalog.initial_commit(ctx.repository_id))
        with contextlib.suppress(MirrorOvertaken):  # the later pass does what this one would have done
            for _ in range(ROUNDS):
                state = _observe(ctx, source)
                if not any(ref.candidate for ref in state.refs):
                    break
                check_claim(ctx.store, source.repository)
                again, errors = _promote_complete(ctx, source, state, only)
                if not again:
                    break
        if errors:
            raise errors[0]
    return status(ctx)


def discover(ctx: Context, reach: Reach) -> MirrorStatus:
    """The first half of a pass: record what the source shows, and have it keep what the mirror needs.

    Nothing is looked for, and nothing is promoted. Raises what ``sync`` raises.
    """
    with _noted(ctx) as mirror, reach() as source:
        source.check_same(mirror, ctx.catalog.initial_commit(ctx.repository_id))
        check_claim(ctx.store, source.repository)
        with contextlib.suppress(MirrorOvertaken):
            _observe(ctx, source)
    return status(ctx)


def arrived(ctx: Context, ref: RefName) -> str | None:
    """The commit that a ref can show now: its complete candidate, or what is shown when it waits for nothing.

    None while something is missing, or nothing is known of such a ref yet. Promotes nothing, and needs no source; what
    was found is remembered.

    Raises:
        NotAMirror: the repository follows no source.
        ReplicaMismatch, Corrupted: something arrived that is not what the source recorded.
    """
    state = ctx.catalog.mirror_state(ctx.repository_id)
    state.mirror.check_following()
    for found in state.refs:
        if found.ref == ref and found.candidate is None:
            return found.promoted
        if found.ref == ref:
            remembered = ctx.catalog.arrivals(ctx.repository_id)
            commit = ctx.catalog.commit(ctx.repository_id, found.candidate or "")
            seen = _look(ctx, state, found, commit, remembered)
            _record(ctx, found, seen)
            if seen.error is not None:
                raise seen.error
            return found.candidate if seen.complete else None
    return None


@contextmanager
def _noted(ctx: Context) -> Iterator[Mirror]:
    """Record how a pass over the mirror ended, so that a status tells it later."""
    mirror = ctx.catalog.mirror(ctx.repository_id)
    mirror.check_following()
    try:
        yield mirror
    except LakeopsError as error:
        with contextlib.suppress(LakeopsError):
            ctx.catalog.note_sync(ctx.repository_id, error.message)
        raise
    if mirror.error is not None:
        ctx.catalog.note_sync(ctx.repository_id, None)


def _observe(ctx: Context, source: Source) -> MirrorState:
    """Record the source's heads, and have it keep all that the mirror shows and waits for.

    Candidates that the source has expired, or lost, give way to its newest heads.
    """
    for _ in range(TRIES):
        before = ctx.catalog.mirror_state(ctx.repository_id).mirror
        heads = source.heads(before)
        try:
            if copy_history(ctx, source, heads.values()) > BATCH:
                continue  # it took its time: what is recorded should be what the source shows now
            state = ctx.catalog.observe_source(ctx.repository_id, heads, since=before.sequence, actor=ctx.actor)
        except (MirrorOvertaken, RefNotFound):
            continue
        lost = source.lost(state.needs)
        hopeless = [ref for ref in state.refs if ref.candidate in lost]
        for ref in hopeless:
            ctx.catalog.give_up_candidate(ctx.repository_id, ref.ref, ref.ticket)
        if not hopeless and _agreed(source, state, lost):
            return state
    raise Transient(
        f"the source of mirror {ctx.repository_id!r} went on faster than it could be read, {TRIES} times; try again"
    )


def _agreed(source: Source, state: MirrorState, lost: frozenset[str]) -> bool:
    """Whether the source keeps what the mirror needs from now on; what it has lost already cannot be kept.

    Raises ``MirrorOvertaken`` when a later pass has asked for something else.
    """
    mirror = state.mirror
    if not mirror.reports:
        return True
    try:
        source.catalog.report_mirror(
            source.repository_id, mirror.registration, state.needs - lost, sequence=mirror.sequence
        )
    except (CommitExpired, RefNotFound):
        return False
    return True


def _promote_complete(
    ctx: Context, source: Source, state: MirrorState, only: Collection[RefName] | None
) -> tuple[bool, list[LakeopsError]]:
    """Look at every candidate and promote those that are complete.

    Returns whether any of these waits for another commit now, and what is wrong with others.
    """
    waiting = [ref for ref in state.refs if ref.candidate is not None and (only is None or ref.ref in only)]
    commits = ctx.catalog.commits(ctx.repository_id, {ref.candidate or "" for ref in waiting})
    remembered = ctx.catalog.arrivals(ctx.repository_id)
    again, errors = False, []
    for number, ref in enumerate(waiting):
        ctx.progress("looking for what has arrived", number, len(waiting))
        found = _look(ctx, state, ref, commits[ref.candidate or ""], remembered)
        remembered = merged(remembered, found.arrived)
        moved = _promote(ctx, source, state, ref) if found.complete else None
        if moved is not None:
            again = again or moved.candidate is not None
            continue
        if found.error is not None:
            errors.append(found.error)
        _record(ctx, ref, found)
    return again, errors


def _look(ctx: Context, state: MirrorState, ref: MirrorRef, commit: Commit, remembered: Pending) -> Look:
    try:
        return look(ctx, state, ref, commit, remembered, _terms(ctx, state))
    except Corrupted as error:
        return Look(missing_objects=1, error=error)


def _record(ctx: Context, ref: MirrorRef, found: Look) -> None:
    """Remember what a look at a candidate found."""
    ctx.catalog.record_arrivals(
        ctx.repository_id,
        ref.ref,
        ref.ticket,
        found.arrived,
        missing_objects=found.missing_objects,
        missing_bytes=found.missing_bytes,
        error=None if found.error is None else found.error.message,
    )


def _promote(ctx: Context, source: Source, state: MirrorState, ref: MirrorRef) -> MirrorRef | None:
    """Show a complete candidate, unless it expired at a source that could not be told to keep it.

    None as well when it is no longer waited for.
    """
    candidate = ref.candidate or ""
    if not state.mirror.reports and source.lost([candidate]):
        ctx.catalog.give_up_candidate(ctx.repository_id, ref.ref, ref.ticket)
        return None
    token = ctx.ids.new()
    return ctx.catalog.promote(ctx.repository_id, ref.ref, ref.ticket, candidate, token=token, actor=ctx.actor)


def _terms(ctx: Context, state: MirrorState) -> Terms:
    """How objects are looked for: ETags say something only where both stores compute them alike."""
    known = ctx.repository.capabilities
    return Terms(
        settings=ctx.stores.settings,
        imported=state.mirror.check_imported,
        etags=known.get("etag_is_md5") is True and known.get(SOURCE_ETAG) is True,
    )
