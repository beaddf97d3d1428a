"""``lakeops branch``, ``tag``, ``protection`` and ``check``: refs, their protection, and the checks of commits."""

from __future__ import annotations

import sys
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakeops.cli import options
from lakeops.cli.changes import change_line
from lakeops.cli.options import argument, flag, ref_in, value
from lakeops.cli.output import SHORT_ID, VERDICT_COLOURS, Styled, commit_id, is_terminal, verdict_lines, with_checks
from lakeops.cli.session import Session, command
from lakeops.model.errors import InvalidInput, PreconditionFailed
from lakeops.model.formatting import counted, moment, span
from lakeops.model.protection import Verdict, worst
from lakeops.model.records import Commit, RefRecord

if TYPE_CHECKING:
    from lakeops.lake import Branch

app: typer.Typer = typer.Typer(
    help="Create, list, move, delete, reset, revert and protect branches.", add_completion=False
)


@command(app, "create", example="branch create lakefs://flights/dev --source lakefs://flights/main")
def create(
    session: Session,
    uri: options.BranchUri,
    source: Annotated[str, value("--source -s", "lakefs://REPO/REF", "The ref at which it begins.")],
) -> None:
    """Create a branch at any ref. Nothing is copied."""
    repository, name, start = session.two_refs(uri, source)
    ref = RefRecord(name, repository.create_branch(name, start).commit_id)
    session.answer(ref, ["Branch ", (name, "green"), " created at ", (ref.commit_id, "yellow")])


@command(app, "list", example="branch list lakefs://flights --no-merged main", lists="prefix after amount")
def list_all(
    session: Session,
    uri: options.RepositoryUri,
    merged: Annotated[str | None, value("--merged", "REF", "Only branches whose commits are all in this ref.")] = None,
    no_merged: Annotated[
        str | None, value("--no-merged", "REF", "Only branches with commits that this ref lacks.")
    ] = None,
) -> None:
    """List the branches of a repository, each with its last commit, the commit's age and its author.

    Where a branch was last created or moved, and not committed to, that person is named in place of the author.
    """
    refs = [None if ref is None else ref_in(uri.repository, ref) for ref in (merged, no_merged)]
    repository = session.repository(uri)
    heads = list(session.part(repository.heads(prefix=session.prefix, merged=refs[0], not_merged=refs[1])))
    found = repository.verdicts_of([head.commit for head in heads])
    moves = session.lake.catalog.refs.last_moves(repository.id, [head.id for head in heads])
    now = session.now()

    def row(shown: dict[str, Any]) -> tuple[Styled, ...]:
        head = by_name[shown["id"]]
        made = head.commit.creation_date
        age = f"{span(max(0, now - made))} ago" if is_terminal(sys.stdout) else moment(made)
        state = worst(found[head.commit_id])
        checks = (state.word, VERDICT_COLOURS[state.state]) if state else ""
        pointed = head.id in moves and moves[head.id].pointed_by
        return ((head.id, "cyan"), commit_id(head.commit_id), age, pointed or head.commit.committer, checks)

    by_name = {head.id: head for head in heads}
    records = [with_checks(head, found[head.commit_id]) for head in heads]
    session.table(records, ("Branch", "Commit", "Last commit", "By", "Checks"), row)


@command(app, "show", example="branch show lakefs://flights/main")
def show(session: Session, uri: options.BranchUri) -> None:
    """Show the commit that a branch points to."""
    repository, name = session.named(uri)
    ref = RefRecord(name, repository.branch(name).commit_id)
    found = repository.ref(ref.commit_id).verdicts()
    names = (("Branch: ", (ref.id, "cyan")), ("Commit: ", (ref.commit_id, "yellow")))
    session.answer(with_checks(ref, found), *names, *verdict_lines(found))


@command(app, "delete", example="branch delete lakefs://flights/dev", asks=True)
def delete(session: Session, uri: options.BranchUri) -> None:
    """Delete a branch and its uncommitted changes."""
    repository, name = session.named(uri)
    branch = repository.branch(name)
    pinned = branch.pin()

    def show() -> None:
        _show_deletion(session, name, branch.commit_id)
        _show_changes(session, branch)

    asked = session.confirm(f"Delete branch {name!r}?", show)
    ref = repository.delete_branch(name, pinned=pinned if asked else None)
    session.answer(ref, ["Branch ", (name, "green"), " deleted; it was at ", (ref.commit_id, "yellow")])
    from lakeops.model.retention import UNDO_DAYS

    session.note(f"To bring it back, for {UNDO_DAYS} days: lakeops branch create {uri} --source {ref.commit_id}")


