"""Committing what is on a branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow.sdk.exceptions import AirflowSkipException

from lakeops.airflow import once
from lakeops.airflow.operators.base import LakeopsOperator
from lakeops.model.errors import InvalidInput, NoChanges

if TYPE_CHECKING:
    from lakeops.airflow.run import TaskRun
    from lakeops.lake import Repository


OnEmpty = Literal["succeed", "skip", "fail", "commit"]
"""What a commit task does when there is nothing to commit."""


class LakeopsCommitOperator(LakeopsOperator):
    """Commits a branch's uncommitted changes; returns the commit record (``id``, ``parents``, ``metadata``, ...).

    Args:
        branch: the branch.
        message: the commit's message.
        metadata: key/value pairs kept with the commit, beside the ``airflow_*`` ones that say which task made it.
        on_empty: what to do when there is nothing to commit: ``succeed`` returns the branch's head (the data is there
            already: the default), ``skip`` ends the task and what follows it as skipped, ``fail`` fails it,
            ``commit`` makes an empty commit.
        kwargs: see ``LakeopsOperator``.
    """

    template_fields: Sequence[str] = (*LakeopsOperator.template_fields, "branch", "message", "metadata")

    def __init__(
        self,
        *,
        branch: str,
        message: str,
        metadata: Mapping[str, str] | None = None,
        on_empty: OnEmpty = "succeed",
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**kwargs)
        if on_empty not in get_args(OnEmpty):
            raise InvalidInput(f"on_empty is one of {', '.join(get_args(OnEmpty))}, not {on_empty!r}")
        self.branch = branch
        self.message = message
        self.metadata = metadata
        self.on_empty = on_empty

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """The commit's record."""
        branch = repository.branch(self.branch)
        try:
            commit = once.commit(
                branch,
                repository,
                self.message,
                run,
                metadata=self.metadata,
                allow_empty=self.on_empty == "commit",
            )
        except NoChanges as error:
            if self.on_empty == "skip":
                raise AirflowSkipException(error.message) from None
            if self.on_empty == "fail":
                raise
            commit = branch.head
            self.log.info("Nothing to commit: lakefs://%s/%s stays at %s", repository.id, branch.id, commit.id)
        else:
            self.log.info("Commit %s is on lakefs://%s/%s", commit.id, repository.id, branch.id)
        return commit.to_json()

    def moved(self, record: dict[str, Any]) -> tuple[str, str] | None:
        """The branch and its commit."""
        return self.branch, record["id"]
