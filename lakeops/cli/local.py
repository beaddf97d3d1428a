"""``lakeops local``: directories of this machine that follow a folder of a ref."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli import options
from lakeops.cli.changes import change_line
from lakeops.cli.options import argument, flag, parse_metadata, parsed, ref_in, uri, value
from lakeops.cli.output import SHORT_ID, Styled, commit_id
from lakeops.cli.session import Session, command
from lakeops.model.errors import InvalidInput
from lakeops.model.formatting import counted, human_size
from lakeops.model.names import LakeUri, given_place
from lakeops.model.records import Change

if TYPE_CHECKING:
    from lakeops.lake import Ref
    from lakeops.ops.local.clone import LocalStatus

app: typer.Typer = typer.Typer(help="Keep a folder of a ref in a directory.", add_completion=False)

Followable = Annotated[LakeUri, uri("lakefs://REPO/REF/PREFIX", "What to follow: a folder of a ref, or all of it.")]
Place = Annotated[Path, argument("DIRECTORY", "The working directory if not given.", parser=parsed(given_place))]
Force = Annotated[bool, flag("--force", "Give up files that were changed on both sides: take the ref's.")]
HERE = Path()
IN_BYTES = ("Reading files", "Downloading", "Uploading")
"""Labels of reports whose amounts are bytes."""


@command(app, "clone", example="local clone lakefs://flights/main/raw/ raw/", progress=True, moves=True)
def clone(session: Session, source: Followable, directory: Place = HERE) -> None:
    """Download a folder of a ref to a directory that follows it from then on.

    The directory is new or empty. After an interruption, run it again: it goes on.
    """
    ref, prefix = _ref(session, source)
    with session.progress("Cloning", size=IN_BYTES):
        done = ref.clone(directory, prefix)
    session.note_left_out([ref.id] if ref.is_dirty else [])
    session.answer(done, ["Cloned ", (done.uri, "green"), f" to {directory}: ", _amount(done.taken)])
    if not done.taken and prefix and next(iter(ref.list(prefix)), None) is None:
        session.note(f"There is nothing under {prefix!r} at {ref.id!r} yet.")


@command(app, "init", example="local init lakefs://flights/main/raw/ raw/")
def init(session: Session, source: Followable, directory: Place = HERE) -> None:
    """Let a directory that exists follow a folder of a ref. No file is touched."""
    ref, prefix = _ref(session, source)
    done = ref.init_clone(directory, prefix)
    session.answer(done, [f"{directory} follows ", (done.uri, "green"), "; lakeops local status shows what differs"])


def _ref(session: Session, source: LakeUri) -> tuple[Ref, str]:
    if source.connection:
        raise InvalidInput("a directory follows a ref of the lake that the settings name, and of no connection's")
    return session.at_path(source, folder=True)


@command(app, "status", example="local status raw/", progress=True)
def status(session: Session, directory: Place = HERE) -> None:
    """Show what changed in a directory, and at the ref that it follows. Nothing is changed."""
    local = session.lake.local(directory)
    with session.progress("Looking", size=IN_BYTES):
        found = local.status()
    at = f" at commit {found.commit_id[:SHORT_ID]}" if found.commit_id else ", and took nothing from it yet"
    session.answer(found, ["Follows ", (found.uri, "green"), at], *_status_lines(found))


def _status_lines(found: LocalStatus) -> list[Sequence[Styled]]:
    lines: list[Sequence[Styled]] = []
    if found.interrupted:
        pulled = found.interrupted == LakeUri.parse(found.uri).ref
        again = "lakeops local pull" if pulled else f"lakeops local checkout --ref {found.interrupted}"
        lines.append([("A pull or checkout was interrupted. ", "yellow"), "To finish it: ", again])
    conflicts = set(found.conflicts)
    here, there = (
        [change_line(one) for one in changes if one.path not in conflicts] for changes in (found.local, found.remote)
    )
    sections: dict[str, list[tuple[Styled, ...]]] = {
        "Changed here:": here,
        "Changed at the ref; lakeops local pull takes it:": there,
        "Changed on both sides:": [(("! conflict", "magenta"), " ", name) for name in found.conflicts],
        "Not regular files; they are never committed:": [("? ", name) for name in found.special],
    }
    for title, shown in sections.items():
        if shown:
            lines += [[""], [(title, "bold")], *(["  ", *one] for one in shown)]
    return lines if len(lines) > bool(found.interrupted) else [*lines, ["Nothing changed."]]


@command(app, "pull", example="local pull raw/", progress=True, moves=True)
def pull(session: Session, directory: Place = HERE, force: Force = False) -> None:
    """Download what changed at the ref. Files that were changed only here stay as they are.

    When files were changed on both sides, nothing is taken and all of them are listed.
    """
    local = session.lake.local(directory)
    with session.progress("Pulling", size=IN_BYTES):
        done = local.pull(force=force)
    what = f"Took {_amount(done.taken)} from " if done.taken else "Already up to date with "
    _show_taken(session, done, [what, (done.uri, "green")])


@command(app, "checkout", example="local checkout raw/ --ref v1", progress=True, moves=True)
def checkout(
    session: Session,
    ref: Annotated[str, value("--ref -r", "REF", "The ref to follow: a branch, a tag or a commit id.")],
    directory: Place = HERE,
    force: Force = False,
) -> None:
    """Let a directory follow another ref, and take what differs there.

    Files that were changed here stay changed. When the other ref has other contents for them, nothing is taken.
    """
    local = session.lake.local(directory)
    with session.progress("Checking out", size=IN_BYTES):
        done = local.checkout(ref_in(local.repository_id, ref), force=force)
    _show_taken(session, done, ["Follows ", (done.uri, "green"), f" now; took {_amount(done.taken)}"])


def _show_taken(session: Session, done: LocalStatus, line: Sequence[Styled]) -> None:
    session.answer(done, line, *(change_line(change) for change in done.taken))
    if done.local:
        session.note(f"{counted(len(done.local), 'file')} changed here stayed; lakeops local status lists them.")


def _amount(changes: Sequence[Change]) -> str:
    size = human_size(sum(change.size_bytes for change in changes if change.type.value != "removed"))
    return f"{counted(len(changes), 'file')} ({size})"


@command(app, "commit", example='local commit raw/ -m "mend row 7"', progress=True, moves=True)
def commit(
    session: Session,
    message: options.Message,
    directory: Place = HERE,
    meta: options.Metadata = None,
    skip_special: options.SkipSpecial = False,
) -> None:
    """Commit what changed in a directory to the branch that it follows.

    When the branch has changed the same paths since, nothing is published and all of them are listed.
    """
    local = session.lake.local(directory)
    with session.progress("Committing", size=IN_BYTES):
        made = local.commit(message, parse_metadata(meta), skip_special=skip_special)
    session.answer(made, ["Committed ", str(directory), ": commit ", (made.id, "yellow")])


@command(app, "list", example="local list .", lists="prefix after amount")
def list_all(session: Session, directory: Place = HERE) -> None:
    """List the directories at or below one that follow a ref."""
    from lakeops.ops.local.clone import followed

    found, header = session.part(followed(directory), "directory"), ("Directory", "Commit", "Follows")
    session.table(found, header, lambda one: ((one.directory, "cyan"), commit_id(one.commit_id), one.uri or one.error))
