"""After a fail-over: let those older commits live again that are whole.

A fail-over looks at nothing but what the mirror shows, and expires all other commits as unproved. This looks at them.
A commit lives again whose metarange and ranges are there, undamaged, with every object of them: from then on a revert
or a branch may bring back what it holds, and a mark reads its ranges. Only what a commit does not share with a whole
one is looked at, so the cost follows the changes in history.

Commits that nothing live descends from were never shown here, and stay expired. It may be killed and repeated. A mark
begins with it, and then gives up what is left: what such commits need may be garbage from then on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import array
from lakeops.model.errors import Corrupted, LakeopsError, NamespaceTaken, NotFound
from lakeops.model.graph import CommitSource
from lakeops.model.mirrors import MirrorRecord, MirrorRef, MirrorState, RefName
from lakeops.model.records import Commit, JsonRecord
from lakeops.ops.context import Context
from lakeops.ops.mirror import presence
from lakeops.ops.mirror.create import unregister
from lakeops.ops.mirror.inspection import disagreement, list_error, terms
from lakeops.ops.mirror.source import Source
from lakeops.ops.mirror.status import behind
from lakeops.ops.overlap import claim
from lakeops.ops.owner import take_for_writing
from lakeops.ops.resolve import history_of, lookup
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.store import layout
from lakeops.store.in_flight import IN_FLIGHT, in_flight

STEP = 512
"""How many commits are looked at before those that are whole live again."""


@dataclass(frozen=True, slots=True)
class Proved(JsonRecord):
    """What became of the unproved commits: how many live again, and how many are left."""

    commits: int
    unproved: int


def prove(ctx: Context) -> Proved:
    """After a fail-over: let those commits live again that are complete, although the mirror never showed them.

    Reads what each such commit does not share with a complete one, and looks for its objects without reading them. It
    may be killed and repeated until the next mark, which lets the rest expire.

    Raises:
        PreconditionFailed: ``read_only_repository``: it is still a mirror.
    """
    unproved = ctx.catalog.mirrors.unproved(ctx.repository_id)
    if not unproved:
        return Proved(0, 0)
    commits = ctx.catalog.commits.history(ctx.repository_id).commits
    newest_first = sorted(unproved & _below(commits), key=lambda one: (-commits[one].generation, one))
    older = [commits[one] for one in newest_first]
    prover = _Prover.at(ctx, commits)
    known = prover.newest_live(commits)
    proved = 0
    for start in range(0, len(older), STEP):
        some = older[start : start + STEP]
        share = -(-len(some) // IN_FLIGHT)
        # Neighbours in history share most, so each thread goes along a stretch of it.
        stretches = [some[first : first + share] for first in range(0, len(some), share)]
        answers = list(in_flight(partial(prover.along, known=known), stretches))
        known = next((last for whole, last in reversed(answers) if whole), known)
        proved += ctx.catalog.mirrors.revive_proved(ctx.repository_id, [one for whole, _ in answers for one in whole])
        ctx.progress("proving commits", start + len(some), len(older))
    return Proved(proved, len(unproved) - proved)


@dataclass
class _Known:
    """What is known: a whole metarange, and files that were looked at since, so that none is looked at twice."""

    known: Metarange
    whole: dict[str, str | None] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Prover:
    """Looks for what commits need. The store's metadata files are listed once for it.

    ``followers`` are the live children of each commit.
    """

    ctx: Context
    terms: presence.Terms
    metaranges: frozenset[str]
    ranges: pa.Array
    followers: Mapping[str, Sequence[Commit]]

    @classmethod
    def at(cls, ctx: Context, commits: Mapping[str, Commit]) -> _Prover:
        metaranges = (item.key.removeprefix(layout.METARANGES) for item in ctx.store.list(layout.METARANGES))
        ranges = [item.key.removeprefix(layout.RANGES) for item in ctx.store.list(layout.RANGES)]
        how = terms(ctx, ctx.catalog.mirrors.get(ctx.repository_id))
        followers: dict[str, list[Commit]] = {}
        for commit in commits.values():
            for parent in () if commit.expired else commit.parents:
                followers.setdefault(parent, []).append(commit)
        return cls(ctx, how, frozenset(metaranges), array(ranges, pa.string()), followers)

    def along(self, commits: Sequence[Commit], known: Metarange) -> tuple[list[str], Metarange]:
        """The commits that are whole, and the metarange of the last of them.

        Args:
            commits: in the order in which they are compared with each other.
            known: a whole metarange, for the first of them.
        """
        seen = _Known(known)
        found = []
        for commit in commits:
            wanted = self._listed(commit)
            if wanted is not None and self._is_whole(wanted, seen) and self._is_told_rightly(commit, wanted):
                found.append(commit.id)
                seen = _Known(wanted)
        return found, seen.known

    def newest_live(self, commits: Mapping[str, Commit]) -> Metarange:
        """The metarange of the newest live commit, which the mirror showed or somebody committed since."""
        live = (commit for commit in commits.values() if not commit.expired and commit.meta_range_file)
        newest = max(live, key=lambda commit: (commit.generation, commit.id), default=None)
        found = None if newest is None else self._listed(newest)
        return Metarange.empty() if found is None else found

    def _listed(self, commit: Commit) -> Metarange | None:
        """The metarange of a commit, if it and its ranges were in the listing."""
        if commit.meta_range_file and commit.meta_range_file not in self.metaranges:
            return None
        try:
            found = RangeReader(self.ctx.store).metarange(commit)
        except (Corrupted, NotFound):
            return None
        here = pc.all(pc.is_in(found.table.column("file"), value_set=self.ranges)).as_py()
        return None if here is False else found  # None for no ranges at all

    def _is_whole(self, wanted: Metarange, known: _Known) -> bool:
        files = {*wanted.table.column("file").to_pylist()}
        if files & known.broken:
            return False
        planned = presence.plan(wanted, known.known, known.whole)
        for proof in presence.prove(planned, engine=self.ctx.engine, store=self.ctx.store, terms=self.terms):
            if proof.complete:
                known.whole[proof.file] = None
            else:
                known.broken.add(proof.file)
        return not files & known.broken

    def _is_told_rightly(self, commit: Commit, wanted: Metarange) -> bool:
        """Whether its list of changes, and the lists of commits after it, say what is so."""
        reader = RangeReader(self.ctx.store)
        if list_error(self.ctx, reader, commit, wanted, self.terms.policy or self.ctx.find_policy()) is not None:
            return False
        after = filter(None, map(self._listed, self.followers.get(commit.id, ())))
        return all(disagreement(reader, one, wanted) is None for one in after)


def _below(commits: Mapping[str, Commit]) -> set[str]:
    """What live commits descend from, themselves included."""
    found: set[str] = set()
    waiting = [commit.id for commit in commits.values() if not commit.expired]
    while waiting:
        one = waiting.pop()
        if one not in found and one in commits:
            found.add(one)
            waiting += commits[one].parents
    return found


@dataclass(frozen=True, slots=True)
class LostRef(JsonRecord):
    """What a ref loses: the source's head, what the mirror shows, how many commits lie between (None: unknown)."""

    kind: str
    id: str
    source_head: str
    promoted: str | None
    commits: int | None


