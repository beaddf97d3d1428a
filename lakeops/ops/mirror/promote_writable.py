"""Fail-over: a mirror becomes a writable repository at what it shows.

Everything it shows is complete, so nothing has to be waited for. Commits that are not complete must not look as if
they were: nothing may be based on them, and garbage collection, which reads every live commit, would stop at them. So
those that are not reachable from what is shown, and those whose ranges or metarange did not arrive, are expired in the
same transaction. Single objects of older commits that did not arrive are reported by fsck.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.errors import LakeopsError, NamespaceTaken, NotFound
from lakeops.model.graph import CommitSource
from lakeops.model.mirrors import Mirror, MirrorRef, MirrorState, RefName
from lakeops.model.readahead import ReadAhead
from lakeops.model.records import Commit
from lakeops.ops.context import Context
from lakeops.ops.mirror.create import unregister
from lakeops.ops.mirror.source import Source
from lakeops.ops.mirror.status import behind
from lakeops.ops.repository import claim
from lakeops.ops.resolve import lookup
from lakeops.store import layout

THREADS = 16


@dataclass(frozen=True, slots=True)
class LostRef:
    """What a ref loses: the source's head, what the mirror shows, how many commits lie between (None: unknown)."""

    kind: str
    id: str
    source_head: str
    promoted: str | None
    commits: int | None

    def to_json(self) -> dict[str, Any]:
        """One row of what would be lost."""
        return {
            "kind": self.kind,
            "id": self.id,
            "source_head": self.source_head,
            "promoted": self.promoted,
            "commits": self.commits,
        }


@dataclass(frozen=True)
class Loss:
    """What a fail-over would lose.

    Attributes:
        refs: refs that do not show what the source shows.
        asked: whether the source was asked now; otherwise this is what the last pass saw, and more may be lost.
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
    """What the source shows and the mirror does not. Raises ``NotAMirror``.

    Args:
        ctx: the mirror.
        source: asked for its heads now; None when it cannot be reached.
    """
    state = ctx.catalog.mirror_state(ctx.repository_id)
    if source is not None:
        with contextlib.suppress(LakeopsError):
            get = ReadAhead(lambda one, count: source.catalog.first_parents(source.repository_id, one, limit=count))
            return Loss(_lost(state, source.heads(state.mirror), get), True, state.mirror.last_sync)
    seen = {ref.ref: ref.source_head for ref in state.refs}
    return Loss(_lost(state, seen, lookup(ctx).get), False, state.mirror.last_sync)


def promote_writable(ctx: Context, source: Source | None) -> Mirror:
    """Open the mirror for writing at what it shows now; it refuses to be synced from then on.

    Args:
        ctx: the mirror.
        source: told that nothing need be kept for this mirror any more; None when it cannot be reached.

    Raises:
        NotAMirror: it follows no source, or was promoted before.
        MirrorOvertaken: a pass went on meanwhile; try again.
    """
    state = ctx.catalog.mirror_state(ctx.repository_id)
    complete = _complete(ctx)
    mirror = ctx.catalog.promote_writable(ctx.repository_id, state.mirror.sequence, complete, actor=ctx.actor)
    with contextlib.suppress(NamespaceTaken):  # the source's claim came along with everything else
        claim(ctx.store, ctx.repository)
    unregister(source, mirror)
    return mirror


def _lost(state: MirrorState, heads: dict[RefName, str], get: CommitSource) -> tuple[LostRef, ...]:
    shown: dict[RefName, MirrorRef] = {ref.ref: ref for ref in state.refs}
    rows = []
    for ref in sorted(heads.keys() | shown.keys()):
        promoted = shown[ref].promoted if ref in shown else None
        head = heads.get(ref)
        if head is not None and head != promoted:
            commits, _ = behind(get, head, promoted)
            rows.append(LostRef(str(ref.kind), ref.name, head, promoted, commits))
    return tuple(rows)


def _complete(ctx: Context) -> list[str]:
    """Live commits behind what is shown whose metarange and ranges are all there."""
    history = ctx.catalog.history(ctx.repository_id)
    shown = {*history.branches.values(), *history.tags.values()}
    reachable = _ancestors(history.commits, shown)
    older = [commit for one, commit in history.commits.items() if one in reachable - shown and not commit.expired]
    metaranges = {item.key.removeprefix(layout.METARANGES) for item in ctx.store.list(layout.METARANGES)}
    names = (item.key.removeprefix(layout.RANGES) for item in ctx.store.list(layout.RANGES))
    ranges = pa.array(names, pa.string())

    def is_whole(commit: Commit) -> bool:
        if commit.meta_range_file and commit.meta_range_file not in metaranges:
            return False
        try:
            files = ctx.reader.metarange(commit).table.column("file")
        except NotFound:
            return False
        return pc.all(pc.is_in(files, value_set=ranges)).as_py() is not False  # None for no ranges at all

    with ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="promote") as pool:
        return [commit.id for commit, answer in zip(older, pool.map(is_whole, older), strict=True) if answer]


def _ancestors(commits: Mapping[str, Commit], heads: Iterable[str]) -> set[str]:
    found: set[str] = set()
    waiting = list(heads)
    while waiting:
        one = waiting.pop()
        if one not in found and one in commits:
            found.add(one)
            waiting += commits[one].parents
    return found
