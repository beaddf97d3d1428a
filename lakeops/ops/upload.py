"""Uploading files of this machine to a branch: which file becomes which object, and several at a time."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lakeops.model.errors import InvalidInput
from lakeops.model.names import as_folder, check_path, check_prefix
from lakeops.model.records import DEFAULT_CONTENT_TYPE, Entry
from lakeops.model.text import excerpt
from lakeops.ops.batch import batch
from lakeops.ops.context import Context
from lakeops.ops.files import reading, translated, walk

PARALLELISM = 8


@dataclass(frozen=True)
class Upload:
    """One file on its way: where from, the object's path, its size in bytes, and whether a link may be followed."""

    file: Path
    path: str
    size_bytes: int
    follow: bool = False


def of_file(file: Path, path: str) -> Upload:
    """The upload of one file; a path that is empty or ends in a slash is the folder that it goes to."""
    with translated(file):
        status = file.stat()
    target = path + file.name if not path or path.endswith("/") else path
    return Upload(file, check_path(target), status.st_size, follow=True)


def of_folder(folder: Path, path: str, *, skip_special: bool) -> list[Upload]:
    """The uploads of every file below a directory. Raises ``InvalidInput``, ``InvalidPath`` before anything is sent."""
    return [
        Upload(file.path, check_path(as_folder(path) + file.relative), file.size_bytes)
        for file in walk(folder, skip_special=skip_special)
    ]


def upload(
    ctx: Context,
    branch: str,
    source: str | Path,
    path: str,
    *,
    metadata: Mapping[str, str] | None = None,
    content_type: str = DEFAULT_CONTENT_TYPE,
    skip_special: bool = False,
) -> list[Entry]:
    """Upload a file, or every file below a directory; returns the staged entries.

    After a failure what was uploaded is staged all the same, and nothing new begins.

    Args:
        ctx: the repository.
        branch: the branch's name.
        source: a file or a directory of this machine.
        path: the object's path; a directory's files go below it.
        metadata: user metadata of every object.
        content_type: of every object.
        skip_special: leave out links, pipes and devices below a directory instead of refusing them.

    Raises:
        InvalidInput, InvalidPath: a file cannot be read, or cannot be an object.
    """
    if not isinstance(source, str | Path):
        raise InvalidInput(f"the source is a file or a directory, not {excerpt(source)}")
    check_prefix(path)
    start = Path(source)
    with translated(start):
        is_folder = start.is_dir()
    items = of_folder(start, path, skip_special=skip_special) if is_folder else [of_file(start, path)]
    with batch(ctx, branch) as opened:

        def send(item: Upload) -> Entry:
            with reading(item.file, follow=item.follow) as file:
                return opened.put(item.path, file, metadata=metadata, content_type=content_type)

        pool = ThreadPoolExecutor(max(1, min(PARALLELISM, len(items))))
        try:
            return list(pool.map(send, items))
        finally:
            pool.shutdown(cancel_futures=True)
