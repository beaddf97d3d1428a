"""``lakeops fs download``: objects of a ref to files of this machine, never outside the named directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast

import typer

from lakeops.cli.files import below, write_below
from lakeops.cli.options import Json, NoProgress, uri
from lakeops.cli.output import Output, counted, human_size
from lakeops.cli.session import Tally, open_lake, watched
from lakeops.cli.transfer import PARALLELISM, Parallelism, transfer
from lakeops.model.errors import ObjectNotFound
from lakeops.model.names import as_folder
from lakeops.model.records import CommonPrefix, Entry
from lakeops.model.text import excerpt
from lakeops.model.uris import LakeUri

app = typer.Typer()


@dataclass(frozen=True)
class Download:
    """One object on its way: the file it becomes, below ``root``."""

    entry: Entry
    root: Path
    target: Path

    def to_json(self) -> dict[str, Any]:
        """The object's record, and the file."""
        return {**self.entry.to_json(), "file": str(self.target)}


@app.command("download", epilog="Example: lakeops fs download lakefs://flights/main/raw/ raw/ --recursive")
def download(
    source: Annotated[LakeUri, uri("lakefs://REPO/REF/PATH", "An object, or a folder with --recursive.")],
    destination: Annotated[
        str,
        typer.Argument(metavar="DESTINATION", help="A file or directory; the working directory if not given."),
    ] = ".",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", metavar="", help="Download every object in this folder.")
    ] = False,
    parallelism: Parallelism = PARALLELISM,
    no_progress: NoProgress = False,
    json: Json = False,
) -> None:
    """Download objects to files.

    Files of the same name are replaced, each in one step. An object that is not what was recorded is an error, and its
    file stays as it was.
    """
    out = Output(json)
    repository_id, ref, path = source.with_prefix() if recursive else source.with_path()
    with open_lake(out) as lake, watched(out, "Downloading", hidden=no_progress, size=True) as report:
        handle = lake.repository(repository_id).ref(ref)
        if recursive:
            prefix, root = as_folder(path), Path(destination)
            found = [entry for entry in handle.list(prefix=prefix) if not isinstance(entry, CommonPrefix)]
            if not found:
                raise ObjectNotFound(f"no objects under {excerpt(prefix)} at {excerpt(ref)}")
            downloads = [Download(entry, root, below(root, entry.path.removeprefix(prefix))) for entry in found]
        else:
            root, target = _file(destination, path)
            downloads = [Download(handle.stat(path), root, target)]
        tally = Tally(report, "Downloading", sum(item.entry.size_bytes for item in downloads))
        transfer(out, downloads, partial(_download, handle.open_entry, tally), tally, parallelism)
    if json:
        records = [item.to_json() for item in downloads]
        out.document(records if recursive else records[0])
        return
    size = human_size(sum(item.entry.size_bytes for item in downloads))
    what = counted(len(downloads), "object") if recursive else path
    out.line("Downloaded ", what, f" ({size}) to ", (str(root if recursive else downloads[0].target), "green"))


def _file(destination: str, path: str) -> tuple[Path, Path]:
    """The directory that one object goes to, and its file there; the destination may be either."""
    given = Path(destination)
    if destination.endswith("/") or given.is_dir():
        return given, below(given, path.rpartition("/")[2])
    return given.parent, given


def _download(open_entry: Callable[..., BinaryIO], tally: Tally, item: Download) -> None:
    with open_entry(item.entry, verify=True) as contents:
        write_below(item.root, item.target, cast("BinaryIO", tally.counting(contents)))
