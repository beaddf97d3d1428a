"""One pass over a mirror: observe, agree, look, promote. It never waits, so it is run again and again.

1. observe: the source's heads are read and recorded. A ref that waits for nothing takes its head as its candidate.
2. agree: the source is told which commits the mirror shows and waits for, and agrees to keep them, or refuses.
3. look: only then is the store asked for the files of each candidate.
4. promote: a candidate that is complete is shown, if the source agreed to keep it.

So garbage collection at the source, whose deletes are replicated, never takes what a mirror shows. A source that cannot
be told keeps by its rules what was a head within ``mirror_lag_days``, and what expired there is not promoted. What
mirrors of a mirror need is part of its report to its own source. Passes may overlap, be killed anywhere, and be late.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice

from lakeops.model import graph
from lakeops.model.clock import retry
from lakeops.model.errors import (
    CommitExpired,
    Corrupted,
    InvalidInput,
    LakeopsError,
    MirrorOvertaken,
    RecordRefused,
    RefNotFound,
    Transient,
)
from lakeops.model.mirrors import (
    SAMPLE,
    Inspection,
    MirrorRecord,
    MirrorRef,
    MirrorState,
    MirrorStatus,
    Pending,
    RefName,
    RefStatus,
    Remaining,
    Wait,
)
from lakeops.model.records import Commit, RefKind, ReportKind
from lakeops.ops.context import Context, history_of
from lakeops.ops.mirror.inspection import inspect, is_stalled, merged, status
from lakeops.ops.mirror.source import BATCH, Reach, Source, SourceLake, SourceState, check_replica, copy_history

ROUNDS = 2
"""What was promoted may have a next candidate that is complete as well: one more look, no more."""

LAG_EVERY = 300
"""Seconds of which one lag is kept, the largest."""

TRIES = 8
"""How often heads are read again when the source or another pass went on meanwhile."""

TRIED = 3
"""How many of the remembered heads a pass looks at."""

MOST_STEPS = 4_096
"""How many first parents back earlier heads are searched for."""

NO_TICKET = 0
"""The ticket of arrivals that were recorded without a look at a candidate."""

_REASON = 500
"""Characters of a reason that are kept."""


def sync(
    ctx: Context, reach: Reach, source: SourceLake | None = None, *, only: Collection[RefName] | None = None
) -> MirrorStatus:
    """Make one pass: read the source's heads, look for arrived objects, promote complete heads. Never waits.

    Args:
        source: the source's lake.
        only: refs to look for; all when left out. What the source shows is recorded for all refs in any case.

    Raises:
        NotAMirror: it was promoted to a writable repository.
        PreconditionFailed: ``not_a_replica``: source or storage namespace belong to another repository.
        LakeopsError, Corrupted: ``replica_mismatch``: a file arrived that is not the one that the source recorded.
            Refs that do not need it have been promoted.
        Transient, CatalogError, InvalidInput: the source cannot be reached.
    """
    with _read_mirror(ctx) as (before, initial), reach(source) as origin:
        errors: list[LakeopsError] = []
        with contextlib.suppress(MirrorOvertaken):  # the later pass does what this one would have done
            known: MirrorState | None = before
            for _ in range(ROUNDS):
                state, lost, broken = _observe_and_agree(ctx, origin, initial, known)
                known, errors = None, [*_unsupported(ctx, state, lost), *broken]
                if not any(ref.candidate for ref in state.refs):
                    break
                check_replica(ctx.store, origin.repository)
                again, wrong = _look_and_promote(ctx, origin, state, only)
                errors += wrong
                if not again:
                    break
            _note_refused(ctx, before.mirror, errors)
        if errors:
            raise errors[0]
    return _status_on_record(ctx, before)


def _observe_and_agree(
    ctx: Context, source: Source, initial: Commit, before: MirrorState | None = None
) -> tuple[MirrorState, frozenset[str], list[LakeopsError]]:
    """Record the source's heads, and have it keep all that the mirror shows and waits for.

    Candidates that the source has expired, or lost, fall back to its newest heads. Returns the mirror, what the source
    cannot keep, and an error for each ref whose history the source does not have whole: it stays where it is.
    ``before`` is the mirror as it was read just now, if it was.
    """
    broken: dict[RefName | None, LakeopsError] = {}
    read: dict[RefName, str] = {}

    def attempt() -> tuple[MirrorState, frozenset[str]] | None:
        nonlocal before, read
        known, before = before or ctx.catalog.mirrors.mirror_state(ctx.repository_id), None
        theirs = source.state(known.mirror, initial)
        if theirs.rules is not None and theirs.rules != (known.mirror.rules, known.mirror.protections):
            rules, protections = theirs.rules
            ctx.catalog.mirrors.note(ctx.repository_id, rules=rules, protections=list(protections))
        if theirs.metadata is not None and theirs.metadata != known.metadata:
            ctx.catalog.mirrors.note_metadata(ctx.repository_id, theirs.metadata)
        broken.update(theirs.refused)
        heads = _followed(theirs, known, leave=broken)
        copied = {ref.source_head for ref in known.refs}
        try:
            if copy_history(ctx, source, heads.values(), known=copied) > BATCH:
                return None  # it took its time: what is recorded should be what the source shows now
            state = ctx.catalog.mirrors.observe_source(
                ctx.repository_id, heads, since=known.mirror.sequence, actor=ctx.actor
            )
        except MirrorOvertaken:
            return None
        except RefNotFound:
            # A head that moved while it was read is another one now. One that is the same lacks a commit for good.
            broken.update(_broken(ctx, source, {ref: head for ref, head in heads.items() if read.get(ref) == head}))
            read = heads
            return None
        except (RecordRefused, Corrupted):
            broken.update(_broken(ctx, source, heads))
            return None
        lost = _agree(ctx, source, state)
        return None if lost is None else (state, lost)

    state, lost = retry(
        attempt,
        TRIES,
        lambda: Transient(
            f"the source of mirror {ctx.repository_id!r} went on faster than it could be read, {TRIES} times; try again"
        ),
    )
    return state, lost, list(broken.values())


def _followed(theirs: SourceState, state: MirrorState, *, leave: Collection[RefName | None]) -> dict[RefName, str]:
    """Where the source's refs point.

    A ref that shows what the source cannot keep, as a mirror itself, is not followed there. One of ``leave`` is where
    it was last seen, so that it goes on to wait for what it waits for.
    """
    promoted = {ref.ref: ref.promoted for ref in state.refs}
    followed = {
        ref: head if head not in theirs.unkept else promoted.get(ref)
        for ref, head in theirs.heads.items()
        if ref not in leave
    }
    followed |= {ref.ref: ref.source_head for ref in state.refs if ref.ref in leave}
    return {ref: head for ref, head in followed.items() if head is not None}


def _broken(ctx: Context, source: Source, heads: Mapping[RefName, str]) -> dict[RefName | None, LakeopsError]:
    """The refs whose history cannot be copied: the source lacks a commit of it, or what it says of one is refused."""
    found: dict[RefName | None, LakeopsError] = {}
    for ref, head in heads.items():
        try:
            copy_history(ctx, source, [head])
        except RefNotFound as error:
            found[ref] = RefNotFound(
                f"{ref.kind} {ref.name!r} of the source is at commit {head[:16]}, and the source's catalog lacks a "
                f"commit of its history ({error.message}); run `lakeops fsck` there; the mirror stays where it is"
            )
        except (RecordRefused, Corrupted) as error:
            found[ref] = RecordRefused(f"{ref.kind} {ref.name!r}: {error.message}; the mirror stays where it is")
    return found


def _agree(ctx: Context, source: Source, state: MirrorState) -> frozenset[str] | None:
    """Have the source keep what the mirror needs. Returns what it has lost already and cannot keep.

    None when the pass has to look at the source again, because something changed meanwhile.
    Raises ``MirrorOvertaken`` when a later pass has asked for something else.
    """
    reports = state.mirror.reports
    if reports:
        agreed = _report(ctx, source, state.mirror, state.needs)
        if agreed is not False:
            return frozenset() if agreed else None
    lost = source.lost(state.needs)
    hopeless = [ref for ref in state.refs if ref.candidate in lost]
    for ref in hopeless:
        ctx.catalog.mirrors.give_up_candidate(ctx.repository_id, ref.ref, ref.ticket)
    if hopeless or (reports and not _report(ctx, source, state.mirror, state.needs - lost)):
        return None
    return lost


def _report(ctx: Context, source: Source, mirror: MirrorRecord, needs: frozenset[str]) -> bool | None:
    """Whether the source keeps these commits from now on. None when the mirror had to start over.

    Raises ``MirrorOvertaken`` when a later pass has asked for something else.
    """
    try:
        source.catalog.mirrors.report_mirror(source.repository_id, mirror.registration, needs, sequence=mirror.sequence)
    except (CommitExpired, RefNotFound):
        return False
    except MirrorOvertaken:
        reported = source.reported(mirror)
        if reported <= ctx.catalog.mirrors.get(ctx.repository_id).sequence:
            raise
        # This catalog never made that report: it was restored from a backup, or copied. What was reported under the
        # old name stays kept, since another copy of the catalog may rely on it.
        ctx.catalog.mirrors.start_over(ctx.repository_id, f"{ctx.repository_id}-{ctx.ids.new()}", sequence=reported)
        return None
    if needs != frozenset(mirror.kept):
        ctx.catalog.mirrors.note(ctx.repository_id, since=mirror.sequence, kept=sorted(needs))
    return True


def _unsupported(ctx: Context, state: MirrorState, lost: frozenset[str]) -> list[LakeopsError]:
    """An error for each ref whose promoted commit the source no longer keeps, unless that commit holds no objects."""
    if not lost:
        return []
    gone = ctx.catalog.commits.get_many(ctx.repository_id, lost)
    return [
        CommitExpired(
            f"{ref.kind} {ref.name!r} shows commit {ref.promoted[:16]}, which the source no longer keeps: objects of "
            "it may be gone until the next commit is complete here; a catalog was restored, or the mirror's "
            "registration was dropped"
        )
        for ref in state.refs
        if ref.promoted in gone and gone[ref.promoted].meta_range_file
    ]


def _look_and_promote(
    ctx: Context, source: Source, state: MirrorState, only: Collection[RefName] | None
) -> tuple[bool, list[LakeopsError]]:
    """Look at every candidate and promote those that are complete.

    Returns whether any of these waits for another commit now, and what is wrong with others.
    """
    waiting = [ref for ref in state.refs if ref.candidate is not None and (only is None or ref.ref in only)]
    commits = ctx.catalog.commits.get_many(ctx.repository_id, {ref.candidate or "" for ref in waiting})
    remembered = ctx.catalog.mirrors.arrivals(ctx.repository_id)
    again, errors = False, []
    for number, ref in enumerate(waiting):
        ctx.progress("looking for what has arrived", number, len(waiting))
        candidate = ref.candidate or ""
        found = inspect(ctx, state, ref, commits[candidate], remembered)
        remembered = merged(remembered, found.arrived)
        here, moved = (ctx.repository_id, ref.ref, ref.ticket), None
        if found.complete and not state.mirror.reports and source.lost([candidate]):
            ctx.catalog.mirrors.give_up_candidate(*here)  # the source could not be told to keep it
        elif found.complete:
            moved = ctx.catalog.mirrors.promote(*here, candidate, token=ctx.ids.new(), actor=ctx.actor)
        if moved is not None:
            again = again or moved.candidate is not None
            continue
        seen = ctx.catalog.mirrors.record_arrivals(*here, found)
        if seen is not None and fall_back(ctx, state, seen, remembered):
            again = True
        elif found.error is not None:
            errors.append(found.error)
    return again, errors


def fall_back(ctx: Context, state: MirrorState, ref: MirrorRef, remembered: Pending) -> bool:
    """Replace a stalled candidate by a newer head, if that is better.

    Returns whether one did. ``ref`` is as the last look left it. ``remembered`` is what earlier looks found.
    """
    wait, now = ref.wait, ctx.seconds()
    if wait is None or ref.candidate in (None, ref.source_head) or not is_stalled(state.mirror, wait, now):
        return False
    heads = [ref.source_head]
    if wait.heads:  # each pass takes others of them
        start = state.mirror.sequence % len(wait.heads)
        turn = {(start + number * len(wait.heads) // TRIED) % len(wait.heads) for number in range(TRIED)}
        wanted = {wait.heads[number] for number in turn} - {ref.source_head}
        behind = islice(graph.log(history_of(ctx), ref.source_head, first_parent=True), MOST_STEPS)
        # A head that the source's branch no longer contains is never shown.
        heads += [commit.id for commit in behind if commit.id in wanted and not commit.expired]
    seen: list[Inspection] = []
    for head in heads:
        found = inspect(ctx, state, ref, ctx.catalog.commits.get(ctx.repository_id, head), remembered)
        ctx.catalog.mirrors.record_arrivals(ctx.repository_id, ref.ref, NO_TICKET, found)
        remembered = merged(remembered, found.arrived)
        seen.append(found)
        if found.complete:
            break
    else:
        head = ref.source_head
        if not is_due(state.mirror, wait, now, seen[0].remaining):
            return False
    stalled = not seen[-1].complete
    given = ctx.catalog.mirrors.give_up_candidate(ctx.repository_id, ref.ref, ref.ticket, to=head, stalled=stalled)
    return given is not None


def is_due(mirror: MirrorRecord, wait: Wait, now: int, newest: Remaining) -> bool:
    """Whether a head that lacks ``newest`` takes the candidate's place although it is not complete."""
    timeout = mirror.stall_timeout << wait.fallbacks
    further = wait.best is not None and newest < wait.best
    return now - wait.progressed >= (timeout if further else 2 * timeout)


