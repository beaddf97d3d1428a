"""What a verb would do, in words: the previews that the forms of ``lakeops.airflow.dags.admin`` show first.

A preview changes nothing. It refuses what the verb itself would refuse, as far as that can be known without trying.
What others publish after the preview may still make a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lakeops.airflow import idempotent
from lakeops.airflow.changes import Tally, conflicting
from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.task import failing_at_once
from lakeops.model.errors import (
    AlreadyExists,
    DefaultBranch,
    DirtyBranch,
    InvalidInput,
    MergeConflict,
    NoChanges,
    ObjectNotFound,
    ReadOnlyRepository,
    RefNotFound,
)
from lakeops.model.names import as_folder, check_branch, check_tag
from lakeops.model.records import ChangeType
from lakeops.model.refs import parse_ref
from lakeops.store.location import parse_location

if TYPE_CHECKING:
    from lakeops.lake import Lake, Repository

Given = Mapping[str, Any]


def preview(verb: str, given: Given, *, lakeops_conn_id: str) -> str:
    """What ``verb`` would do with the values of a form, as text of one to about a hundred lines.

    Args:
        verb: a key of ``VERBS``.
        given: the form's values: ``repository``, and others as the verb needs them.
        lakeops_conn_id: the connection.

    Raises:
        AirflowFailException: the verb would be refused, with this message.
    """
    with failing_at_once():
        hook = LakeopsHook(lakeops_conn_id)
        with hook.get_conn() as lake:
            repository = lake.repository(hook.repository_name(given["repository"]))
            if repository.record.read_only:
                raise ReadOnlyRepository(f"repository {repository.id!r} is read-only")
            return VERBS[verb](lake, repository, given)


def _create_branch(lake: Lake, repository: Repository, given: Given) -> str:  # noqa: ARG001 - as the others
    name = check_branch(given["branch"])
    _require_absent(repository.branch, name, f"branch {name!r} exists")
    return f"creates branch {_uri(repository, name)} at {_commit(repository, given['source'])}"


def _delete_branch(lake: Lake, repository: Repository, given: Given) -> str:  # noqa: ARG001
    branch = repository.branch(given["branch"])
    if branch.id == repository.default_branch:
        raise DefaultBranch(f"{branch.id!r} is the default branch of {repository.id!r}: it cannot be deleted")
    lost = idempotent.unpublished(repository, branch.id, repository.default_branch)
    rest = f"{lost}: that would be lost" if lost else f"{repository.default_branch!r} has all of it"
    return f"deletes branch {_uri(repository, branch.id)}, at {_commit(repository, f'{branch.id}@')}; {rest}"


def _merge(lake: Lake, repository: Repository, given: Given) -> str:  # noqa: ARG001
    source, destination = given["source"], given["destination"] or repository.default_branch
    branch = repository.branch(destination)
    for change in branch.uncommitted():
        raise DirtyBranch(
            f"branch {branch.id!r} has uncommitted changes, {change.path!r} for one; commit or reset them"
        )
    # Both sides are resolved once, so that everything below is about one merge.
    sides = branch.commit_id, repository.ref(source).commit_id
    if idempotent.contains(repository, *sides):
        return f"merges nothing: {_uri(repository, destination)} has all of {_commit(repository, source)}"
    strategy = None if given["strategy"] == "fail" else given["strategy"]
    tally = Tally.of(repository.compare(*sides, strategy=strategy))
    if tally.counts[ChangeType.CONFLICT]:
        raise MergeConflict(source, destination, conflicting(repository.compare(*sides)))
    settled = f", conflicts settled by {strategy}" if strategy else ""
    return f"merges {_commit(repository, source)} into {_uri(repository, destination)}{settled}\n{tally}"


def _revert(lake: Lake, repository: Repository, given: Given) -> str:  # noqa: ARG001
    branch = repository.branch(given["branch"])
    wanted = (given["ref"], given["parent_number"])
    tally = Tally.of(branch.revert_changes(*wanted))
    if tally.counts[ChangeType.CONFLICT]:
        raise MergeConflict(given["ref"], branch.id, conflicting(branch.revert_changes(*wanted)))
    if not tally.total:
        raise NoChanges(f"revert of {given['ref']!r} changes nothing on branch {branch.id!r}")
    return f"undoes {_commit(repository, given['ref'])} on {_uri(repository, branch.id)}\n{tally}"


def _create_tag(lake: Lake, repository: Repository, given: Given) -> str:  # noqa: ARG001
    name = check_tag(given["tag"])
    _require_absent(repository.tag, name, f"tag {name!r} exists; tags do not move")
    return f"creates tag {_uri(repository, name)} at {_commit(repository, given['ref'])}"


def _delete_tag(lake: Lake, repository: Repository, given: Given) -> str:  # noqa: ARG001
    tag = repository.tag(given["tag"])
    return f"deletes tag {_uri(repository, tag.id)}, at {_commit(repository, tag.commit_id)}"


def _reset(lake: Lake, repository: Repository, given: Given) -> str:  # noqa: ARG001
    branch = repository.branch(given["branch"])
    tally = Tally.of(branch.uncommitted(given["prefix"] or ""))
    where = f" under {given['prefix']!r}" if given["prefix"] else ""
    return f"drops uncommitted changes of {_uri(repository, branch.id)}{where}\n{tally}"


def _import(lake: Lake, repository: Repository, given: Given) -> str:
    branch = repository.branch(given["branch"])
    source, folder = parse_location(given["source"]).url, as_folder(given["prefix"] or "")
    objects = size = 0
    for listing in lake.stores().at(source).scan(skip_special=True):
        objects += len(listing.keys)
        size += sum(listing.sizes)
    if not objects:
        raise ObjectNotFound(f"there is nothing at {source} to import")
    before = sum(batch.num_rows for batch in repository.ref(f"{branch.id}@").entries(folder))
    return (
        f"imports {objects:,} objects ({size:,} B) from {source}, uncopied, to {_uri(repository, branch.id)}/{folder}\n"
        f"They take the place of the {before:,} objects that are there now."
    )


VERBS: dict[str, Callable[[Lake, Repository, Given], str]] = {
    "create branch": _create_branch,
    "delete branch": _delete_branch,
    "merge": _merge,
    "revert": _revert,
    "create tag": _create_tag,
    "delete tag": _delete_tag,
    "reset": _reset,
    "import": _import,
}
"""What can be previewed."""


def _uri(repository: Repository, ref: str) -> str:
    return f"lakefs://{repository.id}/{ref}"


def _commit(repository: Repository, ref: str | None) -> str:
    """The commit that a ref means, in words."""
    if ref is not None and not ref:
        raise InvalidInput("a ref is empty")
    commit = repository.ref(ref or repository.default_branch).commit_id
    message = repository.ref(commit).commit.message.splitlines()[0]
    name = "" if ref is None or parse_ref(ref).base == commit else f" ({ref})"
    return f"commit {commit[:16]}{name} {message!r}"


def _require_absent(read: Callable[[str], object], name: str, message: str) -> None:
    try:
        read(name)
    except RefNotFound:
        return
    raise AlreadyExists(message)
