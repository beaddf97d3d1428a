"""Branches, tags and protections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakeops.airflow.once.commits import contains
from lakeops.airflow.run import TaskRun
from lakeops.model.errors import AlreadyExists, NotFound, RefNotFound

if TYPE_CHECKING:
    from lakeops.lake import Branch, Repository
    from lakeops.model.records import Commit
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
