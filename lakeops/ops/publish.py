"""Publishing a commit to a branch: the plan, the transaction and the branch's queue, for every verb that publishes.

A verb looks at the branch (``BranchSnapshot``), plans on its head and writes files (``CommitPlan``), and calls
``publish``, where one transaction makes the commit visible or raises ``BranchMoved``. ``publish_in_queue`` runs such
an attempt: the first one races, and who loses waits in the branch's queue, in the catalog, for those ahead alone. A
crash or a lost race leaves at most files for garbage collection, and sealed tokens, which readers see and the next
commit covers.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import TypeVar

from lakeops.catalog.guards import Hooks
from lakeops.catalog.records import BranchSnapshot, BranchState, Intent, Publish
from lakeops.model.clock import pause, stopwatch
from lakeops.model.errors import BranchMoved, LakeopsError, PreconditionFailed
from lakeops.model.ids import MAX_MESSAGE_BYTES, make_commit
from lakeops.model.protection import HookEvent
from lakeops.model.records import Commit, IdempotentRequest, Summary
from lakeops.ops.checks import CheckResults, retry_for_untouched
from lakeops.ops.context import Context, naming_the_ref, require_stageable
from lakeops.ops.diff import effective
from lakeops.ops.hooks import run_with_hooks
from lakeops.ranges.apply import Applied
from lakeops.ranges.range_file import MetarangeFile, write_metarange
from lakeops.store import layout


def write_ranges(
    ctx: Context, verb: str, known: tuple[Commit, ...], started: datetime, work: Callable[..., Applied]
) -> tuple[MetarangeFile, Summary]:
    """Write the ranges of an attempt that ``started``, and the metarange unless a known commit has it.

    ``work`` is ``ranges.apply.apply`` or ``apply_plan`` with what is applied.
    """
    attempt = layout.attempt(started, ctx.ids)
    with ctx.writing() as reader:
        applied = work(
            reader, engine=ctx.engine(), attempt=attempt, split=ctx.repository.split, label=verb, progress=ctx.progress
        )
        for commit in known:
            if commit.meta_range_id == applied.metarange.id:
                return metarange_of(commit), applied.summary
        return write_metarange(reader.store, applied.metarange, attempt), applied.summary


def metarange_of(commit: Commit) -> MetarangeFile:
    """The file of a commit's metarange."""
    return MetarangeFile(commit.meta_range_id, commit.meta_range_file, commit.meta_range_digest)


LEAST_SECONDS = 10.0
"""How long a place in the queue is valid at least. It is valid longer when its publisher's attempts take longer."""

WAIT, LONGEST_WAIT = 0.02, 1.0
"""Seconds between two looks at the queue: so many for each publisher ahead, and at most."""


@dataclass(frozen=True)
class CommitPlan:
    """A commit that an attempt wants published.

    ``reused_commits`` are those whose ranges the metarange reuses. ``begun`` is when the first file was written, where
    that was before the attempt: its deadline runs from then on. ``consumed`` are the sealed tokens that it takes (None:
    all of them), ``intent`` what a commit asked for, as it is kept with its sealed rows. ``merged`` is the source of a
    merge, ``judged`` what its checks have found, and ``touches`` tells whether it changes anything below a prefix.
    """

    metarange: MetarangeFile
    parents: tuple[Commit, ...]
    message: str
    metadata: Mapping[str, str]
    summary: Summary | None = None
    reused_commits: tuple[Commit, ...] = field(default=())
    begun: datetime | None = None
    consumed: tuple[str, ...] | None = None
    merged: Commit | None = None
    judged: CheckResults = field(default=CheckResults())
    touches: Callable[[str], bool] | None = None
    intent: Intent | None = None


@dataclass(frozen=True)
class CommitResult:
    """A commit that is visible now.

    ``summary`` is what its plan counted, if this call published it. ``by_key``: another call under the same key did.
    ``by_other``: it is somebody else's commit, and covers the caller's rows.
    """

    commit: Commit
    summary: Summary | None = None
    by_key: bool = False
    by_other: bool = False


