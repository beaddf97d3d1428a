"""``lakeops fs``: upload, download, list, show and remove objects.

A download writes below its destination and nowhere else, and a file appears under its name complete or not at all.
Many files move in parallel, and all of them stop at the first failure.
"""

from __future__ import annotations

import shutil
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeVar

import typer

from lakeops.cli import options
from lakeops.cli.options import flag, parse_metadata, ref, uri, value
from lakeops.cli.output import Printer, Styled, is_terminal, standard_input
from lakeops.cli.session import Session, command
from lakeops.model.errors import InvalidInput, InvalidPath, ObjectNotFound, Transient
from lakeops.model.formatting import counted, human_size, moment
from lakeops.model.names import LakeUri, as_folder, given_place
from lakeops.model.records import ByteCounter, CommonPrefix, Entry, guess_type, is_marker
from lakeops.model.sanitising import excerpt

if TYPE_CHECKING:
    from lakeops.lake import Branch, Ref
    from lakeops.ops.put import FileUpload

app: typer.Typer = typer.Typer(help="Upload, download, list and remove objects.", add_completion=False)

STDIN = "-"
PARALLELISM = 8
Parallelism = Annotated[
    int, typer.Option("--parallelism", "-p", min=1, max=64, metavar="N", help="How many files at a time.")
]

_PIECE = 1024 * 1024

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def _naming_the_option(ref: Ref | Branch, path: str) -> Iterator[None]:
    """Name the option in the error when there is no object at a path, and a folder or what ends like one."""
    try:
        yield
    except ObjectNotFound as error:
        if path and not path.endswith("/") and next(iter(ref.list(f"{path}/")), None) is None:
            raise
        raise ObjectNotFound(f"{error.message}; a folder needs --recursive") from None


# --- upload ---


@command(app, "upload", example="fs upload raw/ lakefs://flights/dev/raw/ --recursive", progress=True, moves=True)
def upload(
    session: Session,
    places: Annotated[
        list[Any],
        ref(
            "[FILE] lakefs://REPO/BRANCH/PATH",
            "The file or folder, unless --source names it, and its destination: a path, or a folder ending in a slash.",
        ),
    ],
    source: Annotated[str | None, value("--source -s", "FILE", "A file, a folder, or - for stdin.")] = None,
    recursive: Annotated[bool, flag("--recursive -r", "Upload every file below a folder.")] = False,
    content_type: Annotated[str | None, value("--content-type", "TYPE", "Guessed from names if not given.")] = None,
    meta: options.Metadata = None,
    skip_special: options.SkipSpecial = False,
    parallelism: Parallelism = PARALLELISM,
) -> None:
    """Upload files to a branch.

    They are uncommitted changes until the branch is committed.
    """
    match [*([] if source is None else [source]), *places]:
        case [str(source), LakeUri() as to]:
            path, metadata = (to.with_path() if source == STDIN else to.with_prefix())[2], parse_metadata(meta)
        case _:
            raise InvalidInput(
                "give one file or folder and one place: lakeops fs upload FILE lakefs://REPO/BRANCH/PATH"
            )
    uploads = _files_to_upload(source, path, recursive=recursive, skip_special=skip_special)
    branch, _ = session.on_branch(to, folder=True)
    with session.progress("Uploading", size=True) as report, branch.batch() as batch:
        put = partial(batch.put, metadata=metadata)
        if source == STDIN:
            entries = [put(path, standard_input(), content_type=content_type or guess_type(path))]
        else:
            counter = ByteCounter(report, "Uploading", sum(item.size_bytes for item in uploads))
            entries = transfer(session, uploads, partial(_upload, put, content_type, counter), counter, parallelism)
    size = human_size(sum(entry.size_bytes for entry in entries))
    what = counted(len(entries), "object") if recursive else entries[0].path
    session.answer(
        entries if recursive else entries[0],
        ["Uploaded ", what, f" ({size}) to ", (branch.id, "green"), ", not committed yet"],
    )


def _files_to_upload(source: str, path: str, *, recursive: bool, skip_special: bool) -> list[FileUpload]:
    """List the files to upload and their paths. Every name is checked before anything is sent."""
    from lakeops.ops.files import translated
    from lakeops.ops.put import of_file, of_folder

    if source == STDIN:
        if recursive:
            raise InvalidInput("stdin is one object; leave out --recursive")
        return []
    start = given_place(source)
    if not recursive:
        return [of_file(start, path)]
    with translated(start):
        start.stat()
    if not start.is_dir():
        raise InvalidInput(f"{excerpt(source)} is not a directory; leave out --recursive")
    return of_folder(start, path, skip_special=skip_special)


