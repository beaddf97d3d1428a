"""One poller a repository: everything that waits for something in it asks over the same open lake, at the same beat.

The triggerer runs one ``Poller`` for all triggers with the same connection and repository (Airflow's shared streams).
It opens the lake when the first question comes, and hands out ticks; a trigger asks its question at the ticks that its
interval makes it due at, and an equal question at one tick is asked once. Between due ticks nothing is read.

The stream runs in Airflow's acknowledged mode, because of the cursor that a watcher keeps: what is said to happen
``after_persisted`` runs when Airflow has stored the events of that tick, and not before. A triggerer that dies in
between asks again from the older cursor: an event may come twice, and none is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import structlog
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from lakeops.airflow.hook import LakeopsHook
from lakeops.model.clock import pause_async
from lakeops.model.errors import Transient

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
