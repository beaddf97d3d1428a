"""Inspects a candidate: whether metarange, ranges and objects are all at the mirror; and how far a mirror is behind.

The store is asked, by name, and metadata files are read whole and verified. The process's cache is never asked: equal
contents may lie in a file of another name that has not arrived. What a promoted head needs was found when it was
promoted, and stays. So only the difference from a promoted head is inspected, and of that only what had not arrived at
the last inspection.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from itertools import islice

import pyarrow as pa

from lakeops.model import errors, graph
from lakeops.model.errors import Corrupted, InvalidInput, LakeopsError, NotFound, PreconditionFailed, RecordRefused
from lakeops.model.graph import CommitSource
from lakeops.model.ids import etags_are_md5
from lakeops.model.mirrors import (
    SAMPLE,
    Inspection,
    MirrorRecord,
    MirrorRef,
    MirrorState,
    MirrorStatus,
    Missing,
    Pending,
    RefStatus,
    Remaining,
    Wait,
)
from lakeops.model.records import Commit, RefKind
from lakeops.ops.context import Context, history_of, pages
from lakeops.ops.mirror.presence import (
    CheckOptions,
    PresencePlan,
    RangePresence,
    check_presence,
    check_rows,
    plan_presence,
    remember,
)
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.ranges.validation import list_flaw, row_flaw
from lakeops.store.layout import metarange_key, range_key

MOST_STEPS = 256
"""How many first parents back a promoted commit is searched for."""


def without_metarange(commit: Commit, error: LakeopsError | None = None, arrived: Pending | None = None) -> Inspection:
    """The result where the metarange has not arrived, or is damaged: nothing more can be told."""
    missing = Missing(metarange_key(commit.meta_range_file))
    return Inspection(arrived or {}, 1, 0, Remaining(metaranges=1), (missing,), error)


def inspect(ctx: Context, state: MirrorState, ref: MirrorRef, commit: Commit, arrived: Pending) -> Inspection:
    """Look whether ``commit``, the candidate of ``ref`` or what may become one, is complete. Never waits.

    What the refs of ``state`` show is complete. ``arrived`` was remembered of earlier inspections. What goes wrong is
    part of the answer: a flaw of one ref's candidate holds no other ref up.
    """
    try:
        return _inspect(ctx, state, ref, commit, arrived)
    except LakeopsError as error:
        return Inspection(missing_objects=1, remaining=Remaining(metaranges=1), error=error)


def _inspect(ctx: Context, state: MirrorState, ref: MirrorRef, commit: Commit, arrived: Pending) -> Inspection:
    try:
        wanted = RangeReader(ctx.readable).whole(commit)
    except (errors.FileMissing, Corrupted) as error:
        return without_metarange(commit, error if isinstance(error, Corrupted) else None)
    planned = _plan(ctx, state, ref, commit, wanted, arrived)
    proofs = [*check_presence(planned, ctx.engine(), ctx.store, check_options(ctx, state.mirror))]
    cannot = f"{ref.kind} {ref.name!r} cannot show commit {commit.id[:16]}"
    if all(proof.complete for proof in proofs):
        # A cache may answer: what it says is verified, and all that has to be here has been looked for.
        flaw = list_error(ctx, ctx.reader, commit, wanted)
        if flaw is not None:
            flaw = RecordRefused(f"{cannot}: {flaw.message}") if isinstance(flaw, RecordRefused) else flaw
            return without_metarange(commit, flaw, remember(proofs))
    absent = [proof for proof in proofs if not proof.arrived]
    missing = [Missing(range_key(proof.file), size_bytes=proof.missing_bytes) for proof in absent]
    missing += [one for proof in proofs for one in proof.missing]
    objects = sum(proof.missing_objects + (proof.mismatch is not None) for proof in proofs if proof.arrived)
    return Inspection(
        remember(proofs),
        sum(proof.missing_objects for proof in proofs),
        sum(proof.missing_bytes for proof in proofs),
        Remaining(ranges=len(absent), objects=objects),
        tuple(missing[:SAMPLE]),
        _first_flaw(cannot, proofs),
    )


def _plan(
    ctx: Context, state: MirrorState, ref: MirrorRef, commit: Commit, wanted: Metarange, arrived: Pending
) -> PresencePlan:
    """Plan against the complete commit that leaves least to check: the ref's, an ancestor's, or the first ref's.

    Raises ``RecordRefused`` for a metarange that says of its ranges what cannot be so.
    """
    shown = {one.promoted for one in state.refs if one.promoted is not None}
    line = islice(graph.log(history_of(ctx), commit.id, first_parent=True), MOST_STEPS)
    near = (one.id for one in line if one.id in shown)
    plans = []
    for chosen in dict.fromkeys((ref.promoted, next(near, None), state.refs[0].promoted)):
        with suppress(errors.FileMissing, NotFound):  # the source may have deleted it since it was shown
            if chosen is not None:
                known = ctx.reader.metarange(ctx.catalog.commits.get(ctx.repository_id, chosen))
                plans.append(plan_presence(wanted, known, arrived))
    planned = min(plans or [plan_presence(wanted, Metarange.empty(), arrived)], key=lambda one: one.size)
    for flaw in (row_flaw(row) for row in (*planned.rows.rows(0, len(planned.rows)), *planned.files)):
        if flaw is not None:
            raise RecordRefused(f"the metarange that the source wrote is refused: {flaw.message}")
    return planned


def _first_flaw(cannot: str, proofs: list[RangePresence]) -> LakeopsError | None:
    """The first flaw of files that have arrived and differ from those that the source wrote."""
    refused = [proof.refused for proof in proofs if proof.refused is not None]
    if refused:
        return RecordRefused(f"{cannot}: {min(refused)}")
    damaged = [proof.damage for proof in proofs if proof.damage is not None]
    if damaged:
        return Corrupted(min(damaged))
    wrong = [proof.mismatch for proof in proofs if proof.mismatch is not None]
    if not wrong:
        return None
    more = f" (and objects of {len(wrong) - 1} more ranges)" if len(wrong) > 1 else ""
    return LakeopsError(
        f"{cannot}: {min(wrong)}{more}; the mirror stays where it is: replicate this object again, and see who else "
        "writes to the mirror's storage",
        kind="replica_mismatch",
    )


def check_options(ctx: Context, mirror: MirrorRecord | None) -> CheckOptions:
    """How objects are looked for: ETags say something only where both stores compute them alike."""
    etags = etags_are_md5(ctx.repository.capabilities)
    return CheckOptions(ctx.stores().settings, mirror is None or mirror.check_imported, etags, ctx.find_policy())


def list_error(ctx: Context, reader: RangeReader, commit: Commit, metarange: Metarange) -> LakeopsError | None:
    """Check the list of a commit's metarange, and its parents' lists about it. None where nothing is wrong.

    All ranges of the metarange are here. What the list is about may not be: nobody reads it then, and
    ``verify_history`` compares the two once it is.
    """
    listed = metarange.delta
    if listed is not None:
        policy = ctx.find_policy()
        try:
            for side in listed.rows:
                check_rows(side, policy)
        except Corrupted as error:
            return error
        except (InvalidInput, PreconditionFailed, pa.ArrowInvalid) as error:
            return RecordRefused(f"its list of changes is refused: {' '.join(str(error).split())}")
    others = [*ctx.catalog.commits.get_many(ctx.repository_id, commit.parents).values()]
    if listed is not None and all(one.meta_range_id != listed.since for one in others):
        history = ctx.catalog.commits.all(ctx.repository_id).values()
        others += [one for one in history if one.meta_range_id == listed.since]
    for one in others:
        if one.meta_range_file:
            try:
                other = reader.metarange(one)
            except (errors.FileMissing, Corrupted):
                continue  # it is not here
            found = disagreement(reader, metarange, other) or disagreement(reader, other, metarange)
            if found is not None:
                return found
    return None


def disagreement(reader: RangeReader, metarange: Metarange, since: Metarange) -> LakeopsError | None:
    """How a list differs from the ranges: that of ``metarange``, about ``since``. None where it has no such list."""
    if metarange.delta is None or metarange.delta.since != since.id:
        return None
    try:
        flaw = list_flaw(reader, metarange, since)
    except (errors.FileMissing, Corrupted):
        return None  # a range is not here
    return None if flaw is None else RecordRefused(flaw.message)


def merged(left: Pending, right: Pending) -> Mapping[str, str | None]:
    """Join the memories of two inspections. A range that is whole in either is whole."""
    both = {**left, **right}
    return {file: None if left.get(file, "") is None or both[file] is None else both[file] for file in both}


# --- how far a mirror is behind, from what the last pass recorded ---


def status(ctx: Context) -> MirrorStatus:
    """The progress of each ref, as the last pass saw it. Seconds count up to now. The source is not asked."""

    def found() -> MirrorStatus:
        state = ctx.catalog.mirrors.mirror_state(ctx.repository_id)
        now, get = ctx.seconds(), history_of(ctx)
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
        **{field.name: getattr(ref, field.name) for field in fields(ref)},
        lag_commits=commits,
        lag_seconds=0 if since is None else max(0, now - since),
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
    for distance, commit in enumerate(graph.log(get, head, first_parent=True)):
        if commit.id == promoted:
            return distance, oldest.creation_date
        if commit.generation <= lowest:
            break
        oldest = commit
    return None, None


def verify_promoted(ctx: Context) -> list[str]:
    """Look for everything that the mirror shows. Returns what is missing or damaged, in words.

    It relies on nothing that earlier passes remembered, so the cost grows with all that is shown. Use it after a
    fail-over.
    """
    commits: dict[str, str] = {}
    for kind, listing in (("branch", ctx.catalog.refs.branches), ("tag", ctx.catalog.refs.tags)):
        for ref in pages(partial(listing, ctx.repository_id)):
            commits.setdefault(ref.commit_id, f"{kind} {ref.id!r}")
    options = check_options(ctx, ctx.catalog.mirrors.get(ctx.repository_id))
    found: list[str] = []
    known = Metarange.empty()
    for commit_id, name in commits.items():
        commit = ctx.catalog.commits.get(ctx.repository_id, commit_id)
        try:
            wanted = RangeReader(ctx.store).whole(commit)
        except (errors.FileMissing, Corrupted) as error:
            found.append(f"{name}: {error.message}")
            continue
        flaws = []
        for proof in check_presence(plan_presence(wanted, known, {}), ctx.engine(), ctx.store, options):
            wrong = proof.damage or proof.refused or proof.mismatch
            if wrong is not None:
                flaws.append(wrong)
            elif not proof.arrived:
                flaws.append(f"range {proof.file} is missing")
            elif proof.missing_objects:
                some = ", ".join(repr(one.path) for one in proof.missing[:SAMPLE])
                flaws.append(f"{proof.missing_objects:,} objects are missing, such as those of {some}")
        found += [f"{name}: {flaw}" for flaw in flaws]
        known = known if flaws else wanted
    return found


def is_stalled(mirror: MirrorRecord, wait: Wait, now: int) -> bool:
    """Whether nothing has arrived for longer than the mirror's stall timeout."""
    return now - wait.progressed >= mirror.stall_timeout
