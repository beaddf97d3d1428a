"""``lakeops gc``: retention rules, and the deletion of files that no live commit needs."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakeops.cli.options import RepositoryUri, argument, flag, uri
from lakeops.cli.output import Styled, standard_input
from lakeops.cli.session import MAX_LISTED, Session, command
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import InvalidInput, NotFound
from lakeops.model.formatting import counted, human_size, moment, span
from lakeops.model.names import LakeUri

if TYPE_CHECKING:
    from lakeops.model.marks import Mark
    from lakeops.ops.gc.plan import IdleRef

app: typer.Typer = typer.Typer(help="Set retention rules, and delete what no live commit needs.", add_completion=False)
rules: typer.Typer = typer.Typer(help="Show, set and remove retention rules.", add_completion=False)
app.add_typer(rules, name="rules")

MarkId = Annotated[str, argument("MARK_ID", "What gc mark printed.")]
DryRun = Annotated[bool, flag("--dry-run -n", "Show what would happen, and change nothing.")]
ConfirmClock = Annotated[
    bool, flag("--confirm-clock", "Confirm that the clock is right, although the catalog was idle for days.")
]


# --- rules ---


@command(rules, "get", example="gc rules get lakefs://flights")
def get_rules(session: Session, uri: RepositoryUri) -> None:
    """Show the retention rules."""
    repository = session.repository(uri)
    found = repository.gc.rules()
    if found is None:
        raise NotFound(
            f"repository {repository.id!r} has no retention rules: every commit lives; set some with "
            f"`lakeops gc rules set lakefs://{repository.id} FILE`"
        )
    session.answer(found, *_rule_lines(found))


@command(rules, "set", example="gc rules set lakefs://flights rules.json")
def set_rules(
    session: Session,
    uri: RepositoryUri,
    file: Annotated[str, argument("[FILE]", "A JSON file; stdin when it is - or left out.")] = "-",
) -> None:
    """Replace the retention rules with those of a JSON file.

    {"default_retention_days": 21, "branches": [{"branch_id": "main", "retention_days": 28}]}
    """
    text = _read(file)
    kept = session.repository(uri).gc.set_rules(text) or {}
    session.answer(kept, ["Retention rules of ", (str(uri), "green"), ":"], *_rule_lines(kept))


@command(rules, "delete", example="gc rules delete lakefs://flights")
def delete_rules(session: Session, uri: RepositoryUri) -> None:
    """Remove the retention rules: from then on no commit expires."""
    collection = session.repository(uri).gc
    before = collection.rules()
    collection.set_rules(None)
    removed = f"From now on no commit expires; the rules were {json_text.dumps(before)}"
    session.answer({"removed": before}, [removed if before else "There were no rules; every commit is kept"])


def _read(file: str) -> str:
    try:
        data = standard_input().read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"cannot read {file!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{file!r} is not text in UTF-8") from None


def _rule_lines(found: Mapping[str, Any]) -> Iterator[Sequence[Styled]]:
    yield ("Default: ", counted(found["default_retention_days"], "day"))
    verbs = {"retention_days": "kept", "expire_after_days": "deleted after"}
    for kind, key in (("Branch", "branches"), ("Tag", "tags")):
        for entry in found.get(key, ()):
            words = (f"{verb} {counted(entry[days], 'day')}" for days, verb in verbs.items() if days in entry)
            yield (kind, " ", (entry[f"{kind.lower()}_id"], "cyan"), ": ", ", ".join(words))
    titles = {
        "mirror_lag_days": "Mirrors may lag",
        "undo_days": "Undo window",
        "log_days": "Log",
        "key_days": "Idempotency keys",
    }
    yield from ((f"{title}: ", counted(found[key], "day")) for key, title in titles.items() if key in found)


# --- grace period and clock ---


@command(app, "grace", example="gc grace lakefs://flights 48h")
def grace(
    session: Session,
    uri: RepositoryUri,
    seconds: Annotated[str | None, argument("[SECONDS|24h]", "The new grace period.")] = None,
) -> None:
    """Show or change the grace period: younger files are never garbage."""
    collection = session.repository(uri).gc
    found = collection.grace() if seconds is None else collection.set_grace(seconds)
    later = []
    if found["pending_seconds"] is not None:
        pending = f"{_hours(found['pending_seconds'])}; until then the longer one counts"
        later = [[f"From {moment(found['pending_from'])} on: {pending}"]]
    session.answer(found, ["Grace period of ", (str(uri), "green"), ": ", _hours(found["grace_seconds"])], *later)


def _hours(seconds: int) -> str:
    return span(seconds) if seconds % 3600 else f"{seconds // 3600:,} h"


@command(app, "confirm-clock", example="gc confirm-clock")
def confirm_clock(
    session: Session,
    uri: Annotated[
        LakeUri | None, uri("[lakefs://REPO]", "A repository of the catalog; all of them share its clock.")
    ] = None,
) -> None:
    """Confirm the catalog's clock, after garbage collection doubted it."""
    if uri is not None:
        session.repository(uri)
    now = unix_seconds(session.lake.catalog.marks.confirm_clock())
    session.answer({"time": now}, ["The time is ", (moment(now), "green")])


