"""``lakeops mirror replicate``: copy what a storage namespace has and a mirror's lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli.options import Json, NoProgress
from lakeops.cli.output import Output, counted, human_size
from lakeops.cli.places import Destination, OptionalRepositoryUri, Source, mirror_at, namespaces
from lakeops.cli.session import open_lake
from lakeops.model.clock import pause
from lakeops.model.errors import InvalidInput, NotAllReplicated, Transient

if TYPE_CHECKING:
    from lakeops.ops.replicate import Replicated

app = typer.Typer(add_completion=False)


@app.command(
    "replicate", epilog="Example: lakeops mirror replicate lakefs://flights --destination file:///mnt/backup/flights"
)
def replicate(
    uri: OptionalRepositoryUri = None,
    source: Source = None,
    destination: Destination = None,
    source_endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The S3-compatible server of the source, if another.", show_default=False),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", metavar="", help="Then delete what the source does not have.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Delete even a large share of what is there.")
    ] = False,
    watch: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Go on until interrupted, with pauses of so long.", show_default=False),
    ] = None,
    no_progress: NoProgress = False,
    json: Json = False,
) -> None:
    """Copy objects, ranges and metaranges that are missing: replication for stores that have none of their own.

    Run again after a failure, it goes on where it stopped. With --watch, --json prints a document for every pass that
    did something.
    """
    out = Output(json)
    if watch is not None and watch <= 0:
        raise InvalidInput(f"--watch takes seconds above 0, not {watch:g}")
    with open_lake(out, "Replicating", hide_progress=no_progress) as lake:
        mirror = mirror_at(lake, uri, source, destination)
        here, there = ("", "") if mirror else namespaces(lake, uri, source, destination)

        def run() -> Replicated:
            if mirror is not None:
                return mirror.replicate(delete=delete, force=force)
            return lake.replicate(here, there, source_endpoint=source_endpoint, delete=delete, force=force)

        if watch is None:
            _tell(out, run())
            return
        while True:
            try:
                done = run()
            except (Transient, NotAllReplicated) as error:
                out.say(("Not all replicated:", "yellow"), " ", error.message)
            else:
                if done.copied or done.deleted:
                    _tell(out, done)
                    out.flush()
            pause(watch)


def _tell(out: Output, done: Replicated) -> None:
    parts = [f"{counted(done.copied, 'object')} copied ({human_size(done.copied_bytes)})", f"{done.present:,} present"]
    parts += [f"{done.replaced:,} of the copied replaced one of another size"] if done.replaced else []
    parts += [f"{done.vanished:,} gone from the source meanwhile"] if done.vanished else []
    parts += [f"{done.deleted:,} deleted"] if done.deleted else []
    if done.extra > done.deleted:
        parts.append(f"{done.extra - done.deleted:,} not at the source (--delete removes them)")
    out.answer(done.to_json(), [", ".join(parts)])
