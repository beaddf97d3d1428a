"""``lakeops branch``: create, list, show, move, delete and protect branches, and take back changes of one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli.diff import change_line
from lakeops.cli.options import (
    BranchUri,
    CheckName,
    IdempotencyKey,
    ParentNumber,
    Pattern,
    Protection,
    RepositoryUri,
    flag,
    ref_in,
    value,
)
from lakeops.cli.output import SHORT_ID, Styled, commit_id, is_terminal
from lakeops.cli.session import MAX_LISTED, Session, command
from lakeops.model.errors import InvalidInput, PreconditionFailed
from lakeops.model.json_record import JsonRecord
from lakeops.model.records import Commit, Head, Ref
from lakeops.model.words import counted, moment, span

if TYPE_CHECKING:
    from lakeops.lake import Branch

app: typer.Typer = typer.Typer(
    help="Create, list, move, delete, reset, revert and protect branches.", add_completion=False
)


@dataclass(frozen=True)
class Requirement(JsonRecord):
    """A check that branches require, as a record."""

    pattern: str
    check: str


@command(app, "protect", example="branch protect lakefs://flights main")
def protect(session: Session, uri: RepositoryUri, pattern: Pattern) -> None:
    """Let branches that match a pattern change through merges only."""
    session.repository(uri).protect(pattern)
    session.answer(Protection(pattern), ["Branches that match ", (pattern, "green"), " now change through merges only"])


@command(app, "unprotect")
def unprotect(session: Session, uri: RepositoryUri, pattern: Pattern) -> None:
    """Remove a protection pattern."""
    session.repository(uri).unprotect(pattern)
    session.answer(Protection(pattern), ["Pattern ", (pattern, "green"), " no longer protects branches"])


@command(app, "protections")
def protections(session: Session, uri: RepositoryUri) -> None:
    """List the patterns of protected branches."""
    patterns = map(Protection, session.repository(uri).protections())
    session.table(patterns, ("Pattern",), lambda pattern: ((pattern, "cyan"),))


@command(app, "require", example="branch require lakefs://flights main quality")
def require(session: Session, uri: RepositoryUri, pattern: Pattern, name: CheckName) -> None:
    """Let branches that match a pattern change through merges only, of commits that have passed a check."""
    session.repository(uri).require_check(pattern, name)
    session.answer(
        Requirement(pattern, name),
        ["Branches that match ", (pattern, "green"), " now take only commits that have passed ", (name, "green")],
    )


@command(app, "unrequire")
def unrequire(session: Session, uri: RepositoryUri, pattern: Pattern, name: CheckName) -> None:
    """Require a check no longer."""
    session.repository(uri).drop_check(pattern, name)
    session.answer(Requirement(pattern, name), ["Pattern ", (pattern, "green"), " no longer needs ", (name, "green")])


@command(app, "requirements")
def requirements(session: Session, uri: RepositoryUri) -> None:
    """List the checks that branches require."""
    found = (Requirement(one.pattern, one.check) for one in session.repository(uri).required_checks())
    session.table(found, ("Pattern", "Check"), lambda one: ((one.pattern, "cyan"), one.check))


@command(app, "create", example="branch create lakefs://flights/dev --source lakefs://flights/main")
def create(
    session: Session,
    uri: BranchUri,
    source: Annotated[str, value("--source -s", "lakefs://REPO/REF", "Where it begins: any ref.")],
) -> None:
    """Create a branch at any ref. Nothing is copied."""
    repository_id, name = uri.only_ref()
    start = ref_in(repository_id, source)
    ref = Ref(name, session.lake.repository(repository_id).create_branch(name, start).commit_id)
    session.answer(ref, ["Branch ", (name, "green"), " created at ", (ref.commit_id, "yellow")])


@command(app, "list")
def list_all(
    session: Session,
    uri: RepositoryUri,
    merged: Annotated[str | None, value("--merged", "REF", "Only branches that this ref has all commits of.")] = None,
    no_merged: Annotated[str | None, value("--no-merged", "REF", "Only those that it lacks commits of.")] = None,
    prefix: Annotated[str, value("--prefix", "TEXT", "Only names that begin with this.")] = "",
) -> None:
    """List the branches of a repository: the commits they point to, how old these are and who made them."""
    refs = [None if ref is None else ref_in(uri.repository, ref) for ref in (merged, no_merged)]
    heads = session.repository(uri).heads(prefix=prefix, merged=refs[0], not_merged=refs[1])
    now = session.now()

    def row(head: Head) -> tuple[Styled, ...]:
        made = head.commit.creation_date
        age = f"{span(max(0, now - made))} ago" if is_terminal(sys.stdout) else moment(made)
        return ((head.id, "cyan"), commit_id(head.commit_id), age, head.commit.committer)

    session.table(heads, ("Branch", "Commit", "Last commit", "By"), row)


@command(app, "show")
def show(session: Session, uri: BranchUri) -> None:
    """Show the commit that a branch points to."""
    branch = session.branch(uri)
    ref = Ref(branch.id, branch.commit_id)
    session.answer(ref, ["Branch: ", (ref.id, "cyan")], ["Commit: ", (ref.commit_id, "yellow")])


@command(app, "delete", asks=True)
def delete(session: Session, uri: BranchUri) -> None:
    """Delete a branch and its uncommitted changes."""
    repository, name = session.named(uri)
    branch = repository.branch(name)
    pinned = branch.pin()
    asked = session.confirm(f"Delete branch {name!r}?", lambda: _show_deletion(session, branch))
    ref = repository.delete_branch(name, pinned=pinned if asked else None)
    session.answer(ref, ["Branch ", (name, "green"), " deleted; it was at ", (ref.commit_id, "yellow")])
    from lakeops.model.rules import UNDO_DAYS

    session.note(f"For at least {UNDO_DAYS} days: lakeops branch create {uri} --source {ref.commit_id}")


@command(app, "move", example="branch move lakefs://flights/dev main", asks=True)
def move(
    session: Session,
    uri: BranchUri,
    ref: Annotated[str, typer.Argument(metavar="COMMIT", help="Where to: any ref.", show_default=False)],
    force: Annotated[bool, flag("--force", "Move back or sideways too: commits may leave the history.")] = False,
    idempotency_key: IdempotencyKey = None,
) -> None:
    """Point a branch at another commit, one that descends from its head.

    The reflog tells where it was, so that it can be moved back.
    """
    branch = session.branch(uri)
    given = ref_in(uri.repository, ref)
    head, target = branch.head, session.lake.repository(uri.repository).ref(given).commit
    if force:
        session.confirm(f"Move branch {branch.id!r}?", lambda: _show_move(session, branch, head, target))

    def as_shown(now: str) -> None:
        if force and now != head.id:
            raise PreconditionFailed(f"branch {branch.id!r} moved to {now[:SHORT_ID]} meanwhile; look at it again")

    where = target.id if idempotency_key is None else given
    moved = branch.move(where, force=force, idempotency_key=idempotency_key, on_head=as_shown)
    session.answer(
        {**moved.to_json(), "old": head.id}, ["Branch ", (branch.id, "green"), " is at ", (moved.commit_id, "yellow")]
    )
    if moved.commit_id != head.id:
        session.note(f"To undo: lakeops branch move {uri} {head.id} --force")


@command(app, "reset", example="branch reset lakefs://flights/dev --prefix raw/ --yes", progress=True, asks=True)
def reset(
    session: Session,
    uri: BranchUri,
    prefix: Annotated[str | None, value("--prefix", "PREFIX", "Only changes under this prefix.")] = None,
    path: Annotated[str | None, value("--object", "PATH", "Only the change of this object.")] = None,
) -> None:
    """Drop uncommitted changes: all, those under a prefix, or one object's."""
    if prefix is not None and path is not None:
        raise InvalidInput("give --prefix or --object, not both")
    branch = session.branch(uri)
    pinned = branch.pin(prefix, path)
    asked = session.confirm(f"Reset branch {branch.id!r}?", lambda: _show_changes(session, branch, prefix, path))
    with session.progress(f"Resetting {branch.id}"):
        count = branch.reset(prefix, path, pinned=pinned if asked else None)
    session.answer(
        {**Ref(branch.id, branch.commit_id).to_json(), "reset": count},
        ["Branch ", (branch.id, "green"), f" reset: {counted(count, 'staged path')} dropped"],
    )