T = TypeVar("T")
Planner = Callable[[str | None], CommitResult]
"""One attempt: snapshot, plan, write, publish. Takes the publisher whose place in the queue it has, if it has one."""


def find_by_key_or(ctx: Context, request: IdempotentRequest, read: Callable[[], T]) -> CommitResult | T:
    """Find the commit of an earlier call under the key, or else call ``read``, in one snapshot of the catalog."""

    def found() -> CommitResult | T:
        ctx.catalog.refs.branch(ctx.repository_id, request.branch)
        known = find_by_key(ctx, request)
        return read() if known is None else CommitResult(known, by_key=True)

    with naming_the_ref(ctx, request.branch):
        return ctx.catalog.in_snapshot(found)


def find_by_key(ctx: Context, request: IdempotentRequest) -> Commit | None:
    """The commit that the request's idempotency key stands for, if it was used. Raises ``KeyReused``."""
    if request.key is None:
        return None
    return ctx.catalog.commits.of_key(ctx.repository_id, request.key, request.fingerprint)


def covered(ctx: Context, request: IdempotentRequest, commit: Commit) -> CommitResult:
    """Let the request's key stand for somebody else's commit, which has the caller's rows."""
    if request.key is not None:
        ctx.catalog.commits.remember_key(ctx.repository_id, request.key, request.fingerprint, commit.id)
    return CommitResult(find_by_key(ctx, request) or commit, by_other=True)


def snapshot(ctx: Context, branch: str, *, stageable: bool = False) -> BranchSnapshot:
    """The branch as it is now, with its staged rows. Nothing is sealed, so a refusal leaves it as it was.

    With ``stageable`` it has to be one that takes uncommitted changes.
    """
    if stageable:
        require_stageable(ctx, branch)
    with naming_the_ref(ctx, branch):
        return ctx.catalog.staging.staged_table(ctx.repository_id, branch)


def require_clean(ctx: Context, found: BranchSnapshot) -> None:
    """Refuse a branch with uncommitted changes. Raises ``PreconditionFailed`` (``dirty_branch``).

    Staged rows that change nothing over the head are no changes. Publishing takes them off the branch.
    """
    for batch in effective(ctx, found.head, found.staged) if found.staged.num_rows else ():
        raise PreconditionFailed(
            f"branch {found.state.id!r} has uncommitted changes, such as {batch.column('path')[0].as_py()!r}; commit "
            "or reset them first; where others keep staging, let them stage to branches of their own and merge those",
            kind="dirty_branch",
        )


def require_clean_and_drop_noops(ctx: Context, branch: str) -> BranchState:
    """Drop staged rows that change nothing from a branch. Raises ``PreconditionFailed`` (``dirty_branch``)."""
    found = snapshot(ctx, branch)
    require_clean(ctx, found)
    if not found.staged.num_rows:
        return found.state
    state = _seal_noops(ctx, branch)
    ctx.catalog.staging.discard(state, state.sealed_tokens)
    ctx.tidy(waiting=True)
    return ctx.catalog.refs.branch(ctx.repository_id, branch)


def _seal_noops(ctx: Context, branch: str) -> BranchState:
    """Seal staged rows that change nothing. Rows that came meanwhile are sealed too, so all are looked at again."""
    sealed = ctx.catalog.staging.seal(ctx.repository_id, branch, token=ctx.ids.new())
    found = ctx.catalog.staging.staged_table(ctx.repository_id, branch, tokens=sealed.state.sealed_tokens)
    require_clean(ctx, replace(sealed, staged=found.staged))
    return sealed.state


