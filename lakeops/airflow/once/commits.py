"""Verbs that publish a commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakeops.airflow.run import TaskRun
from lakeops.model.errors import (
    AlreadyExists,
    CommitExpired,
    KeyReused,
    NoChanges,
    NotFound,
    RefNotFound,
    RepositoryNotFound,
)
from lakeops.model.records import ChangeType, MergeResult, Summary

if TYPE_CHECKING:
    from lakeops.lake import Branch, Lake, Repository
    from lakeops.model.records import Commit
    from lakeops.model.records import Ref as RefRecord
    from lakeops.model.records import Repository as RepositoryRecord


def commit(
    branch: Branch,
    repository: Repository,
    message: str,
    run: TaskRun,
    *,
    metadata: Mapping[str, str] | None = None,
    allow_empty: bool = False,
) -> Commit:
    """The commit of the branch's uncommitted changes, or the one that an earlier call of this task has published.

    Raises:
        NoChanges: there is nothing to commit, this task has committed nothing before, and ``allow_empty`` is not set.
    """

    def make(number: int) -> Commit:
        return branch.commit(
            message,
            metadata=run.metadata(metadata),
            idempotency_key=run.key("commit", branch.id, number=number),
            allow_empty=allow_empty and number == 1,
        )

    return _with_what_is_new(repository, branch, make)


def import_objects(
    branch: Branch,
    repository: Repository,
    source: str,
    prefix: str,
    message: str,
    run: TaskRun,
    *,
    metadata: Mapping[str, str] | None = None,
    allow_empty_source: bool = False,
    skip_special: bool = False,
) -> Commit:
    """The commit that makes a prefix hold what the source holds, or the one that this task has published before.

    The source is listed again by every call, because a task may be cleared to import what has come since.

    Raises:
        NoChanges: the prefix holds these objects already, and this task has imported nothing before.
        ObjectNotFound, DirtyBranch, InvalidInput: as for ``Branch.import_objects``.
    """

    def make(number: int) -> Commit:
        return branch.import_objects(
            source,
            prefix,
            message,
            metadata=run.metadata(metadata),
            idempotency_key=run.key("import", branch.id, source, prefix, number=number),
            allow_empty_source=allow_empty_source,
            skip_special=skip_special,
        )

    return _with_what_is_new(repository, branch, make)


def merge(
    repository: Repository,
    source: str,
    destination: str,
    run: TaskRun,
    *,
    strategy: str | None = None,
    message: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> MergeResult:
    """The merge of what ``source`` is now, or the one that an earlier call of this task has published.

    A source that is gone by now is no obstacle when this task merged it before.

    Raises:
        MergeConflict: nothing is published.
        RefNotFound, DirtyBranch, NoMergeBase.
    """
    result: MergeResult | None = None
    before = repository.branch(destination).commit_id
    number = 1
    while True:
        try:
            latest = repository.merge(
                source,
                destination,
                strategy=strategy,
                message=message,
                metadata=run.metadata(metadata),
                idempotency_key=run.key("merge", source, destination, strategy or "", number=number),
            )
        except KeyReused as used:
            latest = MergeResult(
                used.reference, up_to_date=False, summary=_summary(_earlier(repository, used), repository)
            )
        except RefNotFound:
            if result is None:
                raise
            return result
        if latest.reference is None:
            return result or latest
        result = latest
        if not contains(repository, before, latest.reference):
            return result
        number += 1


@dataclass(frozen=True)
class Step:
    """What a commit did, to be undone or done again: the commit, against which parent, and how to record it."""

    ref: str
    parent_number: int | None = None
    message: str | None = None
    metadata: Mapping[str, str] | None = None

    def key(self, run: TaskRun, verb: str, branch: str, number: int) -> str:
        """The idempotency key of doing it on a branch."""
        return run.key(verb, branch, self.ref, str(self.parent_number or ""), number=number)


def revert(repository: Repository, branch: Branch, step: Step, run: TaskRun) -> Commit:
    """The commit that undoes a step, or the one that an earlier call of this task has published on the branch.

    Raises:
        NoChanges: it is undone already, by somebody else.
        MergeConflict, DirtyBranch, InvalidRef.
    """

    def make(number: int) -> Commit:
        return branch.revert(
            step.ref,
            step.parent_number,
            message=step.message,
            metadata=run.metadata(step.metadata),
            idempotency_key=step.key(run, "revert", branch.id, number),
        )

    return _on_the_branch(repository, branch.id, make)


def cherry_pick(repository: Repository, branch: Branch, step: Step, run: TaskRun) -> Commit:
    """The commit that does a step again, or the one that an earlier call of this task has published on the branch.

    Raises:
        NoChanges: the branch has these changes already, from elsewhere.
        MergeConflict, DirtyBranch, InvalidRef.
    """

    def make(number: int) -> Commit:
        return repository.cherry_pick(
            step.ref,
            branch.id,
            step.parent_number,
            message=step.message,
            metadata=run.metadata(step.metadata),
            idempotency_key=step.key(run, "cherry-pick", branch.id, number),
        )

    return _on_the_branch(repository, branch.id, make)


def _made(repository: Repository, make: Callable[[int], Commit], number: int) -> Commit:
    """What ``make`` publishes under a key of this number, or what this task has published under it before."""
    try:
        return make(number)
    except KeyReused as used:
        return _earlier(repository, used)


def _earlier(repository: Repository, used: KeyReused) -> Commit:
    """What this task has published before, with another message or metadata, or before there was more to publish.

    A task that was cleared after its DAG was changed may ask otherwise. Its first commit stands, and what is new gets
    one of its own.
    """
    return repository.ref(used.reference).commit


def _summary(commit: Commit, repository: Repository) -> Summary:
    """What a merge of this task changed at the branch that it went to; nothing once that is expired."""
    try:
        counts = Counter(change.type for change in repository.diff(commit.parents[0], commit.id))
    except CommitExpired:
        return Summary()
    return Summary(counts[ChangeType.ADDED], counts[ChangeType.REMOVED], counts[ChangeType.CHANGED])


def contains(repository: Repository, ref: str, commit_id: str) -> bool:
    """Whether a commit is in a ref's history."""
    return repository.merge_base(ref, commit_id).id == commit_id


