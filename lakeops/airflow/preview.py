"""What a verb would do, in words: the previews that the forms of ``lakeops.airflow.dags.admin`` show first.

A preview changes nothing. It refuses what the verb itself would refuse, as far as that can be known without trying.
It pins what it has shown. Where others change that before the verb is done, the verb does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from lakeops.airflow import idempotent
from lakeops.airflow.changes import (
    NOTHING,
    DiffSummary,
    MergeOutcome,
    conflicting,
    importing,
    lying_at,
    objects_under,
    staged_state,
    state_of,
)
from lakeops.airflow.failures import failing_at_once
from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.links import address, point_to
from lakeops.model.changes import ChangeType
from lakeops.model.errors import (
    AlreadyExists,
    DefaultBranch,
    DirtyBranch,
    InvalidInput,
    InvalidRef,
    MarkRefused,
    MergeConflict,
    NoChanges,
    ObjectNotFound,
    ReadOnlyRepository,
    RefNotFound,
)
from lakeops.model.marks import SWEEPABLE
from lakeops.model.names import as_folder, check_branch, check_tag
from lakeops.model.refs import parse_ref
from lakeops.model.words import counted
from lakeops.store.location import parse_location

if TYPE_CHECKING:
    from lakeops.lake import Lake, Repository

Given = Mapping[str, Any]


class Preview(NamedTuple):
    """What a verb would do.

    Attributes:
        text: in words, of one to about a hundred lines.
        pinned: arguments for the verb's operator that make it do this and nothing else: refs as commit ids, and as
            ``shown`` what the operator must find unchanged.
    """

    text: str
    pinned: dict[str, str]


def preview(verb: str, given: Given, *, lakeops_conn_id: str) -> Preview:
    """What ``verb`` would do with the values of a form.

    Args:
        verb: a key of ``VERBS``.
        given: the form's values: ``repository``, and others as the verb needs them.
        lakeops_conn_id: the connection.

    Raises:
        LakeopsFailure: the verb would be refused, with this message.
    """
    with failing_at_once():
        hook = LakeopsHook(lakeops_conn_id)
        with hook.get_conn() as lake, hook.naming(lake):
            repository = lake.repository(hook.repository_name(given["repository"]))
            if repository.record.read_only:
                raise ReadOnlyRepository(f"repository {repository.id!r} is read-only")
            parts, query = PAGES[verb](given, repository.default_branch)
            # Before the verb is tried: whoever is refused, over a conflict for instance, wants to look most.
            point_to("page", address(lakeops_conn_id, repository.id, *parts, **query))
            return VERBS[verb](lake, repository, given)


def _create_branch(lake: Lake, repository: Repository, given: Given) -> Preview:  # noqa: ARG001 - as the others
    name = check_branch(given["branch"])
    _require_absent(repository.branch, name, f"branch {name!r} exists")
    source, words = _commit(repository, given["source"])
    return Preview(f"creates branch {_uri(repository, name)} at {words}", {"source": source})


def _delete_branch(lake: Lake, repository: Repository, given: Given) -> Preview:  # noqa: ARG001
    branch = repository.branch(given["branch"])
    if branch.id == repository.default_branch:
        raise DefaultBranch(f"{branch.id!r} is the default branch of {repository.id!r}: it cannot be deleted")
    shown = state_of(branch)
    lost = idempotent.unpublished(repository, branch.id, repository.default_branch)
    rest = f"{lost}: that would be lost" if lost else f"{repository.default_branch!r} has all of it"
    at = _commit(repository, f"{branch.id}@")[1]
    return Preview(f"deletes branch {_uri(repository, branch.id)}, at {at}; {rest}", {"shown": shown})


def _merge(lake: Lake, repository: Repository, given: Given) -> Preview:  # noqa: ARG001
    branch = repository.branch(given["destination"] or repository.default_branch)
    for change in branch.uncommitted():
        raise DirtyBranch(
            f"branch {branch.id!r} has uncommitted changes, {change.path!r} for one; commit or reset them"
        )
    # Both sides are resolved once, so that everything below is about one merge.
    head, (source, words) = branch.commit_id, _commit(repository, given["source"])
    strategy = None if given["strategy"] == "fail" else given["strategy"]
    found = MergeOutcome.of(repository, head, source, strategy)
    pinned = {"source": source, "destination": branch.id, "shown": found.shown}
    if found.shown == NOTHING:
        return Preview(f"merges nothing: {_uri(repository, branch.id)} has all of {words}", pinned)
    if found.conflicts:
        raise MergeConflict(given["source"], branch.id, found.conflicts)
    settled = f", conflicts settled by {strategy}" if strategy else ""
    return Preview(f"merges {words} into {_uri(repository, branch.id)}{settled}\n{found.tally}", pinned)


def _revert(lake: Lake, repository: Repository, given: Given) -> Preview:  # noqa: ARG001
    branch = repository.branch(given["branch"])
    ref, words = _commit(repository, given["ref"])
    wanted = (ref, given["parent_number"])
    try:
        tally = DiffSummary.of(branch.revert_changes(*wanted))
    except InvalidRef:  # its message should name the ref as it was given
        tally = DiffSummary.of(branch.revert_changes(given["ref"], given["parent_number"]))
    if tally.counts[ChangeType.CONFLICT]:
        raise MergeConflict(given["ref"], branch.id, conflicting(branch.revert_changes(*wanted)), replayed=True)
    if not tally.total:
        raise NoChanges(f"revert of {given['ref']!r} changes nothing on branch {branch.id!r}")
    return Preview(f"undoes {words} on {_uri(repository, branch.id)}\n{tally}", {"ref": ref, "shown": tally.digest})


def _create_tag(lake: Lake, repository: Repository, given: Given) -> Preview:  # noqa: ARG001
    name = check_tag(given["tag"])
    _require_absent(repository.tag, name, f"tag {name!r} exists; tags do not move")
    ref, words = _commit(repository, given["ref"])
    return Preview(f"creates tag {_uri(repository, name)} at {words}", {"ref": ref})


def _delete_tag(lake: Lake, repository: Repository, given: Given) -> Preview:  # noqa: ARG001
    tag = repository.tag(given["tag"])
    shown, words = _commit(repository, tag.commit_id)
    return Preview(f"deletes tag {_uri(repository, tag.id)}, at {words}", {"shown": shown})


def _move_branch(lake: Lake, repository: Repository, given: Given) -> Preview:  # noqa: ARG001
    branch = repository.branch(given["branch"])
    for change in branch.uncommitted():
        raise DirtyBranch(
            f"branch {branch.id!r} has uncommitted changes, {change.path!r} for one; commit or reset them"
        )
    head, (ref, words) = branch.commit_id, _commit(repository, given["source"])
    apart = repository.divergence(head, [ref])[0]
    if apart is None:
        rest = "They are far apart."
    else:
        new, lost = (counted(number, "commit") for number in apart)
        rest = f"{new} come into its history, and {lost} go out of it; the reflog keeps where it was."
    text = f"moves branch {_uri(repository, branch.id)} from commit {head[:16]} to {words}\n{rest}"
    return Preview(text, {"source": ref, "shown": head})


def _move_tag(lake: Lake, repository: Repository, given: Given) -> Preview:  # noqa: ARG001
    tag = repository.tag(given["tag"])
    ref, words = _commit(repository, given["ref"])
    text = f"moves tag {_uri(repository, tag.id)} from commit {tag.commit_id[:16]} to {words}"
    return Preview(text, {"ref": ref, "shown": tag.commit_id})


def _sweep(lake: Lake, repository: Repository, given: Given) -> Preview:  # noqa: ARG001
    from lakeops.airflow.operators.gc import summary  # late: a form without marks does not need the operators

    mark_id = given["mark"]
    report = repository.gc.report(mark_id)
    state = next(mark.state for mark in repository.gc.marks() if mark.id == mark_id)
    if state not in SWEEPABLE:
        raise MarkRefused(f"mark {mark_id} is {state.value}, so there is nothing to sweep; mark anew")
    return Preview(f"deletes what mark {mark_id} holds\n{summary(repository.id, report)}", {})


def _reset(lake: Lake, repository: Repository, given: Given) -> Preview:  # noqa: ARG001
    branch = repository.branch(given["branch"])
    shown = staged_state(branch, given["prefix"] or "") or NOTHING  # before the look
    tally = DiffSummary.of(branch.uncommitted(given["prefix"] or ""))
    where = f" under {given['prefix']!r}" if given["prefix"] else ""
    text = f"drops uncommitted changes of {_uri(repository, branch.id)}{where}\n{tally}"
    return Preview(text, {"shown": shown})


def _import(lake: Lake, repository: Repository, given: Given) -> Preview:
    branch = repository.branch(given["branch"])
    source, folder = parse_location(given["source"]).url, as_folder(given["prefix"] or "")
    lying, before = lying_at(lake, source), objects_under(repository, branch.commit_id, folder)
    if not lying.objects:
        raise ObjectNotFound(f"there is nothing at {source} to import")
    text = (
        f"imports {lying.objects:,} objects ({lying.size:,} B) from {source}, uncopied, to "
        f"{_uri(repository, branch.id)}/{folder}\nThey take the place of the {before:,} objects that are there now."
    )
    return Preview(text, {"shown": importing(lying, before)})


VERBS: dict[str, Callable[[Lake, Repository, Given], Preview]] = {
    "create branch": _create_branch,
    "delete branch": _delete_branch,
    "merge": _merge,
    "revert": _revert,
    "create tag": _create_tag,
    "delete tag": _delete_tag,
    "move branch": _move_branch,
    "move tag": _move_tag,
    "reset": _reset,
    "sweep": _sweep,
    "import": _import,
}
"""What can be previewed."""


Page = tuple[tuple[str, ...], dict[str, str]]
"""The parts of a page's address behind the repository, and its query."""

