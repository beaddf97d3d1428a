"""``lakeops fsck``, ``refs``, ``cache`` and ``db``: keep a repository and its catalog in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli.options import RepositoryUri, argument, flag, value
from lakeops.cli.output import SHORT_ID, Styled
from lakeops.cli.session import Session, command
from lakeops.model.errors import LakeopsError, StoreError
from lakeops.model.formatting import counted, human_size, moment
from lakeops.ops.fsck.findings import Finding, Severity

if TYPE_CHECKING:
    from lakeops.ops.fsck.check import Fsck
    from lakeops.ops.refs.dump import Dumped
    from lakeops.store.disk_cache import DiskCache

app: typer.Typer = typer.Typer(add_completion=False)

STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


@command(app, "fsck", example="fsck lakefs://flights --data", progress=True)
def fsck(
    session: Session,
    uri: RepositoryUri,
    data: Annotated[bool, flag("--data", "Also check that each object is there, with its size and contents.")] = False,
) -> None:
    """Verify a repository: refs, commits, metaranges, ranges, staging; with --data also its objects.

    Changes nothing. The exit code is 1 when there are errors, and 0 for warnings and information. The page
    Integrity shows the last result.
    """
    repository = session.repository(uri)
    findings = []
    with session.progress(f"Checking {repository.id}"):
        check = repository.fsck(data=data)
        try:
            for finding in check:
                if session.as_json:
                    findings.append(finding)
                    continue
                for pieces in finding_lines(finding):
                    session.line(*pieces)
        except LakeopsError as error:
            if not session.as_json:
                raise
            session.document({"findings": findings, "error": error.to_json()})
            raise typer.Exit(error.exit_code) from None
        session.answer({"findings": findings, "ok": not check.errors, **check.counts()}, [*_result(check)])
        check.note()
    if check.errors:
        raise typer.Exit(1)


def finding_lines(finding: Finding) -> Iterator[Sequence[Styled]]:
    """Format a finding: what is wrong where, which commits need it, and what to do."""
    severity = (finding.severity.value.ljust(8), STYLES[finding.severity])
    yield (severity, (finding.kind, "bold"), " ", finding.where, ": ", finding.message)
    if finding.commits:
        more = finding.commit_count - len(finding.commits)
        others = f" and {more:,} more" if more else ""
        yield ("        needed by ", ", ".join(commit[:SHORT_ID] for commit in finding.commits), others)
    yield ("        ", finding.advice)


def _result(check: Fsck) -> Iterator[Styled]:
    yield f"Checked {check.looked_at() or 'nothing'}: "
    errors, warnings = check.errors, check.severities[Severity.WARNING]
    flaws = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}."
    yield (flaws, "red") if errors or warnings else ("everything is in order.", "green")


refs_group: typer.Typer = typer.Typer(
    help="Dump branches, commits and logs into the bucket, and restore them.", add_completion=False
)


@command(refs_group, "dump", example="refs dump lakefs://flights")
def dump(
    session: Session,
    uri: RepositoryUri,
    full: Annotated[bool, flag("--full", "Write everything anew, and not only what came since the last dump.")] = False,
) -> None:
    """Write commits, refs, rules and logs of a repository into its storage namespace."""
    done = session.repository(uri).refs.dump(full=full)
    how = {True: "written anew", False: "one more file", None: "nothing to add"}[done.whole]
    session.answer(done, ["Dump of ", (f"lakefs://{uri.repository}", "green"), f": {how}; ", _dump_size(done)])


@command(refs_group, "status", example="refs status lakefs://flights")
def status(session: Session, uri: RepositoryUri) -> None:
    """Show the dump of a repository, and whether something is missing in it."""
    found = session.repository(uri).refs.status()
    lines: list[list[str | tuple[str, str]]] = [["There is no dump."]]
    if found.dump is not None:
        lines = [["Dump of ", (moment(found.dump.at), "cyan"), ", ", _dump_size(found.dump)]]
        lines += [["It has everything." if not found.behind else "It lacks what changed since."]]
    lines += [["Each change of a ref is added to it."]] if found.automatic else []
    if found.restored_at is not None:
        lines += [["Restored from the dump of ", moment(found.restored_at), "; not accepted, so nothing is collected."]]
    session.answer(found, *lines)


@command(refs_group, "automatic", example="refs automatic lakefs://flights")
def automatic(
    session: Session, uri: RepositoryUri, off: Annotated[bool, flag("--off", "Switch it off.")] = False
) -> None:
    """Add each change of a branch or tag to the dump as soon as it is made, whoever makes it."""
    session.repository(uri).refs.automatic(not off)
    words = "Changes are no longer added to the dump of " if off else "Each change is added to the dump of "
    session.answer({"id": uri.repository, "automatic": not off}, [words, (f"lakefs://{uri.repository}", "green")])


@command(refs_group, "restore", example="refs restore lakefs://flights s3://bucket/flights")
def restore(
    session: Session,
    uri: RepositoryUri,
    namespace: Annotated[str, argument("NAMESPACE", "The repository's storage namespace.")],
    of: Annotated[
        str | None,
        value("--of", "NAMESPACE", "The namespace that the dump was made in, if replication brought several dumps."),
    ] = None,
) -> None:
    """Make a repository of the dump in its storage namespace, after its catalog was lost."""
    name = uri.only_repository()
    done = session.lake.restore_repository(name, namespace, of=of)
    session.answer(
        done,
        ["Repository ", (f"lakefs://{name}", "green"), " restored as of ", moment(done.at), "."],
        [counted(done.commits, "commit"), "."],
        *([[counted(done.expired, "commit"), " expired, because their files are not there."]] if done.expired else []),
        *([["Files are missing of ", ", ".join(done.missing), "."]] if done.missing else []),
    )
    session.note(f"Look at it: lakeops fsck lakefs://{name}")
    session.note(f"If it takes the lost catalog's place: lakeops repo adopt lakefs://{name}")
    session.note(f"After that: lakeops refs accept lakefs://{name}")


@command(refs_group, "accept", example="refs accept lakefs://flights --yes", asks=True)
def accept(session: Session, uri: RepositoryUri) -> None:
    """Allow garbage collection of a restored repository. Commits made after the dump are given up."""
    repository = session.repository(uri)
    at = repository.refs.status().restored_at
    if at is not None:

        def show() -> None:
            session.message("Files that were written or staged after the dump of ", moment(at), " can be deleted then.")
            session.message("`lakeops gc mark --dry-run` counts them.")

        session.confirm(f"Accept lakefs://{repository.id}?", show)
    repository.refs.accept()
    session.answer({"id": repository.id, "restored_at": None}, ["Garbage of ", repository.id, " may be collected."])


def _dump_size(dumped: Dumped) -> str:
    files, records = counted(dumped.parts, "file"), counted(dumped.records, "record")
    return f"{records} in {files}, {human_size(dumped.size_bytes)}"


cache_group: typer.Typer = typer.Typer(help="Show or clear this machine's cache of metadata.", add_completion=False)


@command(cache_group, "show", example="cache show")
def show_cache(session: Session) -> None:
    """Show the directory of the cache, its size and its limit."""
    kept = _disk_cache()
    found = kept.usage()
    record = {"folder": str(kept.folder), "usable": kept.is_usable()}
    sizes = {"files": found.files, "size_bytes": found.size_bytes, "max_bytes": kept.max_bytes}
    session.answer({**record, **sizes}, [kept.described()])


@command(cache_group, "clear", example="cache clear")
def clear_cache(session: Session) -> None:
    """Delete the cached metadata of this machine. It is fetched again when it is needed."""
    kept = _disk_cache()
    try:
        found = kept.clear()
    except OSError as error:
        raise StoreError(f"{kept.folder} cannot be emptied ({error.strerror}); remove it yourself") from None
    record = {"files": found.files, "size_bytes": found.size_bytes}
    session.answer(record, [f"Removed {counted(found.files, 'file')} ({human_size(found.size_bytes)})."])


def _disk_cache() -> DiskCache:
    from lakeops.settings import Settings
    from lakeops.store.disk_cache import DiskCache

    return DiskCache.of(Settings.load())


db_group: typer.Typer = typer.Typer(help="Give PostgreSQL logins a role.", add_completion=False)


@db_group.callback()
def db() -> None:
    """Make ``db`` a group of commands, although it has only one."""


@command(db_group, "grants", example="db grants --role writer --login airflow --apply")
def grants(
    session: Session,
    role: Annotated[str, value("--role", "reader|writer|maintainer|mirror", "What the login may do.")],
    login: Annotated[str | None, value("--login", "NAME", "A login of the database.")] = None,
    repository: Annotated[
        list[str] | None, value("--repository", "REPO", "In this repository alone. May be given several times.")
    ] = None,
    apply: Annotated[bool, flag("--apply", "Run the statements. Otherwise they are only printed.")] = False,
) -> None:
    """Print the statements that let PostgreSQL enforce roles, and give one to a login."""
    catalog = session.lake.catalog
    places = repository or []
    statements = (catalog.roles.grant_role if apply else catalog.roles.role_statements)(role, login, places)
    session.answer(
        {"role": role, "login": login, "repositories": places, "applied": apply, "statements": statements},
        *([f"{statement};"] for statement in statements),
    )
    if apply:
        session.note(f"{len(statements)} statements were run.")
