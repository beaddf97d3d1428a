"""Inspects a candidate: whether its metarange, its ranges and every object of them are at the mirror.

The store is asked, by name, and metadata files are read whole and verified. The process's cache is never asked: it is
keyed by contents, and equal contents may lie in a file of another name that has not arrived.

What a promoted head needs was proved when it was promoted, and stays: the source deletes nothing that a live commit
needs, and object names are never used twice. So only the difference from a promoted head is inspected, and of that
only what had not arrived at the last inspection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

import pyarrow as pa

from lakeops.catalog.records import NOTHING, Pending
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
from lakeops.ops.context import Context
from lakeops.ops.mirror.presence import ProvePlan, RangeProof, Terms, check_rows, is_memorable, plan, prove, remember
from lakeops.ops.resolve import lookup
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.ranges.verify import list_flaw, row_flaw
from lakeops.store.layout import metarange_key, range_key
from lakeops.store.open import AddressPolicy


def list_error(
    ctx: Context, reader: RangeReader, commit: Commit, metarange: Metarange, policy: AddressPolicy
) -> LakeopsError | None:
    """What is wrong with the list of a commit's metarange, or with a parent's list about it. None where nothing is.

    What the list is about may not be here. Nobody reads it then, and ``prove`` compares the two once it is there.

    Args:
        ctx: the mirror.
        reader: reads the ranges and the metaranges of parents.
        commit: the commit.
        metarange: its metarange, all of whose ranges are here.
        policy: which addresses the rows may have.
    """
    listed = metarange.changes
    if listed is not None:
        try:
            for side in (listed.before, listed.after):
                check_rows(side, policy)
        except Corrupted as error:
            return error
        except (InvalidInput, PreconditionFailed, pa.ArrowInvalid) as error:
            return RecordRefused(f"its list of changes is refused: {' '.join(str(error).split())}")
    for other in _others(ctx, reader, commit, None if listed is None else listed.since):
        found = disagreement(reader, metarange, other) or disagreement(reader, other, metarange)
        if found is not None:
            return found
    return None


def disagreement(reader: RangeReader, metarange: Metarange, since: Metarange) -> LakeopsError | None:
    """How a list differs from the ranges: that of ``metarange``, about ``since``. None where it has no such list."""
    if metarange.changes is None or metarange.changes.since != since.id:
        return None
    try:
        flaw = list_flaw(reader, metarange, since)
    except (NotFound, Corrupted):
        return None  # a range is not here
    return None if flaw is None else RecordRefused(flaw.message)


def _others(ctx: Context, reader: RangeReader, commit: Commit, since: str | None) -> Iterator[Metarange]:
    """The metaranges of a commit's parents, and the one with the id ``since``; those of them that are here."""
    found = [*ctx.catalog.commits.get_many(ctx.repository_id, commit.parents).values()]
    if since is not None and all(one.meta_range_id != since for one in found):
        history = ctx.catalog.commits.history(ctx.repository_id).commits.values()
        found += [one for one in history if one.meta_range_id == since]
    for one in found:
        if one.meta_range_file:
            try:
                yield reader.metarange(one)
            except (NotFound, Corrupted):
                continue


MOST_STEPS = 256
"""How many first parents back a promoted commit is searched for."""


@dataclass(frozen=True)
class CandidateInspection:
    """What an inspection of a candidate found.

    Attributes:
        arrived: range files that need not be inspected again, and what they lacked.
        missing_objects: things that are not there, as far as could be told.
        missing_bytes: their size.
        remaining: the same, comparable with other inspections.
        missing: some of them.
        error: what arrived and is wrong.
    """

    arrived: Pending = field(default_factory=dict)
    missing_objects: int = 0
    missing_bytes: int = 0
    remaining: Remaining = NOTHING
    missing: tuple[Missing, ...] = ()
    error: LakeopsError | None = None

    @classmethod
    def without_metarange(cls, commit: Commit, error: LakeopsError | None = None) -> CandidateInspection:
        """What is found where the metarange has not arrived, or is damaged: nothing more can be told."""
        missing = Missing(metarange_key(commit.meta_range_file))
        return cls(missing_objects=1, remaining=Remaining(metaranges=1), missing=(missing,), error=error)

    @property
    def complete(self) -> bool:
        """Whether everything is there, and is what it should be."""
        return not self.missing_objects and self.error is None


def inspect(ctx: Context, state: MirrorState, ref: MirrorRef, commit: Commit, arrived: Pending) -> CandidateInspection:
    """Whether ``commit`` of ``ref`` is complete. Never waits.

    Args:
        ctx: the mirror.
        state: its refs. What they show is complete.
        ref: the ref that waits.
        commit: its candidate, or what may become one.
        arrived: what was remembered of earlier inspections.

    What goes wrong is part of the answer: a flaw of one ref's candidate holds no other ref up.
    """
    try:
        return _inspect(ctx, state, ref, commit, arrived)
    except LakeopsError as error:
        return CandidateInspection(missing_objects=1, remaining=Remaining(metaranges=1), error=error)