PAGES: dict[str, Callable[[Given, str], Page]] = {
    "create branch": lambda given, main: (("ref", given["source"] or main), {}),
    "delete branch": lambda given, _: (("ref", given["branch"]), {}),
    "merge": lambda given, main: (("diff",), {"left": given["destination"] or main, "right": given["source"]}),
    "revert": lambda given, _: (("commit", given["ref"]), {}),
    "create tag": lambda given, main: (("ref", given["ref"] or main), {}),
    "delete tag": lambda given, _: (("ref", given["tag"]), {}),
    "move branch": lambda given, main: (("diff",), {"left": given["branch"], "right": given["source"] or main}),
    "move tag": lambda given, _: (("ref", given["tag"]), {}),
    "sweep": lambda _, __: (("gc",), {}),
    "reset": lambda given, _: (("uncommitted", given["branch"]), {"prefix": given["prefix"] or ""}),
    "import": lambda given, _: (("tree", given["branch"]), {"prefix": given["prefix"] or ""}),
}
"""Where to look at what a verb is about, by the form's values and the default branch."""


def _uri(repository: Repository, ref: str) -> str:
    return f"lakefs://{repository.id}/{ref}"


def _commit(repository: Repository, ref: str | None) -> tuple[str, str]:
    """The commit that a ref means: its id, and in words."""
    if ref is not None and not ref:
        raise InvalidInput("a ref is empty")
    commit = repository.ref(ref or repository.default_branch).commit_id
    message = repository.ref(commit).commit.message.splitlines()[0]
    name = "" if ref is None or parse_ref(ref).base == commit else f" ({ref})"
    return commit, f"commit {commit[:16]}{name} {message!r}"


def _require_absent(read: Callable[[str], object], name: str, message: str) -> None:
    try:
        read(name)
    except RefNotFound:
        return
    raise AlreadyExists(message)
