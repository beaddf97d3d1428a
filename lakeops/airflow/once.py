"""Doing a verb once for a task, however often the task runs.

Every function here may be called again after it was killed anywhere, and finds what the earlier call did:

* the same work under the same key is done once; a second call returns the first one's result;
* a task that is cleared after its input changed does have new work. It goes under the task's next key, so it is
  published too, and also once. Leaving it staged on a branch that is about to be dropped would lose it silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from lakeops.airflow.run import TaskRun
from lakeops.model.errors import AlreadyExists, NoChanges, RefNotFound

if TYPE_CHECKING:
    from lakeops.lake import Branch, Repository
    from lakeops.model.records import Commit, MergeResult
    from lakeops.model.records import Ref as RefRecord


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
    latest: Commit | None = None
    number = 1
    while True:
        before = branch.commit_id
        try:
            latest = branch.commit(
                message,
                metadata=run.metadata(metadata),
                idempotency_key=run.key("commit", branch.id, number=number),
                allow_empty=allow_empty and latest is None,
            )
        except NoChanges:
            if latest is None:
                raise
            return latest
        if contains(repository, branch.id, latest.id) and not contains(repository, before, latest.id):
            return latest  # published now; anything else is an earlier call's, after which there may be new work
        number += 1


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


def contains(repository: Repository, ref: str, commit_id: str) -> bool:
    """Whether a commit is in a ref's history."""
    return repository.merge_base(ref, commit_id).id == commit_id


def _foreign(repository: Repository, name: str, source: str, run: TaskRun) -> Iterator[Commit]:
    """Commits of a branch that are neither in ``source`` nor this DAG run's."""
    for found in repository.log(name, first_parent=True):
        if contains(repository, source, found.id):
            return
        if not run.made(found.metadata):
            yield found
