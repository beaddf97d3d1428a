"""``lakeops fs ls``, ``stat``, ``cat``, ``presign`` and ``rm``: objects where they are."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli.options import Json, ObjectUri, Yes, uri
from lakeops.cli.output import Output, Part, counted, human_size, is_terminal, moment
from lakeops.cli.session import SHOWN, agree, can_ask, open_lake
from lakeops.model.errors import InvalidInput, ObjectNotFound
from lakeops.model.names import as_folder
from lakeops.model.records import CommonPrefix, Entry
from lakeops.model.uris import LakeUri

if TYPE_CHECKING:
    from lakeops.lake import Branch

app = typer.Typer()

_PIECE = 1024 * 1024


@app.command("ls", epilog="Example: lakeops fs ls lakefs://flights/main/raw/")
def ls(
    under: Annotated[LakeUri, uri("lakefs://REPO/REF[/PREFIX]", "Where to look.")],
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", metavar="", help="List every object below the prefix.")
    ] = False,
    json: Json = False,
) -> None:
    """List objects and folders under a prefix."""
    out = Output(json)
    repository_id, ref, prefix = under.with_prefix()
    with open_lake(out) as lake:
        items = lake.repository(repository_id).ref(ref).list(prefix=prefix, delimiter="" if recursive else "/")
        for item in items:
            if json:
                out.document(item.to_json())
            else:
                out.line(*_row(item, compact=is_terminal(sys.stdout)))


@app.command("stat")
def stat(
    at: ObjectUri,
    pre_sign: Annotated[
        str,
        typer.Option("--pre-sign", metavar="true|false", help="Show a URL that anyone can read for a while instead."),
    ] = "false",
    json: Json = False,
) -> None:
    """Show an object's size, time, address, checksum and metadata."""
    out = Output(json)
    if pre_sign not in {"true", "false"}:
        raise InvalidInput(f"--pre-sign takes true or false, not {pre_sign!r}")
    repository_id, ref, path = at.with_path()
    with open_lake(out) as lake:
        handle = lake.repository(repository_id).ref(ref)
        entry = handle.stat(path)
        address = handle.presign(path) if pre_sign == "true" else entry.physical_address
    out.answer(
        {**entry.to_json(), "physical_address": address},
        [("Path: ", "bold"), entry.path],
        [("Modified Time: ", "bold"), moment(entry.mtime)],
        [("Size: ", "bold"), f"{entry.size_bytes} bytes"],
        [("Human Size: ", "bold"), human_size(entry.size_bytes)],
        [("Physical Address: ", "bold"), address],
        [("Checksum: ", "bold"), entry.checksum],
        [("Content-Type: ", "bold"), entry.content_type],
        *((("Metadata: ", "bold"), f"{key} = {value}") for key, value in sorted(entry.metadata.items())),
    )


@app.command("cat")
def cat(at: ObjectUri, json: Json = False) -> None:
    """Print an object's contents as they are.

    With --json: the object's record, with the contents in base64.
    """
    out = Output(json)
    repository_id, ref, path = at.with_path()
    with open_lake(out) as lake:
        handle = lake.repository(repository_id).ref(ref)
        if json:
            content = b64encode(handle.read(path)).decode("ascii")
            out.document({**handle.stat(path).to_json(), "encoding": "base64", "content": content})
            return
        with handle.open(path) as file:
            out.binary(iter(lambda: file.read(_PIECE), b""))


@app.command("presign")
def presign(
    at: ObjectUri,
    expires: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="How long the URL works.")] = 900,
    json: Json = False,
) -> None:
    """Print a URL that reads an object without credentials for a while."""
    out = Output(json)
    repository_id, ref, path = at.with_path()
    with open_lake(out) as lake:
        url = lake.repository(repository_id).ref(ref).presign(path, expires)
    out.answer({"path": path, "url": url, "expires_in": expires}, [url])


@app.command("rm")
def rm(
    at: ObjectUri,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", metavar="", help="Remove everything in this folder.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Remove an object, or a folder, from a branch.

    It is an uncommitted change: branch reset takes it back.
    """
    out = Output(json)
    repository_id, name, path = at.with_prefix() if recursive else at.with_path()
    with open_lake(out) as lake:
        branch = lake.repository(repository_id).branch(name)
        if recursive:
            agree(out, yes or not can_ask(out), "Remove them?", lambda: _show_objects(out, branch, as_folder(path)))
            count = branch.delete_prefix(as_folder(path)) + _delete_if_there(branch, path)
        else:
            branch.delete(path)
            count = 1
    out.answer({"path": path, "removed": count}, [f"Removed {counted(count, 'object')} from ", (name, "green")])


def _delete_if_there(branch: Branch, path: str) -> int:
    """Delete the object that is called like a folder, if there is one."""
    if not path or path.endswith("/"):
        return 0
    try:
        branch.delete(path)
    except ObjectNotFound:
        return 0
    return 1


def _show_objects(out: Output, branch: Branch, prefix: str) -> None:
    entries = branch.list(prefix=prefix)
    first = list(islice(entries, SHOWN))
    rest = sum(1 for _ in entries)
    out.say(f"This removes {counted(len(first) + rest, 'object')} from ", (branch.id, "red"), ":")
    for entry in first:
        out.say(("  - ", "red"), entry.path)
    if rest:
        out.say(f"  ... and {rest:,} more")


def _row(item: Entry | CommonPrefix, *, compact: bool) -> Iterator[Part]:
    """One line of a listing, in columns of fixed width so that it can be printed as it is read."""
    date = 19 if compact else 29
    if not compact:
        yield ("common_prefix" if isinstance(item, CommonPrefix) else "object").ljust(15)
    if isinstance(item, CommonPrefix):
        yield " " * (date + 14)
        yield (item.path, "blue")
        return
    yield moment(item.mtime)[:date]
    yield f"  {human_size(item.size_bytes).rjust(10)}  "
    yield item.path
