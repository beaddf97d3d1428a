"""``lakeops fs upload``: files of this machine, or stdin, to a branch's staging area."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from lakeops.cli.options import Json, Metadata, NoProgress, parse_metadata, uri
from lakeops.cli.output import Output, counted, human_size
from lakeops.cli.session import Tally, open_lake, watched
from lakeops.cli.transfer import PARALLELISM, Parallelism, transfer
from lakeops.model.errors import InvalidInput
from lakeops.model.names import check_path
from lakeops.model.text import excerpt
from lakeops.model.uris import LakeUri
from lakeops.ops.put import FileUpload, of_file, of_folder, reading, translated

if TYPE_CHECKING:
    from lakeops.lake import Branch
    from lakeops.model.records import Entry

app = typer.Typer()

STDIN = "-"


@app.command("upload", epilog="Example: lakeops fs upload -s raw/ lakefs://flights/dev/raw/ --recursive")
def upload(
    to: Annotated[LakeUri, uri("lakefs://REPO/BRANCH/PATH", "Where to: a path, or a folder ending in a slash.")],
    source: Annotated[
        str,
        typer.Option("--source", "-s", metavar="FILE", help="A file, a folder, or - for stdin.", show_default=False),
    ],
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", metavar="", help="Upload every file below a folder.")
    ] = False,
    content_type: Annotated[
        str | None,
        typer.Option(
            "--content-type", metavar="TYPE", help="application/octet-stream if not given.", show_default=False
        ),
    ] = None,
    meta: Metadata = None,
    skip_special: Annotated[
        bool,
        typer.Option("--skip-special", metavar="", help="Leave out links, pipes and devices instead of refusing them."),
    ] = False,
    parallelism: Parallelism = PARALLELISM,
    no_progress: NoProgress = False,
    json: Json = False,
) -> None:
    """Upload files to a branch.

    They are uncommitted changes until the branch is committed.
    """
    out = Output(json)
    repository_id, name, path = to.with_prefix()
    metadata = parse_metadata(meta)
    uploads = _plan(source, path, recursive=recursive, skip_special=skip_special)
    with open_lake(out) as lake, watched(out, "Uploading", hidden=no_progress, size=True) as report:
        branch = lake.repository(repository_id).branch(name)
        tally = Tally(report, "Uploading", sum(item.size_bytes for item in uploads))
        with branch.batch() as batch:
            put = partial(batch.put, metadata=metadata, content_type=content_type)
            if source == STDIN:
                entries = [put(check_path(path), sys.stdin.buffer)]
            else:
                entries = transfer(out, uploads, partial(_upload, put, tally), tally, parallelism)
    _print(out, branch, entries, many=recursive)


def _plan(source: str, path: str, *, recursive: bool, skip_special: bool) -> list[FileUpload]:
    """What to upload where. Every name is checked before anything is sent."""
    if source == STDIN:
        if recursive:
            raise InvalidInput("stdin is one object; leave out --recursive")
        return []
    start = Path(source)
    if not recursive:
        return [of_file(start, path)]
    with translated(start):
        start.stat()
    if not start.is_dir():
        raise InvalidInput(f"{excerpt(source)} is not a directory; leave out --recursive")
    return of_folder(start, path, skip_special=skip_special)


def _upload(put: Callable[[str, BinaryIO], Entry], tally: Tally, item: FileUpload) -> Entry:
    with reading(item.file, follow=item.follow) as file:
        return put(item.path, cast("BinaryIO", tally.counting(file)))


def _print(out: Output, branch: Branch, entries: list[Entry], *, many: bool) -> None:
    if out.as_json:
        records = [entry.to_json() for entry in entries]
        out.document(records if many else records[0])
        return
    size = human_size(sum(entry.size_bytes for entry in entries))
    what = counted(len(entries), "object") if many else entries[0].path
    out.line("Uploaded ", what, f" ({size}) to ", (branch.id, "green"), ", not committed yet")
