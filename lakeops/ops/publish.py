"""The loop of every verb that moves a branch: seal, plan on the head, write files, publish; again when it moved.

A verb brings a ``Plan``: a function that turns an attempt (the branch as it is now) into a draft (the metarange
written, parents, message). Files of an attempt that loses the race stay behind under names of their own, for garbage
collection. A crash anywhere leaves at most such files and sealed tokens, which readers see and the next commit takes
along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from lakeops.catalog.base import BranchState, Publish
from lakeops.model.errors import KeyReused
from lakeops.model.ids import make_commit
from lakeops.model.records import Commit, Summary
from lakeops.ops.context import Context
from lakeops.ops.retry import when_moved
from lakeops.ranges.write import MetarangeFile


@dataclass(frozen=True)
class Move:
    """What a caller asked for: which branch to move, by which verb, under which idempotency key."""

    branch: str
    action: str
    request: tuple[str, ...] = ()
    key: str | None = None

    @property
    def fingerprint(self) -> str:
        """What the key stands for; another call under the same key must ask for the same."""
        return "\x1f".join((self.action, self.branch, *self.request))


@dataclass(frozen=True)
class Attempt:
    """A branch at the moment that planning begins. ``state.sealed_tokens`` are what the plan may consume."""

    state: BranchState
    head: Commit
    started: datetime


@dataclass(frozen=True)
class Draft:
    """What a plan wants published.

    ``rests_on`` are the commits whose ranges the metarange reuses. ``begun`` is when its first file was written, where
    that was before the attempt: files live under the deadline of the publish transaction from then on.
    """

    metarange: MetarangeFile
    parents: tuple[Commit, ...]
    message: str
    metadata: Mapping[str, str]
    summary: Summary | None = None
    rests_on: tuple[Commit, ...] = field(default=())
    begun: datetime | None = None


@dataclass(frozen=True)
class Published:
    """A commit that is visible now; ``summary`` is what its plan counted, if this call published it."""

    commit: Commit
    summary: Summary | None


class AlreadyPublished(Exception):
    """Raised by a plan that finds its changes in a commit which somebody else published."""

    def __init__(self, commit: Commit) -> None:
        super().__init__(commit.id)
        self.commit = commit


Plan = Callable[[Attempt], Draft]


def publish(ctx: Context, move: Move, plan: Plan) -> Published:
    """Move a branch to the commit that ``plan`` drafts, once.

    Callers look for an earlier call under the same key first (``replay``); the publish transaction looks again.

    Raises:
        BranchMoved: others moved the branch at every try.
        KeyReused: the key stands for another call.
        Anything that ``plan`` or the publish transaction raises.
    """
    return when_moved(ctx)(_attempt, ctx, move, plan)


def replay(ctx: Context, move: Move) -> Commit | None:
    """The commit that the move's idempotency key stands for, if it was used. Raises ``KeyReused``."""
    record = None if move.key is None else ctx.catalog.key(ctx.repository_id, move.key)
    if record is None:
        return None
    if record.fingerprint != move.fingerprint:
        raise KeyReused(f"idempotency key {move.key!r} was used for another call; use a fresh key for this one")
    return ctx.catalog.commit(ctx.repository_id, record.commit_id)


def _attempt(ctx: Context, move: Move, plan: Plan) -> Published:
    started = ctx.catalog.now()
    state = ctx.catalog.seal(ctx.repository_id, move.branch, token=ctx.ids.new())
    try:
        draft = plan(Attempt(state, ctx.head(state), started))
    except AlreadyPublished as found:
        if move.key is not None:
            ctx.catalog.remember_key(ctx.repository_id, move.key, move.fingerprint, found.commit.id)
        return Published(found.commit, None)
    commit = make_commit(
        parents=draft.parents,
        committer=ctx.actor,
        message=draft.message,
        metadata=draft.metadata,
        creation_date=ctx.seconds(),
        meta_range_id=draft.metarange.id,
        meta_range_file=draft.metarange.file,
        meta_range_digest=draft.metarange.digest,
    )
    published = ctx.catalog.publish(
        Publish(
            repository_id=ctx.repository_id,
            branch=move.branch,
            expected_head=state.commit_id,
            resets=state.resets,
            commit=commit,
            consumed=state.sealed_tokens,
            live=frozenset(parent.id for parent in (*draft.parents, *draft.rests_on)),
            started=min(started, draft.begun or started),
            action=move.action,
            actor=ctx.actor,
            key=move.key,
            fingerprint=move.fingerprint,
        )
    )
    ctx.tidy()
    return Published(published, draft.summary)