@command(app, "move", example="branch move lakefs://flights/dev main", asks=True)
def move(
    session: Session,
    uri: options.BranchUri,
    ref: Annotated[str, argument("COMMIT", "The commit to point at: any ref.")],
    force: Annotated[
        bool, flag("--force", "Also move back, or to another line of history: commits may leave the branch.")
    ] = False,
    idempotency_key: options.IdempotencyKey = None,
) -> None:
    """Point a branch at another commit, one that descends from its head.

    The reflog shows where the branch was, so it can be moved back.
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
    _answer_moved(session, "Branch ", moved, head.id)
    if moved.commit_id != head.id:
        session.note(f"To undo: lakeops branch move {uri} {head.id} --force")


@command(app, "reset", example="branch reset lakefs://flights/dev --prefix raw/ --yes", progress=True, asks=True)
def reset(
    session: Session,
    uri: options.BranchUri,
    prefix: Annotated[str | None, value("--prefix", "PREFIX", "Only changes under this prefix.")] = None,
    path: Annotated[str | None, value("--object", "PATH", "Only the change of this object.")] = None,
) -> None:
    """Drop uncommitted changes: all, those under a prefix, or one object's."""
    if prefix == "" or (prefix is not None and path is not None):
        raise InvalidInput("give --prefix, which is not empty, or --object, or leave both out")
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
    uri: options.BranchUri,
    refs: Annotated[list[str], argument("REF...", "The commits to undo: newest first, or OLD..NEW.")],
    parent_number: options.ParentNumber = None,
    message: Annotated[str | None, value("--message", "TEXT", "The commit's message.")] = None,
    idempotency_key: options.IdempotencyKey = None,
) -> None:
    """Undo a commit by a new commit.

    One new commit undoes several commits, or all commits of OLD..NEW: all of them or none.
    """
    branch = session.branch(uri)
    named = [ref_in(uri.repository, ref) for ref in refs]
    what = ", ".join(refs)
    with session.progress(f"Reverting {what}"):
        commit = branch.revert(
            named[0] if len(named) == 1 else named, parent_number, message=message, idempotency_key=idempotency_key
        )
    session.answer(commit, ["Reverted ", what, " on ", (branch.id, "green"), ": commit ", (commit.id, "yellow")])


@command(app, "protect", example="branch protect lakefs://flights main")
def protect(session: Session, uri: options.RepositoryUri, pattern: options.Pattern) -> None:
    """Let branches that match a pattern change through merges only, as protection add does."""
    add_protection(session, uri, pattern)


def _answer_moved(session: Session, kind: str, moved: RefRecord, old: str) -> None:
    session.answer({**moved.to_json(), "old": old}, [kind, (moved.id, "green"), " is at ", (moved.commit_id, "yellow")])


def _show_move(session: Session, name: str, old: str, target: Commit) -> None:
    session.message("This moves ", (name, "red"), " from ", (old[:SHORT_ID], "yellow"), " to ",
                    (target.id[:SHORT_ID], "yellow"), ": ", target.message.partition("\n")[0])  # fmt: skip


def _show_deletion(session: Session, name: str, commit: str) -> None:
    session.message("This deletes ", (name, "red"), ", now at ", (commit[:SHORT_ID], "yellow"), ".")


def _show_changes(session: Session, branch: Branch, prefix: str | None = None, path: str | None = None) -> None:
    changes = branch.uncommitted(prefix or path or "")
    if path is not None:
        changes = (change for change in changes if change.path == path)
    session.losses(changes, lambda count: [f"{counted(count, 'uncommitted change')} would be lost."], change_line)


tag_group: typer.Typer = typer.Typer(help="Create, list, show, move and delete tags.", add_completion=False)