def _inspect(ctx: Context, state: MirrorState, ref: MirrorRef, commit: Commit, arrived: Pending) -> CandidateInspection:
    try:
        wanted = RangeReader(ctx.readable).metarange(commit)
    except ObjectNotFound:
        return CandidateInspection.without_metarange(commit)
    except Corrupted as error:
        return CandidateInspection.without_metarange(commit, error)
    planned = _cheapest(ctx, state, ref, commit, wanted, arrived)
    _check_rows(planned)
    how = terms(ctx, state.mirror)
    proofs = list(prove(planned, engine=ctx.engine, store=ctx.store, terms=how))
    files = [proof for proof in proofs if not proof.arrived]
    missing = [Missing(range_key(proof.file), size_bytes=proof.missing_bytes) for proof in files]
    objects = [one for proof in proofs for one in proof.missing]
    flaw = _list_flaw(ctx, ref, commit, wanted, how) if all(proof.complete for proof in proofs) else None
    if flaw is not None:
        arrived = {proof.file: remember(proof) for proof in proofs}
        return replace(CandidateInspection.without_metarange(commit, flaw), arrived=arrived)
    missing += [Missing(one.address, one.path, one.size_bytes) for one in objects]
    return CandidateInspection(
        {proof.file: remember(proof) for proof in proofs if is_memorable(proof)},
        sum(proof.missing_objects for proof in proofs),
        sum(proof.missing_bytes for proof in proofs),
        Remaining(ranges=len(files), objects=sum(_objects(proof) for proof in proofs if proof.arrived)),
        tuple(missing[:SAMPLE]),
        _first_flaw(ref, commit, proofs),
    )


def _list_flaw(ctx: Context, ref: MirrorRef, commit: Commit, wanted: Metarange, how: Terms) -> LakeopsError | None:
    # A cache may answer: what it says is verified, and all that has to be here has been looked for.
    error = list_error(ctx, ctx.reader, commit, wanted, how.policy or ctx.find_policy())
    if isinstance(error, RecordRefused):
        return RecordRefused(f"{ref.kind} {ref.name!r} cannot show commit {commit.id[:16]}: {error.message}")
    return error


def _check_rows(planned: ProvePlan) -> None:
    """Refuse a metarange that tells of its ranges what cannot be so. Raises ``RecordRefused``."""
    fresh = Metarange(planned.rows)
    for flaw in (row_flaw(row) for row in (*fresh.rows(0, len(fresh)), *planned.files)):
        if flaw is not None:
            raise RecordRefused(f"the metarange that the source wrote is refused: {flaw.message}")


def _objects(proof: RangeProof) -> int:
    """How many objects of a range have not arrived as they should be."""
    return proof.missing_objects + (proof.mismatch is not None)


def terms(ctx: Context, mirror: MirrorRecord) -> Terms:
    """How objects are looked for: ETags say something only where both stores compute them alike."""
    return Terms(
        settings=ctx.stores.settings,
        imported=mirror.check_imported,
        etags=etags_are_md5(ctx.repository.capabilities),
        policy=ctx.find_policy(),
    )


def _first_flaw(ref: MirrorRef, commit: Commit, proofs: list[RangeProof]) -> LakeopsError | None:
    """What has arrived and is not what the source wrote; of several things the one that comes first."""
    refused = [proof.refused for proof in proofs if proof.refused is not None]
    if refused:
        return RecordRefused(f"{ref.kind} {ref.name!r} cannot show commit {commit.id[:16]}: {min(refused)}")
    damaged = [proof.damage for proof in proofs if proof.damage is not None]
    if damaged:
        return Corrupted(min(damaged))
    wrong = [proof.mismatch for proof in proofs if proof.mismatch is not None]
    if not wrong:
        return None
    more = f" (and objects of {len(wrong) - 1} more ranges)" if len(wrong) > 1 else ""
    return LakeopsError(
        f"{ref.kind} {ref.name!r} cannot show commit {commit.id[:16]}: {min(wrong)}{more}; the mirror stays where it "
        "is: replicate this object again, and see who else writes to the mirror's storage",
        kind="replica_mismatch",
    )


def _cheapest(
    ctx: Context, state: MirrorState, ref: MirrorRef, commit: Commit, wanted: Metarange, arrived: Pending
) -> ProvePlan:
    """The plan over that complete commit which leaves least to look at."""
    plans = [plan(wanted, known, arrived) for known in _complete(ctx, state, ref, commit)]
    return min(plans, key=lambda planned: planned.size)


def _complete(ctx: Context, state: MirrorState, ref: MirrorRef, commit: Commit) -> list[Metarange]:
    """The metaranges of complete commits that the candidate may share much with: its ref's, an ancestor's, the first's.

    Without any there is the empty one.
    """
    shown = {one.promoted for one in state.refs if one.promoted is not None}
    near = (one.id for one in islice(graph.first_parents(lookup(ctx).get, commit.id), MOST_STEPS) if one.id in shown)
    chosen = [ref.promoted, next(near, None), state.refs[0].promoted]
    found = [
        metarange
        for one in dict.fromkeys(one for one in chosen if one is not None)
        if (metarange := _readable(ctx, one)) is not None
    ]
    return found or [Metarange.empty()]


def _readable(ctx: Context, commit_id: str) -> Metarange | None:
    """The metarange of a commit that is shown, unless the source has deleted it since."""
    try:
        return ctx.reader.metarange(ctx.catalog.commits.get(ctx.repository_id, commit_id))
    except NotFound:
        return None


def merged(left: Pending, right: Pending) -> Mapping[str, str | None]:
    """What two inspections remember together. A range that is whole in either is whole."""
    both = {**left, **right}
    return {file: None if left.get(file, "") is None or both[file] is None else both[file] for file in both}
