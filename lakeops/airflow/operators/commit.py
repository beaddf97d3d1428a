"""Operators that publish a commit on a branch: commit, merge, revert, cherry-pick, import."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, get_args

from airflow.providers.common.compat.sdk import AirflowSkipException

from lakeops.airflow import idempotent
from lakeops.airflow.compat import LakeopsFailure
from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.previews import DiffSummary, ImportOutcome, MergeOutcome, require_shown
from lakeops.airflow.task import (
    LakeopsBranchLink,
    LakeopsBranchOperator,
    LakeopsCommitLink,
    LakeopsDiffLink,
    LakeopsOperator,
    LineageDataset,
    TaskLineage,
    number,
)
from lakeops.model.errors import CommitExpired, InvalidInput, NoChanges, RefNotFound
from lakeops.model.names import as_folder
from lakeops.model.protection import APPROVAL, PASSED

if TYPE_CHECKING:
    from lakeops.airflow.idempotent import TaskRun
    from lakeops.lake import Branch, Repository
    from lakeops.model.records import Change, Commit, StrategyName, TablesMode

OnEmpty = Literal["succeed", "skip", "fail"]
"""The end of a task that finds nothing to change."""

OnEmptyCommit = Literal["succeed", "skip", "fail", "commit"]
"""The end of a commit task that finds nothing to commit."""

OnNewer = Literal["publish", "skip", "fail"]
"""The end of a merge task when a run of a later logical date has published before it."""


class LakeopsPublishOperator(LakeopsBranchOperator):
    """The base of operators that publish one commit on one branch and return its record.

    Args:
        branch: the branch; the repository's default branch when left out.
        message: the commit's message; one that names the verb when left out.
        metadata: key/value pairs kept with the commit, beside the ``airflow_*`` ones that say which task made it.
        on_empty: what to do when there is nothing to change: ``succeed`` (the default) returns the branch's head,
            ``skip`` ends the task and what follows it as skipped, ``fail`` fails it.
    """

    template_fields: Any = (*LakeopsBranchOperator.template_fields, "message", "metadata")
    operator_extra_links: Any = (LakeopsCommitLink(), LakeopsBranchLink())
    announces = True
    choices: ClassVar[tuple[str, ...]] = get_args(OnEmpty)

    def __init__(
        self,
        *,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
        on_empty: OnEmptyCommit = "succeed",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.message = message
        self.metadata = metadata
        self.on_empty = on_empty
        if self.on_empty not in self.choices:
            raise InvalidInput(f"on_empty is one of {', '.join(self.choices)}, not {self.on_empty!r}")

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
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
        """Publish the commit. Raises ``NoChanges`` when there is nothing to change."""

    def published(self, repository: Repository, record: dict[str, Any], run: TaskRun) -> dict[str, Any] | None:
        # A task that found nothing to change has returned somebody else's commit.
        return record if run.made(record["metadata"]) else None

    def lineage(self, repository: Repository, record: dict[str, Any], published: dict[str, Any] | None) -> TaskLineage:
        written = LineageDataset.of(repository, self.target(repository), self.folder(), version=record["id"])
        return TaskLineage(self.sources(repository), (written,))

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:
        found = super().pages(repository, record)
        return found if record is None else {**found, "commit": self.page(repository, "commit", record["id"])}

    def sources(self, repository: Repository) -> tuple[LineageDataset, ...]:
        """The data that the changes came from, if that is known."""
        return ()

    def folder(self) -> str:
        """The folder of the branch that the changes went to; empty where that may be anywhere."""
        return ""


class LakeopsCommitOperator(LakeopsPublishOperator):
    """Commits a branch's uncommitted changes; returns the commit record (``id``, ``parents``, ``metadata``, ...).

    Args:
        on_empty: as for ``LakeopsPublishOperator``, or ``commit``, which makes an empty commit.
        checks: names of checks that the commit declares: no merge takes it before they have passed.
    """

    choices: ClassVar[tuple[str, ...]] = get_args(OnEmptyCommit)
    branch: str
    message: str

    def __init__(self, *, branch: str, message: str, checks: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(branch=branch, message=message, **kwargs)
        self.checks = checks

    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
        empty = self.on_empty == "commit"
        return idempotent.commit(
            repository, branch, run, self.message, metadata=self.metadata, allow_empty=empty, checks=self.checks
        )


class LakeopsRevertOperator(LakeopsPublishOperator):
    """Undoes what a commit did, as one new commit on a branch; returns the commit record.

    Name the commit by its id, or by something that does not move. ``main~1`` means another commit once the revert is
    on ``main``, and yet another when somebody else commits before it.

    Args:
        ref: the commit to undo.
        parent_number: for a merge commit: the number of the parent to go back to, from 1.
        shown: the changes that a preview has shown. When they would be others by now, nothing is published.
    """

    template_fields: Any = (*LakeopsPublishOperator.template_fields, "ref", "parent_number", "shown")

    def __init__(
        self, *, ref: str, parent_number: int | str | None = None, shown: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.ref = ref
        self.parent_number = parent_number
        self.shown = shown

    def sources(self, repository: Repository) -> tuple[LineageDataset, ...]:
        return (LineageDataset.of(repository, self.ref),)

    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
        wanted = (self.ref, number("parent_number", self.parent_number))
        changes = partial(branch.revert_changes, *wanted)
        return idempotent.revert(repository, branch, run, *wanted, **self.described(f"revert of {self.ref!r}", changes))

    def described(self, what: str, changes: Callable[[], Iterable[Change]]) -> dict[str, Any]:
        """Options for the verb: message, metadata, and a check of the changes against those that were shown."""

        def on_head(_: str) -> None:
            if self.shown:
                require_shown(DiffSummary.of(changes()).digest, self.shown, what)

        return {"message": self.message or None, "metadata": self.metadata, "on_head": on_head}


class LakeopsCherryPickOperator(LakeopsRevertOperator):
    """Applies what a commit did to a branch, as one new commit; returns the commit record.

    Args:
        ref: the commit to apply.
        parent_number: for a merge commit: the number of the parent that its changes are taken against, from 1.
    """

    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
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
        allow_empty_source: let a source without objects empty the prefix, instead of failing the task.
        skip_special: leave out links, devices and names that are not UTF-8, instead of failing the task.
        inventory: the path or URL of a list of the source's objects, which is read in place of a listing.
        shown: the effect that a preview has shown. When it would be another by now, nothing is imported.
    """

    template_fields: Any = (*LakeopsPublishOperator.template_fields, "source", "prefix", "inventory", "shown")

    def __init__(
        self,
        *,
        source: str,
        prefix: str,
        shown: str | None = None,
        allow_empty_source: bool = False,
        skip_special: bool = False,
        inventory: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.prefix = prefix
        self.shown = shown
        self.allow_empty_source = allow_empty_source
        self.skip_special = skip_special
        self.inventory = inventory

    def sources(self, repository: Repository) -> tuple[LineageDataset, ...]:
        return (LineageDataset.outside(self.source),)

    def folder(self) -> str:
        return self.prefix

    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
        def on_head(head: str) -> None:
            if self.shown:
                from lakeops.store.open import parse_location

                source, folder = parse_location(self.source).url, as_folder(self.prefix)
                with LakeopsHook(self.lakeops_conn_id).get_conn() as lake:
                    now = ImportOutcome.of(lake, repository, head, source, folder).shown
                require_shown(now, self.shown, f"import of {self.source!r}")

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
            inventory=self.inventory,
            on_head=on_head,
        )


