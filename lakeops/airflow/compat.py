"""What Airflow 3.1 and 3.2 keep elsewhere, or do not have: the one place that asks which Airflow this is.

Nothing here changes what a task does on Airflow 3.3. ``docs/provider.md`` lists what an older Airflow misses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow import __version__
from airflow.sdk import TaskInstanceState

from lakeops.model.errors import InvalidInput

KNOWN = tuple(int(part) for part in __version__.split(".")[:2])
"""Airflow's version, major and minor."""

if TYPE_CHECKING or KNOWN >= (3, 2):
    from airflow.sdk import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        TaskDeferralError,
        TaskDeferred,
    )
    from airflow.sdk.plugins_manager import AirflowPlugin
else:
    from airflow.configuration import conf
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        TaskDeferralError,
        TaskDeferred,
    )
    from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING or KNOWN >= (3, 3):
    from airflow.sdk.exceptions import TaskAwaitingInput
else:
    TaskAwaitingInput = TaskDeferred  # a task that asks somebody is deferred

__all__ = [
    "KNOWN",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowPlugin",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "TaskAwaitingInput",
    "TaskDeferralError",
    "TaskDeferred",
    "conf",
    "last_success",
    "require",
]


def require(version: tuple[int, int], what: str) -> None:
    """Refuse, when the DAG is read, what this Airflow does not have. Raises ``InvalidInput``."""
    if version > KNOWN:
        raise InvalidInput(f"{what} needs Airflow {version[0]}.{version[1]} or newer, and this is {__version__}")


def last_success(task: Any, map_index: int) -> str | None:  # noqa: ANN401 - Airflow's running task
    """The last successful run before a task's own, by logical date: of the task, and on Airflow 3.1 of its DAG."""
    if KNOWN < (3, 2):
        found: Any = task.get_previous_dagrun(state="success")
    else:
        found = task.get_previous_ti(state=TaskInstanceState.SUCCESS, map_index=map_index)
    return None if found is None else str(found.run_id)
