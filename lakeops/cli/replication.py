"""``lakeops mirror replicate``: what copies the objects of a mirror's source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli.options import flag, parsed, url_of, value
from lakeops.cli.session import Session, command
from lakeops.model.clock import pause
from lakeops.model.errors import InvalidInput, NotAllReplicated, NotAMirror, Transient
from lakeops.model.uris import LakeUri
from lakeops.model.words import counted, human_size

if TYPE_CHECKING:
    from lakeops.lake import Lake, Mirror
    from lakeops.ops.replicate import Replicated

app: typer.Typer = typer.Typer(add_completion=False)

OptionalRepositoryUri = Annotated[
    LakeUri | None,
    typer.Argument(
        parser=parsed(LakeUri.parse),
        metavar="lakefs://REPO",
        help="A repository, whose storage namespace is the source; or a mirror, which knows source and destination.",
        show_default=False,
    ),
]
Source = Annotated[
    str | None,
    value("--source", "URL", "The storage namespace to copy from, in place of REPO's.", parser=parsed(url_of)),
]
Destination = Annotated[
    str | None, value("--destination", "URL", "The storage namespace to copy to.", parser=parsed(url_of))
]


@command(
    app,
    "replicate",
    example="mirror replicate lakefs://flights --destination file:///mnt/backup/flights",
    progress=True,
)
def replicate(
    session: Session,
    uri: OptionalRepositoryUri = None,
    source: Source = None,
    destination: Destination = None,
    source_endpoint: Annotated[
        str | None, value("--source-endpoint", "URL", "The S3-compatible server of the source, if another.")
    ] = None,
    delete: Annotated[bool, flag("--delete", "Then delete what the source does not have.")] = False,
    force: Annotated[bool, flag("--force", "Delete even a large share of what is there.")] = False,
    watch: Annotated[
        float | None, value("--watch", "SECONDS", "Repeat until interrupted, with a pause of this length between.")
    ] = None,
) -> None:
    """Copy objects, ranges and metaranges that are missing, for stores that do not replicate by themselves.

    Run it again after a failure: it goes on where it stopped. With --watch, --json prints a document for every pass
    that did something.
    """
    if watch is not None and watch <= 0:
        raise InvalidInput(f"--watch takes seconds above 0, not {watch:g}")
    lake = session.lake
    mirror = mirror_at(lake, uri, source, destination)
    here, there = ("", "") if mirror else namespaces(lake, uri, source, destination)

    def run() -> Replicated:
        with session.progress("Replicating"):
            if mirror is not None:
                return mirror.replicate(delete=delete, force=force)
            return lake.replicate(here, there, source_endpoint=source_endpoint, delete=delete, force=force)

    if watch is None:
        _print_copied(session, run())
        return
    while True:
        try:
            done = run()
        except (Transient, NotAllReplicated) as error:
            session.message(("Not all replicated:", "yellow"), " ", error.message)
        else:
            if done.copied or done.deleted:
                _print_copied(session, done)
                session.flush()
        pause(watch)


def mirror_at(lake: Lake, uri: LakeUri | None, source: str | None, destination: str | None) -> Mirror | None:
    """The mirror, when it alone is named: it knows source and destination."""
    if uri is None or source is not None or destination is not None:
        return None
    name = uri.only_repository()
    try:
        return lake.mirror(name)
    except NotAMirror:
        return None


def namespaces(lake: Lake, uri: LakeUri | None, source: str | None, destination: str | None) -> tuple[str, str]:
    """The storage namespaces to copy from and to. Raises ``InvalidInput`` when one is not known."""
    mirror = mirror_at(lake, uri, source, destination)
    if mirror is not None:
        return mirror.source_namespace(), mirror.storage_namespace
    if uri is not None:
        source = source or lake.repository(uri.only_repository()).storage_namespace
    if source is None:
        raise InvalidInput("name the repository to copy, lakefs://REPO, or its storage namespace with --source")
    if destination is None:
        raise InvalidInput("name the storage namespace to copy to with --destination")
    return url_of(source), destination


def _print_copied(session: Session, done: Replicated) -> None:
    words = [f"{counted(done.copied, 'object')} copied ({human_size(done.copied_bytes)})", f"{done.present:,} present"]
    words += [f"{done.replaced:,} of the copied replaced one of another size"] if done.replaced else []
    words += [f"{done.vanished:,} gone from the source meanwhile"] if done.vanished else []
    words += [f"{done.deleted:,} deleted"] if done.deleted else []
    if done.extra > done.deleted:
        words.append(f"{done.extra - done.deleted:,} not at the source (--delete removes them)")
    session.answer(done, [", ".join(words)])