@contextmanager
def _read_mirror(ctx: Context) -> Iterator[tuple[MirrorState, Commit]]:
    """The mirror and its initial commit. Records how the pass ended, so that a status tells it later."""
    before, initial = following(ctx)
    try:
        yield before, initial
    except LakeopsError as error:
        with contextlib.suppress(LakeopsError):
            ctx.catalog.mirrors.note(ctx.repository_id, error=error.message)
        raise
    if before.mirror.error is not None:
        ctx.catalog.mirrors.note(ctx.repository_id, error=None)


def following(ctx: Context) -> tuple[MirrorState, Commit]:
    """The mirror and its initial commit. Raises ``NotAMirror`` when it follows no source any more."""
    mirrors, commits, name = ctx.catalog.mirrors, ctx.catalog.commits, ctx.repository_id
    state, initial = ctx.catalog.in_snapshot(lambda: (mirrors.mirror_state(name), commits.initial_commit(name)))
    state.mirror.check_following()
    return state, initial


def _status_on_record(ctx: Context, before: MirrorState) -> MirrorStatus:
    """The status; how far the mirror is behind is left on record, for the chart of its page.

    A pass that waited for nothing leaves nothing.
    """
    found = status(ctx)
    refs = [*found.branches.values(), *found.tags.values()]
    if any(ref.candidate for ref in before.refs) or any(ref.candidate for ref in refs):
        lag = {
            "seconds": max((ref.lag_seconds for ref in refs), default=0),
            "objects": sum(ref.missing_objects for ref in refs if ref.candidate),
            "bytes": sum(ref.missing_bytes for ref in refs if ref.candidate),
            "refs": sum(ref.candidate is not None for ref in refs),
        }
        with contextlib.suppress(LakeopsError):  # what a pass has done does not depend on it
            ctx.catalog.audit.add_report(ctx.repository_id, ReportKind.LAG, lag, actor=ctx.actor, every=LAG_EVERY)
    return found