@dataclass(frozen=True)
class Loss:
    """What a fail-over would lose.

    Attributes:
        refs: refs that do not show what the source shows.
        asked: whether the source was asked now. Otherwise this is what the last pass saw, and more may be lost.
        last_sync: when the source was last seen, Unix seconds.
    """

    refs: tuple[LostRef, ...] = field(default=())
    asked: bool = False
    last_sync: int | None = None

    def to_json(self) -> dict[str, Any]:
        """What would be lost, for programs."""
        return {
            "refs": [ref.to_json() for ref in self.refs],
            "source_asked": self.asked,
            "last_sync": self.last_sync,
        }


def loss(ctx: Context, source: Source | None) -> Loss:
    """What the source shows and the mirror does not: see ``MirrorRecord.loss``. ``source`` is None when it is down."""
    state = ctx.catalog.mirrors.mirror_state(ctx.repository_id)
    if source is not None:
        with contextlib.suppress(LakeopsError):
            get = history_of(source.catalog, source.repository_id)
            return Loss(_lost_refs(state, source.heads(state.mirror), get), True, state.mirror.last_sync)
    seen = {ref.ref: ref.source_head for ref in state.refs}
    return Loss(_lost_refs(state, seen, lookup(ctx).get), False, state.mirror.last_sync)


def promote_writable(ctx: Context, source: Source | None) -> MirrorRecord:
    """Open the mirror for writing at what it shows now: see ``MirrorRecord.promote_writable``.

    The source is told that it need keep nothing for this mirror any more, unless it is None: down. A call that was
    killed is made again. Replication into the namespace may have stopped by then.
    """
    state = ctx.catalog.mirrors.mirror_state(ctx.repository_id)
    take_for_writing(ctx)  # before the catalog opens: from here on nobody replicates over what is written
    mirror = ctx.catalog.mirrors.promote_writable(ctx.repository_id, state.mirror.sequence, actor=ctx.actor)
    with contextlib.suppress(NamespaceTaken):  # the source's claim came along with everything else
        claim(ctx.store, ctx.repository, ctx.catalog.repositories.identity())
    unregister(source, mirror)
    return mirror


def _lost_refs(state: MirrorState, heads: dict[RefName, str], get: CommitSource) -> tuple[LostRef, ...]:
    shown: dict[RefName, MirrorRef] = {ref.ref: ref for ref in state.refs}
    rows = []
    for ref in sorted(heads.keys() | shown.keys()):
        promoted = shown[ref].promoted if ref in shown else None
        head = heads.get(ref)
        if head is not None and head != promoted:
            commits, _ = behind(get, head, promoted)
            rows.append(LostRef(str(ref.kind), ref.name, head, promoted, commits))
    return tuple(rows)
