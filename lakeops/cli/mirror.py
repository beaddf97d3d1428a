"""``lakeops mirror``: read-only copies of repositories elsewhere, and what brings their objects there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli import mirror_copy, mirror_failover, mirror_registrations, mirror_setup
from lakeops.cli.options import Json, NoProgress, RepositoryUri, Yes
from lakeops.cli.output import SHORT_ID, Output, Part, commit_id, counted, human_size, moment, seconds, span
from lakeops.cli.session import agree, open_lake

if TYPE_CHECKING:
    from lakeops.model.mirrors import MirrorStatus, RefStatus

app = typer.Typer(help="Keep read-only copies of repositories elsewhere.", add_completion=False)

for part in (mirror_copy, mirror_setup, mirror_failover, mirror_registrations):
    app.add_typer(part.app)

_HEADER = ("Ref", "Promoted", "Candidate", "Behind", "Missing", "Last check")


@app.command(
    "create",
    epilog="Example: lakeops mirror create lakefs://flights s3://eu-bucket/flights "
    "--source postgresql+psycopg://mirror@db.us/lakeops#flights",
)
def create(
    uri: RepositoryUri,
    namespace: Annotated[
        str,
        typer.Argument(
            metavar="NAMESPACE",
            help="Where the source's storage namespace is replicated to: file:///path or s3://bucket/prefix.",
            show_default=False,
        ),
    ],
    source: Annotated[
        str,
        typer.Option(
            metavar="LAKE#REPO",
            help="The source: a home directory, a settings file, a database URL without password, or env:VARIABLE that "
            "holds one; then the repository, where it has another name.",
            show_default=False,
        ),
    ],
    branch: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Branches to follow; may be repeated. All by default.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Tags to follow; may be repeated. All by default.")
    ] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", metavar="", help="Follow no tags.")] = False,
    read_only_source: Annotated[
        bool,
        typer.Option(
            "--read-only-source",
            metavar="",
            help="Write nothing to the source's catalog; set mirror_lag_days in its rules instead.",
        ),
    ] = False,
    trust_imported: Annotated[
        bool,
        typer.Option("--trust-imported", metavar="", help="Do not look for imported objects, which lie elsewhere."),
    ] = False,
    json: Json = False,
) -> None:
    """Create a mirror: a read-only repository that follows another lake's. It shows nothing before it is synced."""
    out = Output(json)
    with open_lake(out) as lake:
        mirror = lake.create_mirror(
            uri.only_repository(),
            namespace,
            source=source,
            branches=branch or ("*",),
            tags=() if no_tags else tag or ("*",),
            reports=not read_only_source,
            check_imported=not trust_imported,
        )
        record, configuration = mirror.record, mirror.configuration
    out.answer(
        {**record.to_json(), "mirror": configuration.to_json()},
        ["Mirror ", (f"lakefs://{record.id}", "green"), " created in ", record.storage_namespace],
        ["Source: ", configuration.source.text],
    )


@app.command("sync")
def sync(uri: RepositoryUri, no_progress: NoProgress = False, json: Json = False) -> None:
    """Show what has arrived: one pass, which never waits. Run it again and again."""
    out = Output(json)
    with open_lake(out, "Syncing", hide_progress=no_progress) as lake:
        status = lake.mirror(uri.only_repository()).sync()
        now = int(lake.catalog.now().timestamp())
    _tell(out, status, now)


