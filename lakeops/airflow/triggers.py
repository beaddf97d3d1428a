"""Conditions that tasks wait for, and the triggers that wait in Airflow's triggerer, for deferred tasks and for assets.

A sensor and its trigger ask the same condition. A branch or tag that does not exist yet is waited for. Waiting cannot
mend other errors (no such repository, an expired commit, an expression that cannot be read): they come at once.

The triggerer runs hundreds of triggers in one event loop, so catalogs and stores are asked in threads. All triggers of
one connection and repository share one open lake, and an equal question is asked once at a time. Nothing is kept that a
restart of the triggerer would lose. Reading a DAG imports this module, so it imports no lake.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

import structlog
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from lakeops.airflow import idempotent
from lakeops.airflow.events import describe
from lakeops.airflow.hook import DEFAULT_CONN_ID, LakeopsHook
from lakeops.airflow.idempotent import made_by_airflow
from lakeops.model.clock import pause_async, stopwatch
from lakeops.model.errors import CatalogError, InvalidInput, LakeopsError, RefNotFound, Transient
from lakeops.model.mirrors import RefName
from lakeops.model.names import COMMIT_ID, check_branch, check_tag, parse_ref
from lakeops.model.records import RefKind

if TYPE_CHECKING:
    from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

    from lakeops.lake import Lake, Repository
    from lakeops.lake.mirror import Mirror
    from lakeops.model.records import Commit
else:
    try:
        from airflow.triggers.shared_stream import SharedStreamProducer
    except ImportError:  # before Airflow 3.3, where each trigger has a stream of its own
        SharedStreamProducer = object


# --- conditions ---

NO_COMMIT = ""
"""The head of a branch that does not exist: every commit of it is new."""


Record = dict[str, Any]


@dataclass(frozen=True)
class Condition:
    """A condition of a repository, by its name in ``CONDITIONS``. A wait ends when it is met. It travels as JSON."""

    name: str
    arguments: tuple[str | int, ...]

    def met(self, repository: Repository) -> Record | None:
        """The record that the waiting task returns; None when the condition is not met yet."""
        return CONDITIONS[self.name][0](repository, *self.arguments)

    def __str__(self) -> str:
        return CONDITIONS[self.name][1](*self.arguments)


def _new_commit(repository: Repository, branch: str, since: str) -> Record | None:
    try:
        head = repository.branch(branch).head
    except RefNotFound:
        return None
    if head.id == since or (since and idempotent.contains(repository, since, head.id)):
        return None
    return head.to_json()


def _object(repository: Repository, ref: str, path: str) -> Record | None:
    found = None if _missing(repository, ref) else repository.ref(ref).find(path)
    return None if found is None else found.to_json()


def _prefix(repository: Repository, name: str, prefix: str, at_least: int) -> Record | None:
    if _missing(repository, name):
        return None
    ref = repository.ref(name)
    if sum(1 for _ in islice(ref.list(prefix), at_least)) < at_least:
        return None
    return {"ref": name, "prefix": prefix, "commit_id": ref.commit_id}


def _tag(repository: Repository, tag: str) -> Record | None:
    check_tag(tag)
    with suppress(RefNotFound):
        return repository.tag(tag).to_json()
    return None


def _nothing_uncommitted(repository: Repository, name: str, prefix: str) -> Record | None:
    with suppress(RefNotFound):
        branch = repository.branch(name)
        if next(iter(branch.uncommitted(prefix)), None) is None:
            return {"id": branch.id, "commit_id": branch.commit_id}
    return None


def _replicated(repository: Repository, kind: str, name: str) -> Record | None:
    from lakeops.lake.mirror import Mirror

    (check_branch if kind == RefKind.BRANCH else check_tag)(name)
    found = Mirror.of(repository).arrived(RefName(RefKind(kind), name))
    return None if found is None else {"id": name, "commit_id": found}


CONDITIONS: dict[str, tuple[Callable[..., Record | None], Callable[..., str]]] = {
    "new commit": (
        _new_commit,  # that ``since``, a ref expression or ``NO_COMMIT``, does not have
        lambda branch, since: f"branch {branch!r} has a commit that {since[:16]!r} does not have",
    ),
    "object": (_object, lambda ref, path: f"there is an object {path!r} at {ref!r}"),
    "prefix": (
        _prefix,
        lambda ref, prefix, at_least: (
            f"there is {'an object' if at_least == 1 else f'at least {at_least} objects'} under {prefix!r} at {ref!r}"
        ),
    ),
    "tag": (_tag, lambda tag: f"there is a tag {tag!r}"),
    "nothing uncommitted": (
        _nothing_uncommitted,
        lambda branch, prefix: f"branch {branch!r} has no uncommitted changes{prefix and f' under {prefix!r}'}",
    ),
    "replicated": (_replicated, lambda kind, name: f"everything that {kind} {name!r} waits for has been replicated"),
}
"""What tasks wait for: how a repository is asked, and the condition in words. Branches show what is uncommitted too."""


@dataclass(frozen=True)
class HeadSince:
    """The question where a watched branch's head is, and which event describes its move from ``cursor``.

    ``cursor`` is where the head was when it was read last: None when it was never read, ``NO_COMMIT`` when there was no
    branch. Without ``every``, a move by commits of Airflow's operators alone is not announced: they announce their own.
    """

    branch: str
    cursor: str | None
    every: bool

    def met(self, repository: Repository) -> tuple[str, dict[str, Any] | None]:
        try:
            head = repository.branch(self.branch).head
        except RefNotFound:
            return NO_COMMIT, None
        if self.cursor is None or head.id == self.cursor or not (self.every or self._moved_outside(repository, head)):
            return head.id, None
        return head.id, describe(repository, self.branch, head.to_json(), since=self.cursor or None)

    def _moved_outside(self, repository: Repository, head: Commit) -> bool:
        """Tell whether any commit from the cursor to the head was made outside Airflow."""
        for commit in repository.log(head.id, first_parent=True):
            if commit.id == self.cursor:
                return False
            if not made_by_airflow(commit.metadata):
                return True
        return True


@dataclass(frozen=True)
class MirrorsDue:
    """The question which mirrors are due. One whose source cannot be reached is: its run says why."""

    def met(self, lake: Lake) -> tuple[str, ...]:
        return tuple(mirror.id for mirror in lake.mirrors() if self._is_due(mirror))

    def _is_due(self, mirror: Mirror) -> bool:
        if mirror.configuration.promoted_writable is not None:
            return False
        try:
            return mirror.due()
        except LakeopsError:
            return True


Question = Condition | HeadSince | MirrorsDue
"""A question of a trigger to a repository or a lake. Equal ones are asked once for everybody who waits."""


def _missing(repository: Repository, ref: str) -> bool:
    """Tell whether a ref begins with a branch or tag that does not exist yet, as ``main``, ``main@``, ``main~1`` may.

    Any other ref that does not exist raises: a commit that is not there, a step past the root.
    """
    try:
        repository.ref(ref).commit_id  # noqa: B018 - asked for its error
    except RefNotFound:
        base = parse_ref(ref).base
        if COMMIT_ID.fullmatch(base) or (base != ref and not _missing(repository, base)):
            raise
        return True
    return False


def check_interval(name: str, seconds: float) -> float:
    """Check an interval between two questions, and return it. Raises ``InvalidInput``."""
    if not 0 < seconds < float("inf"):
        raise InvalidInput(f"{name} must be a positive number of seconds, not {seconds!r}")
    return seconds


# --- waiting in the triggerer ---


TICK_SECONDS = 1.0
"""How often a poller ticks. A trigger asks at every n-th tick, so its interval is rounded to whole ticks."""
RENEW_SECONDS = 60.0
"""How long a poller trusts the connection as it was read. It may name another lake since."""

log: Any = structlog.get_logger(__name__)


class Tick:
    """A moment at which a poller's triggers may ask, and the answers of that moment."""

    def __init__(self, poller: Poller, number: int) -> None:
        self._poller = poller
        self._number = number
        self._answers: dict[Question, asyncio.Task[Any]] = {}
        self._when_stored: list[Callable[[], Awaitable[None]]] = []
        self.over = False

    @property
    def beats(self) -> float:
        """Seconds since the poller began, counted in ticks."""
        return self._number * TICK_SECONDS

    def due(self, interval: float) -> bool:
        """Tell whether a trigger with this interval asks now. Equal intervals are due at the same ticks."""
        return not self.over and self._number % max(1, round(interval / TICK_SECONDS)) == 0

    async def ask(self, question: Question) -> Any:
        """The answer to a question at this tick. Callers with equal questions share it."""
        if question not in self._answers:
            self._answers[question] = self._poller.begin(question)
        # One trigger that is cancelled must not take the answer away from the others.
        return await asyncio.shield(self._answers[question])

    def when_stored(self, act: Callable[[], Awaitable[None]]) -> None:
        """Call ``act`` once Airflow has stored every event that triggers made at this tick."""
        self._when_stored.append(act)

    async def stored(self) -> None:
        """Make the calls of ``when_stored``. A failure is only logged: the events come again after a restart."""
        for act in self._when_stored:
            try:
                await act()
            except Exception:
                log.exception("A watcher could not save its cursor; its last event may come again")


