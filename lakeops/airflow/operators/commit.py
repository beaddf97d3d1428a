"""Operators that publish a commit on a branch: commit, merge, revert, cherry-pick, import."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, get_args

from airflow.sdk import get_current_context

from lakeops.airflow import idempotent
from lakeops.airflow.changes import DiffSummary, MergeOutcome, importing, lying_at, objects_under, require_shown
from lakeops.airflow.compat import AirflowSkipException
from lakeops.airflow.failures import LakeopsFailure
from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.lineage import Place, Trace
from lakeops.airflow.links import LakeopsBranchLink, LakeopsCommitLink, LakeopsDiffLink
from lakeops.airflow.operators.base import LakeopsBranchOperator, LakeopsOperator
from lakeops.airflow.task import fixed, number
from lakeops.model.errors import CommitExpired, InvalidInput, NoChanges, RefNotFound
from lakeops.model.names import as_folder
from lakeops.store.location import parse_location

if TYPE_CHECKING:
    from lakeops.airflow.task import TaskRun
    from lakeops.lake import Branch, Repository
    from lakeops.model.changes import Change, StrategyName
    from lakeops.model.records import Commit

OnEmpty = Literal["succeed", "skip", "fail"]
"""What a task does that finds nothing to change."""

OnEmptyCommit = Literal["succeed", "skip", "fail", "commit"]
"""What a commit task does that finds nothing to commit."""


OnNewer = Literal["publish", "skip", "fail"]
"""What a merge task does when a run of a later logical date has published before it."""


class LakeopsPublishOperator(LakeopsBranchOperator):
    """What the operators share that publish one commit on one branch; returns the commit's record.

    Args:
        branch: the branch; the repository's default branch when left out.
        message: the commit's message.
        metadata: key/value pairs kept with the commit, beside the ``airflow_*`` ones that say which task made it.
        on_empty: what to do when there is nothing to change: ``succeed`` (the default) returns the branch's head,
            ``skip`` ends the task and what follows it as skipped, ``fail`` fails it.
        kwargs: see ``LakeopsOperator``.
    """

    operator_extra_links: Any = (LakeopsCommitLink(), LakeopsBranchLink())
    announces = True
    choices: ClassVar[tuple[str, ...]] = get_args(OnEmpty)

    message: str | None = None
    metadata: Mapping[str, str] | None = None
    on_empty: OnEmptyCommit = fixed(default="succeed")

    def check_arguments(self) -> None:
        """Refuse an ``on_empty`` that does not exist."""
        if self.on_empty not in self.choices:
            raise InvalidInput(f"on_empty is one of {', '.join(self.choices)}, not {self.on_empty!r}")

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """The commit's record."""
        branch = repository.branch(self.target(repository))
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

    def published(self, repository: Repository, record: dict[str, Any], run: TaskRun) -> dict[str, Any] | None:
        """The commit, unless the task found nothing to change and returned somebody else's."""
        return record if run.made(record["metadata"]) else None

    def trace(self, repository: Repository, record: dict[str, Any], published: dict[str, Any] | None) -> Trace:
        """From the sources, to the folder."""
        written = Place.of(repository, self.target(repository), self.folder(), version=record["id"])
        return Trace(self.sources(repository), (written,))

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:
        """The branch and its commit."""
        found = super().pages(repository, record)
        return found if record is None else {**found, "commit": self.page(repository, "commit", record["id"])}

    def sources(self, repository: Repository) -> tuple[Place, ...]:
        """Where the changes came from, if that is known."""
        return ()

    def folder(self) -> str:
        """Where on the branch the changes went; empty where that may be anywhere."""
        return ""


class LakeopsCommitOperator(LakeopsPublishOperator):
    """Commits a branch's uncommitted changes; returns the commit record (``id``, ``parents``, ``metadata``, ...).

    Args:
        branch: the branch.
        message: the commit's message.
        metadata: key/value pairs kept with the commit, beside the ``airflow_*`` ones that say which task made it.
        on_empty: what to do when there is nothing to commit: ``succeed`` (the default) returns the branch's head,
            ``skip`` ends the task and what follows it as skipped, ``fail`` fails it, ``commit`` makes an empty commit.
        kwargs: see ``LakeopsOperator``.
    """

    choices: ClassVar[tuple[str, ...]] = get_args(OnEmptyCommit)

    branch: str
    message: str

    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
        """The commit of what is on the branch."""
        empty = self.on_empty == "commit"
        return idempotent.commit(repository, branch, run, self.message, metadata=self.metadata, allow_empty=empty)


