"""One pass over a mirror: discover, look, promote. It never waits, so it is run again and again.

The order is the safety:

1. the source's heads are read and recorded, and each ref that waits for nothing takes its head as its candidate.
2. the source is told which commits the mirror shows and waits for, and agrees to keep them, or refuses.
3. only then is anything looked for, and only what it agreed to keep is promoted.

So garbage collection at the source, whose deletes are replicated, never takes what a mirror shows. A mirror that may
only read its source cannot tell it anything: there the source's rules keep what was a head within some days
(``mirror_lag_days``), and a candidate that expired meanwhile is not promoted.

A source may be a mirror itself. What mirrors of a mirror need is part of its report to its own source, and it takes
reports of what that one has agreed to keep alone. So whatever is shown at the end of a chain is kept at its beginning.

Passes may overlap, be killed anywhere, and come back late. See ``catalog.mirrors``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from lakeops.model.errors import (
    CommitExpired,
    Corrupted,
    LakeopsError,
    MirrorOvertaken,
    RecordRefused,
    RefNotFound,
    Transient,
)
from lakeops.model.findings import ReportKind
from lakeops.model.mirrors import (
    SAMPLE,
    MirrorRecord,
    MirrorRef,
    MirrorState,
    MirrorStatus,
    RefKind,
    RefName,
)
from lakeops.model.records import Commit
from lakeops.ops.context import Context
from lakeops.ops.mirror import record_validation
from lakeops.ops.mirror.create import fresh_registration
from lakeops.ops.mirror.inspection import inspect, merged
from lakeops.ops.mirror.source import Source, SourceState, check_claim
from lakeops.ops.mirror.status import give_way, record, status


def skip(ctx: Context, reach: Reach, ref: RefName) -> MirrorRef:
    """Let a ref wait for the newest head in place of its candidate. Returns the ref. See ``Mirror.skip``.

    The source is asked for its newest head. Where it does not answer, that is the head that the last pass saw.
    """
    ctx.catalog.mirrors.get(ctx.repository_id).check_following()
    with contextlib.suppress(LakeopsError):
        discover(ctx, reach)
    found = _find(ctx, ref)
    if found.candidate is not None and found.candidate != found.source_head:
        ctx.catalog.mirrors.give_up_candidate(ctx.repository_id, ref, found.ticket)
        found = _find(ctx, ref)
    return found


def _find(ctx: Context, ref: RefName) -> MirrorRef:
    for found in ctx.catalog.mirrors.mirror_state(ctx.repository_id).refs:
        if found.ref == ref:
            return found
    raise RefNotFound(f"mirror {ctx.repository_id!r} follows no {ref.kind} {ref.name!r}")


BATCH = 500
"""Commits of one transaction, and of one statement at the source."""


def copy_history(ctx: Context, source: Source, heads: Iterable[str], *, known: Iterable[str] = ()) -> int:
    """Copy everything that these commits of the source descend from and the mirror lacks. Returns how many commits.

    ``known`` are commits that the mirror has, so it need not be asked.
    """
    heads = list(heads)
    missing = _missing(ctx, source, heads, set(known))
    # What the source has pruned comes as "gone", and is not copied: the mirror's history ends there too.
    pruned = frozenset(commit.id for commit in missing.values() if commit.is_gone)
    for head in pruned.intersection(heads):
        raise RecordRefused(f"commit {head[:16]} is a head of the source, and its record says that it was pruned")
    kept = [commit for commit in missing.values() if not commit.is_gone]
    record_validation.check_generations(
        kept, missing, lambda some: ctx.catalog.commits.get_many(ctx.repository_id, some)
    )
    ordered = sorted(kept, key=lambda commit: (commit.generation, commit.id))
    for start in range(0, len(ordered), BATCH):
        ctx.catalog.mirrors.copy_commits(ctx.repository_id, ordered[start : start + BATCH], pruned=pruned)
        ctx.progress("copying commits", min(start + BATCH, len(ordered)), len(ordered))
    return len(ordered)


def _missing(ctx: Context, source: Source, heads: Iterable[str], known: set[str]) -> dict[str, Commit]:
    """The commits that the mirror lacks, by id.

    First parents come in long runs, so a linear history takes few calls.
    """
    found: dict[str, Commit] = {}
    waiting = _unknown(ctx, heads, known)
    while waiting:
        chain = source.line(waiting.pop(), BATCH)
        ids = {one for commit in chain for one in (commit.id, *commit.parents)} - found.keys()
        lacking = _unknown(ctx, ids, known)
        for commit in chain:
            if commit.id not in lacking:
                break  # what it descends from is there as well, or was found before
            found[commit.id] = commit
            waiting.update(parent for parent in commit.parents if parent in lacking)
        waiting -= found.keys()
    return found


def _unknown(ctx: Context, ids: Iterable[str], known: set[str]) -> set[str]:
    """The commits that the mirror lacks. ``known`` remembers the ones that it has."""
    asked = set(ids) - known
    if asked:
        known.update(ctx.catalog.commits.get_many(ctx.repository_id, asked))
    return asked - known


ROUNDS = 2
"""What was promoted may have a next candidate that is complete as well: one more look, no more."""

_REASON = 500
"""Characters of a reason that are kept."""

LAG_EVERY = 300
"""Seconds of which one lag is kept, the largest."""

TRIES = 8
"""How often heads are read again when the source or another pass went on meanwhile."""


Reach = Callable[[], AbstractContextManager[Source]]
"""Opens the source for one pass."""


def sync(ctx: Context, reach: Reach, *, only: Collection[RefName] | None) -> MirrorStatus:
    """One pass of ``MirrorRecord.sync``. ``reach`` opens the source."""
    with _read_mirror(ctx) as (before, initial, metadata), reach() as source:
        errors: list[LakeopsError] = []
        with contextlib.suppress(MirrorOvertaken):  # the later pass does what this one would have done
            for number in range(ROUNDS):
                state, lost, broken = _observe(ctx, source, initial, metadata, None if number else before)
                errors = [*_unsupported(ctx, state, lost), *broken]
                if not any(ref.candidate for ref in state.refs):
                    break
                check_claim(ctx.store, source.repository)
                again, wrong = _promote_complete(ctx, source, state, only)
                errors += wrong
                if not again:
                    break
            _note_refused(ctx, before.mirror, errors)
        if errors:
            raise errors[0]
    return _status_on_record(ctx, before)


def discover(ctx: Context, reach: Reach) -> MirrorStatus:
    """The first half of a pass: see ``MirrorRecord.discover``.

    It does look for what has arrived of a newer head, where nothing arrives of the candidate any more.
    """
    with _read_mirror(ctx) as (before, initial, metadata), reach() as source:
        source.check_same(before.mirror, initial)
        check_claim(ctx.store, source.repository)
        with contextlib.suppress(MirrorOvertaken):
            state, _, broken = _observe(ctx, source, initial, metadata, before)
            _note_refused(ctx, before.mirror, broken)
            remembered = ctx.catalog.mirrors.arrivals(ctx.repository_id)
            given = [ref for ref in state.refs if give_way(ctx, state, ref, remembered)]
            if given:
                _observe(ctx, source, initial, metadata)
    return _status_on_record(ctx, before)


def due(ctx: Context, reach: Reach) -> bool:
    """Whether a pass would find anything to do: see ``MirrorRecord.due``."""

    def found() -> tuple[MirrorState, Commit]:
        return ctx.catalog.mirrors.mirror_state(ctx.repository_id), ctx.catalog.commits.initial_commit(
            ctx.repository_id
        )

    state, initial = ctx.catalog.in_snapshot(found)
    state.mirror.check_following()
    unreported = state.mirror.reports and state.needs - set(state.mirror.kept)
    if state.mirror.error is not None or unreported or any(ref.candidate for ref in state.refs):
        return True
    with reach() as source:
        theirs = source.state(state.mirror, initial)
    if theirs.rules is not None and theirs.rules != (state.mirror.rules, state.mirror.protections):
        return True
    known = {ref.ref: ref.source_head for ref in state.refs}
    heads = _followed(theirs, state, leave=theirs.refused)
    # The default branch stays when the source has it no longer: that is nothing to do.
    kept = {ref: head for ref, head in known.items() if ref == (RefKind.BRANCH, ctx.repository.default_branch)}
    if kept | heads != known:
        return True
    ctx.catalog.mirrors.note_seen(ctx.repository_id)
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
    for found in state.refs:
        if found.ref == ref and found.candidate is None:
            return found.promoted
        if found.ref == ref:
            remembered = ctx.catalog.mirrors.arrivals(ctx.repository_id)
            commit = ctx.catalog.commits.get(ctx.repository_id, found.candidate or "")
            seen = inspect(ctx, state, found, commit, remembered)
            record(ctx, found, seen)
            if seen.error is not None:
                raise seen.error
            return found.candidate if seen.complete else None
    return None


@contextmanager
def _read_mirror(ctx: Context) -> Iterator[tuple[MirrorState, Commit, Mapping[str, str]]]:
    """The mirror, its initial commit and its repository's metadata.

    Records how the pass ended, so that a status tells it later.
    """

    def found() -> tuple[MirrorState, Commit, Mapping[str, str]]:
        state = ctx.catalog.mirrors.mirror_state(ctx.repository_id)
        state.mirror.check_following()
        metadata = ctx.catalog.repositories.get(ctx.repository_id).metadata
        return state, ctx.catalog.commits.initial_commit(ctx.repository_id), metadata

    before, initial, metadata = ctx.catalog.in_snapshot(found)
    try:
        yield before, initial, metadata
    except LakeopsError as error:
        with contextlib.suppress(LakeopsError):
            ctx.catalog.mirrors.note_sync(ctx.repository_id, error.message)
        raise
    if before.mirror.error is not None:
        ctx.catalog.mirrors.note_sync(ctx.repository_id, None)


def _status_on_record(ctx: Context, before: MirrorState) -> MirrorStatus:
    """The status; how far the mirror is behind is left on record, for the chart of its page.

    A pass that waited for nothing leaves nothing.
    """
    found = status(ctx)
    refs = [*found.branches.values(), *found.tags.values()]
    if not any(ref.candidate for ref in before.refs) and not any(ref.candidate for ref in refs):
        return found
    lag = {
        "seconds": max((ref.lag_seconds for ref in refs), default=0),
        "objects": sum(ref.missing_objects for ref in refs if ref.candidate),
        "bytes": sum(ref.missing_bytes for ref in refs if ref.candidate),
        "refs": sum(ref.candidate is not None for ref in refs),
    }
    with contextlib.suppress(LakeopsError):  # what a pass has done does not depend on it
        ctx.catalog.audit.add_report(ctx.repository_id, ReportKind.LAG, lag, actor=ctx.actor, every=LAG_EVERY)
    return found


def _observe(
    ctx: Context,
    source: Source,
    initial: Commit,
    metadata: Mapping[str, str],
    before: MirrorState | None = None,
) -> tuple[MirrorState, frozenset[str], list[LakeopsError]]:
    """Record the source's heads, and have it keep all that the mirror shows and waits for.

    Candidates that the source has expired, or lost, give way to its newest heads. Returns the mirror, what the source
    cannot keep, and an error for each ref whose history the source does not have whole: it stays where it is.
    ``metadata`` is the mirror repository's own. ``before`` is the mirror as it was read just now, if it was.
    """
    broken: dict[RefName | None, LakeopsError] = {}
    read: dict[RefName, str] = {}
    for _ in range(TRIES):
        known = before or ctx.catalog.mirrors.mirror_state(ctx.repository_id)
        before = None
        theirs = source.state(known.mirror, initial)
        if theirs.rules is not None and theirs.rules != (known.mirror.rules, known.mirror.protections):
            ctx.catalog.mirrors.note_rules(ctx.repository_id, *theirs.rules)
        if theirs.metadata is not None and theirs.metadata != metadata:
            ctx.catalog.mirrors.note_metadata(ctx.repository_id, theirs.metadata)
        broken |= theirs.refused
        heads = _followed(theirs, known, leave=broken)
        copied = {ref.source_head for ref in known.refs}
        try:
            if copy_history(ctx, source, heads.values(), known=copied) > BATCH:
                continue  # it took its time: what is recorded should be what the source shows now
            state = ctx.catalog.mirrors.observe_source(
                ctx.repository_id, heads, since=known.mirror.sequence, actor=ctx.actor
            )
        except MirrorOvertaken:
            continue
        except RefNotFound:
            # A head that moved while it was read is another one now. One that is the same lacks a commit for good.
            broken |= _broken(ctx, source, {ref: head for ref, head in heads.items() if read.get(ref) == head})
            read = heads
            continue
        except (RecordRefused, Corrupted):
            broken |= _broken(ctx, source, heads)
            continue
        lost = _keep_at_source(ctx, source, state)
        if lost is not None:
            return state, lost, list(broken.values())
    raise Transient(
        f"the source of mirror {ctx.repository_id!r} went on faster than it could be read, {TRIES} times; try again"
    )


def _note_refused(ctx: Context, before: MirrorRecord, errors: Iterable[LakeopsError]) -> None:
    """Record what was refused of the source, where that is something else than ``before``."""
    reasons = [" ".join(error.message.split())[:_REASON] for error in errors if isinstance(error, RecordRefused)]
    if (len(reasons), tuple(reasons[:SAMPLE])) != (before.refusals, before.refused):
        ctx.catalog.mirrors.note_refused(ctx.repository_id, len(reasons), reasons[:SAMPLE])


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


def _keep_at_source(ctx: Context, source: Source, state: MirrorState) -> frozenset[str] | None:
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
        if not _restored(ctx, source, mirror):
            raise
        return None
    if needs != frozenset(mirror.kept):
        ctx.catalog.mirrors.note_kept(ctx.repository_id, needs, sequence=mirror.sequence)
    return True


def _restored(ctx: Context, source: Source, mirror: MirrorRecord) -> bool:
    """Whether the source has a report that this catalog never made: it was restored from a backup, or copied.

    The mirror then starts over under a name of its own. What was reported under the old name stays kept: another copy
    of the catalog may rely on it.
    """
    reported = source.reported(mirror)
    if reported <= ctx.catalog.mirrors.get(ctx.repository_id).sequence:
        return False
    ctx.catalog.mirrors.start_over(ctx.repository_id, fresh_registration(ctx.repository_id, ctx.ids), sequence=reported)
    return True


def _unsupported(ctx: Context, state: MirrorState, lost: frozenset[str]) -> list[LakeopsError]:
    """An error for each ref that shows what its source keeps no longer, unless there is nothing to lose of it."""
    if not lost:
        return []
    shown = ctx.catalog.commits.get_many(
        ctx.repository_id, {ref.promoted for ref in state.refs if ref.promoted in lost}
    )
    return [
        CommitExpired(
            f"{ref.kind} {ref.name!r} shows commit {ref.promoted[:16]}, which the source keeps no longer: objects of "
            "it may be gone until the next commit is complete here; a catalog was restored, or the mirror's "
            "registration was dropped"
        )
        for ref in state.refs
        if ref.promoted in shown and shown[ref.promoted].meta_range_file
    ]


def _promote_complete(
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
        found = inspect(ctx, state, ref, commits[ref.candidate or ""], remembered)
        remembered = merged(remembered, found.arrived)
        moved = _promote(ctx, source, state, ref) if found.complete else None
        if moved is not None:
            again = again or moved.candidate is not None
            continue
        seen = record(ctx, ref, found)
        if seen is not None and give_way(ctx, state, seen, remembered):
            again = True
        elif found.error is not None:
            errors.append(found.error)
    return again, errors


def _promote(ctx: Context, source: Source, state: MirrorState, ref: MirrorRef) -> MirrorRef | None:
    """Show a complete candidate, unless it expired at a source that could not be told to keep it.

    None as well when it is no longer waited for.
    """
    candidate = ref.candidate or ""
    if not state.mirror.reports and source.lost([candidate]):
        ctx.catalog.mirrors.give_up_candidate(ctx.repository_id, ref.ref, ref.ticket)
        return None
    token = ctx.ids.new()
    return ctx.catalog.mirrors.promote(ctx.repository_id, ref.ref, ref.ticket, candidate, token=token, actor=ctx.actor)