def publish(
    ctx: Context, request: IdempotentRequest, found: BranchSnapshot, plan: CommitPlan, publisher: str | None
) -> CommitResult:
    """Make a planned commit visible in one transaction, and run the hooks that concern it.

    ``found`` is the branch as it was planned on. ``publisher`` is whose place in the branch's queue this is, which the
    transaction gives up. Where the request's key is known by now, the key's commit is the result.

    Raises ``BranchMoved`` when others moved the branch or staged to it since, or somebody else is first in its queue;
    ``PreconditionFailed`` (``dirty_branch``) when rows that change nothing have become changes; and what the
    transaction raises.
    """
    state = found.state if found.staged is None or not found.staged.num_rows else _seal_noops(ctx, found.state.id)
    commit = make_commit(
        parents=plan.parents,
        committer=ctx.actor,
        message=plan.message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore"),  # it may list many commits
        metadata=plan.metadata,
        creation_date=ctx.seconds(),
        meta_range_id=plan.metarange.id,
        meta_range_file=plan.metarange.file,
        meta_range_digest=plan.metarange.digest,
    )
    asked = Publish(
        repository_id=ctx.repository_id,
        branch=request.branch,
        expected_head=found.head.id,
        sealed_resets=state.sealed_resets,
        commit=commit,
        consumed=state.sealed_tokens if plan.consumed is None else plan.consumed,
        live=frozenset(map(attrgetter("id"), (*plan.parents, *plan.reused_commits))),
        started=min(found.started, plan.begun or found.started),
        action=request.action,
        actor=ctx.actor,
        key=request.key,
        fingerprint=request.fingerprint,
        publisher=publisher,
        intent=plan.intent,
        merged=None if plan.merged is None else plan.merged.id,
        passed=plan.judged.passed,
        despite=plan.judged.despite,
    )

    def make_visible(hooks: Hooks, old: str | None, untouched: frozenset[str] | None = None) -> Commit:
        if untouched is None and plan.touches is not None:
            return retry_for_untouched(ctx, request.branch, plan.touches, partial(make_visible, hooks, old))
        return ctx.catalog.commits.publish(replace(asked, hooks=hooks, untouched=untouched or frozenset()))

    told = (asked.expected_head, None, commit.parents, commit.message, commit.metadata)
    event = HookEvent(ctx.repository_id, request.action, request.branch, *told)
    mine = _contents_of(commit)
    published = run_with_hooks(
        ctx, event, make_visible, after=lambda done: done.id if _contents_of(done) == mine else None
    )
    if _contents_of(published) != mine:  # an earlier call under the key had published its own
        return CommitResult(published, by_key=True)
    if asked.consumed:
        ctx.tidy(waiting=True)
    return CommitResult(published, plan.summary)


_contents_of = attrgetter("parents", "committer", "message", "creation_date", "meta_range_id")
"""The contents of a commit without co-author notes."""


def publish_in_queue(
    ctx: Context,
    request: IdempotentRequest,
    attempt: Planner,
    *,
    committed_by_other: Callable[[], Commit | None] | None = None,
    read_ahead: Callable[[], object] | None = None,
) -> CommitResult:
    """Run an attempt to publish, and run it again in the branch's queue after it lost the race for the branch.

    Args:
        attempt: takes the publisher whose place in the queue it has, if it has one. Raises ``BranchMoved``.
        committed_by_other: gives somebody else's commit that covers the caller's rows, which ends the wait. Callers
            with it race at once. Others take turns with the threads of this process: all but one would plan in vain.
        read_ahead: loads what ``attempt`` will read into caches, while other threads have their turns. It decides
            nothing, and its errors are left to ``attempt``.

    Raises ``BranchMoved`` where the turn does not come in the time of the setting ``publish_minutes``.
    """
    where = (ctx.repository.storage_namespace, request.branch)
    publisher = _publishers.get().get(where)
    # A hook runs in a thread of its own. It may publish to the same branch.
    races = committed_by_other is not None or publisher is not None
    races = races or any(hook.concerns(request.action, request.branch) for hook in ctx.repository.hooks)
    with nullcontext() if races else _after_other_threads(where, read_ahead):
        passed = stopwatch()
        with suppress(BranchMoved):
            return attempt(publisher)
        ticket = QueueTicket(ctx, request.branch, publisher or ctx.ids.new(), passed())
        before = _publishers.set({**_publishers.get(), where: ticket.publisher})
        try:
            while True:
                other = ticket.wait(committed_by_other)
                passed = stopwatch()
                try:
                    result = attempt(ticket.publisher) if other is None else covered(ctx, request, other)
                except BranchMoved:  # a reset took its rows, or it was so slow that its place lapsed
                    ticket.longest = max(ticket.longest, passed())
                    ticket.check_time()
                else:
                    if result.by_key or result.by_other:  # otherwise publishing has given the place up
                        ticket.leave()
                    return result
                pause(ctx.ids.jitter(LONGEST_WAIT))
        except BaseException:
            ticket.leave()
            raise
        finally:
            _publishers.reset(before)


