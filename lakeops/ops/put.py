"""Writing single objects to a branch's staging area.

The contents go to a fresh address first, then one transaction links them. An upload that breaks off, or whose link
is refused, leaves a file that nothing points to, which garbage collection takes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import BinaryIO

from lakeops.catalog.records import Staged
from lakeops.model.errors import InvalidInput, InvalidPath, LakeopsError, NotAsSeen, ObjectNotFound, PathTaken
from lakeops.model.ids import check_content_type, check_metadata
from lakeops.model.names import as_folder, check_path, check_prefix, given_place, is_text
from lakeops.model.records import DEFAULT_CONTENT_TYPE, Entry, guess_type
from lakeops.model.sanitising import excerpt
from lakeops.ops.context import Context, begin_staging, public, require_stageable, when_moved
from lakeops.ops.files import DRAFT, check_new_path, is_clone_state, reading, translated, walk
from lakeops.ops.read import find
from lakeops.store import layout
from lakeops.store.in_flight import in_parallel


def put(
    ctx: Context,
    branch: str,
    path: str,
    data: bytes | BinaryIO,
    *,
    metadata: Mapping[str, str] | None = None,
    content_type: str | None = None,
    if_absent: bool = False,
    seen: Entry | None = None,
) -> Entry:
    """Write an object of any size. Returns the staged entry.

    Args:
        path: 1 to 1,024 UTF-8 bytes.
        data: the contents, or a binary file that they are streamed from.
        content_type: the media type of the contents. ``application/octet-stream`` when left out.
        if_absent: replace nothing. Of several writers of one path exactly one succeeds.
        seen: replace this very object, as ``stat`` and ``find`` give it, and nothing else.

    Raises:
        InvalidPath, InvalidInput: the path or the metadata breaks the rules.
        NotAsSeen: the branch shows another object at the path than was ``seen``, or none. Nothing was staged.
        PathTaken: the branch shows an object at the path, and ``if_absent`` was asked for. Nothing was staged.
        PreconditionFailed: ``protected_branch``, ``read_only_repository``: the branch takes no changes.
    """
    # 1. One check whether the branch takes changes spares uploads in vain, for all puts within a moment.
    started = begin_staging(ctx, branch, flush=if_absent or seen is not None)
    if if_absent:
        require_absent(ctx, branch, path)
    # 2. The contents go to a fresh address, which nothing points to yet.
    entry = write(ctx, path, data, metadata=metadata, content_type=content_type, started=started)
    # 3. One transaction links all that the threads of this process have uploaded for the branch by then.
    if if_absent or seen is not None:
        when_moved(ctx)(_stage_expecting, ctx, branch, Staged(path, entry), started, seen)
    else:
        ctx.stage_queue(branch).stage(Staged(path, entry), started)
    return public(ctx, entry)


def require_absent(ctx: Context, branch: str, path: str) -> None:
    """Raise ``PathTaken`` when a branch shows an object at a path."""
    require_seen(find(ctx, branch, path), None, branch, path)


def require_seen(there: Entry | None, seen: Entry | None, branch: str, path: str) -> None:
    """Raise ``PathTaken`` or ``NotAsSeen`` unless a branch shows at a path what was seen: an object, or none."""
    if there is not None and seen is None:
        raise PathTaken(f"branch {branch!r} has an object {excerpt(path)} already; nothing was staged", [path])
    if there != seen:
        raise NotAsSeen(f"{excerpt(path)} of branch {branch!r} has changed meanwhile; nothing was staged")


def _stage_expecting(ctx: Context, branch: str, row: Staged, started: datetime, seen: Entry | None) -> None:
    """Stage a row where the branch shows the object that was ``seen``, or none. Raises ``PathTaken``, ``NotAsSeen``."""
    pinned = ctx.catalog.staging.pin(ctx.repository_id, branch, row.path, below=False)  # before the look
    there = find(ctx, branch, row.path)
    if row.entry is None:
        _require_object(there, branch, row.path)
    elif there is not None and there.physical_address == public(ctx, row.entry).physical_address:
        return  # an earlier run staged it, its answer was lost, and somebody has committed it since
    require_seen(there, seen, branch, row.path)
    ctx.catalog.staging.put_staged(ctx.repository_id, branch, [row], started=started, expect=pinned)


def write(
    ctx: Context,
    path: str,
    data: bytes | BinaryIO,
    *,
    metadata: Mapping[str, str] | None,
    content_type: str | None,
    started: datetime,
) -> Entry:
    """Upload an object that is not linked yet, and return its entry as stored. ``started`` is now."""
    check_new_path(path)
    content_type = content_type or DEFAULT_CONTENT_TYPE
    check_content_type(content_type)
    user_metadata = check_metadata(metadata)
    key = layout.object_key(started, ctx.ids)
    written = ctx.store.put(key, data)
    return Entry(
        path=path,
        physical_address=key,
        checksum=written.checksum,
        size_bytes=written.size_bytes,
        mtime=ctx.seconds(started),
        content_type=content_type,
        metadata=user_metadata,
    )


def delete(ctx: Context, branch: str, path: str, *, seen: Entry | None = None) -> None:
    """Stage the deletion of an object.

    Args:
        seen: the very object to delete, as ``stat`` and ``find`` give it. What was put to the path since stays.

    Raises:
        ObjectNotFound: the branch shows no object at the path.
        NotAsSeen: it shows another one than was ``seen``. Nothing was staged.
        PreconditionFailed: ``protected_branch``, ``read_only_repository``: the branch takes no changes.
    """
    check_path(path)
    started = begin_staging(ctx, branch, flush=True)
    if seen is not None:
        when_moved(ctx)(_stage_expecting, ctx, branch, Staged(path, None), started, seen)
        return
    _require_object(find(ctx, branch, path), branch, path)
    ctx.stage_queue(branch).stage(Staged(path, None), started)


def _require_object(there: Entry | None, branch: str, path: str) -> None:
    if there is None:
        raise ObjectNotFound(f"no object {path!r} on branch {branch!r}")


@contextmanager
def batch(ctx: Context, branch: str) -> Iterator[Batch]:
    """Write many objects in few transactions.

    ``put`` of the batch uploads at once. The objects are linked to the branch at the latest at the end of the ``with``,
    also after an exception: an interrupted run need not upload them again. Only then do readers of the branch see them.
    The last put of a path wins. Threads may share a batch.
    """
    require_stageable(ctx, branch)
    opened = Batch(ctx, branch)
    try:
        yield opened
    except BaseException:
        with suppress(LakeopsError):  # the first error is the one to show
            opened.link()
        raise
    else:
        opened.link()
    finally:
        ctx.stage_queue(branch).leave(opened)


class Batch:
    """Objects on their way to a branch, in its ``StageQueue``. Made by ``batch``."""

    def __init__(self, ctx: Context, branch: str) -> None:
        self._ctx = ctx
        self._branch = branch
        self._refused: BaseException | None = None

    def put(
        self,
        path: str,
        data: bytes | BinaryIO,
        *,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Entry:
        """Write an object as ``Branch.put`` does. Readers of the branch see it once the batch is linked."""
        started = self._ctx.catalog.now()
        entry = write(self._ctx, path, data, metadata=metadata, content_type=content_type, started=started)
        self._ctx.stage_queue(self._branch).hold(Staged(path, entry), started, self, self._note)
        return public(self._ctx, entry)

    def _note(self, done: Future[None]) -> None:
        self._refused = done.exception() or self._refused

    def link(self) -> None:
        """Stage what was uploaded so far. Raises ``AttemptExpired`` for objects that waited too long."""
        self._ctx.stage_queue(self._branch).flush_pending()
        if self._refused is not None:
            raise self._refused


@dataclass(frozen=True)
class FileUpload:
    """One file on its way: where from, the object's path, its size in bytes, and whether a link may be followed."""

    file: Path
    path: str
    size_bytes: int
    follow: bool = False


