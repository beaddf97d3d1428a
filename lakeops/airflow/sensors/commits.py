"""Waiting for commits, and for a branch to be clean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskInstanceState

from lakeops.airflow.conditions import NOTHING, NewCommit, NothingUncommitted
from lakeops.airflow.sensors.base import LakeopsSensor
from lakeops.model.errors import RefNotFound

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.airflow.conditions import Condition
    from lakeops.lake import Repository

SINCE = "lakeops_since"


class LakeopsCommitSensor(LakeopsSensor):
    """Waits until a branch has a commit that ``since`` does not have; returns the record of the branch's head.

    Args:
        branch: the branch; the default one when left out. One that does not exist yet is waited for.
        since: a commit id, a tag or any ref expression. Left out: the commit that this task returned in the last
            successful run before this one (by logical date); where there is none, the branch's head when the wait
            began.
        kwargs: see ``LakeopsSensor``.
    """

    template_fields: Sequence[str] = (*LakeopsSensor.template_fields, "branch", "since")

    def __init__(self, *, branch: str | None = None, since: str | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.branch = branch
        self.since = since

    def condition(self, repository: Repository, context: Context) -> Condition:
        """A commit beyond ``since``."""
        return NewCommit(self.branch or repository.default_branch, self.since or self._last_seen(repository, context))

    def awaited(self) -> str:
        """The same in words."""
        branch = f"branch {self.branch!r}" if self.branch else "the default branch"
        return f"{branch} has a commit that {self.since or 'the last run'!r} does not have"

    def _last_seen(self, repository: Repository, context: Context) -> str:
        """Where this run counts from: decided once, and kept with the task for later tries and pokes."""
        store = context.get("task_state_store")
        seen = None if store is None else store.get(SINCE)
        if seen is None:
            seen = _last_result(context) or self._head(repository)
            if store is not None:
                store.set(SINCE, seen)
        return str(seen)

    def _head(self, repository: Repository) -> str:
        try:
            return repository.branch(self.branch or repository.default_branch).commit_id
        except RefNotFound:
            return NOTHING


class LakeopsUncommittedSensor(LakeopsSensor):
    """Waits until a branch has no uncommitted changes; returns its ref record (``id``, ``commit_id``).

    Args:
        branch: the branch. One that does not exist yet is waited for.
        prefix: heed changes under this prefix only.
        kwargs: see ``LakeopsSensor``.
    """

    template_fields: Sequence[str] = (*LakeopsSensor.template_fields, "branch", "prefix")

    def __init__(self, *, branch: str, prefix: str = "", **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.branch = branch
        self.prefix = prefix

    def asked(self) -> Condition:
        """A clean branch."""
        return NothingUncommitted(self.branch, self.prefix)


def _last_result(context: Context) -> str | None:
    """The commit that this task returned in the last successful run before this one, if that is known."""
    task = context["ti"]
    if context.get("logical_date") is None:
        return None
    index = -1 if task.map_index is None else task.map_index
    before = task.get_previous_ti(state=TaskInstanceState.SUCCESS, map_index=index)
    if before is None:
        return None
    found = task.xcom_pull(task_ids=task.task_id, run_id=before.run_id, map_indexes=None if index < 0 else index)
    return None if found is None else str(found["id"])
