"""``lakeops branch``, ``tag`` and ``check``: branches and tags, their protection, and the checks of commits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakeops.cli.changes import change_line
from lakeops.cli.options import (
    BranchUri,
    CheckName,
    IdempotencyKey,
    ParentNumber,
    Pattern,
    RefUri,
    RepositoryUri,
    RequiredBelow,
    TagUri,
    argument,
    flag,
    ref_in,
    value,
)
from lakeops.cli.output import (
    SHORT_ID,
    VERDICT_COLOURS,
    Styled,
    commit_id,
    is_terminal,
    verdict_lines,
    with_checks,
)
from lakeops.cli.session import MAX_LISTED, Session, command
from lakeops.model.errors import InvalidInput, PreconditionFailed
from lakeops.model.formatting import counted, moment, span
from lakeops.model.protection import Verdict, worst
from lakeops.model.records import Commit, RefRecord

if TYPE_CHECKING:
    from lakeops.lake import Branch

app: typer.Typer = typer.Typer(
    help="Create, list, move, delete, reset, revert and protect branches.", add_completion=False
)


@command(app, "protect", example="branch protect lakefs://flights main")
def protect(session: Session, uri: RepositoryUri, pattern: Pattern) -> None:
    """Let branches that match a pattern change through merges only."""
    session.repository(uri).protect(pattern)
    session.answer(
        {"pattern": pattern}, ["Branches that match ", (pattern, "green"), " now change through merges only"]
    )


@command(app, "unprotect", example="branch unprotect lakefs://flights main")
def unprotect(session: Session, uri: RepositoryUri, pattern: Pattern) -> None:
    """Remove a protection pattern."""
    session.repository(uri).unprotect(pattern)
    session.answer({"pattern": pattern}, ["Pattern ", (pattern, "green"), " no longer protects branches"])


@command(app, "protections", example="branch protections lakefs://flights")
def protections(session: Session, uri: RepositoryUri) -> None:
    """List the patterns of protected branches."""
    patterns = ({"pattern": pattern} for pattern in session.repository(uri).protections())
    session.table(patterns, ("Pattern",), lambda one: ((one["pattern"], "cyan"),))


@command(app, "require", example="branch require lakefs://flights main quality")
def require(
    session: Session, uri: RepositoryUri, pattern: Pattern, name: CheckName, prefix: RequiredBelow = ""
) -> None:
    """Let branches that match a pattern change through merges only, of commits that have passed a check."""
    session.repository(uri).require_check(pattern, name, prefix=prefix)
    below = f", where they change something below {prefix}" if prefix else ""
    session.answer(
        {"pattern": pattern, "check": name, "prefix": prefix},
        [
            "Branches that match ",
            (pattern, "green"),
            " now take only commits that have passed ",
            (name, "green"),
            below,
        ],
    )


@command(app, "unrequire", example="branch unrequire lakefs://flights main quality")
def unrequire(
    session: Session, uri: RepositoryUri, pattern: Pattern, name: CheckName, prefix: RequiredBelow = ""
) -> None:
    """Require a check no longer."""
    session.repository(uri).drop_check(pattern, name, prefix=prefix)
    session.answer(
        {"pattern": pattern, "check": name, "prefix": prefix},
        ["Pattern ", (pattern, "green"), " no longer needs ", (name, "green")],
    )


@command(app, "requirements", example="branch requirements lakefs://flights")
def requirements(session: Session, uri: RepositoryUri) -> None:
    """List the checks that branches require."""
    rules = session.repository(uri).required_checks()
    found = ({"pattern": one.pattern, "check": one.check, "prefix": one.prefix} for one in rules)
    session.table(
        found, ("Pattern", "Check", "Below"), lambda one: ((one["pattern"], "cyan"), one["check"], one["prefix"])
    )


@command(app, "create", example="branch create lakefs://flights/dev --source lakefs://flights/main")
def create(
    session: Session,
    uri: BranchUri,
    source: Annotated[str, value("--source -s", "lakefs://REPO/REF", "Where it begins: any ref.")],
) -> None:
    """Create a branch at any ref. Nothing is copied."""
    repository_id, name = uri.only_ref()
    start = ref_in(repository_id, source)
    ref = RefRecord(name, session.lake.repository(repository_id).create_branch(name, start).commit_id)
    session.answer(ref, ["Branch ", (name, "green"), " created at ", (ref.commit_id, "yellow")])


@command(app, "list", example="branch list lakefs://flights --no-merged main")
def list_all(
    session: Session,
    uri: RepositoryUri,
    merged: Annotated[str | None, value("--merged", "REF", "Only branches that this ref has all commits of.")] = None,
    no_merged: Annotated[str | None, value("--no-merged", "REF", "Only those that it lacks commits of.")] = None,
    prefix: Annotated[str, value("--prefix", "TEXT", "Only names that begin with this.")] = "",
) -> None:
    """List the branches of a repository: the commits they point to, how old these are and who made them."""
    refs = [None if ref is None else ref_in(uri.repository, ref) for ref in (merged, no_merged)]
    repository = session.repository(uri)
    heads = list(repository.heads(prefix=prefix, merged=refs[0], not_merged=refs[1]))
    found = repository.verdicts_of([head.commit for head in heads])
    now = session.now()

    def row(shown: dict[str, Any]) -> tuple[Styled, ...]:
        head = by_name[shown["id"]]
        made = head.commit.creation_date
        age = f"{span(max(0, now - made))} ago" if is_terminal(sys.stdout) else moment(made)
        state = worst(found[head.commit_id])
        checks = (state.word, VERDICT_COLOURS[state.state]) if state else ""
        return ((head.id, "cyan"), commit_id(head.commit_id), age, head.commit.committer, checks)

    by_name = {head.id: head for head in heads}
    records = [with_checks(head, found[head.commit_id]) for head in heads]
    session.table(records, ("Branch", "Commit", "Last commit", "By", "Checks"), row)


@command(app, "show", example="branch show lakefs://flights/main")
def show(session: Session, uri: BranchUri) -> None:
    """Show the commit that a branch points to."""
    repository, name = session.named(uri)
    ref = RefRecord(name, repository.branch(name).commit_id)
    found = repository.ref(ref.commit_id).verdicts()
    lines: list[Sequence[Styled]] = [
        ["Branch: ", (ref.id, "cyan")],
        ["Commit: ", (ref.commit_id, "yellow")],
        *verdict_lines(found),
    ]
    session.answer(with_checks(ref, found), *lines)


@command(app, "delete", example="branch delete lakefs://flights/dev", asks=True)
def delete(session: Session, uri: BranchUri) -> None:
    """Delete a branch and its uncommitted changes."""
    repository, name = session.named(uri)
    branch = repository.branch(name)
    pinned = branch.pin()
    asked = session.confirm(f"Delete branch {name!r}?", lambda: _show_deletion(session, branch))
    ref = repository.delete_branch(name, pinned=pinned if asked else None)
    session.answer(ref, ["Branch ", (name, "green"), " deleted; it was at ", (ref.commit_id, "yellow")])
    from lakeops.model.retention import UNDO_DAYS

    session.note(f"For at least {UNDO_DAYS} days: lakeops branch create {uri} --source {ref.commit_id}")


@command(app, "move", example="branch move lakefs://flights/dev main", asks=True)
def move(
    session: Session,
    uri: BranchUri,
    ref: Annotated[str, argument("COMMIT", "Where to: any ref.")],
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
        session.confirm(f"Move branch {branch.id!r}?", lambda: _show_move(session, branch.id, head.id, target))

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
        {**RefRecord(branch.id, branch.commit_id).to_json(), "reset": count},
        ["Branch ", (branch.id, "green"), f" reset: {counted(count, 'staged path')} dropped"],
    )


@command(app, "revert", example="branch revert lakefs://flights/main main~3..main", progress=True)
def revert(
    session: Session,
    uri: BranchUri,
    refs: Annotated[list[str], argument("REF...", "What to undo: commits, newest first; or OLD..NEW.")],
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


def _show_move(session: Session, name: str, old: str, target: Commit) -> None:
    """Say from where to where a branch or tag would move."""
    session.message("This moves ", (name, "red"), " from ", (old[:SHORT_ID], "yellow"), " to ",
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


tags: typer.Typer = typer.Typer(help="Create, list, show, move, delete and protect tags.", add_completion=False)


@command(tags, "create", example="tag create lakefs://flights/v1 lakefs://flights/main")
def create_tag(session: Session, uri: TagUri, ref: RefUri) -> None:
    """Create a tag at any ref."""
    repository, name, target = session.two_refs(uri, ref)
    tag = repository.create_tag(name, target)
    session.answer(tag, ["Tag ", (name, "green"), " created at ", (tag.commit_id, "yellow")])


@command(tags, "list", example="tag list lakefs://flights")
def list_tags(session: Session, uri: RepositoryUri) -> None:
    """List the tags of a repository and the commits they point to."""
    tags = session.repository(uri).tags()
    session.table(tags, ("Tag", "Commit"), lambda ref: ((ref.id, "cyan"), commit_id(ref.commit_id)))


@command(tags, "show", example="tag show lakefs://flights/v1")
def show_tag(session: Session, uri: TagUri) -> None:
    """Show the commit that a tag points to."""
    repository, name = session.named(uri)
    tag = repository.tag(name)
    session.answer(tag, ["Tag:    ", (tag.id, "cyan")], ["Commit: ", (tag.commit_id, "yellow")])


@command(tags, "move", example="tag move lakefs://flights/latest lakefs://flights/main", asks=True)
def move_tag(session: Session, uri: TagUri, ref: RefUri, idempotency_key: IdempotencyKey = None) -> None:
    """Point a tag at another commit. Readers of the tag see that commit from then on."""
    repository, name, target = session.two_refs(uri, ref)
    old, new = repository.tag(name), repository.ref(target).commit
    question = f"Move tag {name!r}?"
    asked = session.confirm(question, lambda: _show_move(session, name, old.commit_id, new), optional=True)
    moved = repository.move_tag(
        name,
        new.id if idempotency_key is None else target,
        old=old.commit_id if asked else None,
        idempotency_key=idempotency_key,
    )
    session.answer(
        {**moved.to_json(), "old": old.commit_id}, ["Tag ", (name, "green"), " is at ", (moved.commit_id, "yellow")]
    )
    if moved.commit_id != old.commit_id:
        session.note(f"To undo: lakeops tag move {uri} lakefs://{uri.repository}/{old.commit_id}")


@command(tags, "protect", example="tag protect lakefs://flights 'v*'")
def protect_tags(session: Session, uri: RepositoryUri, pattern: Pattern) -> None:
    """Keep tags that match a pattern from being moved or deleted."""
    session.repository(uri).protect_tags(pattern)
    session.answer({"pattern": pattern}, ["Tags that match ", (pattern, "green"), " can no longer be moved or deleted"])


@command(tags, "unprotect", example="tag unprotect lakefs://flights 'v*'")
def unprotect_tags(session: Session, uri: RepositoryUri, pattern: Pattern) -> None:
    """Remove a protection pattern."""
    session.repository(uri).unprotect_tags(pattern)
    session.answer({"pattern": pattern}, ["Pattern ", (pattern, "green"), " no longer protects tags"])


@command(tags, "protections", example="tag protections lakefs://flights")
def tag_protections(session: Session, uri: RepositoryUri) -> None:
    """List the patterns of protected tags."""
    patterns = ({"pattern": pattern} for pattern in session.repository(uri).tag_protections())
    session.table(patterns, ("Pattern",), lambda one: ((one["pattern"], "cyan"),))


@command(tags, "delete", example="tag delete lakefs://flights/v1", asks=True)
def delete_tag(session: Session, uri: TagUri) -> None:
    """Delete a tag. The answer names its commit, so that it can be created again."""
    repository, name = session.named(uri)
    tag = repository.tag(name)

    def show() -> None:
        session.message("This deletes ", (name, "red"), ", now at ", (tag.commit_id[:SHORT_ID], "yellow"), ".")

    asked = session.confirm(f"Delete tag {name!r}?", show, optional=True)
    tag = repository.delete_tag(name, old=tag.commit_id if asked else None)
    session.answer(tag, ["Tag ", (name, "green"), " deleted; it was at ", (tag.commit_id, "yellow")])


checks: typer.Typer = typer.Typer(help="Record and list what the checks of a commit found.", add_completion=False)


@command(checks, "pass", example="check pass lakefs://flights/dev quality")
def pass_check(
    session: Session,
    at: RefUri,
    name: CheckName,
    by: Annotated[str | None, value("--by", "NAME", "Who says so, in place of the database login.")] = None,
) -> None:
    """Record that a commit has passed a check."""
    made = session.ref(at).pass_check(name, by=by)
    session.answer(made, [(made.commit_id, "yellow"), " has passed ", (made.name, "green"), ", says ", made.said_by])


@command(checks, "fail", example="check fail lakefs://flights/dev quality 'two rows are negative'")
def fail_check(
    session: Session,
    at: RefUri,
    name: CheckName,
    findings: Annotated[str, typer.Argument(metavar="FINDINGS", help="What was wrong.", show_default=False)],
    by: Annotated[str | None, value("--by", "NAME", "Who says so, in place of the database login.")] = None,
) -> None:
    """Record that a commit has failed a check."""
    made = session.ref(at).fail_check(name, findings, by=by)
    session.answer(made, [(made.commit_id, "yellow"), " has failed ", (made.name, "red"), ", says ", made.said_by])


@command(checks, "withdraw", example="check withdraw lakefs://flights/dev quality")
def withdraw_check(session: Session, at: RefUri, name: CheckName) -> None:
    """Forget what a check of a commit found."""
    ref = session.ref(at)
    commit = ref.commit_id
    ref.withdraw_check(name)
    session.answer({"commit_id": commit, "name": name}, [(commit, "yellow"), " has no verdict of ", (name, "green")])


@command(checks, "list", example="check list lakefs://flights/dev")
def list_checks(session: Session, at: RefUri) -> None:
    """List what the checks of a commit found, and those that it declares and that wait."""
    session.table(session.ref(at).verdicts(), ("Check", "Verdict", "By", "At", "Findings"), _verdict_row)


def _verdict_row(one: Verdict) -> tuple[Styled, ...]:
    at = moment(one.at)[:19] if one.at else ""
    return ((one.name, "cyan"), (one.word, VERDICT_COLOURS[one.state]), one.said_by, at, one.findings)