@app.command("status", epilog="Example: lakeops mirror status lakefs://flights --max-lag 15m")
def show(
    uri: RepositoryUri,
    max_lag: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Fail when a ref is further behind: seconds, or 15m, 2h, 1d.", show_default=False
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show how far a mirror is behind its source, as the last pass saw it.

    Fails (exit code 1) when something arrived damaged, when nothing arrives any more of what is waited for, and past
    the lag that is given.
    """
    out = Output(json)
    allowed = None if max_lag is None else seconds(max_lag)
    with open_lake(out) as lake:
        status = lake.mirror(uri.only_repository()).status()
        now = int(lake.catalog.now().timestamp())
    _tell(out, status, now)
    problems = status.problems(now, max_lag=allowed)
    for problem in problems:
        out.note(("Problem:", "red"), " ", problem)
    if problems:
        raise typer.Exit(1)


@app.command("skip", epilog="Example: lakeops mirror skip lakefs://flights main")
def skip(
    uri: RepositoryUri,
    name: Annotated[str, typer.Argument(metavar="BRANCH", help="The branch, or with --tag the tag.")],
    tag: Annotated[bool, typer.Option("--tag", metavar="", help="BRANCH is a tag.")] = False,
    json: Json = False,
) -> None:
    """Wait for the newest head in place of the commit that a branch waits for: something of it will never come."""
    out = Output(json)
    with open_lake(out) as lake:
        mirror = lake.mirror(uri.only_repository())
        found = mirror.skip(tag=name) if tag else mirror.skip(name)
    waits = "waits for nothing" if found.candidate is None else f"waits for commit {found.candidate[:SHORT_ID]} now"
    out.answer(found.to_json(), [f"{found.kind} ", (name, "green"), f" {waits}"])


@app.command("patience", epilog="Example: lakeops mirror patience lakefs://flights 30m")
def patience(
    uri: RepositoryUri,
    time: Annotated[str, typer.Argument(metavar="TIME", help="Seconds, or 30m, 2h, 1d.", show_default=False)],
    json: Json = False,
) -> None:
    """Set for how long nothing may arrive of what a ref waits for before newer heads are looked at."""
    out = Output(json)
    with open_lake(out) as lake:
        mirror = lake.mirror(uri.only_repository()).set_patience(seconds(time))
    out.answer(mirror.to_json(), ["Newer heads are looked at when nothing arrives for ", span(mirror.patience)])


@app.command("list")
def list_all(json: Json = False) -> None:
    """List the mirrors of this lake and what they follow."""
    out = Output(json)
    with open_lake(out) as lake:
        out.table(
            lake.catalog.mirrors(),
            ("Mirror", "Last pass", "Source"),
            lambda mirror: (
                (mirror.repository_id, "cyan"),
                "never" if mirror.last_sync is None else moment(mirror.last_sync),
                mirror.source.text + (" (promoted to writable)" if mirror.promoted_writable is not None else ""),
            ),
        )


@app.command("delete")
def delete(uri: RepositoryUri, yes: Yes = False, json: Json = False) -> None:
    """Forget a mirror: its refs and history here. Its objects stay where they are; the source loses nothing."""
    out = Output(json)
    name = uri.only_repository()
    with open_lake(out) as lake:
        mirror = lake.mirror(name)
        record = mirror.record

        def show() -> None:
            out.say("This forgets mirror ", (f"lakefs://{name}", "red"), " of ", mirror.configuration.source.text, ".")
            out.say("Objects stay in ", record.storage_namespace)

        agree(out, yes, f"Delete mirror {name!r}?", show)
        registration = mirror.configuration.registration
        told = mirror.delete()
    if not told:
        out.note(
            ("Note:", "yellow"),
            f" the source could not be told, and keeps commits for {registration!r} until `lakeops mirror drop` there.",
        )
    out.answer(
        {**record.to_json(), "source_told": told},
        ["Mirror ", (f"lakefs://{name}", "green"), " deleted; its objects stay in ", record.storage_namespace],
    )


def _tell(out: Output, status: MirrorStatus, now: int) -> None:
    if out.as_json:
        out.document(status.to_json())
        return
    mirror = status.mirror
    if mirror.promoted_writable is not None:
        out.line("Promoted to a writable repository at ", moment(mirror.promoted_writable), "; it follows no source.")
        return
    seen = "never" if mirror.last_sync is None else f"{span(max(0, now - mirror.last_sync))} ago"
    out.line("Source: ", mirror.source.text, ", last seen ", seen)
    refs = [*status.branches.values(), *status.tags.values()]
    out.table(refs, _HEADER, lambda ref: _cells(ref, now))
    if mirror.error is not None:
        out.line(("The last pass failed:", "red"), " ", mirror.error)


def _cells(ref: RefStatus, now: int) -> tuple[Part, ...]:
    commits = "" if ref.lag_commits is None else f"{counted(ref.lag_commits, 'commit')}, "
    caught_up = ref.promoted == ref.source_head
    missing = f"{counted(ref.missing_objects, 'object')}, {human_size(ref.missing_bytes)}"
    return (
        (ref.id if ref.kind == "branch" else f"tag {ref.id}", "cyan"),
        "-" if ref.promoted is None else commit_id(ref.promoted),
        "-" if ref.candidate is None else commit_id(ref.candidate),
        "-" if caught_up else f"{commits}{span(ref.lag_seconds)}",
        missing if ref.missing_objects else "-",
        "-" if ref.last_check is None else f"{span(max(0, now - ref.last_check))} ago",
    )
