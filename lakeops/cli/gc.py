"""``lakeops gc``: retention rules, and taking away what no live commit needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakeops.cli import gc_rules, options
from lakeops.cli.options import Json, NoProgress, RepositoryUri, Yes
from lakeops.cli.output import Output, Part, counted, human_size, moment
from lakeops.cli.session import SHOWN, agree, open_lake
from lakeops.model.clock import unix_seconds
from lakeops.model.uris import LakeUri

if TYPE_CHECKING:
    from lakeops.lake import Repository
    from lakeops.model.marks import Mark
    from lakeops.ops.gc.rules import IdleRef

app = typer.Typer(help="Set retention rules, and delete what no live commit needs.", add_completion=False)
app.add_typer(gc_rules.app, name="rules")

MarkId = Annotated[str, typer.Argument(metavar="MARK_ID", help="What gc mark printed.", show_default=False)]

ConfirmClock = Annotated[
    bool, typer.Option("--confirm-clock", metavar="", help="The clock is right, although nobody worked for days.")
]


@app.command("grace", epilog="Example: lakeops gc grace lakefs://flights 48h")
def grace(
    uri: RepositoryUri,
    seconds: Annotated[
        str | None, typer.Argument(metavar="[SECONDS|24h]", help="The new grace period.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Show or change the age below which garbage collection touches nothing."""
    out = Output(json)
    with open_lake(out) as lake:
        collection = lake.repository(uri.only_repository()).gc
        found = collection.grace() if seconds is None else collection.set_grace(seconds)
    lines: list[Sequence[Part]] = [["Grace period of ", (str(uri), "green"), ": ", _hours(found["grace_seconds"])]]
    if found["pending_seconds"] is not None:
        until = moment(found["pending_from"])
        lines.append([f"From {until} on: {_hours(found['pending_seconds'])}; until then the longer one counts"])
    out.answer(found, *lines)


def _hours(seconds: int) -> str:
    return f"{seconds / 3600:g} h"


@app.command("confirm-clock", epilog="Example: lakeops gc confirm-clock")
def confirm_clock(
    uri: Annotated[
        LakeUri | None, options.uri("[lakefs://REPO]", "A repository of the catalog; all of them share its clock.")
    ] = None,
    json: Json = False,
) -> None:
    """Say that the catalog's clock is right, after garbage collection asked."""
    out = Output(json)
    with open_lake(out) as lake:
        if uri is not None:
            lake.repository(uri.only_repository())
        now = lake.catalog.confirm_clock()
    out.answer({"time": unix_seconds(now)}, ["The time is ", (moment(unix_seconds(now)), "green")])


@app.command("mark", epilog="Example: lakeops gc mark lakefs://flights --dry-run")
def mark(
    uri: RepositoryUri,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", metavar="", help="Show it, and change nothing.")] = False,
    confirm_clock: ConfirmClock = False,
    no_progress: NoProgress = False,
    json: Json = False,
) -> None:
    """Expire commits, and find what no live one needs. Deletes nothing."""
    out = Output(json)
    with open_lake(out, "mark", hide_progress=no_progress) as lake:
        repository = lake.repository(uri.only_repository())
        if confirm_clock:
            repository.gc.confirm_clock()
        if dry_run:
            foretold = repository.gc.mark(dry_run=True)
            out.answer(
                foretold, ["A mark made now would hold this; nothing was changed:"], *_report_lines(foretold.report)
            )
            return
        made = repository.gc.mark()
        report = repository.gc.report(made.id)
    out.answer(made, ["Mark ", (made.id, "green")], *_report_lines(report))
    if made.rows:
        out.note(f"Nothing was deleted. To delete it: lakeops gc sweep {uri} {made.id}")
    if report["commits"]["expired_now"] + report["commits"]["expired_earlier"]:
        out.note(f"To let its commits live again instead: lakeops gc restore {uri} {made.id}")


@app.command("restore", epilog="Example: lakeops gc restore lakefs://flights MARK_ID")
def restore(uri: RepositoryUri, mark_id: MarkId, no_progress: NoProgress = False, json: Json = False) -> None:
    """Take a mark back before it is swept: its commits live again."""
    out = Output(json)
    with open_lake(out, "restore", hide_progress=no_progress) as lake:
        done = lake.repository(uri.only_repository()).gc.restore(mark_id)
    out.answer(done, [f"{counted(done.commits, 'commit')} live again; mark ", (mark_id, "green"), " is never swept"])
    if done.newer:
        out.note(f"A newer mark decided about its commits: lakeops gc restore {uri} {done.newer}")


@app.command("report")
def report(uri: RepositoryUri, mark_id: MarkId, json: Json = False) -> None:
    """Show what a mark holds, what was kept and why."""
    out = Output(json)
    with open_lake(out) as lake:
        found = lake.repository(uri.only_repository()).gc.report(mark_id)
    out.answer(found, ["Mark ", (mark_id, "green"), " is ", found["mark"]["state"]], *_report_lines(found))


@app.command("list")
def list_marks(uri: RepositoryUri, json: Json = False) -> None:
    """List the marks of a repository, newest first."""
    out = Output(json)
    with open_lake(out) as lake:
        marks = lake.repository(uri.only_repository()).gc.marks()
    out.table(marks, ("Mark", "State", "Objects", "Size", "Made"), _row)