@command(tag_group, "create", example="tag create lakefs://flights/v1 lakefs://flights/main")
def create_tag(session: Session, uri: options.TagUri, ref: options.ShortRef) -> None:
    """Create a tag at any ref."""
    repository, name, target = session.two_refs(uri, ref)
    tag = repository.create_tag(name, target)
    session.answer(tag, ["Tag ", (name, "green"), " created at ", (tag.commit_id, "yellow")])


@command(tag_group, "list", example="tag list lakefs://flights", lists="prefix after amount")
def list_tags(session: Session, uri: options.RepositoryUri) -> None:
    """List the tags of a repository and the commits they point to."""
    tags = session.repository(uri).tags(prefix=session.prefix, after=session.after)
    session.table(session.part(tags), ("Tag", "Commit"), lambda ref: ((ref.id, "cyan"), commit_id(ref.commit_id)))


@command(tag_group, "show", example="tag show lakefs://flights/v1")
def show_tag(session: Session, uri: options.TagUri) -> None:
    """Show the commit that a tag points to."""
    repository, name = session.named(uri)
    tag = repository.tag(name)
    session.answer(tag, ["Tag:    ", (tag.id, "cyan")], ["Commit: ", (tag.commit_id, "yellow")])


@command(tag_group, "move", example="tag move lakefs://flights/latest lakefs://flights/main", asks=True)
def move_tag(
    session: Session, uri: options.TagUri, ref: options.ShortRef, idempotency_key: options.IdempotencyKey = None
) -> None:
    """Point a tag at another commit. Readers of the tag see that commit from then on."""
    repository, name, target = session.two_refs(uri, ref)
    old, new = repository.tag(name), repository.ref(target).commit
    question = f"Move tag {name!r}?"
    asked = session.confirm(question, lambda: _show_move(session, name, old.commit_id, new), optional=True)
    where, expected = new.id if idempotency_key is None else target, old.commit_id if asked else None
    moved = repository.move_tag(name, where, old=expected, idempotency_key=idempotency_key)
    _answer_moved(session, "Tag ", moved, old.commit_id)
    if moved.commit_id != old.commit_id:
        session.note(f"To undo: lakeops tag move {uri} lakefs://{uri.repository}/{old.commit_id}")


@command(tag_group, "delete", example="tag delete lakefs://flights/v1", asks=True)
def delete_tag(session: Session, uri: options.TagUri) -> None:
    """Delete a tag. The answer names its commit, so that it can be created again."""
    repository, name = session.named(uri)
    tag = repository.tag(name)
    show = partial(_show_deletion, session, name, tag.commit_id)
    asked = session.confirm(f"Delete tag {name!r}?", show, optional=True)
    tag = repository.delete_tag(name, old=tag.commit_id if asked else None)
    session.answer(tag, ["Tag ", (name, "green"), " deleted; it was at ", (tag.commit_id, "yellow")])


protection_group: typer.Typer = typer.Typer(
    help="Protect branches from direct changes, and tags from being moved.", add_completion=False
)


def _rule(kind: str, pattern: str, check: str | None = None, prefix: str = "") -> dict[str, str | None]:
    """A rule of protection: the branches of a pattern need a check, or are changed by merges only; or tags stay."""
    if kind == "tag" and check:
        raise InvalidInput("only branches require checks; leave out --tag")
    if prefix and not check:
        raise InvalidInput("--prefix needs --check")
    return {"type": kind, "pattern": pattern, "check": check, "prefix": prefix}


_Check = Annotated[str | None, value("--check", "CHECK", "A check that merged commits must have passed.")]
_Below = Annotated[str, value("--prefix", "PREFIX", "With --check: only for merges that change something below it.")]
_Tag = Annotated[bool, flag("--tag", "The pattern matches tags, not branches.")]


@command(protection_group, "add", example="protection add lakefs://flights main --check quality")
def add_protection(
    session: Session,
    uri: options.RepositoryUri,
    pattern: options.Pattern,
    check: _Check = None,
    prefix: _Below = "",
    tag: _Tag = False,
) -> None:
    """Let branches that match a pattern change through merges only, or keep tags from being moved or deleted."""
    repository, rule = session.repository(uri), _rule("tag" if tag else "branch", pattern, check, prefix)
    words = " can no longer be moved or deleted" if tag else " now change through merges only"
    if check is None:
        (repository.protect_tags if tag else repository.protect)(pattern)
    else:
        repository.require_check(pattern, check, prefix=prefix)
        below = f", where they change something below {prefix}" if prefix else ""
        words += f", of commits that have passed {check}{below}"
    session.answer(rule, ["Tags" if tag else "Branches", " that match ", (pattern, "green"), words])


