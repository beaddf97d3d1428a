"""What the triggers share: the repository's stream, and how a question's failure ends."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import aclosing
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import structlog
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome, SharedStreamProducer

from lakeops.airflow.conditions import check_interval
from lakeops.airflow.conditions import condition as read_condition
from lakeops.airflow.hook import DEFAULT_CONN_ID, LakeopsHook
from lakeops.model.clock import pause_async
from lakeops.model.errors import LakeopsError, Transient

if TYPE_CHECKING:
    from lakeops.lake import Lake, Repository


BEAT_SECONDS = 1.0
log = structlog.get_logger(__name__)

Answer_co = TypeVar("Answer_co", covariant=True)


class Question(Protocol[Answer_co]):
    """Anything hashable that reads a repository."""

    def __hash__(self) -> int: ...

    def met(self, repository: Repository) -> Answer_co:
        """The answer, read now."""
        ...


class Tick:
    """One beat of a poller, and the answers that were given at it."""

    def __init__(self, poller: Poller, number: int) -> None:
        self._poller = poller
        self._number = number
        self._answers: dict[Question[Any], asyncio.Task[Any]] = {}
        self._after: list[Callable[[], Awaitable[None]]] = []
        self.over = False

    def due(self, interval: float) -> bool:
        """Whether somebody with this interval asks now. Equal intervals meet, and a tick that is over is skipped."""
        return not self.over and self._number % max(1, round(interval / BEAT_SECONDS)) == 0

    async def ask(self, question: Question[Answer_co]) -> Answer_co:
        """The answer to a question at this tick; every caller with an equal question gets the same one."""
        if question not in self._answers:
            self._answers[question] = self._poller.begin(question)
        # One trigger that is cancelled must not take the answer away from the others.
        return cast("Answer_co", await asyncio.shield(self._answers[question]))

    def after_persisted(self, act: Callable[[], Awaitable[None]]) -> None:
        """Do something when Airflow has stored every event that triggers made of this tick."""
        self._after.append(act)

    async def persisted(self) -> None:
        """Do what was asked for. A failure is logged: then the same events come again after a restart."""
        for act in self._after:
            try:
                await act()
            except Exception:
                log.exception("A watcher could not save where it is; its last event may come again")


class Poller(SharedStreamProducer):
    """The ticks of one repository, and its open lake."""

    def __init__(self, conn_id: str, repo: str) -> None:
        self._conn_id = conn_id
        self._repo = repo
        self._lock = Lock()
        self._lake: Lake | None = None
        self._asking: set[asyncio.Task[Any]] = set()

    async def open_stream(self) -> AsyncGenerator[tuple[Tick, Tick]]:
        """Ticks, for ever: each as the event and as what ``advance`` gets back."""
        number = 0
        while True:
            tick = Tick(self, number)
            yield tick, tick
            await pause_async(BEAT_SECONDS)
            tick.over = True
            number += 1

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Save what was asked to be saved once the events of these ticks were stored."""
        for item in batch:
            if item.outcome.failed == 0:
                await item.broker_payload.persisted()

    async def aclose(self) -> None:
        """Wait for questions under way, and close the lake."""
        await asyncio.gather(*self._asking, return_exceptions=True)
        await asyncio.to_thread(self._close)

    def begin(self, question: Question[Any]) -> asyncio.Task[Any]:
        """Ask in a thread of its own: catalogs and stores block."""
        task = asyncio.create_task(asyncio.to_thread(self._answer, question))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    def _answer(self, question: Question[Any]) -> Any:  # noqa: ANN401 - whatever the question gives
        try:
            return question.met(self._open().repository(self._repo))
        except Transient:
            self._close()  # the next question reads the connection anew: its password may have changed
            raise

    def _open(self) -> Lake:
        with self._lock:
            if self._lake is None:
                self._lake = LakeopsHook(self._conn_id).get_conn()
            return self._lake

    def _close(self) -> None:
        with self._lock:
            lake, self._lake = self._lake, None
        if lake is not None:
            lake.close()