class Poller(SharedStreamProducer):
    """Opens a lake, and makes the ticks of one repository, or of the lake as a whole."""

    def __init__(self, conn_id: str, repo: str | None = None) -> None:
        self._conn_id = conn_id
        self._repo = repo
        self._lock = Lock()
        self._lake: Lake | None = None
        self._since = stopwatch()
        self._asking: set[asyncio.Task[Any]] = set()

    async def open_stream(self) -> AsyncGenerator[tuple[Tick, Tick]]:
        """Ticks without end, each twice: as the event, and as the payload that ``advance`` gets back."""
        number = 0
        while True:
            tick = Tick(self, number)
            yield tick, tick
            await pause_async(TICK_SECONDS)
            tick.over = True
            number += 1

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for item in batch:
            if item.outcome.failed == 0:
                await item.broker_payload.stored()

    async def aclose(self) -> None:
        await asyncio.gather(*self._asking, return_exceptions=True)
        await asyncio.to_thread(self._close)

    def begin(self, question: Question) -> asyncio.Task[Any]:
        """Ask a question in a thread, because catalogs and stores block."""
        task = asyncio.create_task(asyncio.to_thread(self._answer, question))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # else asyncio logs it as never read
        return task

    def _answer(self, question: Question) -> Any:
        try:
            lake = self._open()
            with LakeopsHook(self._conn_id).naming(lake):
                place: Any = lake if self._repo is None else lake.repository(self._repo)
                return question.met(place)
        except (Transient, CatalogError) as error:
            known = self._since()
            self._close()  # the next question reads the connection anew: its password may have changed
            if isinstance(error, CatalogError) and known >= TICK_SECONDS:
                return self._answer(question)
            raise

    def _open(self) -> Lake:
        hook = LakeopsHook(self._conn_id)
        with self._lock:
            if self._lake is not None and self._since() >= RENEW_SECONDS:
                self._since, is_other = stopwatch(), False
                try:
                    is_other = hook.settings() != self._lake.settings
                except InvalidInput:  # it is deleted or misspelt by now: get_conn says so, as after a restart
                    is_other = True
                except Exception as error:  # noqa: BLE001 - Airflow's API server does not answer; the lake does
                    log.warning("Cannot read connection %s now: %s", self._conn_id, error)
                if is_other:
                    self._lake.close()
                    self._lake = None
            if self._lake is None:
                self._lake, self._since = hook.get_conn(), stopwatch()
            return self._lake

    def _close(self) -> None:
        with self._lock:
            lake, self._lake = self._lake, None
        if lake is not None:
            lake.close()