def _note_refused(ctx: Context, before: MirrorRecord, errors: Iterable[LakeopsError]) -> None:
    """Record what was refused of the source, where that is something else than ``before``."""
    reasons = [" ".join(error.message.split())[:_REASON] for error in errors if isinstance(error, RecordRefused)]
    if (len(reasons), tuple(reasons[:SAMPLE])) != (before.refusals, before.refused):
        ctx.catalog.mirrors.note(ctx.repository_id, refusals=len(reasons), refused=reasons[:SAMPLE])


def discover(ctx: Context, reach: Reach, source: SourceLake | None = None) -> MirrorStatus:
    """Do the first half of a pass: record what the source shows, and have it keep what the mirror needs.

    It promotes nothing. It looks for what has arrived of a newer head alone, where nothing arrives of the candidate any
    more. Errors are those of ``sync``.
    """
    with _read_mirror(ctx) as (before, initial), reach(source) as origin:
        origin.check_same(before.mirror, initial)
        check_replica(ctx.store, origin.repository)
        with contextlib.suppress(MirrorOvertaken):
            state, _, broken = _observe_and_agree(ctx, origin, initial, before)
            _note_refused(ctx, before.mirror, broken)
            remembered = ctx.catalog.mirrors.arrivals(ctx.repository_id)
            given = [ref for ref in state.refs if fall_back(ctx, state, ref, remembered)]
            if given:
                _observe_and_agree(ctx, origin, initial)
    return _status_on_record(ctx, before)