class RepositoryTrigger(BaseEventTrigger):
    """A trigger that asks about one repository. All of one connection and repository share one poller.

    Args:
        repo: the repository.
        lakeops_conn_id: the connection.
        poll_interval: seconds between two questions.
    """

    def __init__(self, *, repo: str, lakeops_conn_id: str = DEFAULT_CONN_ID, poll_interval: float = 10) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.repo = repo
        self.lakeops_conn_id = lakeops_conn_id
        self.poll_interval = check_interval("poll_interval", poll_interval)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the class is, and its arguments as plain data."""
        return f"lakeops.airflow.triggers.{type(self).__name__}", {
            "repo": self.repo,
            "lakeops_conn_id": self.lakeops_conn_id,
            "poll_interval": self.poll_interval,
        }

    def shared_stream_key(self) -> Hashable:
        """One stream a connection and repository."""
        return ("lakeops", self.lakeops_conn_id, self.repo)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Poller:
        """The stream of whoever comes first; the others join it."""
        return Poller(kwargs["lakeops_conn_id"], kwargs["repo"])

    async def run(self) -> AsyncGenerator[TriggerEvent]:
        """The events, over a poller of this trigger's own: for callers that share no streams, like ``dag.test``."""
        poller = Poller(self.lakeops_conn_id, self.repo)
        try:
            async with aclosing(self.filter_shared_stream(_ticks(poller))) as events:
                async for event in events:
                    yield event
        finally:
            await poller.aclose()

    @abstractmethod
    def filter_shared_stream(self, shared_stream: AsyncIterator[Tick]) -> AsyncGenerator[TriggerEvent]:
        """This trigger's events."""


async def _ticks(poller: Poller) -> AsyncGenerator[Tick]:
    """A poller's ticks for one trigger, which has stored its events when it asks for the next tick."""
    async with aclosing(poller.open_stream()) as stream:
        async for tick, _ in stream:
            yield tick
            await poller.advance([AdvanceItem(tick, AdvanceOutcome(acked=1, failed=0))])


class LakeopsConditionTrigger(RepositoryTrigger):
    """Fires once, when the condition is met or can never be.

    The event is ``{"status": "success", "result": record}`` or ``{"status": "error", "message": text}``. Errors that
    may pass are logged and waited out; the waiting task's timeout bounds that.

    Args:
        condition: what ``Condition.to_json`` gives.
        settle: the event is held back for this many seconds after the wait began. Airflow 3.3 takes a task that is
            resumed before its executor noticed that its process ended for a failed one.
        repo: the repository.
        lakeops_conn_id: the connection.
        poll_interval: seconds between two questions.
    """

    def __init__(
        self,
        *,
        condition: Mapping[str, Any],
        repo: str,
        lakeops_conn_id: str = DEFAULT_CONN_ID,
        poll_interval: float = 10,
        settle: float = 0,
    ) -> None:
        super().__init__(repo=repo, lakeops_conn_id=lakeops_conn_id, poll_interval=poll_interval)
        self.condition = read_condition(condition)
        self.settle = settle

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the class is, and its arguments as plain data."""
        path, kwargs = super().serialize()
        return path, {**kwargs, "condition": self.condition.to_json(), "settle": self.settle}

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Tick]) -> AsyncGenerator[TriggerEvent]:
        """The one event."""
        loop = asyncio.get_running_loop()
        settled = loop.time() + self.settle
        async for tick in shared_stream:
            if not tick.due(self.poll_interval):
                continue
            event = await self._ask(tick)
            if event is not None:
                await pause_async(max(0.0, settled - loop.time()))
                yield TriggerEvent(event)  # type: ignore[no-untyped-call]
                return

    async def _ask(self, tick: Tick) -> dict[str, Any] | None:
        try:
            found = await tick.ask(self.condition)
        except Transient as error:
            self.log.warning("Waiting goes on: %s", error.message)
            return None
        except LakeopsError as error:
            return {"status": "error", "message": f"{error.kind}: {error.message}"}
        except AirflowNotFoundException as error:
            return {"status": "error", "message": str(error)}
        return None if found is None else {"status": "success", "result": found}
