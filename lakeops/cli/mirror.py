"""``lakeops mirror``: read-only copies of repositories elsewhere, and fail-over to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli import replication
from lakeops.cli.options import RepositoryUri, argument, flag, value
from lakeops.cli.output import SHORT_ID, Styled, commit_id
from lakeops.cli.session import Session, command
from lakeops.model.formatting import counted, human_size, moment, seconds, span

if TYPE_CHECKING:
    from lakeops.model.mirrors import MirrorRecord, MirrorStatus, RefStatus
    from lakeops.ops.mirror.failover import Loss, LostRef

app: typer.Typer = typer.Typer(help="Keep read-only copies of repositories elsewhere.", add_completion=False)

app.add_typer(replication.app)


# --- a mirror's life ---

_FOLLOWED = "to follow; may be repeated. All by default."


@command(
    app,
    "create",
    example="mirror create lakefs://flights s3://eu-bucket/flights "
    "--source postgresql+psycopg://mirror@db.us/lakeops#flights",
)
def create(
    session: Session,
    uri: RepositoryUri,
    namespace: Annotated[
        str,
        argument(
            "NAMESPACE", "Where copies of the source's files are: file:///path, s3://, az:// or gs://bucket/prefix."
        ),
    ],
    source: Annotated[
        str,
        value(
            "--source",
            "LAKE#REPO",
            "The source: a home directory, a settings file, a database URL without password, env:VARIABLE that holds "
            "one, or airflow:CONNECTION; then the repository, where it has another name.",
        ),
    ],
    branch: Annotated[list[str] | None, value("--branch", "PATTERN", f"Branches {_FOLLOWED}")] = None,
    tag: Annotated[list[str] | None, value("--tag", "PATTERN", f"Tags {_FOLLOWED}")] = None,
    no_tags: Annotated[bool, flag("--no-tags", "Follow no tags.")] = False,
    read_only_source: Annotated[
        bool,
        flag("--read-only-source", "Write nothing to the source's catalog; set mirror_lag_days in its rules instead."),
    ] = False,
    trust_imported: Annotated[
        bool, flag("--trust-imported", "Do not look for imported objects, which are stored elsewhere.")
    ] = False,
) -> None:
    """Create a mirror: a read-only repository that follows one of another lake. It is empty until it is synced."""
    mirror = session.lake.create_mirror(
        uri.only_repository(),
        namespace,
        source=source,
        branches=branch or ("*",),
        tags=() if no_tags else tag or ("*",),
        reports=not read_only_source,
        check_imported=not trust_imported,
    )
    record, configuration = mirror.record, mirror.configuration
    session.answer(
        {**record.to_json(), "mirror": configuration},
        ["Mirror ", (f"lakefs://{record.id}", "green"), " created in ", record.storage_namespace],
        ["Source: ", configuration.source.text],
    )


@command(app, "sync", example="mirror sync lakefs://flights", progress=True)
def sync(session: Session, uri: RepositoryUri) -> None:
    """Make one pass over a mirror: promote each branch and tag whose objects have all arrived.

    A pass never waits for objects. Run it on a schedule, for instance every minute.
    """
    mirror = session.mirror(uri)
    with session.progress("Syncing"):
        status = mirror.sync()
    _print_status(session, status, session.now())


@command(app, "status", example="mirror status lakefs://flights --max-lag 15m")
def status(
    session: Session,
    uri: RepositoryUri,
    max_lag: Annotated[
        str | None, value("--max-lag", "TIME", "Fail when a ref is further behind: seconds, or 15m, 2h, 1d.")
    ] = None,
) -> None:
    """Show how far a mirror is behind its source, as the last pass saw it.

    The exit code is 1 when something arrived damaged, when objects that a ref waits for have stopped arriving, and when
    the mirror is further behind than --max-lag.
    """
    allowed = None if max_lag is None else seconds(max_lag)
    found = session.mirror(uri).status()
    now = session.now()
    _print_status(session, found, now)
    problems = found.problems(now, max_lag=allowed)
    for problem in problems:
        session.note(("Problem:", "red"), " ", problem)
    if problems:
        raise typer.Exit(1)


@command(app, "skip", example="mirror skip lakefs://flights main")
def skip(
    session: Session,
    uri: RepositoryUri,
    name: Annotated[str, typer.Argument(metavar="BRANCH", help="The branch, or with --tag the tag.")],
    tag: Annotated[bool, flag("--tag", "BRANCH is a tag.")] = False,
) -> None:
    """Drop the commit that a branch waits for, and wait for the newest head.

    Use it when some object of that commit will never arrive.
    """
    mirror = session.mirror(uri)
    found = mirror.skip(tag=name) if tag else mirror.skip(name)
    waits = "waits for nothing" if found.candidate is None else f"waits for commit {found.candidate[:SHORT_ID]} now"
    session.answer(found, [f"{found.kind} ", (name, "green"), f" {waits}"])


@command(app, "stall-timeout", example="mirror stall-timeout lakefs://flights 30m")
def stall_timeout(
    session: Session, uri: RepositoryUri, time: Annotated[str, argument("TIME", "Seconds, or 30m, 2h, 1d.")]
) -> None:
    """Set how long a mirror waits without a new object before it takes a newer head of its source."""
    mirror = session.mirror(uri).set_stall_timeout(seconds(time))
    session.answer(mirror, ["A newer head is taken when no object arrives for ", span(mirror.stall_timeout)])


@command(app, "list", example="mirror list", lists="prefix after amount")
def list_all(session: Session) -> None:
    """List the mirrors of this lake and what they follow."""

    def row(mirror: MirrorRecord) -> tuple[Styled, ...]:
        seen = "never" if mirror.last_sync is None else moment(mirror.last_sync)
        promoted = "" if mirror.promoted_writable is None else " (promoted to writable)"
        return ((mirror.repository_id, "cyan"), seen, mirror.source.text + promoted)

    found = session.part(session.lake.catalog.mirrors.all(), "repository_id")
    session.table(found, ("Mirror", "Last pass", "Source"), row)


@command(app, "delete", example="mirror delete lakefs://flights", asks=True)
def delete(session: Session, uri: RepositoryUri) -> None:
    """Forget a mirror: its refs and history here. Its objects stay where they are, and the source stays as it is."""
    mirror = session.mirror(uri)
    record, configuration = mirror.record, mirror.configuration

    def show() -> None:
        source = configuration.source.text
        session.message("This forgets mirror ", (f"lakefs://{record.id}", "red"), " of ", source, ".")
        session.message("Objects stay in ", record.storage_namespace)

    session.confirm(f"Delete mirror {record.id!r}?", show)
    source_told = mirror.delete()
    if not source_told:
        note_untold(session, "could not be told", configuration.registration)
    session.answer(
        {**record.to_json(), "source_told": source_told},
        ["Mirror ", (f"lakefs://{record.id}", "green"), " deleted; its objects stay in ", record.storage_namespace],
    )


def note_untold(session: Session, why: str, registration: str) -> None:
    """Note that the source still keeps commits for a mirror that is gone, and how to end that."""
    session.note(
        ("Note:", "yellow"),
        f" the source {why}. It keeps commits for {registration!r} until you run `lakeops mirror drop` there.",
    )


def _print_status(session: Session, status: MirrorStatus, now: int) -> None:
    if session.as_json:
        session.document(status)
        return
    mirror = status.mirror
    if mirror.promoted_writable is not None:
        time = moment(mirror.promoted_writable)
        session.line("Promoted to a writable repository at ", time, "; it follows no source.")
        return
    seen = "never" if mirror.last_sync is None else f"{span(max(0, now - mirror.last_sync))} ago"
    session.line("Source: ", mirror.source.text, ", last seen ", seen)
    header = ("Ref", "Promoted", "Candidate", "Behind", "Missing", "Last pass")
    session.table([*status.branches.values(), *status.tags.values()], header, lambda ref: _status_row(ref, now))
    if mirror.error is not None:
        session.line(("The last pass failed:", "red"), " ", mirror.error)


def _status_row(ref: RefStatus, now: int) -> tuple[Styled, ...]:
    commits = "" if ref.lag_commits is None else f"{counted(ref.lag_commits, 'commit')}, "
    caught_up = ref.promoted == ref.source_head
    missing = f"{counted(ref.missing_objects, 'object')}, {human_size(ref.missing_bytes)}"
    return (
        (ref.id if ref.kind == "branch" else f"tag {ref.id}", "cyan"),
        "-" if ref.promoted is None else commit_id(ref.promoted),
        "-" if ref.candidate is None else commit_id(ref.candidate),
        "-" if caught_up else f"{commits}{span(ref.lag_seconds)}",
        missing if ref.missing_objects else "-",
        "-" if ref.last_pass is None else f"{span(max(0, now - ref.last_pass))} ago",
    )


# --- fail-over ---


@command(app, "promote-writable", example="mirror promote-writable lakefs://flights", progress=True, asks=True)
def promote_writable(
    session: Session,
    uri: RepositoryUri,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Verify afterwards that everything the mirror shows is there.")
    ] = True,
) -> None:
    """Fail over: turn a mirror into a writable repository at what it shows now. This cannot be undone.

    It no longer follows its source. What would be lost is shown first. From then on the source's retention rules and
    protected branches count here. At the end, everything that the mirror shows is verified.
    """
    mirror = session.mirror(uri)
    mirror.configuration.check_following()
    name, loss = mirror.id, mirror.loss()
    session.confirm(f"Open {name!r} for writing and leave its source?", lambda: _show_loss(session, name, loss))
    with session.progress(f"Opening {name}"):
        done = mirror.promote_writable()
        flaws = mirror.verify() if verify else None
    record = session.lake.repository(name).record
    lost = "The source was not asked. Its commits since the last pass are lost."
    if loss.asked:
        ahead = f"{counted(len(loss.refs), 'ref')} of the source {'was' if len(loss.refs) == 1 else 'were'} ahead."
        lost = ahead if loss.refs else "Nothing is lost."
    if flaws is not None:
        lost += " Everything that the mirror shows is there." if not flaws else ""
    session.answer(
        {**record.to_json(), "mirror": done, "lost": loss, "flaws": flaws},
        ["Repository ", (f"lakefs://{name}", "green"), " is writable now and follows no source."],
        [lost],
        [f"Older commits cannot be read yet: lakeops mirror verify-history lakefs://{name}"],
    )
    for flaw in flaws or ():
        session.note(("Lost:", "red"), " ", flaw)
    if flaws:
        raise typer.Exit(1)


@command(app, "verify-history", example="mirror verify-history lakefs://flights", progress=True)
def verify_history(session: Session, uri: RepositoryUri) -> None:
    """After a fail-over or a restore, verify older commits, and make those readable that are complete.

    It reads their metaranges and ranges, and looks whether each object is there, without reading it.
    """
    repository = session.repository(uri)
    with session.progress("verify-history"):
        proved = repository.verify_history()
    commits = counted(proved.commits, "commit")
    session.answer(proved, [f"{commits} live again; {proved.unproved:,} are not complete, or were never shown"])


def _show_loss(session: Session, name: str, loss: Loss) -> None:
    session.message("This opens ", (f"lakefs://{name}", "red"), " for writing. It will no longer follow its source.")
    if loss.asked:
        session.message("The source was asked just now.")
    else:
        seen = "never" if loss.last_sync is None else moment(loss.last_sync)
        session.message(
            ("The source cannot be reached;", "yellow"), f" it was last seen {seen}, more may be lost than is shown."
        )
    session.losses(loss.refs, lambda count: [f"{counted(count, 'ref')} would lose commits."], _lost_line)


def _lost_line(ref: LostRef) -> Sequence[Styled]:
    head = ref.source_head[:SHORT_ID]
    commits = "an unknown number of commits" if ref.commits is None else counted(ref.commits, "commit")
    lost = f"{commits}, from {ref.promoted[:SHORT_ID]} to {head}" if ref.promoted else ""
    return (f"{ref.kind} {ref.id}", "cyan"), ": ", lost or f"nothing of it has arrived; the source has {head}"


# --- mirrors as their source knows them ---


@command(app, "registrations", example="mirror registrations lakefs://flights", lists="prefix after amount")
def registrations(session: Session, uri: RepositoryUri) -> None:
    """At the source: list the mirrors that report, and the number of commits kept for each.

    The mirror that reported longest ago comes first. A mirror that is gone keeps its commits until it is dropped.
    """
    registered = sorted(session.repository(uri).registrations(), key=lambda one: (one.at, one.id))
    now = session.now()
    session.table(
        session.part(registered, newest_first=True),
        ("Mirror", "Last report", "Commits kept"),
        lambda one: ((one.id, "cyan"), f"{moment(one.at)} ({span(max(0, now - one.at))} ago)", f"{len(one.commits):,}"),
    )


@command(app, "drop", example="mirror drop lakefs://flights NAME", asks=True)
def drop(
    session: Session, uri: RepositoryUri, name: Annotated[str, argument("NAME", "As listed by registrations.")]
) -> None:
    """At the source: stop keeping commits for a mirror that no longer exists. A mirror in use reports again."""
    repository = session.repository(uri)
    found = next((one for one in repository.registrations() if one.id == name), None)
    if found is not None:
        kept = counted(len(found.commits), "commit")
        session.confirm(
            f"Keep nothing for {name!r}?",
            lambda: session.message(f"{kept} may expire then. If the mirror is alive, this breaks it."),
        )
    repository.drop_registration(name)
    session.answer(found, ["Nothing is kept for ", (name, "green"), " any more"])
