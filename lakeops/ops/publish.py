"""The loop of every verb that moves a branch: seal, plan on the head, write files, publish. In turn when it moved.

A verb brings a function that turns an attempt (the branch as it is now) into a draft (the metarange
written, parents, message). A commit plans on sealed rows. A verb that needs a clean branch only looks at the rows
before it plans, and seals those that change nothing once its plan stands: a refusal leaves the branch as it was.

Files of an attempt that loses the race stay behind under names of their own, for garbage collection. A crash anywhere
leaves at most such files and sealed tokens, which readers see and the next commit takes along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from lakeops.catalog.records import BranchState, Intent, Publish
from lakeops.model.changes import Summary
from lakeops.model.clock import pause, retrying, stopwatch
from lakeops.model.errors import BranchMoved, DirtyBranch
from lakeops.model.hooks import HookEvent
from lakeops.model.ids import make_commit
from lakeops.model.records import Commit
from lakeops.model.requests import Request, check_key
from lakeops.ops.companions import Ahead, GoAlone
from lakeops.ops.context import Context
from lakeops.ops.diff import effective
from lakeops.ops.hooks import changing, concerned
from lakeops.ops.turn import LONGEST_WAIT, Overtaken, held, in_line
from lakeops.ranges.write import MetarangeFile

if TYPE_CHECKING:
    import pyarrow as pa
    from tenacity import Retrying


def require_clean(ctx: Context, branch: str, head: Commit, staged: pa.Table) -> None:
    """Refuse a branch with uncommitted changes.

    Staged rows that change nothing over the head are no changes. The publish transaction takes them off the branch,
    so that they cannot come to matter over the new head. Raises ``DirtyBranch``.
    """
    for batch in effective(ctx, head, staged):
        raise dirty(branch, batch.column("path")[0].as_py())


def dirty(branch: str, path: str) -> DirtyBranch:
    """The error for a branch with uncommitted changes, of which ``path`` is one."""
    return DirtyBranch(f"branch {branch!r} has uncommitted changes, {path!r} for one; commit or reset them first")


@dataclass(frozen=True)
class Move:
    """What a caller asked for, and under which idempotency key. Raises ``InvalidInput`` for what is no key.

    ``intent`` is kept with the rows of a commit while they are sealed.
    """

    request: Request
    key: str | None = None
    intent: Intent | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            check_key(self.key)

    @property
    def branch(self) -> str:
        """The branch to move."""
        return self.request.branch

    @property
    def action(self) -> str:
        """The verb, as the reflog has it."""
        return self.request.action


@dataclass(frozen=True)
class Attempt:
    """A branch at the moment that planning begins. ``state.sealed_tokens`` are what the plan may consume.

    ``staged`` are its staged rows, of which a verb that needs a clean branch makes sure that they change nothing. None
    for a commit. ``ctx`` is what the plan reads and writes through. ``coming`` are commits up to ``head`` that this
    process is going to publish before.
    """

    state: BranchState
    head: Commit
    started: datetime
    ctx: Context
    staged: pa.Table | None = None
    coming: tuple[Commit, ...] = ()


@dataclass(frozen=True)
class Draft:
    """What a plan wants published.

    ``rests_on`` are the commits whose ranges the metarange reuses. ``begun`` is when its first file was written, where
    that was before the attempt: files live under the deadline of the publish transaction from then on.
    ``consumed`` are those of the sealed tokens that it takes. None: all of them. ``merged`` is what a merge merges.
    """

    metarange: MetarangeFile
    parents: tuple[Commit, ...]
    message: str
    metadata: Mapping[str, str]
    summary: Summary | None = None
    rests_on: tuple[Commit, ...] = field(default=())
    begun: datetime | None = None
    consumed: tuple[str, ...] | None = None
    merged: Commit | None = None


@dataclass(frozen=True)
class Published:
    """A commit that is visible now. ``summary`` is what its plan counted, if this call published it.

    ``by_key`` says that another call under the same key published it at the same time.
    """

    commit: Commit
    summary: Summary | None
    by_key: bool = False


class AlreadyPublished(Exception):
    """Raised by a plan that finds its changes in a commit which somebody else published."""

    def __init__(self, commit: Commit) -> None:
        super().__init__(commit.id)
        self.commit = commit


Draw = Callable[[Attempt], Draft]


def _none_taken_along() -> None:
    """Nobody takes the changes of a merge along."""


def publish(
    ctx: Context,
    move: Move,
    plan: Draw,
    *,
    clean: bool = False,
    overtaken: Overtaken = _none_taken_along,
    together: bool = False,
    waiting: Callable[[], None] = lambda: None,
) -> Published:
    """Move a branch to the commit that ``plan`` drafts, once.

    With ``clean`` the branch may have no uncommitted changes. ``plan`` refuses one that has some (``require_clean``),
    and callers look for an earlier call under the same key first (``read_first``). Without it, sealing looks for the
    key. The publish transaction looks again. ``overtaken`` is asked while the call waits for its turn.
    ``together`` lets it share transactions with other threads that need a clean branch: ``plan`` reads and writes
    through the attempt's context, and what it is shown as the head may not be published yet. ``waiting`` is called
    where others publish and the store is far away: it reads what the plan is going to need.

    Raises:
        BranchMoved: others moved the branch, and this call's turn did not come in time.
        KeyReused: the key stands for another call.
        Anything that ``plan`` or the publish transaction raises.
    """
    passed = stopwatch()
    publisher = held(ctx, move.branch)
    with suppress(BranchMoved):
        if together and publisher is None and not concerned(ctx, move.action, move.branch):
            with suppress(GoAlone):
                return _with_others(ctx, move, plan, waiting)
        return _attempt(ctx, move, plan, clean=clean, publisher=publisher, first=True)
    with in_line(ctx, move.branch) as place:
        place.took(passed())
        while True:
            commit = place.wait(overtaken)
            if commit is not None:
                place.leave()
                return _taken_along(ctx, move, commit)
            passed = stopwatch()
            try:
                done = _attempt(ctx, move, plan, clean=clean, publisher=place.publisher)
                if done.by_key:
                    place.leave()
                return done
            except BranchMoved:  # a reset took its rows, or it was so slow that its place lapsed
                place.took(passed())
                place.check_time()
            pause(ctx.ids.jitter(LONGEST_WAIT))


T = TypeVar("T")


def read_first(ctx: Context, move: Move, read: Callable[[], T]) -> Published | T:
    """What ``read`` reads before a move, or the commit of an earlier call under its key. From one snapshot.

    Raises:
        RefNotFound: there is no such branch.
        KeyReused: the key stands for another call.
        Anything that ``read`` raises.
    """

    def found() -> Published | T:
        ctx.catalog.branch(ctx.repository_id, move.branch)
        known = replay(ctx, move)
        return read() if known is None else Published(known, None, by_key=True)

    return ctx.catalog.in_snapshot(found)


def replay(ctx: Context, move: Move) -> Commit | None:
    """The commit that the move's idempotency key stands for, if it was used. Raises ``KeyReused``."""
    if move.key is None:
        return None
    record = ctx.catalog.key(ctx.repository_id, move.key)
    if record is None:
        return None
    record.check(move.key, move.request.fingerprint)
    return ctx.catalog.commit(ctx.repository_id, record.commit_id)