def _upload(put: Callable[..., Entry], content_type: str | None, counter: ByteCounter, item: FileUpload) -> Entry:
    from lakeops.ops.files import reading

    with reading(item.file, follow=item.follow) as file:
        return put(item.path, counter.counting(file), content_type=content_type or guess_type(item.path))


# --- download ---


@command(app, "download", example="fs download lakefs://flights/main/raw/ raw/ --recursive", progress=True, moves=True)
def download(
    session: Session,
    source: Annotated[LakeUri, uri("lakefs://REPO/REF/PATH", "An object, or a folder with --recursive.")],
    destination: Annotated[
        str, typer.Argument(metavar="DESTINATION", help="A file or directory; the working directory if not given.")
    ] = ".",
    recursive: Annotated[bool, flag("--recursive -r", "Download every object in this folder.")] = False,
    parallelism: Parallelism = PARALLELISM,
) -> None:
    """Download objects to files.

    Files of the same name are replaced, each in one step. An object that differs from what was recorded is an error,
    and its file stays as it was. Markers of folders, which are empty objects such as raw/, are left out.
    """
    from lakeops.ops.local.index import check_names

    handle, path = session.at_path(source, folder=recursive)
    with session.progress("Downloading", size=True) as report:
        if recursive:
            prefix, root = as_folder(path), given_place(destination)
            found = [entry for entry in handle.list(prefix) if isinstance(entry, Entry) and not is_marker(entry)]
            if not found:
                advice = "; it is an object, leave out --recursive" if path and handle.exists(prefix[:-1]) else ""
                raise ObjectNotFound(f"no objects under {excerpt(prefix)} at {excerpt(handle.id)}{advice}")
            names = [entry.path.removeprefix(prefix) for entry in found]
            check_names(names, folds=False)
            downloads = [(entry, root, root / name) for entry, name in zip(found, names, strict=True)]
        else:
            with _naming_the_option(handle, path):
                entry = handle.stat(path)
            root, target = _target(destination, path)
            downloads = [(entry, root, target)]
        total = sum(entry.size_bytes for entry, *_ in downloads)
        counter = ByteCounter(report, "Downloading", total)
        transfer(session, downloads, partial(_download, handle.open_entry, counter), counter, parallelism)
    records = [{**entry.to_json(), "file": str(target)} for entry, _, target in downloads]
    what, where = (counted(len(downloads), "object"), str(root)) if recursive else (path, records[0]["file"])
    session.answer(
        records if recursive else records[0], ["Downloaded ", what, f" ({human_size(total)}) to ", (where, "green")]
    )


def _target(destination: str, path: str) -> tuple[Path, Path]:
    from lakeops.ops.files import translated
    from lakeops.ops.local.index import check_file_name

    given = given_place(destination)
    with translated(given):
        is_folder = destination.endswith("/") or given.is_dir()
    return (given, given / check_file_name(path.rpartition("/")[2])) if is_folder else (given.parent, given)


def _download(open_entry: Callable[..., BinaryIO], counter: ByteCounter, item: tuple[Entry, Path, Path]) -> None:
    entry, root, target = item
    with open_entry(entry, verify=True) as contents:
        write_below(root, target, counter.counting(contents))


def write_below(root: Path, target: Path, source: BinaryIO) -> None:
    """Write a file below ``root``, replacing one of that name.

    Raises ``InvalidPath`` when a symbolic link on the way leads elsewhere, ``InvalidInput`` when the system refuses.
    """
    from lakeops.ops.files import atomic_write, translated

    with translated(target):
        root.mkdir(parents=True, exist_ok=True)  # it may be a link; folders below it may not
        here = root
        for part in target.parent.relative_to(root).parts:
            here /= part
            if here.is_symlink():
                raise InvalidPath(f"{excerpt(str(here))} is a symbolic link that leads elsewhere; nothing was written")
            here.mkdir(exist_ok=True)
        with atomic_write(target) as file:
            shutil.copyfileobj(source, file, _PIECE)


# --- many files at a time ---