@command(app, "revert", example="branch revert lakefs://flights/main main~3..main", progress=True)
def revert(
    session: Session,
    uri: BranchUri,
    refs: Annotated[
        list[str],
        typer.Argument(metavar="REF...", help="What to undo: commits, newest first; or OLD..NEW.", show_default=False),
    ],
    parent_number: ParentNumber = None,
    message: Annotated[str | None, value("--message", "TEXT", "The commit's message.")] = None,
    idempotency_key: IdempotencyKey = None,
) -> None:
    """Undo what a commit did, with a new commit.

    Several commits, or all commits between two, are undone by one new commit: all of them or none.
    """
    branch = session.branch(uri)
    named = [ref_in(uri.repository, ref) for ref in refs]
    what = ", ".join(refs)
    with session.progress(f"Reverting {what}"):
        commit = branch.revert(
            named[0] if len(named) == 1 else named, parent_number, message=message, idempotency_key=idempotency_key
        )
    session.answer(commit, ["Reverted ", what, " on ", (branch.id, "green"), ": commit ", (commit.id, "yellow")])


def _show_move(session: Session, branch: Branch, head: Commit, target: Commit) -> None:
    session.message("This moves ", (branch.id, "red"), " from ", (head.id[:SHORT_ID], "yellow"), " to ",
                    (target.id[:SHORT_ID], "yellow"), ": ", target.message.partition("\n")[0])  # fmt: skip


def _show_deletion(session: Session, branch: Branch) -> None:
    session.message("This deletes ", (branch.id, "red"), ", now at ", (branch.commit_id[:SHORT_ID], "yellow"), ".")
    _show_changes(session, branch)


def _show_changes(session: Session, branch: Branch, prefix: str | None = None, path: str | None = None) -> None:
    """List uncommitted changes that would be lost."""
    changes = branch.uncommitted(prefix or path or "")
    if path is not None:
        changes = (change for change in changes if change.path == path)
    first = list(islice(changes, MAX_LISTED))
    rest = sum(1 for _ in changes)
    session.message(f"{counted(len(first) + rest, 'uncommitted change')} would be lost{':' if first else '.'}")
    for change in first:
        session.message("  ", *change_line(change))
    if rest:
        session.message(f"  ... and {rest:,} more")