class LakeopsMergeOperator(LakeopsOperator):
    """Merges a ref into a branch; returns ``reference``, ``up_to_date``, ``summary`` and ``source_uncommitted``.

    ``reference`` is the merge commit's id. It is None when the destination had everything already, which is a success.
    A conflict publishes nothing and fails the task without retry. The log then lists every conflicting path and what
    either side has there. The XCom ``conflicts`` has the same for tasks that run after a failure.

    Args:
        source: the ref to merge.
        destination: the branch to merge into; the repository's default branch when left out.
        strategy: ``source-wins`` or ``dest-wins`` settles every conflict for that side.
        tables: ``rebase`` makes changes of Iceberg tables again on the destination's, where both sides have some.
        metadata: key/value pairs kept with the merge commit.
        shown: the effect that a preview or an approval has shown. When it would be another by now, nothing is merged.
        checks: names of checks that the source must have passed, ``approval`` for one: a ``LakeopsApprovalOperator``
            records it, and the commit's metadata then say ``approved_by``, which no ``metadata`` can. The merge reads
            verdicts of the lake, and no states of tasks.
        despite_checks: names of checks that the merge goes around, though commits declare them. The commit says so.
        on_newer: what to do when the same task has published to paths that this merge changes, for a later logical
            date, because this run was cleared: ``publish`` (the default), ``skip``, or ``fail``.
    """

    template_fields: Any = (
        *LakeopsOperator.template_fields,
        "source",
        "destination",
        "strategy",
        "tables",
        "message",
        "metadata",
        "shown",
        "despite_checks",
    )
    operator_extra_links: Any = (LakeopsCommitLink(), LakeopsBranchLink(), LakeopsDiffLink())
    announces = True

    def __init__(
        self,
        *,
        source: str,
        destination: str | None = None,
        strategy: StrategyName | str | None = None,
        tables: TablesMode | None = None,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
        shown: str | None = None,
        checks: Sequence[str] = (),
        despite_checks: Sequence[str] | str = (),
        on_newer: OnNewer = "publish",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.destination = destination
        self.strategy = strategy
        self.tables = tables
        self.message = message
        self.metadata = metadata
        self.shown = shown
        self.checks = checks
        self.despite_checks = despite_checks
        self.on_newer = on_newer
        if self.on_newer not in get_args(OnNewer):
            raise InvalidInput(f"on_newer is one of {', '.join(get_args(OnNewer))}, not {self.on_newer!r}")

    def target(self, repository: Repository) -> str:
        return self.destination or repository.default_branch

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        into, strategy = self.target(repository), cast("StrategyName | None", self.strategy or None)
        if APPROVAL in self.checks:
            with suppress(RefNotFound, CommitExpired):  # a merge that was done before finds that out by itself
                answers = [one for one in repository.ref(self.source).verdicts() if one.name == APPROVAL]
                run = replace(run, approved_by=next((one.said_by for one in answers if one.state == PASSED), None))

        def on_head(head: str) -> None:
            later = None if self.on_newer == "publish" else idempotent.newer(repository, head, self.source, run)
            if later is not None:
                date = later.metadata["airflow_logical_date"]
                said = f"the later run of {date} has published the same paths on {into!r}, in {later.id[:16]}"
                raise (AirflowSkipException if self.on_newer == "skip" else LakeopsFailure)(said)
            if self.shown:
                source = repository.ref(self.source).commit_id
                now = MergeOutcome.of(repository, head, source, strategy).shown
                require_shown(now, self.shown, f"merge of {self.source!r} into {into!r}")

        options: dict[str, Any] = {"message": self.message, "strategy": strategy, "on_head": on_head}
        options |= {"tables": self.tables or None}
        options |= {"checks": self.checks, "despite_checks": tuple(self.despite_checks)}
        result = idempotent.merge(repository, self.source, into, run, metadata=self.metadata, **options)
        if result.source_uncommitted:
            self.log.warning("uncommitted changes of %s were left out; commit them first", self.source)
        if result.reference is None:
            self.log.info("lakefs://%s/%s has all of %s already", repository.id, into, self.source)
        else:
            self.log.info("Merge %s is on lakefs://%s/%s", result.reference, repository.id, into)
        return result.to_json()

    def published(self, repository: Repository, record: dict[str, Any], run: TaskRun) -> dict[str, Any] | None:
        return record["reference"] and repository.ref(record["reference"]).commit.to_json()

    def lineage(self, repository: Repository, record: dict[str, Any], published: dict[str, Any] | None) -> TaskLineage:
        if published is None:
            return TaskLineage()
        source = LineageDataset.of(repository, self.source, version=published["parents"][1])
        merged = LineageDataset.of(repository, self.target(repository), version=published["id"])
        return TaskLineage((source,), (merged,))

    def pages(self, repository: Repository, record: dict[str, Any] | None) -> dict[str, str]:
        found = super().pages(repository, record)
        if record is None or record["reference"] is None:
            into = self.target(repository)
            return {**found, "diff": self.page(repository, "diff", left=into, right=self.source)}
        made = record["reference"]
        changed = self.page(repository, "diff", left=f"{made}^1", right=made, two_way="true")
        return {**found, "commit": self.page(repository, "commit", made), "diff": changed}
