"""Inspects a candidate: whether its metarange, its ranges and every object of them are at the mirror.

The store is asked, by name, and metadata files are read whole and verified. The process's cache is never asked: equal
contents may lie in a file of another name that has not arrived. What a promoted head needs was found when it was
promoted, and stays. So only the difference from a promoted head is inspected, and of that only what had not arrived at
the last inspection.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

import pyarrow as pa

from lakeops.catalog.mirrors import NOTHING, Pending
from lakeops.model import graph
from lakeops.model.errors import (
    Corrupted,
    InvalidInput,
    LakeopsError,
    NotFound,
    ObjectNotFound,
    PreconditionFailed,
    RecordRefused,
)
from lakeops.model.ids import etags_are_md5
from lakeops.model.mirrors import SAMPLE, MirrorRecord, MirrorRef, MirrorState, Missing, Remaining
from lakeops.model.records import Commit
from lakeops.ops.context import Context, lookup
from lakeops.ops.mirror.presence import (
    CheckOptions,
    PresencePlan,
    RangePresence,
    check_presence,
    check_rows,
    is_memorable,
    plan_presence,
    remember,
)
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.ranges.validation import list_flaw, row_flaw
from lakeops.store.layout import metarange_key, range_key

MOST_STEPS = 256
"""How many first parents back a promoted commit is searched for."""


@dataclass(frozen=True)
class CandidateInspection:
    """The result of an inspection of a candidate.

    ``arrived`` has range files that need not be inspected again, and what they lacked. ``missing_objects`` counts what
    is not there, as far as could be told; ``missing`` names some; ``remaining`` compares inspections. ``error`` is what
    arrived and is wrong.
    """

    arrived: Pending = field(default_factory=dict)
    missing_objects: int = 0
    missing_bytes: int = 0
    remaining: Remaining = NOTHING
    missing: tuple[Missing, ...] = ()
    error: LakeopsError | None = None

    @classmethod
    def without_metarange(cls, commit: Commit, error: LakeopsError | None = None) -> CandidateInspection:
        """The result where the metarange has not arrived, or is damaged: nothing more can be told."""
        missing = Missing(metarange_key(commit.meta_range_file))
        return cls(missing_objects=1, remaining=Remaining(metaranges=1), missing=(missing,), error=error)

    @property
    def complete(self) -> bool:
        """Whether everything is there, and is what it should be."""
        return not self.missing_objects and self.error is None


def inspect(ctx: Context, state: MirrorState, ref: MirrorRef, commit: Commit, arrived: Pending) -> CandidateInspection:
    """Look whether ``commit``, the candidate of ``ref`` or what may become one, is complete. Never waits.

    What the refs of ``state`` show is complete. ``arrived`` was remembered of earlier inspections. What goes wrong is
    part of the answer: a flaw of one ref's candidate holds no other ref up.
    """
    try:
        return _inspect(ctx, state, ref, commit, arrived)
    except LakeopsError as error:
        return CandidateInspection(missing_objects=1, remaining=Remaining(metaranges=1), error=error)


def _inspect(ctx: Context, state: MirrorState, ref: MirrorRef, commit: Commit, arrived: Pending) -> CandidateInspection:
    try:
        wanted = RangeReader(ctx.readable).whole(commit)
    except ObjectNotFound:
        return CandidateInspection.without_metarange(commit)
    except Corrupted as error:
        return CandidateInspection.without_metarange(commit, error)
    planned = _plan(ctx, state, ref, commit, wanted, arrived)
    options = check_options(ctx, state.mirror)
    proofs = list(check_presence(planned, engine=ctx.engine, store=ctx.store, options=options))
    cannot = f"{ref.kind} {ref.name!r} cannot show commit {commit.id[:16]}"
    if all(proof.complete for proof in proofs):
        # A cache may answer: what it says is verified, and all that has to be here has been looked for.
        flaw = list_error(ctx, ctx.reader, commit, wanted)
        if flaw is not None:
            flaw = RecordRefused(f"{cannot}: {flaw.message}") if isinstance(flaw, RecordRefused) else flaw
            arrived = {proof.file: remember(proof) for proof in proofs}
            return replace(CandidateInspection.without_metarange(commit, flaw), arrived=arrived)
    absent = [proof for proof in proofs if not proof.arrived]
    missing = [Missing(range_key(proof.file), size_bytes=proof.missing_bytes) for proof in absent]
    missing += [Missing(one.address, one.path, one.size_bytes) for proof in proofs for one in proof.missing]
    objects = sum(proof.missing_objects + (proof.mismatch is not None) for proof in proofs if proof.arrived)
    return CandidateInspection(
        {proof.file: remember(proof) for proof in proofs if is_memorable(proof)},
        sum(proof.missing_objects for proof in proofs),
        sum(proof.missing_bytes for proof in proofs),
        Remaining(ranges=len(absent), objects=objects),
        tuple(missing[:SAMPLE]),
        _first_flaw(cannot, proofs),
    )


def _plan(
    ctx: Context, state: MirrorState, ref: MirrorRef, commit: Commit, wanted: Metarange, arrived: Pending
) -> PresencePlan:
    """Plan over that complete commit which leaves least to look at: the ref's, an ancestor's, or the first ref's.

    Raises ``RecordRefused`` for a metarange that says of its ranges what cannot be so.
    """
    shown = {one.promoted for one in state.refs if one.promoted is not None}
    near = (one.id for one in islice(graph.first_parents(lookup(ctx).get, commit.id), MOST_STEPS) if one.id in shown)
    plans = []
    for chosen in dict.fromkeys((ref.promoted, next(near, None), state.refs[0].promoted)):
        with suppress(NotFound):  # the source may have deleted it since it was shown
            if chosen is not None:
                known = ctx.reader.metarange(ctx.catalog.commits.get(ctx.repository_id, chosen))
                plans.append(plan_presence(wanted, known, arrived))
    planned = min(plans or [plan_presence(wanted, Metarange.empty(), arrived)], key=lambda one: one.size)
    fresh = Metarange(planned.rows)
    for flaw in (row_flaw(row) for row in (*fresh.rows(0, len(fresh)), *planned.files)):
        if flaw is not None:
            raise RecordRefused(f"the metarange that the source wrote is refused: {flaw.message}")
    return planned


def _first_flaw(cannot: str, proofs: list[RangePresence]) -> LakeopsError | None:
    """The flaw of what has arrived and is not what the source wrote; of several the one that comes first."""
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


def check_options(ctx: Context, mirror: MirrorRecord) -> CheckOptions:
    """How objects are looked for: ETags say something only where both stores compute them alike."""
    return CheckOptions(
        settings=ctx.stores.settings,
        imported=mirror.check_imported,
        etags=etags_are_md5(ctx.repository.capabilities),
        policy=ctx.find_policy(),
    )


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
            except (NotFound, Corrupted):
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
    except (NotFound, Corrupted):
        return None  # a range is not here
    return None if flaw is None else RecordRefused(flaw.message)


def merged(left: Pending, right: Pending) -> Mapping[str, str | None]:
    """Join the memories of two inspections. A range that is whole in either is whole."""
    both = {**left, **right}
    return {file: None if left.get(file, "") is None or both[file] is None else both[file] for file in both}