def transfer(
    out: Printer, items: Sequence[Item], move: Callable[[Item], Result], counter: ByteCounter, parallelism: int
) -> list[Result]:
    """Call ``move`` for several items at a time. Returns the results in the items' order.

    After a failure, or Ctrl-C, no move begins, and running ones stop at their next read. A note says how many items
    were moved, and advises to run again where that may help.
    """
    from lakeops.store.in_flight import in_parallel

    def failing(moved: int, error: BaseException) -> None:
        if len(items) > 1:
            advice = "; run it again to go on" if isinstance(error, Transient) else ""
            out.note(f"Stopped after {counted(moved, 'file')} of {len(items):,}{advice}.")

    return in_parallel(items, move, parallelism=parallelism, failing=failing, stop=counter.stop)


# --- list, show and remove ---


@command(app, "ls", example="fs ls lakefs://flights/main/raw/", lists="prefix after amount")
def ls(
    session: Session,
    under: Annotated[LakeUri, uri("lakefs://REPO/REF[/PREFIX]", "Where to look.")],
    recursive: Annotated[bool, flag("--recursive -r", "List every object below the prefix.")] = False,
) -> None:
    """List objects and folders under a prefix. --prefix goes on from it, and --after is a whole path."""
    ref, prefix = session.at_path(under, folder=True)
    items = ref.list(prefix + session.prefix, after=session.after, delimiter="" if recursive else "/")
    session.stream(islice(items, session.amount), partial(_columns, compact=is_terminal(sys.stdout)))


@command(app, "stat", example="fs stat lakefs://flights/main/raw/a.csv")
def stat(session: Session, at: options.ObjectUri, pre_sign: options.PreSign = "false") -> None:
    """Show an object's size, time, address, checksum and metadata."""
    if pre_sign not in {"true", "false"}:
        raise InvalidInput(f"--pre-sign takes true or false, not {pre_sign!r}")
    handle, path = session.at_path(at)
    entry = handle.stat(path)
    address = handle.presign(path) if pre_sign == "true" else entry.physical_address
    session.answer(
        {**entry.to_json(), "physical_address": address},
        [("Path: ", "bold"), entry.path],
        [("Modified Time: ", "bold"), moment(entry.mtime)],
        [("Size: ", "bold"), f"{entry.size_bytes} bytes"],
        [("Human Size: ", "bold"), human_size(entry.size_bytes)],
        [("Physical Address: ", "bold"), address],
        [("Checksum: ", "bold"), entry.checksum],
        [("Content-Type: ", "bold"), entry.content_type],
        *((("Metadata: ", "bold"), f"{key} = {text}") for key, text in sorted(entry.metadata.items())),
    )


@command(app, "cat", example="fs cat lakefs://flights/main~1/raw/a.csv", moves=True)
def cat(session: Session, at: options.ObjectUri) -> None:
    """Print an object's contents as they are.

    With --json: the object's record, with the contents in base64.
    """
    handle, path = session.at_path(at)
    if session.as_json:
        entry = handle.stat(path)
        content = b64encode(handle.read_entry(entry)).decode("ascii")
        session.document({**entry.to_json(), "encoding": "base64", "content": content})
        return
    with handle.open(path) as file:
        session.binary(iter(lambda: file.read(_PIECE), b""))


@command(app, "presign", example="fs presign lakefs://flights/main/raw/a.csv --expires 3600")
def presign(
    session: Session,
    at: options.ObjectUri,
    expires: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="How long the URL works.")] = 900,
) -> None:
    """Print a URL that reads an object without credentials for a while."""
    ref, path = session.at_path(at)
    url = ref.presign(path, expires)
    session.answer({"path": path, "url": url, "expires_in": expires}, [url])


@command(app, "rm", example="fs rm lakefs://flights/dev/raw/ --recursive", progress=True, asks=True)
def rm(
    session: Session,
    at: options.ObjectUri,
    recursive: Annotated[bool, flag("--recursive -r", "Remove everything in this folder.")] = False,
) -> None:
    """Remove an object, or a folder, from a branch.

    It is an uncommitted change: branch reset takes it back.
    """
    branch, path = session.on_branch(at, folder=recursive)
    if recursive:
        folder = as_folder(path)
        pinned = branch.pin(path)
        named = None if path == folder else branch.find(path)  # an object may have the folder's name

        def show() -> None:
            def title(count: int) -> Sequence[Styled]:
                return (f"This removes {counted(count, 'object')} from ", (branch.id, "red"), ":")

            found = chain([named] if named else [], branch.list(folder))
            session.losses(found, title, lambda entry: [("- ", "red"), entry.path])

        asked = session.confirm("Remove them?", show, optional=True)
        with session.progress(f"Removing {path}"):
            count = branch.delete_prefix(folder, pinned=pinned if asked else None)
            if named is not None:
                branch.delete(path, seen=named)
                count += 1
        if not count:
            raise ObjectNotFound(f"no objects under {excerpt(folder)} on {branch.id!r}; nothing was removed")
    else:
        with _naming_the_option(branch, path):
            branch.delete(path)
        count = 1
    session.answer(
        {"path": path, "removed": count}, [f"Removed {counted(count, 'object')} from ", (branch.id, "green")]
    )