# --- mark, sweep and what belongs to a mark ---


@command(app, "mark", example="gc mark lakefs://flights --dry-run", progress=True)
def mark(session: Session, uri: RepositoryUri, dry_run: DryRun = False, confirm_clock: ConfirmClock = False) -> None:
    """Expire commits, and find the files that no live commit needs. Deletes nothing."""
    if dry_run and confirm_clock:
        raise InvalidInput("a dry run changes nothing, so it confirms no clock: run `lakeops gc confirm-clock` first")
    collection = session.repository(uri).gc
    if confirm_clock:
        collection.confirm_clock()
    if dry_run:
        with session.progress("mark"):
            plan = collection.mark(dry_run=True)
        session.answer(plan, ["A mark made now would hold this; nothing was changed:"], *_report_lines(plan.report))
        return
    with session.progress("mark"):
        made = collection.mark()
    found = collection.report(made.id)
    session.answer(made, ["Mark ", (made.id, "green")], *_report_lines(found))
    if made.rows:
        session.note(f"Nothing was deleted. To delete it: lakeops gc sweep {uri} {made.id}")
    if found["commits"]["expired_now"] + found["commits"]["expired_earlier"]:
        session.note(f"To let its commits live again instead: lakeops gc restore {uri} {made.id}")


@command(app, "restore", example="gc restore lakefs://flights MARK_ID", progress=True)
def restore(session: Session, uri: RepositoryUri, mark_id: MarkId) -> None:
    """Take a mark back before it is swept: its commits live again."""
    collection = session.repository(uri).gc
    with session.progress("restore"):
        done = collection.restore(mark_id)
    commits = counted(done.commits, "commit")
    session.answer(done, [f"{commits} live again; mark ", (mark_id, "green"), " can no longer be swept"])
    if done.newer:
        session.note(f"A newer mark decided about its commits: lakeops gc restore {uri} {done.newer}")


@command(app, "report", example="gc report lakefs://flights MARK_ID")
def report(session: Session, uri: RepositoryUri, mark_id: MarkId) -> None:
    """Show what a mark lists, and why other files and commits are kept."""
    found = session.repository(uri).gc.report(mark_id)
    session.answer(found, ["Mark ", (mark_id, "green"), " is ", found["mark"]["state"]], *_report_lines(found))


@command(app, "list", example="gc list lakefs://flights", lists="prefix after amount")
def list_marks(session: Session, uri: RepositoryUri) -> None:
    """List the marks of a repository, newest first."""

    def row(mark: Mark) -> Sequence[Styled]:
        made = moment(unix_seconds(mark.created))
        return ((mark.id, "cyan"), mark.state.value, f"{mark.objects:,}", human_size(mark.bytes), made)

    marks = session.part(session.repository(uri).gc.marks(), newest_first=True)
    session.table(marks, ("Mark", "State", "Objects", "Size", "Made"), row)


@command(app, "sweep", example="gc sweep lakefs://flights MARK_ID --yes", progress=True, asks=True)
def sweep(
    session: Session,
    uri: RepositoryUri,
    mark_id: MarkId,
    force: Annotated[bool, flag("--force", "Sweep also a mark that lists a large share of the repository.")] = False,
    confirm_clock: ConfirmClock = False,
) -> None:
    """Delete exactly the files that a mark lists. It continues where an earlier sweep of the mark ended."""
    repository = session.repository(uri)

    def show() -> None:
        for pieces in _report_lines(repository.gc.report(mark_id)):
            session.message(*pieces)

    session.confirm(f"Delete what mark {mark_id} holds?", show)
    if confirm_clock:
        repository.gc.confirm_clock()
    with session.progress("sweep"):
        done = repository.gc.sweep(mark_id, force=force)
    session.answer(done, [f"Deleted {counted(done.deleted, 'file')} ({human_size(done.bytes)})"])
    if done.mark.refused:
        session.note(("Warning:", "yellow"), f" the store refused to delete {counted(done.mark.refused, 'file')}:")
        for key, reason in done.mark.failures[:MAX_LISTED]:
            session.note("  ", (key, "dim"), f" ({reason})")
        session.note("The next mark holds them too.")
    if done.versioned:
        from lakeops.ops.gc.files import VERSIONED

        session.note(("Note:", "yellow"), " ", VERSIONED)


