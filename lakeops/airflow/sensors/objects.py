"""Waiting for objects at a ref."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskInstanceState
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from lakeops.airflow.conditions import (
    NO_COMMIT,
    NewCommit,
    NothingUncommitted,
    ObjectPresent,
    PrefixPresent,
    Replicated,
    TagExists,
)
from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.operators import failing_at_once
from lakeops.airflow.sensors.base import LakeopsSensor
from lakeops.model.errors import InvalidInput, RefNotFound

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.airflow.conditions import Condition
    from lakeops.lake import Repository


class LakeopsObjectSensor(LakeopsSensor):
    """Waits until there is an object at a path of a ref; returns the object's record.

    Args:
        ref: any ref expression. A branch shows its uncommitted objects too; ``main@`` is what is committed. A branch
            or tag that does not exist yet is waited for.
        path: the object's path.
        kwargs: see ``LakeopsSensor``.
    """

    template_fields: Sequence[str] = (*LakeopsSensor.template_fields, "ref", "path")

    def __init__(self, *, ref: str, path: str, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.ref = ref
        self.path = path

    def asked(self) -> Condition:
        """The object."""
        return ObjectPresent(self.ref, self.path)


class LakeopsPrefixSensor(LakeopsSensor):
    """Waits until there are objects under a prefix of a ref; returns ``ref``, ``prefix`` and ``commit_id``.

    Args:
        ref: any ref expression, as for ``LakeopsObjectSensor``.
        prefix: the prefix.
        min_objects: how many objects there must be at least.
        kwargs: see ``LakeopsSensor``.
    """

    template_fields: Sequence[str] = (*LakeopsSensor.template_fields, "ref", "prefix")

    def __init__(self, *, ref: str, prefix: str, min_objects: int = 1, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        if min_objects < 1:
            raise InvalidInput(f"min_objects is at least 1, not {min_objects!r}")
        self.ref = ref
        self.prefix = prefix
        self.min_objects = min_objects

    def asked(self) -> Condition:
        """The objects."""
        return PrefixPresent(self.ref, self.prefix, self.min_objects)


class LakeopsTagSensor(LakeopsSensor):
    """Waits until a tag exists; returns its ref record (``id``, ``commit_id``).

    Args:
        tag: the tag.
        kwargs: see ``LakeopsSensor``.
    """

    template_fields: Sequence[str] = (*LakeopsSensor.template_fields, "tag")

    def __init__(self, *, tag: str, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.tag = tag

    def asked(self) -> Condition:
        """The tag."""
        return TagExists(self.tag)


class LakeopsReplicationSensor(LakeopsSensor):
    """Waits until all that a mirror's branch or tag waits for has arrived; returns ``id`` and ``commit_id``.

    It looks only for what had not arrived at the last look, whoever looked, and asks the mirror alone: its source need
    not be reachable. Nothing is promoted; ``LakeopsMirrorPromoteOperator`` does that. A ref that waits for nothing is
    not waited for.

    Args:
        branch: the branch.
        tag: the tag; in place of a branch.
        kwargs: see ``LakeopsSensor``; ``repo`` is the mirror.
    """

    template_fields: Sequence[str] = (*LakeopsSensor.template_fields, "branch", "tag")

    def __init__(self, *, branch: str | None = None, tag: str | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.branch = branch
        self.tag = tag

    def asked(self) -> Condition:
        """The candidate's arrival. Raises ``InvalidInput``: only now is known what a mapped task was given."""
        if bool(self.branch) == bool(self.tag):
            raise InvalidInput("a replication sensor waits for a branch or for a tag: name one of them")
        return Replicated(self.branch or self.tag or "", "branch" if self.branch else "tag")

    @contextmanager
    def _naming_the_wait(self) -> Iterator[None]:
        """Never skip over what somebody has to look at."""
        try:
            with super()._naming_the_wait():
                yield
        except AirflowSkipException as skipped:
            problem = self._problem()
            if problem is None:
                raise
            raise AirflowFailException(problem) from skipped

    def _problem(self) -> str | None:
        """What is wrong with the ref as the last look left it."""
        from lakeops.lake import Mirror

        with failing_at_once(), LakeopsHook(self.lakeops_conn_id).repository(self.repo) as repository:
            status = Mirror.of(repository).status()
        ref = status.branches.get(self.branch) if self.branch else status.tags.get(self.tag or "")
        if ref is None:
            return None
        return ref.error or (f"{ref.kind} {ref.id!r} waits for {ref.awaited}" if ref.stalled else None)


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
            return NO_COMMIT


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
