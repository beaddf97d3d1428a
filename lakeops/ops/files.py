"""Files of this machine, as uploads read and downloads write them.

What it keeps true: an upload of a directory takes the regular files below it and nothing that a link leads to. A
download's file appears under its name whole or not at all.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lakeops.model.clock import Ids
from lakeops.model.errors import InvalidInput
from lakeops.model.text import excerpt


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
    except ValueError:  # NUL, or half of a character
        raise InvalidInput(f"{excerpt(str(path))} cannot be a file's name") from None


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


@contextmanager
def appearing(target: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the target's name at the end; after an exception the target is as it was."""
    draft = target.parent / f".lakeops-{Ids().new()}.part"
    try:
        with draft.open("xb") as file:
            yield file
        draft.replace(target)
    except BaseException:
        with suppress(FileNotFoundError):
            draft.unlink()
        raise