def due(ctx: Context, reach: Reach, source: SourceLake | None = None) -> bool:
    """Whether ``sync`` would find anything to do: something new at the source, a ref that waits, or a failed pass.

    It records that the source was seen, and nothing else. Errors are those of ``sync``.
    """
    state, initial = following(ctx)
    unreported = state.mirror.reports and state.needs - set(state.mirror.kept)
    if state.mirror.error is not None or unreported or any(ref.candidate for ref in state.refs):
        return True
    with reach(source) as origin:
        theirs = origin.state(state.mirror, initial)
    if theirs.rules is not None and theirs.rules != (state.mirror.rules, state.mirror.protections):
        return True
    known = {ref.ref: ref.source_head for ref in state.refs}
    heads = _followed(theirs, state, leave=theirs.refused)
    # The default branch stays when the source has it no longer: that is nothing to do.
    kept = {ref: head for ref, head in known.items() if ref == (RefKind.BRANCH, ctx.repository.default_branch)}
    if kept | heads != known:
        return True
    ctx.catalog.mirrors.note(ctx.repository_id, last_sync=ctx.seconds())
    return False


def arrived(ctx: Context, ref: RefName) -> str | None:
    """The commit that a ref can show now: its complete candidate, or what it shows when it waits for nothing.

    None while a part of the candidate is missing, or when the mirror knows no such ref yet. Promotes nothing, and does
    not ask the source. What was found is remembered.

    Raises:
        NotAMirror: it was promoted to a writable repository.
        LakeopsError, Corrupted: ``replica_mismatch``: something arrived that is not what the source recorded.
    """
    state = ctx.catalog.mirrors.mirror_state(ctx.repository_id)
    state.mirror.check_following()
    found = next((one for one in state.refs if one.ref == ref), None)
    if found is None or found.candidate is None:
        return None if found is None else found.promoted
    remembered = ctx.catalog.mirrors.arrivals(ctx.repository_id)
    seen = inspect(ctx, state, found, ctx.catalog.commits.get(ctx.repository_id, found.candidate), remembered)
    ctx.catalog.mirrors.record_arrivals(ctx.repository_id, ref, found.ticket, seen)
    if seen.error is not None:
        raise seen.error
    return found.candidate if seen.complete else None