def _with_others(ctx: Context, move: Move, plan: Draw, waiting: Callable[[], None]) -> Published:
    """Publish to a clean branch in the company of other threads. Raises ``GoAlone`` where that cannot be."""
    asked: list[tuple[Publish, Draft]] = []

    def planned(ahead: Ahead) -> Publish:
        found, staged = ctx.catalog.staged_table(ctx.repository_id, move.branch)
        if staged.num_rows or found.state.sealed_tokens:  # they are to be compared with a head that is there
            raise GoAlone
        head = ahead.head or found.head
        state = replace(found.state, commit_id=head.id)
        attempt = Attempt(state, head, found.now, ctx.through(ahead.store), staged, ahead.coming)
        draft = plan(attempt)
        asked.append((_publish_request(ctx, move, attempt, state, draft, None), draft))
        return asked[-1][0]

    place = (ctx.repository.storage_namespace, move.branch)
    if ctx.store.remote and ctx.companions.busy(place):
        waiting()
    published = ctx.companions.publish(ctx.catalog, place, ctx.reader.store, planned)
    return _outcome(published, *asked[-1])


def _attempt(
    ctx: Context, move: Move, plan: Draw, *, clean: bool, publisher: str | None, first: bool = False
) -> Published:
    attempt = _begin(ctx, move, clean=clean, first=first)
    if isinstance(attempt, Published):
        return attempt
    try:
        draft = plan(attempt)
    except AlreadyPublished as found:
        if publisher is not None:
            ctx.catalog.dequeue(ctx.repository_id, move.branch, publisher)
        return _taken_along(ctx, move, found.commit)
    asked = _publish_request(ctx, move, attempt, _sealed(ctx, attempt), draft, publisher)
    commit = asked.commit
    published = changing(
        ctx,
        move.action,
        move.branch,
        lambda: _event(ctx, asked),
        lambda hooks: ctx.catalog.publish(replace(asked, hooks=hooks)),
        after=lambda done: done.id if _contents_of(done) == _contents_of(commit) else None,
    )
    outcome = _outcome(published, asked, draft)
    if asked.consumed and not outcome.by_key:
        ctx.tidy(waiting=True)
    return outcome