_threads: dict[tuple[int, str, str], deque[threading.Event]] = {}
_threads_lock = threading.Lock()


@contextmanager
def _after_other_threads(where: tuple[str, str], read_ahead: Callable[[], object] | None = None) -> Iterator[None]:
    """Let the threads of this process that publish to a branch run one after the other, as they came.

    No correctness rests on it, so nobody waits longer than a place in the queue counts.
    """
    mine, process = threading.Event(), (os.getpid(), *where)
    with _threads_lock:
        line = _threads.setdefault(process, deque())
        line.append(mine)
        if line[0] is mine:
            mine.set()
    try:
        if read_ahead is not None and not mine.is_set():
            with suppress(LakeopsError):
                read_ahead()
        mine.wait(LEAST_SECONDS)
        yield
    finally:
        with _threads_lock:
            line.remove(mine)
            if line:
                line[0].set()
            else:
                del _threads[process]


class QueueTicket:
    """A publisher's place in the queue of a branch, which is in the catalog. ``wait`` takes it.

    ``longest`` is how long an attempt takes, in seconds: a place lasts longer than that.
    """

    def __init__(self, ctx: Context, branch: str, publisher: str, longest: float) -> None:
        self._ctx = ctx
        self._branch = branch
        self._passed = stopwatch()
        self.publisher = publisher
        self.longest = longest

    def wait(self, committed_by_other: Callable[[], Commit | None] | None) -> Commit | None:
        """Return when it is the publisher's turn, or with the commit that covers its rows. Raises ``BranchMoved``."""
        commits, repository, ahead = self._ctx.catalog.commits, self._ctx.repository_id, None
        renewed = stopwatch()
        while True:
            lasts = LEAST_SECONDS + 2 * self.longest
            if ahead is None or renewed() > lasts / 4:
                renewed = stopwatch()
                ahead = commits.enqueue(repository, self._branch, self.publisher, lasts=timedelta(seconds=lasts))
            if not ahead:
                return None
            found = None if committed_by_other is None else committed_by_other()
            if found is not None:
                return found
            self.check_time()
            pause(min(LONGEST_WAIT, WAIT * ahead))
            ahead = commits.ahead(repository, self._branch, self.publisher)

    def check_time(self) -> None:
        """Raise ``BranchMoved`` when the time of the setting ``publish_minutes`` is over."""
        minutes = self._ctx.settings.publish_minutes
        if self._passed() > minutes * 60:
            raise BranchMoved(
                f"others moved branch {self._branch!r} for {minutes:g} minutes, and its turn did not come; try again, "
                "or raise the setting publish_minutes"
            )

    def leave(self) -> None:
        """Give the place up. One that cannot be given up now lapses."""
        with suppress(LakeopsError):
            self._ctx.catalog.commits.dequeue(self._ctx.repository_id, self._branch, self.publisher)


_publishers: ContextVar[Mapping[tuple[str, str], str]] = ContextVar("publishers", default=MappingProxyType({}))
"""The publishers whose places this thread has, by storage namespace and branch.

A callback that publishes to the same branch uses its caller's place. It would wait for its own caller otherwise.
"""