def _with_what_is_new(repository: Repository, branch: Branch, make: Callable[[int], Commit]) -> Commit:
    """The last commit that ``make`` publishes, or has published before, when it is called until it finds no changes."""
    latest: Commit | None = None
    number = 1
    while True:
        before = branch.commit_id
        try:
            latest = _made(repository, make, number)
        except NoChanges:
            if latest is None:
                raise
            return latest
        if contains(repository, branch.id, latest.id) and not contains(repository, before, latest.id):
            return latest  # published now; anything else is an earlier call's, after which there may be new work
        number += 1


def _on_the_branch(repository: Repository, branch: str, make: Callable[[int], Commit]) -> Commit:
    """The first commit by ``make`` that the branch has; one that was lost with an earlier branch does not count."""
    number = 1
    while True:
        found = _made(repository, make, number)
        if contains(repository, branch, found.id):
            return found
        number += 1


def create_branch(repository: Repository, name: str, source: str, run: TaskRun, *, exist_ok: bool = False) -> Branch:
    """The branch, new at ``source`` or as this DAG run left it.

    A branch that exists is taken when it holds nothing but ``source``'s history and commits of this DAG run, or
    whatever it holds with ``exist_ok``.

    Raises:
        AlreadyExists: the branch holds somebody else's commits.
        RefNotFound: there is no ``source``.
        NoMergeBase: the branch that exists shares no history with ``source``.
    """
    try:
        return repository.create_branch(name, source=source)
    except AlreadyExists:
        branch = repository.branch(name)
        foreign = None if exist_ok else next(_foreign(repository, name, source, run), None)
        if foreign is None:
            return branch
        raise AlreadyExists(
            f"branch {name!r} exists and holds commit {foreign.id[:16]} ({foreign.message!r}), which is neither in "
            f"{source!r} nor from this DAG run; use another name, delete the branch, or set exist_ok"
        ) from None


def delete_branch(repository: Repository, name: str) -> RefRecord | None:
    """Where the branch was when it was deleted, or None when there is no such branch.

    Raises:
        DefaultBranch, ProtectedBranch.
    """
    try:
        return repository.delete_branch(name)
    except RefNotFound:
        return None


def unpublished(repository: Repository, name: str, destination: str) -> str | None:
    """What a branch has that ``destination`` does not have, in words; None when that is nothing.

    Uncommitted changes count. A branch that does not exist has nothing.
    """
    try:
        branch = repository.branch(name)
    except RefNotFound:
        return None
    change = next(iter(branch.uncommitted()), None)
    if change is not None:
        return f"it has uncommitted changes, {change.path!r} for one"
    if not contains(repository, destination, branch.commit_id):
        return f"{destination!r} does not have its commit {branch.commit_id[:16]}"
    return None


def create_tag(repository: Repository, name: str, ref: str, run: TaskRun) -> RefRecord:
    """The tag, at what ``ref`` meant when this task first asked.

    Raises:
        AlreadyExists: there is a tag of that name at another commit.
        RefNotFound, CommitExpired.
    """
    return repository.create_tag(name, ref, idempotency_key=run.key("tag", name, ref))


def delete_tag(repository: Repository, name: str) -> RefRecord | None:
    """Where the tag was when it was deleted, or None when there is no such tag."""
    try:
        return repository.delete_tag(name)
    except RefNotFound:
        return None


def unprotect(repository: Repository, pattern: str) -> bool:
    """Whether there was such a protection to drop."""
    try:
        repository.unprotect(pattern)
    except NotFound:
        return False
    return True


def _foreign(repository: Repository, name: str, source: str, run: TaskRun) -> Iterator[Commit]:
    """Commits of a branch that are neither in ``source`` nor this DAG run's."""
    for found in repository.log(name, first_parent=True):
        if contains(repository, source, found.id):
            return
        if not run.made(found.metadata):
            yield found


def create_repository(lake: Lake, name: str, storage_namespace: str | None, default_branch: str) -> Repository:
    """The repository, new, or as it was made before with this namespace and default branch.

    Raises:
        AlreadyExists: there is one of that name elsewhere, or with another default branch.
        InvalidName, InvalidUri, NamespaceTaken, StoreError.
    """
    try:
        return lake.create_repository(name, storage_namespace, default_branch=default_branch)
    except AlreadyExists:
        from lakeops.store.open import normalise_namespace

        found = lake.repository(name)
        wanted = normalise_namespace(storage_namespace or lake.settings.default_namespace(name))
        if (found.storage_namespace, found.default_branch) == (wanted, default_branch):
            return found
        raise AlreadyExists(
            f"repository {name!r} exists at {found.storage_namespace} with default branch {found.default_branch!r}; "
            f"asked for {wanted} and {default_branch!r}: use another name"
        ) from None


def delete_repository(lake: Lake, name: str) -> RepositoryRecord | None:
    """The record of the repository that was deleted, or None when there is no such repository."""
    try:
        record = lake.repository(name).record
        lake.delete_repository(name)
    except RepositoryNotFound:
        return None
    return record
