"""Refs and commits: every ref leads to a live commit, and every commit says what its id says.

Nothing is walked along: each record is looked at by itself and beside its parents, so a circle or a gap in a damaged
history stops nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from lakeops.catalog.records import CatalogSnapshot
from lakeops.model.errors import (
    InvalidInput,
)
from lakeops.model.findings import Finding, found
from lakeops.model.ids import id_of
from lakeops.model.names import check_branch
from lakeops.model.records import Commit, Split
from lakeops.ranges.chunker import check_split


def check_history(records: CatalogSnapshot) -> Iterator[Finding]:
    """What is wrong with the repository's record, its refs and its commits."""
    repository = records.repository
    if repository.default_branch not in {branch.id for branch in records.branches}:
        yield found(
            "default_branch_missing", f"branch {repository.default_branch}", "the default branch does not exist"
        )
    if reason := split_flaw(repository.split):
        yield found("split_invalid", f"repository {repository.id}", reason)
    yield from _refs(records)
    for name, reason in records.unreadable.items():
        yield found("commit_unreadable", f"commit {name}", f"the record cannot be read: {reason}")
    for commit in records.commits.values():
        yield from _commit(records, commit)
    yield from _roots(records)
    for key, missing in records.dangling_keys.items():
        yield found(
            "idempotency_key_dangling",
            f"idempotency key {key}",
            f"it stands for commit {missing}, which does not exist",
        )


def split_flaw(split: Split) -> str | None:
    """Why ranges cannot be cut in this way. None when they can."""
    try:
        check_split(split)
    except (InvalidInput, TypeError) as error:
        return str(error)
    return None


def _refs(records: CatalogSnapshot) -> Iterator[Finding]:
    branches = (("branch", branch.id, branch.commit_id) for branch in records.branches)
    tags = (("tag", tag.id, tag.commit_id) for tag in records.tags)
    for noun, name, target in chain(branches, tags):
        where = f"{noun} {name}"
        if target in records.unreadable:
            continue  # told of the commit
        commit = records.commits.get(target)
        if commit is None:
            yield found(f"{noun}_target_missing", where, f"it points to commit {target}, which does not exist")
        elif commit.expired:
            yield found(f"{noun}_target_expired", where, f"it points to commit {target}, which is expired")
        try:
            check_branch(name)
        except InvalidInput as error:
            yield found("ref_name_invalid", where, error.message)


def _commit(records: CatalogSnapshot, commit: Commit) -> Iterator[Finding]:
    where, mine = f"commit {commit.id}", (commit.id,)
    computed = _computed_id(commit)
    if computed != commit.id:
        yield found("commit_id_mismatch", where, f"what it says has the id {computed}", commits=mine)
    gone = [parent for parent in commit.parents if parent not in records.commits and parent not in records.unreadable]
    for parent in [] if _pruned(records, commit, gone) else gone:
        yield found("commit_parent_missing", where, f"its parent {parent} does not exist", commits=mine)
    known = [records.commits[parent].generation for parent in commit.parents if parent in records.commits]
    expected = 1 + max(known, default=0)
    if len(known) == len(commit.parents) and commit.generation != expected:
        message = f"its generation is {commit.generation}, and its parents make it {expected}"
        yield found("commit_generation_wrong", where, message, commits=mine)
    if commit.id in records.first_parents:
        followed = records.first_parents[commit.id] or "nothing"
        message = f"logs go on to {followed}, which is not the first of its parents"
        yield found("commit_first_parent_wrong", where, message, commits=mine)


def _pruned(records: CatalogSnapshot, commit: Commit, gone: list[str]) -> bool:
    """Whether missing parents may have been pruned, by how far history was. Sums tell whether rows were lost."""
    if records.pruned is None:
        return False
    return len(gone) < len(commit.parents) or commit.generation - 1 <= records.pruned


def _computed_id(commit: Commit) -> str:
    try:
        return id_of(commit)
    except (OverflowError, UnicodeError):
        return "of no commit"


def _roots(records: CatalogSnapshot) -> Iterator[Finding]:
    roots = sorted(commit.id for commit in records.commits.values() if not commit.parents)
    where = f"repository {records.repository.id}"
    if not roots and not records.unreadable:
        yield found("root_missing", where, "no commit is without parents")
    elif len(roots) > 1:
        yield found("roots_several", where, f"{len(roots)} commits have no parents", commits=roots, count=len(roots))
