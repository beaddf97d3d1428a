"""Fail over to a mirror, and afterwards let those older commits live again that are whole.

A fail-over looks at nothing but what the mirror shows, and expires all other commits as unproved. So does a restore of
a dump with commits that lack a metarange. ``verify_history`` lets a commit live again whose metarange, ranges and
objects are all there. It looks at what a commit does not share with a whole one, so the cost follows the changes in
history. Commits that nothing live descends from stay expired. A mark begins with this check, and gives up what is left:
what such commits need may be garbage from then on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lakeops.model import graph
from lakeops.model.encoding import JsonRecord
from lakeops.model.errors import Corrupted, FileMissing, LakeopsError, NamespaceTaken
from lakeops.model.graph import CommitSource, ReadAhead
from lakeops.model.mirrors import MirrorRecord, MirrorState, RefName
from lakeops.model.records import Commit
from lakeops.ops.context import Context, history_of
from lakeops.ops.mirror.create import unregister
from lakeops.ops.mirror.inspection import behind, check_options, disagreement, list_error
from lakeops.ops.mirror.presence import check_presence, plan_presence
from lakeops.ops.mirror.source import Reach, SourceLake, if_reached
from lakeops.ops.overlap import claim
from lakeops.ops.owner import take_for_writing
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.store.in_flight import IN_FLIGHT, in_flight

STEP = 512
"""How many commits are looked at before those that are whole live again."""


@dataclass(frozen=True, slots=True)
class VerifiedHistory(JsonRecord):
    """The result of a look at unproved commits: how many live again, and how many are left."""

    commits: int
    unproved: int


def verify_history(ctx: Context) -> VerifiedHistory:
    """After a fail-over or a restore: let those commits live again that are complete.

    Reads what each such commit does not share with a complete one, and looks for its objects without reading them. It
    may be killed and repeated until the next mark, which lets the rest expire.

    Raises:
        PreconditionFailed: ``read_only_repository``: it is still a mirror.
    """
    unproved = ctx.catalog.mirrors.unproved(ctx.repository_id)
    proved = sum(ctx.catalog.mirrors.revive_proved(ctx.repository_id, some) for some in complete(ctx, unproved))
    return VerifiedHistory(proved, len(unproved) - proved)


def complete(ctx: Context, unproved: Collection[str]) -> Iterator[list[str]]:
    """Find the ids of those unproved commits that are complete, some at a time."""
    if not unproved:
        return
    commits = ctx.catalog.commits.all(ctx.repository_id)
    get, live = history_of(ctx), (commit.id for commit in commits.values() if not commit.expired)
    newest_first, _ = graph.walk(lambda one: commits.get(one) or get(one), live, len(commits))
    older = [commit for commit in newest_first if commit.id in unproved]
    check = _HistoryCheck(ctx, commits)
    known = check.newest_live(commits)
    for start in range(0, len(older), STEP):
        some = older[start : start + STEP]
        share = -(-len(some) // IN_FLIGHT)
        # Neighbours in history share most, so each thread goes along a part of it.
        parts = [some[first : first + share] for first in range(0, len(some), share)]
        answers = list(in_flight(partial(check.along, known=known), parts))
        known = next((last for whole, last in reversed(answers) if whole), known)
        yield [one for whole, _ in answers for one in whole]
        ctx.progress("proving commits", start + len(some), len(older))


class _HistoryCheck:
    """A check that what older commits need is here. It asks for each file by name, because a listing may omit one."""

    def __init__(self, ctx: Context, commits: Mapping[str, Commit]) -> None:
        self._ctx = ctx
        self._mirror = ctx.catalog.mirrors.find(ctx.repository_id)
        self._options = check_options(ctx, self._mirror)
        self._followers: dict[str, list[Commit]] = {}  # the live children of each commit
        for commit in commits.values():
            for parent in () if commit.expired else commit.parents:
                self._followers.setdefault(parent, []).append(commit)

    def newest_live(self, commits: Mapping[str, Commit]) -> Metarange:
        """The metarange of the newest live commit, which the mirror showed or somebody committed since.

        It is empty after a restore, which looked for no objects.
        """
        live = (commit for commit in commits.values() if not commit.expired and commit.meta_range_file)
        newest = max(live, key=lambda commit: (commit.generation, commit.id), default=None)
        return (self._mirror and newest and self._metarange(newest)) or Metarange.empty()

    def along(self, commits: Sequence[Commit], known: Metarange) -> tuple[list[str], Metarange]:
        """The complete commits, and the last one's metarange. The first is compared with the complete ``known``."""
        ctx, reader, found = self._ctx, RangeReader(self._ctx.store), []
        whole, broken = dict[str, str | None](), set[str]()  # files that were looked at since ``known``
        for commit in commits:
            wanted = self._metarange(commit)
            if wanted is None:
                continue
            files = {*wanted.table.column("file").to_pylist()}
            if not files & broken:
                for one in check_presence(plan_presence(wanted, known, whole), ctx.engine(), ctx.store, self._options):
                    if one.complete:
                        whole[one.file] = None
                    else:
                        broken.add(one.file)
            # Its list of changes, and those of commits after it, say what is so.
            if files & broken or list_error(ctx, reader, commit, wanted) is not None:
                continue
            after = filter(None, map(self._metarange, self._followers.get(commit.id, ())))
            if all(disagreement(reader, one, wanted) is None for one in after):
                found.append(commit.id)
                known, whole, broken = wanted, {}, set()
        return found, known

    def _metarange(self, commit: Commit) -> Metarange | None:
        """The metarange of a commit, if it is here and undamaged."""
        try:
            return RangeReader(self._ctx.store).whole(commit)
        except (Corrupted, FileMissing):
            return None