class LakeopsRevertOperator(LakeopsPublishOperator):
    """Undoes what a commit did, as one new commit on a branch; returns the commit record.

    Name the commit by its id, or by something that does not move. ``main~1`` means another commit once the revert is
    on ``main``, and yet another when somebody else commits before it.

    Args:
        ref: the commit to undo.
        parent_number: for a merge commit: the number of the parent to go back to, from 1.
        branch: the branch to undo it on; the repository's default branch when left out.
        message: the commit's message; ``Revert '...'`` when left out.
        shown: what a preview has shown. When undoing would change something else by now, nothing is published.
        kwargs: see ``LakeopsPublishOperator``.
    """

    ref: str
    parent_number: int | str | None = None
    shown: str | None = None

    def sources(self, repository: Repository) -> tuple[Place, ...]:
        """The commit."""
        return (Place.of(repository, self.ref),)

    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
        """The commit that undoes it."""
        wanted = (self.ref, number("parent_number", self.parent_number))
        changes = partial(branch.revert_changes, *wanted)
        return idempotent.revert(repository, branch, run, *wanted, **self.described(f"revert of {self.ref!r}", changes))

    def described(self, what: str, changes: Callable[[], Iterable[Change]]) -> dict[str, Any]:
        """The message, if one was given, the metadata, and a look at the changes before they are published."""

        def on_head(_: str) -> None:
            if self.shown:
                require_shown(DiffSummary.of(changes()).digest, self.shown, what)

        return {"message": self.message or None, "metadata": self.metadata, "on_head": on_head}


class LakeopsCherryPickOperator(LakeopsRevertOperator):
    """Applies what a commit did to a branch, as one new commit; returns the commit record.

    Args:
        ref: the commit to apply.
        parent_number: for a merge commit: the number of the parent that its changes are taken against, from 1.
        branch: the branch to apply it to; the repository's default branch when left out.
        message: the commit's message; the original's when left out.
        shown: as for ``LakeopsRevertOperator``.
        kwargs: see ``LakeopsPublishOperator``.
    """

    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
        """The commit that does the same."""
        parent = number("parent_number", self.parent_number)
        changes = partial(repository.cherry_pick_changes, self.ref, branch.id, parent)
        given = self.described(f"cherry-pick of {self.ref!r}", changes)
        return idempotent.cherry_pick(repository, branch, run, self.ref, parent, **given)


class LakeopsImportOperator(LakeopsPublishOperator):
    """Makes a prefix of a branch hold what a bucket's prefix or a directory holds, uncopied; returns the commit record.

    The source is listed at every try and after every clearing. So a task that is cleared imports what has come since,
    and publishes nothing when nothing has.

    Args:
        source: ``s3://bucket/prefix`` or ``file:///directory``.
        prefix: the folder that the objects' paths begin with.
        branch: the branch; the repository's default branch when left out.
        message: the commit's message; ``Import ...`` when left out.
        allow_empty_source: let a source without objects empty the prefix, instead of failing the task.
        skip_special: leave out links, devices and names that are not UTF-8, instead of failing the task.
        shown: what a preview has shown. When there is something else to import or to replace by now, nothing is.
        kwargs: see ``LakeopsPublishOperator``.
    """

    source: str
    prefix: str
    shown: str | None = None
    allow_empty_source: bool = fixed(default=False)
    skip_special: bool = fixed(default=False)

    def sources(self, repository: Repository) -> tuple[Place, ...]:
        """What was imported."""
        return (Place.outside(self.source),)

    def folder(self) -> str:
        """The prefix."""
        return self.prefix

    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
        """The import's commit."""

        def on_head(head: str) -> None:
            if self.shown:
                with LakeopsHook(self.lakeops_conn_id).get_conn() as lake:
                    lying = lying_at(lake, parse_location(self.source).url)
                before = objects_under(repository, head, as_folder(self.prefix))
                require_shown(importing(lying, before), self.shown, f"import of {self.source!r}")

        return idempotent.import_objects(
            repository,
            branch,
            run,
            self.source,
            self.prefix,
            self.message or f"Import {self.source}",
            metadata=self.metadata,
            allow_empty_source=self.allow_empty_source,
            skip_special=self.skip_special,
            on_head=on_head,
        )