class LakeopsTrigger(BaseEventTrigger):
    """A trigger that asks about a repository, or about a lake as a whole, again and again.

    All triggers of the same connection and repository share one poller. One about a lake has its own: its answer may
    take minutes.
    """

    arguments: ClassVar[tuple[str, ...]] = ("repo", "lakeops_conn_id", "poll_interval")

    def __init__(
        self, *, repo: str | None = None, lakeops_conn_id: str = DEFAULT_CONN_ID, poll_interval: float = 10
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.repo = repo
        self.lakeops_conn_id = lakeops_conn_id
        self.poll_interval: float = check_interval("poll_interval", poll_interval)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"lakeops.airflow.triggers.{type(self).__name__}", {name: getattr(self, name) for name in self.arguments}

    def shared_stream_key(self) -> Hashable:
        return None if self.repo is None else ("lakeops", self.lakeops_conn_id, self.repo)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Poller:
        return Poller(kwargs["lakeops_conn_id"], kwargs["repo"])

    async def run(self) -> AsyncGenerator[TriggerEvent]:
        """The events, from a poller of this trigger's own: for callers without shared streams, like ``dag.test``."""
        poller = Poller(self.lakeops_conn_id, self.repo)
        try:
            async with aclosing(self.filter_shared_stream(_ticks(poller))) as events:
                async for event in events:
                    yield event
        finally:
            await poller.aclose()

    @abstractmethod
    def filter_shared_stream(self, shared_stream: AsyncIterator[Tick]) -> AsyncGenerator[TriggerEvent]:
        """This trigger's events, found at the ticks of a poller."""


async def _ticks(poller: Poller) -> AsyncGenerator[Tick]:
    """The ticks of a poller for one trigger, which has stored its events when it asks for the next tick."""
    async with aclosing(poller.open_stream()) as stream:
        async for tick, _ in stream:
            yield tick
            await tick.stored()


class LakeopsConditionTrigger(LakeopsTrigger):
    """Fires once, when the condition is met or can never be.

    The event is ``{"status": "success", "result": record}`` or ``{"status": "error", "message": text}``. After an error
    that may pass it asks again, until the waiting task's timeout.

    Args:
        condition: a ``Condition`` as a dictionary.
        settle: seconds after the wait began before which no event is sent. Airflow 3.3 may fail a task that is resumed
            before its executor noticed that its process ended.
    """

    arguments: ClassVar[tuple[str, ...]] = (*LakeopsTrigger.arguments, "condition", "settle")

    def __init__(self, *, condition: Mapping[str, Any], settle: float = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.condition: dict[str, Any] = dict(condition)
        self.settle = settle

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Tick]) -> AsyncGenerator[TriggerEvent]:
        loop = asyncio.get_running_loop()
        settled = loop.time() + self.settle
        async for tick in shared_stream:
            if not tick.due(self.poll_interval):
                continue
            try:
                found = await tick.ask(Condition(self.condition["name"], tuple(self.condition["arguments"])))
                event = {"status": "success", "result": found}
            except Transient as error:
                self.log.warning("Waiting goes on: %s", error.message)
                continue
            except LakeopsError as error:
                event = {"status": "error", "message": f"{error.kind}: {error.message}"}
            if event.get("result") is not None or event["status"] == "error":
                await pause_async(max(0.0, settled - loop.time()))
                yield TriggerEvent(event)  # type: ignore[no-untyped-call]
                return