@dataclass(frozen=True, slots=True)
class LostRef(JsonRecord):
    """The loss of a ref: the source's head, what the mirror shows, how many commits lie between (None: unknown)."""

    kind: str
    id: str
    source_head: str
    promoted: str | None
    commits: int | None


@dataclass(frozen=True)
class Loss:
    """The loss of a fail-over: refs that do not show what the source shows.

    ``asked`` says whether the source was asked now. Otherwise this is what the pass at ``last_sync`` (Unix seconds)
    saw, and more may be lost.
    """

    refs: tuple[LostRef, ...] = field(default=())
    asked: bool = False
    last_sync: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The loss, for programs."""
        return {"refs": [ref.to_json() for ref in self.refs], "source_asked": self.asked, "last_sync": self.last_sync}


def loss(ctx: Context, reach: Reach, source: SourceLake | None = None) -> Loss:
    """Find the commits that ``promote_writable`` would lose. Asks the source, or takes the last pass if it is down.

    Raises:
        NotAMirror: it was promoted before.
    """
    state = ctx.catalog.mirrors.mirror_state(ctx.repository_id)
    with if_reached(reach, source) as origin, contextlib.suppress(LakeopsError):
        if origin is not None:
            origin.check_same(state.mirror, ctx.catalog.commits.initial_commit(ctx.repository_id))
            lost = _lost_refs(state, origin.heads(state.mirror), ReadAhead(origin.line))
            return Loss(lost, True, state.mirror.last_sync)
    seen = {ref.ref: ref.source_head for ref in state.refs}
    return Loss(_lost_refs(state, seen, history_of(ctx)), False, state.mirror.last_sync)


def promote_writable(ctx: Context, reach: Reach, source: SourceLake | None = None) -> MirrorRecord:
    """Fail over: turn the mirror into a writable repository that no longer follows its source.

    It cannot be undone. What the source has beyond what the mirror shows is lost here: see ``loss``. A call that was
    killed can be made again. The source is told that it need keep nothing for this mirror any more, unless it is down.

    Raises:
        NotAMirror: it was promoted before.
        PreconditionFailed: ``not_the_owner``: another catalog has opened the same storage namespace for writing.
        MirrorOvertaken: a pass ran at the same time. Try again.
    """
    with if_reached(reach, source) as origin:
        state = ctx.catalog.mirrors.mirror_state(ctx.repository_id)
        take_for_writing(ctx)  # before the catalog opens: from here on nobody replicates over what is written
        mirror = ctx.catalog.mirrors.promote_writable(ctx.repository_id, state.mirror.sequence, actor=ctx.actor)
        with contextlib.suppress(NamespaceTaken):  # the source's claim came along with everything else
            claim(ctx.store, ctx.repository, ctx.catalog.repositories.identity())
        unregister(origin, mirror)
    return mirror


def _lost_refs(state: MirrorState, heads: dict[RefName, str], get: CommitSource) -> tuple[LostRef, ...]:
    shown = {ref.ref: ref.promoted for ref in state.refs}
    lost = ((ref, head, shown.get(ref)) for ref, head in sorted(heads.items()) if head != shown.get(ref))
    return tuple(LostRef(str(ref.kind), ref.name, head, at, behind(get, head, at)[0]) for ref, head, at in lost)