class LakeopsMergeOperator(LakeopsOperator):
    """Merges a ref into a branch; returns the merge record.

    It has ``reference``, ``up_to_date``, ``summary`` and ``source_uncommitted``.

    ``reference`` is the merge commit's id. It is None when the destination had everything already, which is a success.
    A conflict publishes nothing and fails the task without retry. The log then lists every conflicting path and what
    either side has there. The XCom ``conflicts`` has the same for tasks that run after a failure.

    Args:
        source: the ref to merge.
        destination: the branch to merge into; the repository's default branch when left out.
        strategy: ``source-wins`` or ``dest-wins`` settles every conflict for that side.
        message: the merge commit's message.
        metadata: key/value pairs kept with the merge commit.
        shown: what a preview or an approval has shown. When the merge would change something else by now, nothing is
            published.
        approver: the id of the task of a ``LakeopsApprovalOperator`` that asked about this merge. The commit's metadata
            then say ``approved_by``, which no ``metadata`` can.
        checks: names of checks that tasks before this one have made of the source. They are recorded as passed.
        on_newer: what to do when the same task has published for a later logical date, so that an older run that was
            cleared would put its data over newer data: ``publish`` (the default), ``skip``, or ``fail``.
        kwargs: see ``LakeopsOperator``.
    """

    operator_extra_links: Any = (LakeopsCommitLink(), LakeopsBranchLink(), LakeopsDiffLink())
    announces = True

    source: str
    destination: str | None = None
    strategy: StrategyName | str | None = None
    message: str | None = None
    metadata: Mapping[str, str] | None = None
    shown: str | None = None
    approver: str | None = fixed(default=None)
    checks: Sequence[str] = fixed(default=())
    on_newer: OnNewer = fixed(default="publish")

    def check_arguments(self) -> None:
        """Refuse an ``on_newer`` that does not exist."""
        if self.on_newer not in get_args(OnNewer):
            raise InvalidInput(f"on_newer is one of {', '.join(get_args(OnNewer))}, not {self.on_newer!r}")

    def target(self, repository: Repository) -> str:
        """The destination."""
        return self.destination or repository.default_branch

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        """The merge's record."""
        into, strategy = self.target(repository), cast("StrategyName | None", self.strategy or None)
        if self.approver is not None:
            run = replace(run, approved_by=_approved_by(self.approver))
        with suppress(RefNotFound, CommitExpired):  # a merge that was done before finds that out by itself
            for name in self.checks:
                repository.ref(self.source).pass_check(name)

        def on_head(head: str) -> None:
            later = None if self.on_newer == "publish" else idempotent.newer(repository, head, run)
            if later is not None:
                date = later.metadata["airflow_logical_date"]
                said = f"the run of {date} has published {later.id[:16]} on {into!r} already; this run is older"
                raise (AirflowSkipException if self.on_newer == "skip" else LakeopsFailure)(said)
            if self.shown:
                source = repository.ref(self.source).commit_id
                now = MergeOutcome.of(repository, head, source, strategy).shown
                require_shown(now, self.shown, f"merge of {self.source!r} into {into!r}")

        options: dict[str, Any] = {"message": self.message, "strategy": strategy, "on_head": on_head}
        result = idempotent.merge(repository, self.source, into, run, metadata=self.metadata, **options)
        if result.source_uncommitted:
            self.log.warning("uncommitted changes of %s were left out; commit them first", self.source)
        if result.reference is None:
            self.log.info("lakefs://%s/%s has all of %s already", repository.id, into, self.source)
        else:
            self.log.info("Merge %s is on lakefs://%s/%s", result.reference, repository.id, into)
        return result.to_json()

    def published(self, repository: Repository, record: dict[str, Any], run: TaskRun) -> dict[str, Any] | None:
        """The merge commit, if there was anything to merge."""
        return record["reference"] and repository.ref(record["reference"]).commit.to_json()

    def trace(self, repository: Repository, record: dict[str, Any], published: dict[str, Any] | None) -> Trace:
        """From the source as it was merged, to the destination."""
        if published is None:
            return Trace()
        source = Place.of(repository, self.source, version=published["parents"][1])
        return Trace((source,), (Place.of(repository, self.target(repository), version=published["id"]),))

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:
        """The destination, and the merge commit with what it changed; or else what the source would bring."""
        found = super().pages(repository, record)
        if record is None or record["reference"] is None:
            into = self.target(repository)
            return {**found, "diff": self.page(repository, "diff", left=into, right=self.source)}
        made = record["reference"]
        changed = self.page(repository, "diff", left=f"{made}^1", right=made, two_way="true")
        return {**found, "commit": self.page(repository, "commit", made), "diff": changed}

    def sides(self, repository: Repository) -> tuple[str, str] | None:
        """Source and destination."""
        return self.source, self.target(repository)


def _approved_by(approver: str) -> str | None:
    """Who has answered the task of an approval: the one of this instance of a mapped group, or the only one."""
    task = get_current_context()["ti"]
    mine = -1 if task.map_index is None else task.map_index
    answers = (task.xcom_pull(task_ids=approver, map_indexes=index) for index in dict.fromkeys((mine, -1)))
    found: dict[str, Any] = next((answer for answer in answers if answer), {})
    by: str | None = found.get("approved_by")
    return by
