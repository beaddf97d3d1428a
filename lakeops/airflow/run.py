"""Which piece of scheduled work a call belongs to: what its idempotency keys and its commits' metadata are made of.

The keys are a pure function of DAG id, run id, task id, map index and what the task is asked to do. The try number is
recorded but is no part of them, so a retried, killed or cleared task finds what an earlier try of it has published.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context


@dataclass(frozen=True)
class TaskRun:
    """One task of one DAG run, at one of its tries.

    ``logical_date`` is None in runs that have none, ``link`` where nobody has told Airflow its web address.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    logical_date: str | None
    link: str | None = None

    @classmethod
    def of(cls, context: Context) -> TaskRun:
        """The task that a context was made for."""
        task = context["ti"]
        logical_date = context.get("logical_date")
        return cls(
            dag_id=task.dag_id,
            run_id=task.run_id,
            task_id=task.task_id,
            map_index=-1 if task.map_index is None else task.map_index,
            try_number=task.try_number,
            logical_date=None if logical_date is None else logical_date.isoformat(),
            link=_link(task),
        )

    def key(self, *request: str, number: int = 1) -> str:
        """An idempotency key of this task.

        Args:
            request: what the task is asked to do: the verb and the refs that it is about. A task whose DAG was changed
                to ask for something else has new work.
            number: keys after the first are for a task that was cleared after what it publishes had changed.
        """
        parts = (self.dag_id, self.run_id, self.task_id, str(self.map_index), *request, str(number))
        return "airflow-" + hashlib.sha256("\x1f".join(parts).encode()).hexdigest()

    def metadata(self, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """Commit metadata: what the user gave, and where the commit comes from under ``airflow_*`` keys."""
        origin = {
            "airflow_dag_id": self.dag_id,
            "airflow_run_id": self.run_id,
            "airflow_task_id": self.task_id,
            "airflow_map_index": str(self.map_index),
            "airflow_try_number": str(self.try_number),
        }
        if self.logical_date is not None:
            origin["airflow_logical_date"] = self.logical_date
        if self.link is not None:
            origin["airflow_link"] = self.link
        return {**{key: str(value) for key, value in (given or {}).items()}, **origin}

    def made(self, metadata: Mapping[str, str]) -> bool:
        """Whether a commit with this metadata was made by the same DAG run, whichever task of it."""
        return metadata.get("airflow_dag_id") == self.dag_id and metadata.get("airflow_run_id") == self.run_id


def made_by_airflow(metadata: Mapping[str, str]) -> bool:
    """Whether a commit with this metadata was made by an operator, whichever DAG's."""
    return "airflow_dag_id" in metadata


def _link(task: object) -> str | None:
    """Where a person finds the task's log. Airflow makes up a host when nobody has told it its own; that is no link."""
    from airflow.sdk.configuration import conf

    url: str | None = getattr(task, "log_url", None) if conf.get("api", "base_url", fallback=None) else None
    return url