def skip(
    ctx: Context, reach: Reach, branch: str | None = None, *, tag: str | None = None, source: SourceLake | None = None
) -> RefStatus:
    """Drop a ref's candidate and wait for the newest head of the branch, or for what the tag is now.

    Use it when a part of the candidate will never arrive. ``set_stall_timeout`` does the same without a person. Where
    the source does not answer, the newest head is the one that the last pass saw.

    Raises:
        InvalidInput: neither ``branch`` nor ``tag`` is given, or both are.
        NotAMirror: it was promoted to a writable repository.
        RefNotFound: the mirror follows no such branch or tag.
    """
    if (branch is None) == (tag is None):
        raise InvalidInput("skip the candidate of a branch or of a tag: name one of them")
    ref = RefName(RefKind.TAG if branch is None else RefKind.BRANCH, branch or tag or "")
    ctx.catalog.mirrors.get(ctx.repository_id).check_following()
    with contextlib.suppress(LakeopsError):
        discover(ctx, reach, source)
    found = next((one for one in ctx.catalog.mirrors.mirror_state(ctx.repository_id).refs if one.ref == ref), None)
    if found is None:
        raise RefNotFound(f"mirror {ctx.repository_id!r} follows no {ref.kind} {ref.name!r}")
    if found.candidate not in (None, found.source_head):
        ctx.catalog.mirrors.give_up_candidate(ctx.repository_id, ref, found.ticket)
    shown = status(ctx)
    return (shown.branches if tag is None else shown.tags)[ref.name]