@command(app, "prune", example="gc prune lakefs://flights --dry-run", progress=True)
def prune(session: Session, uri: RepositoryUri, dry_run: DryRun = False) -> None:
    """Remove rows of old history, ref moves and keys from the catalog. Each sweep does so too."""
    collection = session.repository(uri).gc
    with session.progress("prune"):
        done = collection.prune(dry_run=dry_run)
    counts = f"{counted(done.commits, 'expired commit')}, {counted(done.moves, 'ref move')}, "
    counts += f"{counted(done.keys, 'idempotency key')}, {counted(done.tokens, 'staging token')}"
    session.answer(done, ["Would remove " if dry_run else "Removed ", counts])


@command(app, "idle", example="gc idle lakefs://flights --delete", asks=True)
def idle(
    session: Session, uri: RepositoryUri, delete: Annotated[bool, flag("--delete", "Delete them.")] = False
) -> None:
    """List branches and tags that are idle for longer than the rules allow."""
    collection = session.repository(uri).gc
    refs = collection.idle_refs()
    if delete:
        doomed = [ref for ref in refs if not ref.kept]

        def line(ref: IdleRef) -> Sequence[Styled]:
            return (f"{ref.type} ", (ref.id, "red"), f", idle for {counted(ref.idle_days, 'day')}")

        def show() -> None:
            session.losses(doomed, lambda _: ["These would go:"], line)

        asked = bool(doomed) and session.confirm(f"Delete {counted(len(doomed), 'idle ref')}?", show)
        refs = collection.expire_refs(only=doomed if asked else None)
    header = ("Type", "Name", "Idle", "Stays")
    session.table(
        refs, header, lambda ref: (ref.type, (ref.id, "cyan"), counted(ref.idle_days, "day"), ref.kept or "-")
    )


_WHY = {"heads": "by branches", "tags": "by tags", "mirrors": "for mirrors", "retention": "by retention rules"}
_WHY |= {"merge_bases": "as merge bases", "undo": "in the undo window", "no_rules": "without rules"}
"""Why commits are kept, in words for ``RetentionReason``."""


def _report_lines(found: Mapping[str, Any]) -> Iterator[Sequence[Styled]]:
    listed, size = counted(found["listed"]["count"], "object"), human_size(found["bytes"])
    yield (f"Garbage:   {found['objects']:,} of {listed} ({size}, {found['share']:.1%})",)
    files = {kind: counts["count"] for kind, counts in found["metadata"].items() if counts["count"]}
    if files:
        yield ("           ", ", ".join(counted(count, f"{kind} file") for kind, count in files.items()))
    for row in found["by_age"]:
        yield (f"  {row['age']}: {counted(row['objects'], 'object')} ({human_size(row['bytes'])})",)
    for name in found["sample"].get("object", ())[:5]:
        yield ("  ", (name, "dim"))
    commits = found["commits"]
    live = ", ".join(f"{count:,} {_WHY[why]}" for why, count in commits["live"].items() if count)
    earlier = f", {commits['expired_earlier']:,} by earlier marks" if commits["expired_earlier"] else ""
    again = f", {commits['live_again']:,} live again" if commits["live_again"] else ""
    yield (f"Commits:   {commits['expired_now']:,} expired now{earlier}{again}; kept: {live or 'none'}",)
    kept = found["kept"]
    young = f"{kept['grace']['count']:,} younger than {found['grace_hours']:g} h"
    waiting = f"{kept['staged']:,} staged, {counted(kept['uploads'], 'upload')} in progress"
    yield (f"Kept:      {kept['referenced']:,} in use, {young}; {waiting}",)
    if kept["grace"]["count"]:
        old_enough = datetime.fromisoformat(found["cutoff"]) + 2 * timedelta(hours=found["grace_hours"])
        after = moment(unix_seconds(old_enough))
        yield (f"           A mark after {after} may hold young files that nothing needs.",)
    strays = found["strays"]
    if strays["count"]:
        count, size = counted(strays["count"], "file"), human_size(strays["bytes"])
        yield ((f"Not ours:  {count} ({size}), left alone", "yellow"),)
        for name in strays["sample"][:5]:
            yield ("  ", (name, "dim"))
    for note in found["notes"]:
        yield (("Note:", "yellow"), " ", note)
