"""Runs a sensor to its end in each of its forms, without an Airflow around it: no process waits, the clock is ours.

Between two questions ``meanwhile`` is called in place of any wait, so a test says what happens while a task waits.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk.bases import sensor as airflow_sensor
from airflow.sdk.module_loading import import_string

from lakeops.airflow import triggers
from lakeops.model.errors import InvalidInput

FORMS = ("poke", "reschedule", "deferrable")
FAIL = "__fail__"
TIMED_OUT = "Trigger timeout"


class TaskState(dict[str, Any]):
    """Airflow's task state store: what one task of one run remembers."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


@dataclass
class Waiting:
    """One waiting task. ``end`` gives what it returns, or raises what it fails with."""

    form: str
    monkeypatch: pytest.MonkeyPatch
    meanwhile: Iterator[Callable[[], object]] = field(default_factory=lambda: iter(()))
    previous: dict[str, Any] | None = None
    waits: list[float] = field(default_factory=list)
    settled: list[float] = field(default_factory=list)
    state: TaskState = field(default_factory=TaskState)
    _began: datetime | None = None

    def __post_init__(self) -> None:
        # Not `time.sleep` itself: threads of libraries sleep too, and would take our turns.
        self.monkeypatch.setattr(airflow_sensor, "time", SimpleNamespace(monotonic=time.monotonic, sleep=self._pause))
        self.monkeypatch.setattr(triggers, "pause_async", self._pause_async)

    def context(self) -> dict[str, Any]:
        """The context of a run that has a predecessor when ``previous`` says what its task returned."""
        before = None if self.previous is None else SimpleNamespace(run_id="before")
        task = SimpleNamespace(
            task_id="wait",
            map_index=-1,
            get_first_reschedule_date=lambda _: self._began,
            get_previous_ti=lambda state, map_index: before,
            get_previous_dagrun=lambda state: before,  # asked by Airflow 3.1
            xcom_pull=lambda task_ids, run_id, map_indexes: self.previous,
        )
        return {"ti": task, "logical_date": datetime(2013, 1, 1, tzinfo=UTC), "task_state_store": self.state}

    def end(self, make: Callable[..., Any], **kwargs: Any) -> Any:
        """Run the sensor that ``make`` builds, each time in a fresh process as it were.

        The test is skipped where lakeops refuses the sensor because this Airflow is too old.
        """
        build = partial(make, **kwargs, deferrable=self.form == "deferrable", mode=self._mode)
        try:
            build()
        except InvalidInput as refused:
            if "needs Airflow" not in refused.message:
                raise
            pytest.skip(refused.message)
        while True:
            try:
                return build().execute(self.context())
            except airflow_sensor.AirflowRescheduleException:
                self._began = self._began or datetime.now(UTC) - timedelta(seconds=1)
                self._pause(0)
            except TaskDeferred as deferred:
                return self._resume(build(), deferred)

    @property
    def _mode(self) -> str:
        return "poke" if self.form == "deferrable" else self.form

    def _resume(self, sensor: Any, deferred: TaskDeferred) -> Any:
        path, kwargs = json.loads(json.dumps(deferred.trigger.serialize()))  # as it travels to the triggerer
        trigger = import_string(path)(**kwargs)
        assert trigger.serialize() == (path, kwargs)
        try:
            event = asyncio.run(_first(trigger))
        except Ended as ended:
            return sensor.resume_execution(FAIL, {"error": ended.why}, self.context())
        return sensor.resume_execution(deferred.method_name, {"event": event}, self.context())

    def _pause(self, seconds: float) -> None:
        self.waits.append(seconds)
        step = next(self.meanwhile, None)
        if step is None:
            raise Ended(TIMED_OUT)
        step()

    async def _pause_async(self, seconds: float) -> None:
        """A poller pauses for a tick exactly; any other pause is a trigger's that holds its event back."""
        if seconds == triggers.TICK_SECONDS:
            self._pause(seconds)
        else:
            self.settled.append(seconds)


class Ended(Exception):
    """Nothing more happens meanwhile: where Airflow would end a deferral."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


async def _first(trigger: Any) -> Any:
    async for event in trigger.run():
        return event.payload
    raise AssertionError("the trigger ended without an event")
