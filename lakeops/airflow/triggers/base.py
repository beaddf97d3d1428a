"""What the triggers share: the repository's stream, and how a question's failure ends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Hashable
from contextlib import aclosing
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome

from lakeops.airflow.conditions import check_interval
from lakeops.airflow.hook import DEFAULT_CONN_ID
from lakeops.airflow.triggers.stream import Poller, Tick


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