def _outcome(published: Commit, asked: Publish, draft: Draft) -> Published:
    """What a call has published. A commit that says something else is that of an earlier call under its key."""
    if _contents_of(published) != _contents_of(asked.commit):
        return Published(published, None, by_key=True)
    return Published(published, draft.summary)


def _publish_request(
    ctx: Context, move: Move, attempt: Attempt, state: BranchState, draft: Draft, publisher: str | None
) -> Publish:
    """What the publish transaction is asked for. ``state`` is the branch with what the draft consumes sealed."""
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
    return Publish(
        repository_id=ctx.repository_id,
        branch=move.branch,
        expected_head=attempt.head.id,
        sealed_resets=state.sealed_resets,
        commit=commit,
        consumed=state.sealed_tokens if draft.consumed is None else draft.consumed,
        live=frozenset(parent.id for parent in (*draft.parents, *draft.rests_on)),
        started=min(attempt.started, draft.begun or attempt.started),
        action=move.action,
        actor=ctx.actor,
        key=move.key,
        fingerprint=move.request.fingerprint,
        publisher=publisher,
        intent=move.intent,
        merged=draft.merged.id if draft.merged else None,
    )


def _event(ctx: Context, asked: Publish) -> HookEvent:
    """What hooks are told of a commit that is going to be published."""
    commit = asked.commit
    return HookEvent(
        ctx.repository_id,
        asked.action,
        asked.branch,
        asked.expected_head,
        None,
        commit.parents,
        commit.message,
        commit.metadata,
    )


def _contents_of(commit: Commit) -> tuple[object, ...]:
    """What a commit says, but for what it took along."""
    return commit.parents, commit.committer, commit.message, commit.creation_date, commit.meta_range_id


def _taken_along(ctx: Context, move: Move, commit: Commit) -> Published:
    """The commit of somebody else that has the caller's changes."""
    if move.key is not None:
        ctx.catalog.remember_key(ctx.repository_id, move.key, move.request.fingerprint, commit.id)
    return Published(replay(ctx, move) or commit, None)


def _begin(ctx: Context, move: Move, *, clean: bool, first: bool) -> Attempt | Published:
    if clean:
        found, staged = ctx.catalog.staged_table(ctx.repository_id, move.branch)
        return Attempt(found.state, found.head, found.now, ctx, staged)
    token, asked = ctx.ids.new(), move.request.fingerprint
    intent = move.intent if first else None
    sealed = ctx.catalog.seal(
        ctx.repository_id, move.branch, token=token, key=move.key, fingerprint=asked, intent=intent
    )
    if sealed.earlier is not None:
        return Published(sealed.earlier, None, by_key=True)
    return Attempt(sealed.state, sealed.head, sealed.now, ctx)


def _sealed(ctx: Context, attempt: Attempt) -> BranchState:
    """The branch once rows that change nothing are sealed, so that the publish transaction takes them off.

    Rows that came meanwhile are sealed with them, so all are looked at again. Raises ``DirtyBranch``.
    """
    if attempt.staged is None or not attempt.staged.num_rows:
        return attempt.state
    state = ctx.catalog.seal(ctx.repository_id, attempt.state.id, token=ctx.ids.new()).state
    if state.commit_id == attempt.head.id:  # or the publish transaction says that it moved
        _, staged = ctx.catalog.staged_table(ctx.repository_id, state.id, tokens=state.sealed_tokens)
        require_clean(ctx, state.id, attempt.head, staged)
    return state


def settled(ctx: Context, branch: str) -> BranchState:
    """The branch without its staged rows, which must change nothing. Raises ``DirtyBranch``, ``BranchMoved``."""
    found, staged = ctx.catalog.staged_table(ctx.repository_id, branch)
    require_clean(ctx, branch, found.head, staged)
    if not staged.num_rows:
        return found.state
    sealed = ctx.catalog.seal(ctx.repository_id, branch, token=ctx.ids.new())
    tokens = sealed.state.sealed_tokens
    _, staged = ctx.catalog.staged_table(ctx.repository_id, branch, tokens=tokens)
    require_clean(ctx, branch, sealed.head, staged)
    ctx.catalog.discard(sealed.state, tokens)
    ctx.tidy(waiting=True)
    return ctx.catalog.branch(ctx.repository_id, branch)


def when_moved(ctx: Context) -> Retrying:
    """Calls a function again after ``BranchMoved``, for as long as the settings say."""
    seconds = ctx.settings.publish_minutes * 60
    return retrying(lambda error: isinstance(error, BranchMoved), ctx.ids, seconds=seconds)