def of_file(file: Path, path: str) -> FileUpload:
    """The upload of one file. A path that is empty or ends in a slash is the folder that it goes to."""
    with translated(file):
        status = file.stat()
    target = path + file.name if not path or path.endswith("/") else path
    return FileUpload(file, check_new_path(target), status.st_size, follow=True)


def of_folder(folder: Path, path: str, *, skip_special: bool) -> list[FileUpload]:
    """The uploads of all files below a directory but unfinished downloads. Raises ``InvalidInput``, ``InvalidPath``."""
    found = []
    for name, status in walk(folder):
        if DRAFT.fullmatch(name):
            continue
        file = folder / name
        own = is_clone_state(name)
        if stat.S_ISREG(status.st_mode) and not own and is_text(name):
            if not os.access(file, os.R_OK):
                raise InvalidInput(f"{excerpt(str(file))}: permission denied")
            found.append(FileUpload(file, check_path(as_folder(path) + name), status.st_size))
        elif not skip_special:
            kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
            what = "a clone's own" if own else kind
            advice = "remove it, or leave such files out with --skip-special"
            if not is_text(name):
                raise InvalidPath(f"the name {repr(os.fsencode(name))[1:]} is not UTF-8; {advice}")
            raise InvalidInput(f"{excerpt(str(file))} is {what}; {advice}")
    return found


def upload(
    ctx: Context,
    branch: str,
    source: str | Path,
    path: str = "",
    *,
    metadata: Mapping[str, str] | None = None,
    content_type: str | None = None,
    skip_special: bool = False,
) -> list[Entry]:
    """Upload a file, or every file below a directory. Returns the staged entries by path.

    After a failure, what was uploaded is staged all the same, and no other upload begins.

    Args:
        source: a file or a directory of this machine.
        path: the object's path, or a folder that ends in a slash. A directory's files go below it.
        metadata: user metadata of every object.
        content_type: the media type of every object. Guessed from each object's name when left out.
        skip_special: leave out links, pipes, devices, a clone's own files and names that are not UTF-8 below a
            directory. Without it they are an error.

    Raises:
        InvalidInput, InvalidPath: a file cannot be read, or cannot be an object.
    """
    if not isinstance(source, str | Path):
        raise InvalidInput(f"the source is a file or a directory, not {excerpt(source)}")
    check_prefix(path)
    start = given_place(source)
    with translated(start):
        is_folder = start.is_dir()
    items = of_folder(start, path, skip_special=skip_special) if is_folder else [of_file(start, path)]
    with batch(ctx, branch) as opened:
        sent = count(1)

        def send(item: FileUpload) -> Entry:
            with reading(item.file, follow=item.follow) as file:
                kind = content_type or guess_type(item.path)
                entry = opened.put(item.path, file, metadata=metadata, content_type=kind)
            ctx.progress("uploading files", next(sent), len(items))
            return entry

        return in_parallel(items, send)
