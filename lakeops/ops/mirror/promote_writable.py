"""Fail-over: a mirror becomes a writable repository at what it shows.

Everything it shows is complete, so nothing has to be waited for, and nothing is read or listed. Other commits may not
be complete, and must not look as if they were: nothing may be based on them, and garbage collection, which reads every
live commit, would stop at them. So they are expired as *unproved* in the same transaction. ``prove`` lets those live
again that are whole.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from lakeops.model.errors import LakeopsError, NamespaceTaken
from lakeops.model.graph import CommitSource
from lakeops.model.json_record import JsonRecord
from lakeops.model.mirrors import MirrorRecord, MirrorRef, MirrorState, RefName
from lakeops.ops.context import Context
from lakeops.ops.mirror.create import unregister
from lakeops.ops.mirror.source import Source
from lakeops.ops.mirror.status import behind
from lakeops.ops.overlap import claim
from lakeops.ops.owner import take_for_writing
from lakeops.ops.resolve import history_of, lookup


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
    state = ctx.catalog.mirror_state(ctx.repository_id)
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
    state = ctx.catalog.mirror_state(ctx.repository_id)
    take_for_writing(ctx)  # before the catalog opens: from here on nobody replicates over what is written
    mirror = ctx.catalog.promote_writable(ctx.repository_id, state.mirror.sequence, actor=ctx.actor)
    with contextlib.suppress(NamespaceTaken):  # the source's claim came along with everything else
        claim(ctx.store, ctx.repository, ctx.catalog.identity())
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