@app.command("sweep", epilog="Example: lakeops gc sweep lakefs://flights MARK_ID --yes")
def sweep(
    uri: RepositoryUri,
    mark_id: MarkId,
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Also when it is a large share of the repository.")
    ] = False,
    confirm_clock: ConfirmClock = False,
    yes: Yes = False,
    no_progress: NoProgress = False,
    json: Json = False,
) -> None:
    """Delete exactly what a mark holds. Goes on where an earlier sweep of it ended."""
    out = Output(json)
    with open_lake(out, "sweep", hide_progress=no_progress) as lake:
        repository = lake.repository(uri.only_repository())
        agree(out, yes, f"Delete what mark {mark_id} holds?", lambda: _show(out, repository, mark_id))
        if confirm_clock:
            repository.gc.confirm_clock()
        done = repository.gc.sweep(mark_id, force=force)
    out.answer(done, [f"Deleted {counted(done.deleted, 'file')} ({human_size(done.bytes)})"])
    if done.mark.refused:
        out.note(("Warning:", "yellow"), f" the store refused to delete {counted(done.mark.refused, 'file')}:")
        for key, reason in done.mark.failures[:SHOWN]:
            out.note("  ", (key, "dim"), f" ({reason})")
        out.note("The next mark holds them too.")
    if done.versioned:
        from lakeops.ops.gc.report import VERSIONED

        out.note(("Note:", "yellow"), " ", VERSIONED)


@app.command("prune", epilog="Example: lakeops gc prune lakefs://flights --dry-run")
def prune(
    uri: RepositoryUri,
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar="", help="Only count them.")] = False,
    no_progress: NoProgress = False,
    json: Json = False,
) -> None:
    """Remove old history, ref moves and keys from the catalog, as each sweep does."""
    out = Output(json)
    with open_lake(out, "prune", hide_progress=no_progress) as lake:
        done = lake.repository(uri.only_repository()).gc.prune(dry_run=dry_run)
    counts = (
        counted(done.commits, "expired commit"),
        counted(done.moves, "ref move"),
        counted(done.keys, "idempotency key"),
        counted(done.tokens, "staging token"),
    )
    out.answer(done, ["Would remove " if dry_run else "Removed ", ", ".join(counts)])


@app.command("idle")
def idle(
    uri: RepositoryUri,
    delete: Annotated[bool, typer.Option("--delete", metavar="", help="Delete them.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """List branches and tags that are idle for longer than the rules allow."""
    out = Output(json)
    with open_lake(out) as lake:
        collection = lake.repository(uri.only_repository()).gc
        refs = collection.idle_refs()
        if delete:
            doomed = [ref for ref in refs if not ref.kept]
            if doomed:
                show = partial(_show_idle, out, doomed)
                agree(out, yes, f"Delete {counted(len(doomed), 'idle ref')}?", show)
            refs = collection.expire_refs()
    out.table(refs, ("Type", "Name", "Idle", "Stays"), _idle_row)


def _show_idle(out: Output, refs: Sequence[IdleRef]) -> None:
    for ref in refs[:SHOWN]:
        out.say(f"{ref.type} ", (ref.id, "red"), f", idle for {counted(ref.idle_days, 'day')}")
    if len(refs) > SHOWN:
        out.say(f"and {len(refs) - SHOWN:,} more")


def _idle_row(ref: IdleRef) -> Sequence[Part]:
    return (ref.type, (ref.id, "cyan"), counted(ref.idle_days, "day"), ref.kept or "-")


def _show(out: Output, repository: Repository, mark_id: str) -> None:
    for parts in _report_lines(repository.gc.report(mark_id)):
        out.say(*parts)


def _row(mark: Mark) -> Sequence[Part]:
    made = moment(unix_seconds(mark.created))
    return ((mark.id, "cyan"), mark.state.value, f"{mark.objects:,}", human_size(mark.bytes), made)


def _report_lines(report: Mapping[str, Any]) -> Iterator[Sequence[Part]]:
    objects, listed = report["objects"], report["listed"]["count"]
    size = human_size(report["bytes"])
    yield (f"Garbage:   {objects:,} of {counted(listed, 'object')} ({size}, {report['share']:.1%})",)
    files = {kind: counts["count"] for kind, counts in report["metadata"].items() if counts["count"]}
    if files:
        yield ("           ", ", ".join(counted(count, f"{kind} file") for kind, count in files.items()))
    for row in report["by_age"]:
        yield (f"  {row['age']}: {counted(row['objects'], 'object')} ({human_size(row['bytes'])})",)
    for name in report["sample"].get("object", ())[:5]:
        yield ("  ", (name, "dim"))
    live = ", ".join(f"{count:,} {why.replace('_', ' ')}" for why, count in report["commits"]["live"].items() if count)
    commits = report["commits"]
    earlier = f", {commits['expired_earlier']:,} by earlier marks" if commits["expired_earlier"] else ""
    again = f", {commits['live_again']:,} live again" if commits["live_again"] else ""
    yield (f"Commits:   {commits['expired_now']:,} expired now{earlier}{again}; alive: {live}",)
    kept = report["kept"]
    yield (
        (
            f"Kept:      {kept['referenced']:,} referred to, {kept['grace']['count']:,} younger than "
            f"{report['grace_hours']:g} h; {kept['staged']:,} staged, {counted(kept['uploads'], 'upload')} in flight"
        ),
    )
    strays = report["strays"]
    if strays["count"]:
        yield (
            (f"Not ours:  {counted(strays['count'], 'file')} ({human_size(strays['bytes'])}), left alone", "yellow"),
        )
        for name in strays["sample"][:5]:
            yield ("  ", (name, "dim"))
    for note in report["notes"]:
        yield (("Note:", "yellow"), " ", note)
