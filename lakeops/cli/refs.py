"""``lakeops refs``: dump a repository's records into its storage namespace, and restore a lost catalog from there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli.options import RepositoryUri, flag, value
from lakeops.cli.session import Session, command
from lakeops.model.words import counted, human_size, moment

if TYPE_CHECKING:
    from lakeops.ops.refs.dump import Dumped

app: typer.Typer = typer.Typer(
    help="Dump the catalog's records into the bucket, and restore them.", add_completion=False
)


@command(app, "dump", example="refs dump lakefs://flights")
def dump(
    session: Session,
    uri: RepositoryUri,
    full: Annotated[bool, flag("--full", "Write everything anew, and not only what came since the last dump.")] = False,
) -> None:
    """Write commits, refs, rules and logs of a repository into its storage namespace."""
    done = session.repository(uri).refs.dump(full=full)
    how = {True: "written anew", False: "one more file", None: "nothing to add"}[done.whole]
    session.answer(done, ["Dump of ", (f"lakefs://{uri.repository}", "green"), f": {how}; ", _size(done)])


@command(app, "status", example="refs status lakefs://flights")
def status(session: Session, uri: RepositoryUri) -> None:
    """Show the dump of a repository, and whether something is missing in it."""
    found = session.repository(uri).refs.status()
    lines: list[list[str | tuple[str, str]]] = [["There is no dump."]]
    if found.dump is not None:
        lines = [["Dump of ", (moment(found.dump.at), "cyan"), ", ", _size(found.dump)]]
        lines += [["It has everything." if not found.behind else "It lacks what changed since."]]
    lines += [["Each change of a ref is added to it."]] if found.automatic else []
    if found.restored_at is not None:
        lines += [["Restored from the dump of ", moment(found.restored_at), "; not settled, so nothing is collected."]]
    session.answer(found, *lines)


@command(app, "automatic", example="refs automatic lakefs://flights")
def automatic(
    session: Session,
    uri: RepositoryUri,
    off: Annotated[bool, flag("--off", "No longer.")] = False,
) -> None:
    """Add each change of a branch or tag to the dump as soon as it is made, whoever makes it."""
    session.repository(uri).refs.automatic(not off)
    words = "Changes are no longer added to the dump of " if off else "Each change is added to the dump of "
    session.answer({"id": uri.repository, "automatic": not off}, [words, (f"lakefs://{uri.repository}", "green")])


@command(app, "restore", example="refs restore lakefs://flights s3://bucket/flights")
def restore(
    session: Session,
    uri: RepositoryUri,
    namespace: Annotated[
        str, typer.Argument(metavar="NAMESPACE", help="The repository's storage namespace.", show_default=False)
    ],
    of: Annotated[
        str | None, value("--of", "NAMESPACE", "Where the dump was made, if replication brought several along.")
    ] = None,
) -> None:
    """Make a repository of the dump in its storage namespace, after its catalog was lost."""
    name = uri.only_repository()
    done = session.lake.restore_repository(name, namespace, of=of)
    session.answer(
        done,
        ["Repository ", (f"lakefs://{name}", "green"), " restored as of ", moment(done.at), "."],
        [counted(done.commits, "commit"), "."],
        *([[counted(done.expired, "commit"), " expired, because their files are gone."]] if done.expired else []),
        *([["Files are missing of ", ", ".join(done.missing), "."]] if done.missing else []),
    )
    session.note(f"Look at it: lakeops fsck lakefs://{name}")
    session.note(f"If it takes the lost catalog's place: lakeops repo adopt lakefs://{name}, then lakeops refs settle")


@command(app, "settle", example="refs settle lakefs://flights --yes", asks=True)
def settle(session: Session, uri: RepositoryUri) -> None:
    """Let a restored repository collect garbage: what was committed after the dump is given up."""
    repository = session.repository(uri)
    at = repository.refs.status().restored_at
    if at is not None:

        def show() -> None:
            session.message("Files that were written or staged after the dump of ", moment(at), " can be deleted then.")
            session.message("`lakeops gc mark --dry-run` counts them.")

        session.confirm(f"Settle lakefs://{repository.id}?", show)
    repository.refs.settle()
    session.answer({"id": repository.id, "restored_at": None}, ["Garbage of ", repository.id, " may be collected."])


def _size(dumped: Dumped) -> str:
    files, records = counted(dumped.parts, "file"), counted(dumped.records, "record")
    return f"{records} in {files}, {human_size(dumped.size_bytes)}"