CURSOR = "lakeops_head"
"""The key of a watcher's cursor in Airflow's asset state store: the last head that it has announced."""


class LakeopsCommitTrigger(LakeopsTrigger):
    """Fires whenever a branch's head has moved by commits that were not made by Airflow's own operators.

    Several commits between two questions make one event about all of them. The cursor is kept in Airflow's asset state
    store, so a restart loses no event, and only one at the moment of a crash may come twice. A branch that does not
    exist yet is waited for.

    Args:
        asset: the asset's name. Airflow refuses two assets with equal triggers, which would share one cursor.
        every: fire for commits of Airflow's operators as well: for branches that another Airflow commits to.
    """

    arguments: ClassVar[tuple[str, ...]] = (*LakeopsTrigger.arguments, "branch", "asset", "every")

    def __init__(self, *, branch: str, asset: str, every: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.asset = asset
        self.every = every

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Tick]) -> AsyncGenerator[TriggerEvent]:
        store = getattr(self, "asset_state_store", None)  # since Airflow 3.3
        cursor: str | None = None if store is None else await store.aget(CURSOR)
        async for tick in shared_stream:
            if not tick.due(self.poll_interval):
                continue
            try:
                head, event = await tick.ask(HeadSince(self.branch, cursor, self.every))
            except LakeopsError as error:
                self.log.warning("Cannot watch lakefs://%s/%s now: %s", self.repo, self.branch, error)
                continue
            if head == cursor:
                continue
            cursor = head
            if store is not None:
                tick.when_stored(partial(store.aset, CURSOR, head))
            if event is not None:
                yield TriggerEvent(event)  # type: ignore[no-untyped-call]


class LakeopsMirrorTrigger(LakeopsTrigger):
    """Fires when mirrors of a lake have something to do. The event is ``{"mirrors": names}``.

    While there is something to do it fires again, every ``rest`` seconds. A mirror whose source cannot be reached has
    something to do, so that somebody is told.
    """

    arguments: ClassVar[tuple[str, ...]] = (*LakeopsTrigger.arguments, "rest")

    def __init__(self, *, rest: float = 60, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rest: float = check_interval("rest", rest)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Tick]) -> AsyncGenerator[TriggerEvent]:
        fired: float | None = None
        async for tick in shared_stream:
            rested = fired is None or tick.beats - fired >= self.rest
            if not rested or not tick.due(self.poll_interval):
                continue
            try:
                names = await tick.ask(MirrorsDue())
            except LakeopsError as error:
                self.log.warning("Cannot look after mirrors now: %s", error)
                continue
            if names:
                fired = tick.beats
                yield TriggerEvent({"mirrors": list(names)})  # type: ignore[no-untyped-call]