@command(protection_group, "delete", example="protection delete lakefs://flights main")
def delete_protection(
    session: Session,
    uri: options.RepositoryUri,
    pattern: options.Pattern,
    check: _Check = None,
    prefix: _Below = "",
    tag: _Tag = False,
) -> None:
    """Remove a rule. Give it as it was added."""
    repository, rule = session.repository(uri), _rule("tag" if tag else "branch", pattern, check, prefix)
    if check is None:
        (repository.unprotect_tags if tag else repository.unprotect)(pattern)
    else:
        repository.drop_check(pattern, check, prefix=prefix)
    session.answer(rule, ["Pattern ", (pattern, "green"), f" no longer {'requires ' + check if check else 'protects'}"])


@command(protection_group, "list", example="protection list lakefs://flights", lists="prefix after amount")
def list_protections(session: Session, uri: options.RepositoryUri) -> None:
    """List the rules that protect branches and tags."""
    repository = session.repository(uri)
    rules = [_rule("branch", pattern) for pattern in repository.protections()]
    rules += [_rule("branch", one.pattern, one.check, one.prefix) for one in repository.required_checks()]
    rules += [_rule("tag", pattern) for pattern in repository.tag_protections()]
    found = session.part(rules, itemgetter("pattern"), newest_first=True)
    header = ("Type", "Pattern", "Requires", "Below")
    session.table(found, header, lambda one: (one["type"], (one["pattern"], "cyan"), one["check"] or "", one["prefix"]))


check_group: typer.Typer = typer.Typer(help="Record and list the verdicts of checks on commits.", add_completion=False)
By = Annotated[str | None, value("--by", "NAME", "Whose verdict it is. Default: the database login.")]


@command(check_group, "pass", example="check pass lakefs://flights/dev quality")
def pass_check(session: Session, at: options.RefUri, name: options.CheckName, by: By = None) -> None:
    """Record that a commit has passed a check."""
    made = session.ref(at).pass_check(name, by=by)
    session.answer(made, [(made.commit_id, "yellow"), " has passed ", (made.name, "green"), ", says ", made.said_by])


@command(check_group, "fail", example="check fail lakefs://flights/dev quality 'two rows are negative'")
def fail_check(
    session: Session,
    at: options.RefUri,
    name: options.CheckName,
    findings: Annotated[str, argument("FINDINGS", "What was wrong.")],
    by: By = None,
) -> None:
    """Record that a commit has failed a check."""
    if not findings.strip():
        raise InvalidInput("say what the check found: FINDINGS is empty")
    made = session.ref(at).fail_check(name, findings, by=by)
    session.answer(made, [(made.commit_id, "yellow"), " has failed ", (made.name, "red"), ", says ", made.said_by])


@command(check_group, "withdraw", example="check withdraw lakefs://flights/dev quality")
def withdraw_check(session: Session, at: options.RefUri, name: options.CheckName) -> None:
    """Remove the verdict of a check on a commit."""
    ref = session.ref(at)
    commit = ref.commit_id
    ref.withdraw_check(name)
    session.answer({"commit_id": commit, "name": name}, [(commit, "yellow"), " has no verdict of ", (name, "green")])


@command(check_group, "list", example="check list lakefs://flights/dev", lists="prefix after amount")
def list_checks(session: Session, at: options.RefUri) -> None:
    """List the verdicts of checks on a commit, and the declared checks that have none yet."""

    def row(one: Verdict) -> tuple[Styled, ...]:
        at = moment(one.at)[:19] if one.at else ""
        return ((one.name, "cyan"), (one.word, VERDICT_COLOURS[one.state]), one.said_by, at, one.findings)

    found = session.part(session.ref(at).verdicts(), "name")
    session.table(found, ("Check", "Verdict", "By", "At", "Findings"), row)
