"""Operators that publish a commit on a branch: commit, merge, revert, cherry-pick, import."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, cast, get_args

from airflow.providers.common.compat.sdk import AirflowSkipException

from lakeops.airflow import idempotent, task
from lakeops.airflow.compat import LakeopsFailure
from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.previews import DiffSummary, ImportOutcome, MergeOutcome, require_shown
from lakeops.airflow.task import LakeopsBranchOperator, LakeopsOperator
from lakeops.model.errors import CommitExpired, InvalidInput, NoChanges, RefNotFound
from lakeops.model.names import as_folder
from lakeops.model.protection import APPROVAL, PASSED

if TYPE_CHECKING:
    from lakeops.airflow.idempotent import TaskRun
    from lakeops.lake import Branch, Repository
    from lakeops.model.records import Change, Commit, StrategyName, TablesMode

Verb: TypeAlias = "tuple[str, Callable[..., Commit], Callable[..., Iterable[Change]]]"
"""The name of a verb that takes a commit and a parent number, the verb, and what gives the changes that it makes."""

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
    operator_extra_links: Any = (task.LakeopsCommitLink(), task.LakeopsBranchLink())
    announces = True
    choices: ClassVar[tuple[str, ...]] = get_args(OnEmpty)
    prefix: str | None = None
    """The folder of the branch that the changes go to; None where that may be anywhere."""

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
            raise InvalidInput(f"on_empty must be one of {', '.join(self.choices)}, not {self.on_empty!r}")

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
        self.link(repository, "commit", "commit", commit.id)
        self.written = (task.LineageDataset.of(repository, branch.id, self.prefix or "", version=commit.id),)
        record = commit.to_json()
        if run.made(commit.metadata):  # a task that found nothing to change has somebody else's commit
            self.published = (branch.id, record)
        return record

    @abstractmethod
    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
        """Publish the commit. Raises ``NoChanges`` when there is nothing to change."""


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
        self.checks = checks or ()

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

    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
        verb, do, changes = self.verb(repository, branch)
        wanted = (self.ref, task.number("parent_number", self.parent_number))
        self.read = (task.LineageDataset.of(repository, self.ref),)

        def on_head(_: str) -> None:
            if self.shown:
                require_shown(DiffSummary.of(changes(*wanted)).digest, self.shown, f"{verb} of {self.ref!r}")

        described: dict[str, Any] = {"message": self.message or None, "metadata": self.metadata, "on_head": on_head}
        return idempotent.replay(repository, branch, run, verb, do, *wanted, **described)

    def verb(self, repository: Repository, branch: Branch) -> Verb:
        """The verb that takes the commit and its parent number, by which a task changes the branch."""
        return "revert", branch.revert, branch.revert_changes


class LakeopsCherryPickOperator(LakeopsRevertOperator):
    """Applies what a commit did to a branch, as one new commit; returns the commit record.

    Args:
        ref: the commit to apply.
        parent_number: for a merge commit: the number of the parent that its changes are taken against, from 1.
    """

    def verb(self, repository: Repository, branch: Branch) -> Verb:
        def do(ref: str, parent: int | None, **options: Any) -> Commit:
            return repository.cherry_pick(ref, branch.id, parent, **options)

        return "cherry-pick", do, lambda ref, parent: repository.cherry_pick_changes(ref, branch.id, parent)


class LakeopsImportOperator(LakeopsPublishOperator):
    """Makes a prefix of a branch hold what a bucket's prefix or a directory holds, uncopied; returns the commit record.

    The source is listed at every try until one has published, and after every clearing. So a task that is cleared
    imports what has come since, and publishes nothing when nothing has.

    Args:
        source: ``s3://bucket/prefix`` or ``file:///directory``.
        prefix: the folder that the objects' paths begin with. None: they replace the whole branch.
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
        prefix: str | None,
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

    def publish(self, repository: Repository, branch: Branch, run: TaskRun) -> Commit:
        self.read = (task.LineageDataset.outside(self.source),)

        def on_head(head: str) -> None:
            if self.shown:
                from lakeops.store.open import parse_location

                source, folder = parse_location(self.source).url, as_folder(self.prefix or "")
                with LakeopsHook(self.lakeops_conn_id).get_conn() as lake:
                    now = ImportOutcome.of(lake, repository, head, source, folder).shown
                require_shown(now, self.shown, f"import of {self.source!r}")

        return idempotent.import_objects(
            repository,
            branch,
            run,
            self.source,
            self.prefix or "",
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
    A conflict publishes nothing and fails the task without retry. The log and the XCom ``conflicts`` list its paths.

    Args:
        source: the ref to merge.
        destination: the branch to merge into; the repository's default branch when left out.
        strategy: ``source-wins`` or ``dest-wins`` settles every conflict for that side.
        tables: ``rebase`` repeats the source's changes on Iceberg tables that both sides changed.
        metadata: key/value pairs kept with the merge commit.
        shown: the effect that a preview or an approval has shown. When it would be another by now, nothing is merged.
        checks: names of checks that the source must have passed, ``approval`` for one: the commit's metadata then say
            ``approved_by``. The merge reads the lake's verdicts, not task states.
        despite_checks: names of declared checks that the merge skips. The merge commit says so.
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
    operator_extra_links: Any = (task.LakeopsCommitLink(), task.LakeopsBranchLink(), task.LakeopsDiffLink())
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
        self.checks = checks or ()
        self.despite_checks = despite_checks
        self.on_newer = on_newer
        if self.on_newer not in get_args(OnNewer):
            raise InvalidInput(f"on_newer must be one of {', '.join(get_args(OnNewer))}, not {self.on_newer!r}")

    def run_verb(self, repository: Repository, run: TaskRun) -> dict[str, Any]:
        into = self.destination or repository.default_branch
        strategy = cast("StrategyName | None", self.strategy or None)
        self.link(repository, "branch", "ref", into)
        self.link(repository, "diff", "diff", left=into, right=self.source)
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

        result = idempotent.merge(
            repository,
            self.source,
            into,
            run,
            message=self.message,
            metadata=self.metadata,
            strategy=strategy,
            tables=self.tables or None,
            checks=self.checks,
            despite_checks=tuple(self.despite_checks),
            on_head=on_head,
        )
        if result.source_uncommitted:
            self.log.warning("uncommitted changes of %s were left out; commit them first", self.source)
        made = result.reference
        if made is None:
            self.log.info("lakefs://%s/%s has all of %s already", repository.id, into, self.source)
            return result.to_json()
        self.log.info("Merge %s is on lakefs://%s/%s", made, repository.id, into)
        self.link(repository, "commit", "commit", made)
        self.link(repository, "diff", "diff", left=f"{made}^1", right=made, two_way="true")
        merged = repository.ref(made).commit
        self.published = (into, merged.to_json())
        self.read = (task.LineageDataset.of(repository, self.source, version=merged.parents[1]),)
        self.written = (task.LineageDataset.of(repository, into, version=made),)
        return result.to_json()
