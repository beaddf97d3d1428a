"""Operators that publish a commit on a branch: commit, revert, cherry-pick, import."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow.sdk.exceptions import AirflowSkipException

from lakeops.airflow import once
from lakeops.airflow.assets import COMMITS
from lakeops.airflow.lineage import Place, Trace
from lakeops.airflow.links import LakeopsBranchLink, LakeopsCommitLink
from lakeops.airflow.operators.base import LakeopsOperator, number
from lakeops.model.errors import InvalidInput, NoChanges

if TYPE_CHECKING:
    from lakeops.airflow.run import TaskRun
    from lakeops.lake import Branch, Repository
    from lakeops.model.records import Commit

OnEmpty = Literal["succeed", "skip", "fail"]
"""What a task does that finds nothing to change."""

OnEmptyCommit = Literal["succeed", "skip", "fail", "commit"]
"""What a commit task does that finds nothing to commit."""


class LakeopsPublishOperator(LakeopsOperator):
    """What the operators share that publish one commit on one branch; returns the commit's record.

    Args:
        branch: the branch; the repository's default branch when left out.
        message: the commit's message.
        metadata: key/value pairs kept with the commit, beside the ``airflow_*`` ones that say which task made it.
        on_empty: what to do when there is nothing to change: ``succeed`` returns the branch's head (it is as it should
            be already: the default), ``skip`` ends the task and what follows it as skipped, ``fail`` fails it.
        kwargs: see ``LakeopsOperator``.
    """

    template_fields: Sequence[str] = (*LakeopsOperator.template_fields, "branch", "message", "metadata")
    operator_extra_links = (LakeopsCommitLink(), LakeopsBranchLink())
    ways: tuple[str, ...] = get_args(OnEmpty)

    def __init__(
        self,
        *,
        branch: str | None = None,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
        on_empty: OnEmptyCommit = "succeed",
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        kwargs.setdefault("outlets", [COMMITS])
        super().__init__(**kwargs)
        if on_empty not in self.ways:
            raise InvalidInput(f"on_empty is one of {', '.join(self.ways)}, not {on_empty!r}")
        self.branch = branch
        self.message = message
        self.metadata = metadata
        self.on_empty = on_empty

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """The commit's record."""
        branch = repository.branch(self.branch or repository.default_branch)
        try:
            commit = self.publish(repository, branch, run)
        except NoChanges as error:
            if self.on_empty == "skip":
                raise AirflowSkipException(error.message) from None
            if self.on_empty == "fail":
                raise
            commit = branch.head
            self.log.info("%s; lakefs://%s/%s stays at %s", error.message, repository.id, branch.id, commit.id)
        else:
            self.log.info("Commit %s is on lakefs://%s/%s", commit.id, repository.id, branch.id)
        return commit.to_json()

    @abstractmethod
    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
        """The commit. Raises ``NoChanges`` when there is nothing to change."""

    def moved(self, repository: Repository, record: dict[str, Any], run: TaskRun) -> tuple[str, str] | None:
        """The branch and its commit, unless the branch was as it should be already."""
        return (self.branch or repository.default_branch, record["id"]) if run.made(record["metadata"]) else None

    def trace(self, repository: Repository, record: dict[str, Any]) -> Trace:
        """To the branch."""
        branch = self.branch or repository.default_branch
        return Trace(self.sources(repository), (Place.of(repository, branch, self.target(), version=record["id"]),))

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:
        """The branch and its commit."""
        found = {"branch": self.page(repository, "ref", self.branch or repository.default_branch)}
        return found if record is None else {**found, "commit": self.page(repository, "commit", record["id"])}

    def sources(self, repository: Repository) -> tuple[Place, ...]:  # noqa: ARG002 - a commit's are not known
        """Where the changes came from."""
        return ()

    def target(self) -> str:
        """The path on the branch that the changes went to; empty where it is all of it."""
        return ""


class LakeopsCommitOperator(LakeopsPublishOperator):
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

    ways = get_args(OnEmptyCommit)
    message: str

    def __init__(self, *, branch: str, message: str, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(branch=branch, message=message, **kwargs)

    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
        """The commit of what is on the branch."""
        return once.commit(
            branch, repository, self.message, run, metadata=self.metadata, allow_empty=self.on_empty == "commit"
        )


class LakeopsRevertOperator(LakeopsPublishOperator):
    """Undoes what a commit did, as one new commit on a branch; returns the commit record.

    Name the commit by its id, or by something that does not move: ``main~1`` means another commit once the revert is
    on ``main``, and yet another when somebody else commits before it.

    Args:
        ref: the commit to undo.
        parent_number: for a merge commit: the number of the parent to go back to, from 1.
        branch: the branch to undo it on; the repository's default branch when left out.
        message: the commit's message; ``Revert '...'`` when left out.
        kwargs: see ``LakeopsPublishOperator``.
    """

    template_fields: Sequence[str] = (*LakeopsPublishOperator.template_fields, "ref", "parent_number")

    def __init__(
        self,
        *,
        ref: str,
        parent_number: int | str | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**kwargs)
        self.ref = ref
        self.parent_number = parent_number

    def sources(self, repository: Repository) -> tuple[Place, ...]:
        """The commit."""
        return (Place.of(repository, self.ref),)

    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
        """The commit that undoes it."""
        return once.revert(repository, branch, self.step(), run)

    def step(self) -> once.Step:
        """What is undone, or done again."""
        return once.Step(self.ref, number(self.parent_number), self.message or None, self.metadata)


class LakeopsCherryPickOperator(LakeopsRevertOperator):
    """Applies what a commit did to a branch, as one new commit; returns the commit record.

    Args:
        ref: the commit to apply.
        parent_number: for a merge commit: the number of the parent that its changes are taken against, from 1.
        branch: the branch to apply it to; the repository's default branch when left out.
        message: the commit's message; the original's when left out.
        kwargs: see ``LakeopsPublishOperator``.
    """

    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
        """The commit that does the same."""
        return once.cherry_pick(repository, branch, self.step(), run)


class LakeopsImportOperator(LakeopsPublishOperator):
    """Makes a prefix of a branch hold what a bucket's prefix or a directory holds, uncopied; returns the commit record.

    The source is listed by every try and after every clearing, so a task that is cleared imports what has come since;
    where nothing has, it publishes nothing.

    Args:
        source: ``s3://bucket/prefix`` or ``file:///directory``.
        prefix: the folder that the objects' paths begin with.
        branch: the branch; the repository's default branch when left out.
        message: the commit's message; ``Import ...`` when left out.
        allow_empty_source: a source without objects empties the prefix, instead of failing the task.
        skip_special: leave out links, devices and names that are not UTF-8, instead of failing the task.
        kwargs: see ``LakeopsPublishOperator``.
    """

    template_fields: Sequence[str] = (*LakeopsPublishOperator.template_fields, "source", "prefix")

    def __init__(
        self,
        *,
        source: str,
        prefix: str,
        allow_empty_source: bool = False,
        skip_special: bool = False,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.prefix = prefix
        self.allow_empty_source = allow_empty_source
        self.skip_special = skip_special

    def sources(self, repository: Repository) -> tuple[Place, ...]:  # noqa: ARG002 - it is elsewhere
        """What was imported."""
        return (Place.outside(self.source),)

    def target(self) -> str:
        """The prefix."""
        return self.prefix

    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
        """The import's commit."""
        return once.import_objects(
            branch,
            repository,
            self.source,
            self.prefix,
            self.message or f"Import {self.source}",
            run,
            metadata=self.metadata,
            allow_empty_source=self.allow_empty_source,
            skip_special=self.skip_special,
        )