Source = Annotated[LakeUri, uri("lakefs://REPO/REF/PATH", "The source: an object, or a folder with --recursive.")]
Place = Annotated[LakeUri, uri("lakefs://REPO/BRANCH/PATH", "The new path, or a folder ending in a slash.")]
Folder = Annotated[bool, flag("--recursive -r", "Take every object in the folder.")]


@command(app, "cp", example="fs cp lakefs://flights/v1/raw/ lakefs://flights/dev/old/ --recursive", progress=True)
def cp(session: Session, source: Source, destination: Place, recursive: Folder = False) -> None:
    """Copy an object or a folder to another path. No contents are copied: both paths share them.

    It is an uncommitted change of the destination's branch.
    """
    _to_other_path(session, source, destination, recursive=recursive)


@command(app, "mv", example="fs mv lakefs://flights/dev/raw/a.csv lakefs://flights/dev/raw/b.csv", progress=True)
def mv(session: Session, source: Source, destination: Place, recursive: Folder = False) -> None:
    """Move an object or a folder to another path of a branch. No contents are copied.

    It is an uncommitted change of the branch.
    """
    _to_other_path(session, source, destination, recursive=recursive, moves=True)


def _to_other_path(
    session: Session, source: LakeUri, destination: LakeUri, *, recursive: bool, moves: bool = False
) -> None:
    """Copy or move what the source names. An object keeps its name in a folder."""
    repository, ref, old = source.with_prefix() if recursive else source.with_path()
    other, name, new = destination.with_prefix()
    if repository != other:
        raise InvalidInput(f"both must be in one repository, not in {repository!r} and {other!r}")
    if not recursive and (not new or new.endswith("/")):
        new += old.rpartition("/")[2]
    here = session.lake.repository(repository)
    branch, advised = here.branch(name), nullcontext() if recursive else _naming_the_option(here.ref(ref), old)
    if moves and ref != branch.id:
        raise InvalidInput(f"objects move on one branch, not from {excerpt(ref)} to {branch.id!r}; use fs cp")
    with session.progress(f"{'Moving' if moves else 'Copying'} {old}"), advised:
        given = {} if moves else {"ref": ref}
        count = (branch.rename if moves else branch.copy)(old, new, **given, recursive=recursive)
    session.answer(
        {"path": old, "destination": new, "objects": count},
        [f"{'Moved' if moves else 'Copied'} {counted(count, 'object')} to ", (f"{branch.id}/{new}", "green"),
         ", not committed yet"],
    )  # fmt: skip


@command(app, "update-metadata", example="fs update-metadata lakefs://flights/dev/raw/a.csv --meta source=radar")
def update_metadata(
    session: Session,
    at: options.ObjectUri,
    meta: options.Metadata = None,
    remove: options.RemovedKeys = None,
    content_type: Annotated[str | None, value("--content-type", "TYPE", "The new content type.")] = None,
) -> None:
    """Change an object's metadata or content type. Its contents stay as they are.

    It is an uncommitted change of the branch.
    """
    pairs = {**dict.fromkeys(remove or ()), **parse_metadata(meta)}
    branch, path = session.on_branch(at)
    entry = branch.update_metadata(path, pairs, content_type=content_type)
    session.answer(entry, ["Changed ", path, " on ", (branch.id, "green"), ", not committed yet"])


def _columns(item: Entry | CommonPrefix, *, compact: bool) -> Iterable[Styled]:
    """Format one line of a listing. Columns have fixed widths, so that lines are printed while the listing is read."""
    date = 19 if compact else 29
    kind = [] if compact else [("common_prefix" if isinstance(item, CommonPrefix) else "object").ljust(15)]
    if isinstance(item, CommonPrefix):
        return [*kind, " " * (date + 14), (item.path, "blue")]
    return [*kind, moment(item.mtime)[:date], f"  {human_size(item.size_bytes).rjust(10)}  ", item.path]
