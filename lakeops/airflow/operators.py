"""Operators: one verb of the core each, safe to retry, to kill and to clear.

None of them keeps state on itself or opens a lake before it runs. Errors that would come again (a conflict, bad
input, a protected branch) fail the task at once, whatever its ``retries``; only errors that may pass are retried.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from lakeops.airflow import once
from lakeops.airflow.hook import DEFAULT_CONN_ID, LakeopsHook
from lakeops.airflow.run import TaskRun
from lakeops.model.errors import AttemptExpired, InvalidInput, LakeopsError, MergeConflict, NoChanges, Transient

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.lake import Repository

OnEmpty = Literal["succeed", "skip", "fail", "commit"]
"""What a commit task does when there is nothing to commit."""


class LakeopsOperator(BaseOperator):
    """What the operators share: the connection, the repository, and how errors end a task.

    The result is a dictionary; each of its keys is an XCom of its own too, so ``task.output["id"]`` works.

    Args:
        repo: the repository; the connection's default one when left out.
        lakeops_conn_id: the connection. ``lakeops_default`` is the environment's lake when nobody defined it.
        kwargs: what every Airflow operator takes.
    """

    template_fields: Sequence[str] = ("repo", "lakeops_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"metadata": "json"}
    ui_color = "#d9f2e6"

    def __init__(
        self,
        *,
        repo: str | None = None,
        lakeops_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,  # noqa: ANN401 - BaseOperator's
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.repo = repo
        self.lakeops_conn_id = lakeops_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """The verb's record, with the keys of the public contract."""
        with failing_at_once():
            hook = LakeopsHook(self.lakeops_conn_id)
            name = self.repo or hook.default_repository()
            if not name:
                raise InvalidInput(
                    f"no repository: set repo, or a default repository in connection {self.lakeops_conn_id!r}"
                )
            with hook.get_conn() as lake:
                return self.run_verb(lake.repository(name), TaskRun.of(context))

    @abstractmethod
    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """Do the operator's one verb; returns its record."""


class LakeopsCreateBranchOperator(LakeopsOperator):
    """Creates a branch; returns its ref record (``id``, ``commit_id``).

    A branch that exists already is taken when it holds nothing but the source's history and commits of the same DAG
    run, so retrying and clearing are safe and nobody works on somebody else's branch by accident.

    Args:
        branch: the new branch.
        source: the ref expression to start at; the repository's default branch when left out.
        exist_ok: take a branch of that name whatever it holds.
        kwargs: see ``LakeopsOperator``.
    """

    template_fields: Sequence[str] = (*LakeopsOperator.template_fields, "branch", "source")

    def __init__(
        self,
        *,
        branch: str,
        source: str | None = None,
        exist_ok: bool = False,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.source = source
        self.exist_ok = exist_ok

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """The branch's ref record."""
        source = self.source or repository.default_branch
        branch = once.create_branch(repository, self.branch, source, run, exist_ok=self.exist_ok)
        head = branch.commit_id
        self.log.info("Branch lakefs://%s/%s is at %s", repository.id, branch.id, head)
        return {"id": branch.id, "commit_id": head}


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


class LakeopsMergeOperator(LakeopsOperator):
    """Merges a ref into a branch; returns the merge record (``reference``, ``up_to_date``, ``summary``).

    ``reference`` is the merge commit's id, or None when the destination had everything already, which is a success.
    A conflict publishes nothing and fails the task without retry; the log lists every conflicting path.

    Args:
        source: the ref to merge.
        destination: the branch to merge into; the repository's default branch when left out.
        strategy: ``source-wins`` or ``dest-wins`` settles every conflict for that side.
        message: the merge commit's message.
        metadata: key/value pairs kept with the merge commit.
        kwargs: see ``LakeopsOperator``.
    """

    template_fields: Sequence[str] = (
        *LakeopsOperator.template_fields,
        "source",
        "destination",
        "strategy",
        "message",
        "metadata",
    )

    def __init__(
        self,
        *,
        source: str,
        destination: str | None = None,
        strategy: str | None = None,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.destination = destination
        self.strategy = strategy
        self.message = message
        self.metadata = metadata

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """The merge's record."""
        destination = self.destination or repository.default_branch
        result = once.merge(
            repository,
            self.source,
            destination,
            run,
            strategy=self.strategy or None,
            message=self.message,
            metadata=self.metadata,
        )
        if result.reference is None:
            self.log.info("lakefs://%s/%s has all of %s already", repository.id, destination, self.source)
        else:
            self.log.info("Merge %s is on lakefs://%s/%s", result.reference, repository.id, destination)
        return result.to_json()


class LakeopsDeleteBranchOperator(LakeopsOperator):
    """Deletes a branch; returns ``id``, ``commit_id`` (None when it was gone) and ``deleted``.

    Args:
        branch: the branch. One that does not exist is fine.
        merged_into: delete only when this ref has everything that the branch has, uncommitted changes included;
            otherwise the branch stays for inspection, and the task succeeds with ``deleted`` false. This makes it fit
            to be a teardown, which runs after failures too.
        kwargs: see ``LakeopsOperator``.
    """

    template_fields: Sequence[str] = (*LakeopsOperator.template_fields, "branch", "merged_into")

    def __init__(
        self,
        *,
        branch: str,
        merged_into: str | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.merged_into = merged_into

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:  # noqa: ARG002 - deleting needs no key
        """Where the branch was, and whether it was deleted."""
        kept = self.merged_into and once.unpublished(repository, self.branch, self.merged_into)
        if kept:
            self.log.warning("Branch lakefs://%s/%s stays: %s", repository.id, self.branch, kept)
            return {"id": self.branch, "commit_id": repository.branch(self.branch).commit_id, "deleted": False}
        ref = once.delete_branch(repository, self.branch)
        if ref is None:
            self.log.info("There is no branch lakefs://%s/%s", repository.id, self.branch)
            return {"id": self.branch, "commit_id": None, "deleted": False}
        self.log.info("Branch lakefs://%s/%s is deleted; it was at %s", repository.id, ref.id, ref.commit_id)
        return {**ref.to_json(), "deleted": True}


@contextmanager
def failing_at_once() -> Iterator[None]:
    """Turn errors that would come again into a failure without retry; let those that may pass be retried.

    A conflict's message lists every conflicting path, one a line.
    """
    try:
        yield
    except (Transient, AttemptExpired):
        raise
    except MergeConflict as conflict:
        paths = "\n".join(conflict.conflicts)
        raise AirflowFailException(f"{conflict.message}\nAll conflicting paths:\n{paths}") from conflict
    except LakeopsError as error:
        raise AirflowFailException(f"{error.kind}: {error.message}") from error
