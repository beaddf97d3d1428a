"""Waiting in the triggerer for a condition, on behalf of a deferred task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.triggers.base import TriggerEvent

from lakeops.airflow.conditions import condition as read_condition
from lakeops.airflow.hook import DEFAULT_CONN_ID
from lakeops.airflow.triggers.base import RepositoryTrigger
from lakeops.airflow.triggers.stream import Tick
from lakeops.model.clock import pause_async
from lakeops.model.errors import LakeopsError, Transient


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
