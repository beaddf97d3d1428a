"""Files of this machine: walking a directory, reading and writing its files.

What the operating system refuses is ``InvalidInput`` that names the file. A file that is written appears whole or not
at all.
"""

from __future__ import annotations

import io
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.clock import Ids
from lakeops.model.errors import InvalidInput, InvalidPath, LakeopsError
from lakeops.model.names import check_path
from lakeops.model.sanitising import excerpt
from lakeops.store.local import RawFile

PLACE = ".lakeops-local"
"""The folder in which a clone keeps its own files."""

_PLACE = re.compile(rf"({re.escape(PLACE)}|lakeop~[0-9]+)[. ]*(:.*)?", re.DOTALL)
DRAFT = re.compile(r"(.*/)?\.lakeops-[0-9a-v]{20}\.part", re.DOTALL)
"""Paths of files that a killed call left unfinished: see ``atomic_write``."""
_IGNORED = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\ufe00-\ufe0f\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
"""Characters beside those of category Cf that disks ignore which fold letters."""


def is_clone_state(path: str) -> bool:
    """Tell whether a part of a path names the folder in which clones keep their own files, in any spelling.

    Whoever writes such a file into a clone decides where its next commit goes. As git does for ``.git``, this counts in
    what some disks ignore: case, forms of a character, invisible characters, dots and spaces at the end, what follows a
    colon, and short names of DOS.
    """
    if path.isascii() and "lakeop" not in path.lower():
        return False
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())
    shown = "".join(letter for letter in _IGNORED.sub("", folded) if unicodedata.category(letter) != "Cf")
    return any(_PLACE.fullmatch(part) for part in re.split(r"[/\\]", shown))


def clone_state_among(paths: pa.Array | pa.ChunkedArray) -> list[str]:
    """Find the paths of clones' own files."""
    suspects = paths.filter(pc.match_substring_regex(paths, r"(?i)lakeop|[^\x00-\x7f]")).to_pylist()
    return [path for path in suspects if is_clone_state(path)]


def check_new_path(path: str) -> str:
    """Return a path that an object may be put to. Raises ``InvalidPath``, also for a clone's own file."""
    if is_clone_state(check_path(path)):
        raise InvalidPath(f"{excerpt(path)} is a clone's own file, which does not belong in a repository; leave it out")
    return path


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals inside the ``with`` into ``InvalidInput`` that names the file."""
    try:
        yield
    except LakeopsError:  # bad input is a ValueError too, and says already what is wrong
        raise
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise InvalidInput(f"{excerpt(str(error.filename2 or error.filename or path))}: {reason}") from None
    except ValueError:  # NUL, or half of a character
        raise InvalidInput(f"{excerpt(str(path))} cannot be a file's name") from None


def walk(
    folder: Path, enters: Callable[[str], bool] = lambda _: True, prefix: str = ""
) -> Iterator[tuple[str, os.stat_result]]:
    """Files below a directory by name, links and devices too: each one's path below the directory, and its status.

    A link is not followed. ``enters`` tells by its path whether a directory is walked. One that is not is given itself.
    ``prefix`` is the directory below ``folder`` to begin with. Raises ``InvalidInput`` where one cannot be read.
    """
    with translated(folder / prefix), os.scandir(folder / prefix) as found:
        items = sorted(found, key=lambda item: item.name)
    for item in items:
        name = prefix + item.name
        with translated(folder / name):
            status = item.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode) and enters(name):
            yield from walk(folder, enters, name + "/")
        else:
            yield name, status


@contextmanager
def reading(path: Path, *, follow: bool) -> Iterator[BinaryIO]:
    """A file open for reading. A link is refused unless ``follow``. This and the reads raise ``InvalidInput``."""
    if path.is_dir():
        raise InvalidInput(f"{excerpt(str(path))} is a directory; add --recursive to upload what is in it")
    with translated(path):
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    with io.BufferedReader(RawFile(number, partial(translated, path))) as file:
        yield file


@contextmanager
def atomic_write(target: Path, place: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write in a ``place``, or beside the target, which takes the target's name and permissions at the end.

    After an exception the target is as it was. Raises ``InvalidInput`` for a pipe, a device, or a link in ``/dev``.
    """
    is_stream = target.exists() and not target.is_file() and not target.is_dir()
    if is_stream or (target.is_symlink() and target.parent.resolve() == Path("/dev")):
        raise InvalidInput(f"{excerpt(str(target))} is no regular file; `lakeops fs cat` writes into pipes and devices")
    draft = (place or target.parent) / f".lakeops-{Ids().new()}.part"
    try:
        with draft.open("xb") as file:
            if target.is_file() and not target.is_symlink():
                os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
            yield file
        draft.replace(target)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError) and error.filename == str(draft):
            error.filename = str(target)
        raise
