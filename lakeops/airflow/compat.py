"""Differences between versions of Airflow, and the failures of lakeops' tasks.

This is the one place that asks which Airflow this is. ``docs/provider.md`` lists what an older Airflow misses.

A user's mistake is one line of the task's log, without a traceback. Airflow's task runner logs every exception with a
traceback. So the failures of this module put a structlog processor in front of Airflow's, which writes their message
and drops their traceback (``docs/adr/0084-the-provider-is-written-as-providers-are.md``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from airflow import __version__
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSensorTimeout,
    TaskDeferred,
    conf,
)
from airflow.sdk import TaskInstanceState

from lakeops.model.errors import InvalidInput, Transient, invalid_settings

__all__ = ["KNOWN", "LakeopsFailure", "LakeopsTimeout", "NoSuchConnection", "TaskAwaitingInput", "TaskDeferralError"]

KNOWN = tuple(int(part) for part in __version__.split(".")[:2])
"""Airflow's version, major and minor."""

if TYPE_CHECKING or KNOWN >= (3, 2):
    from airflow.sdk.exceptions import TaskDeferralError
else:
    from airflow.exceptions import TaskDeferralError

if TYPE_CHECKING or KNOWN >= (3, 3):
    from airflow.sdk.exceptions import TaskAwaitingInput
else:
    TaskAwaitingInput = TaskDeferred  # a task that asks somebody is deferred


def web_server() -> SplitResult:
    """The address of Airflow's web server, as ``[api] base_url`` has it without slashes at its end; empty for none."""
    return urlsplit((conf.get("api", "base_url", fallback="") or "").rstrip("/"))


def require(version: tuple[int, int], what: str) -> None:
    """Refuse, when the DAG is read, what this Airflow does not have. Raises ``InvalidInput``."""
    if version > KNOWN:
        raise InvalidInput(f"{what} needs Airflow {version[0]}.{version[1]} or newer, and this is {__version__}")


class NoSuchConnection(AirflowNotFoundException, InvalidInput):
    """Airflow has no connection of that name. lakeops opens no other lake instead."""

    kind = "invalid_settings"


def log_in_one_line() -> None:
    """Make Airflow log the failures of lakeops' tasks, and errors that may pass, without a traceback."""
    import structlog

    # Airflow's loggers hold on to this list, so it is changed in place, as structlog's capture_logs does.
    processors = structlog.get_config()["processors"]
    if isinstance(processors, list) and without_traceback not in processors:
        processors.insert(0, without_traceback)


class _LoggedInOneLine:
    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        log_in_one_line()


class LakeopsFailure(_LoggedInOneLine, AirflowFailException):
    """Fails the task without retry. The log has its message in place of a traceback."""


class LakeopsTimeout(_LoggedInOneLine, AirflowSensorTimeout):
    """Fails a sensor that has waited too long. The log has its message in place of a traceback."""


def without_traceback(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ARG001 - structlog's
    """Replace the traceback of a log event about one of these failures by its message: structlog's processor."""
    given = event.get("exc_info")
    failure = given if isinstance(given, BaseException) else sys.exc_info()[1]
    if given and isinstance(failure, (LakeopsFailure, LakeopsTimeout, Transient)):
        del event["exc_info"]
        event["event"] = f"{event['event']}: {failure}"
    return event


def confirm_missing(conn_id: str) -> None:
    """Check that there is no such connection, where Airflow has not found one.

    A connection that cannot be parsed, and an API server that fails, look to Airflow's callers like a missing one.

    Raises:
        InvalidInput: the environment has it, and Airflow cannot read it.
        Transient: Airflow's API server did not say that there is none.
    """
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    if os.environ.get(variable):
        raise invalid_settings(f"connection {conn_id!r}: Airflow cannot read {variable}; write a URI or JSON there")
    try:
        from airflow.sdk.exceptions import ErrorType
        from airflow.sdk.execution_time.comms import ErrorResponse, GetConnection
        from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS
    except ImportError:  # no process of a task: nobody to ask
        return
    answer: Any = None
    with suppress(Exception):  # whatever it is, it is no answer
        answer = SUPERVISOR_COMMS.send(GetConnection(conn_id=conn_id))
    if not (isinstance(answer, ErrorResponse) and answer.error == ErrorType.CONNECTION_NOT_FOUND):
        raise Transient(f"Airflow's API server does not say whether there is a connection {conn_id!r}; try again")


def last_success(task: Any, map_index: int) -> str | None:
    """The last successful run before a task's own, by logical date: of the task, and on Airflow 3.1 of its DAG."""
    if KNOWN < (3, 2):
        found: Any = task.get_previous_dagrun(state="success")
    else:
        found = task.get_previous_ti(state=TaskInstanceState.SUCCESS, map_index=map_index)
    return None if found is None else str(found.run_id)
