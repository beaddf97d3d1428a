"""Metrics of tasks, sent by Airflow's own StatsD or OpenTelemetry client: nothing is sent where Airflow has none."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal

from airflow.providers.common.compat.sdk import Stats
from airflow.sdk import get_current_context

Metric = Literal[
    "lakeops.commits",
    "lakeops.conflicts",
    "lakeops.retries",
    "lakeops.rejected",
    "lakeops.gc.bytes_freed",
    "lakeops.mirror.lag_seconds",
    "lakeops.mirror.lag_commits",
]
"""Counters, and the two gauges of mirrors. ``docs/airflow.md`` says what each counts."""


def emit(metric: Metric, value: int = 1, **tags: str) -> None:
    """Add to a counter, or set a gauge. The running task's ``dag_id`` and ``task_id`` are tags too."""
    with suppress(RuntimeError, KeyError):  # no task is running
        task: Any = get_current_context()["ti"]
        tags = {"dag_id": task.dag_id, "task_id": task.task_id, **tags}
    with suppress(Exception):  # no task fails over a metric
        send = Stats.gauge if metric.startswith("lakeops.mirror.") else Stats.incr
        send(metric, value, tags=tags)
