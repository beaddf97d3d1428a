"""Files of this machine, as uploads read them and downloads write them.

What it keeps true: a recursive upload takes regular files below its folder and nothing that a link leads to; a
download writes below its destination and nowhere else, and a file appears under its name whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lakeops.model.clock import Ids
from lakeops.model.errors import InvalidInput, InvalidPath
from lakeops.model.text import excerpt

_PIECE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A regular file: where it is, its path below the folder that was walked, its size in bytes."""

    path: Path
    relative: str
    size_bytes: int


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals inside the ``with`` into ``InvalidInput`` that names the file."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise InvalidInput(f"{excerpt(str(error.filename2 or error.filename or path))}: {reason}") from None


def walk(folder: Path, *, skip_special: bool) -> Iterator[LocalFile]:
    """Regular files below a folder, by name.

    Raises:
        InvalidInput: something below is no regular file and ``skip_special`` does not leave it out, or is unreadable.
    """
    with translated(folder):
        names = sorted(folder.iterdir())
    for path in names:
        with translated(path):
            status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            for file in walk(path, skip_special=skip_special):
                yield LocalFile(file.path, f"{path.name}/{file.relative}", file.size_bytes)
        elif stat.S_ISREG(status.st_mode):
            if not os.access(path, os.R_OK):
                raise InvalidInput(f"{excerpt(str(path))}: permission denied")
            yield LocalFile(path, path.name, status.st_size)
        elif not skip_special:
            what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
            raise InvalidInput(
                f"{excerpt(str(path))} is {what}; remove it, or leave such files out with --skip-special"
            )


@contextmanager
def reading(path: Path, *, follow: bool) -> Iterator[BinaryIO]:
    """A file open for reading; a symbolic link is refused unless ``follow``. Raises ``InvalidInput``."""
    if path.is_dir():
        raise InvalidInput(f"{excerpt(str(path))} is a directory; add --recursive to upload what is in it")
    with translated(path):
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    with os.fdopen(number, "rb") as file:
        yield file


def below(root: Path, relative: str) -> Path:
    """Where a downloaded object goes: a path below ``root``.

    Raises:
        InvalidPath: the object's path cannot be a file's there: it leads elsewhere, or aliases another.
    """
    if any(part in {"", ".", ".."} for part in relative.split("/")):
        raise InvalidPath(
            f"object path {excerpt(relative)} cannot be a file below {excerpt(str(root))}: "
            "it has an empty part, '.' or '..'; nothing was written for it"
        )
    return root / relative


def write_below(root: Path, target: Path, source: BinaryIO) -> int:
    """Write a file below ``root``, replacing one of that name; returns its size in bytes.

    Raises:
        InvalidPath: a symbolic link on the way leads elsewhere.
        InvalidInput: the operating system refuses.
    """
    with translated(target):
        _make_folders(root, target.parent)
        draft = target.parent / f".lakeops-{Ids().new()}.part"
        try:
            with draft.open("xb") as file:
                shutil.copyfileobj(source, file, _PIECE)
                size = file.tell()
            draft.replace(target)
        except BaseException:
            with suppress(FileNotFoundError):
                draft.unlink()
            raise
    return size


def _make_folders(root: Path, folder: Path) -> None:
    """Make the folders between ``root`` and ``folder``; the root itself may be a link, what is below may not."""
    root.mkdir(parents=True, exist_ok=True)
    current = root
    for part in folder.relative_to(root).parts:
        current /= part
        if current.is_symlink():
            raise InvalidPath(f"{excerpt(str(current))} is a symbolic link that leads elsewhere; nothing was written")
        current.mkdir(exist_ok=True)
