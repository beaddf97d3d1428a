"""The files in which a clone remembers its ref and its objects, in the folder ``.lakeops-local``.

``index.json`` says which ref the clone follows, and how each file was when it was last equal to its object. It is
replaced as a whole. Before a call gives a file its name or removes it, ``journal`` gets a line, which counts only when
the file is as it says. So a killed call leaves a directory in which every file is known, or changed by somebody else.
Names in this folder that are no file's below the clone are refused.
"""

from __future__ import annotations

import fcntl
import json
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, TextIO

from lakeops.model.errors import AlreadyExists, InvalidInput, InvalidPath
from lakeops.model.names import SCHEME, as_folder, check_repository, given_place, parse_ref
from lakeops.model.sanitising import excerpt
from lakeops.ops.files import PLACE, atomic_write, is_clone_state, translated

MAX_PART_BYTES = 255


def check_file_name(name: str) -> str:
    """An object's path below the prefix, when it can be a file's. Raises ``InvalidPath``."""
    if not isinstance(name, str):
        raise InvalidPath("a file's name is not text")
    parts = name.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        why = "it has an empty part, '.' or '..'"
    elif is_clone_state(name):
        why = "clones keep their own files there"
    elif any(len(part.encode(errors="surrogatepass")) > MAX_PART_BYTES for part in parts):
        why = f"a part of it is longer than {MAX_PART_BYTES} bytes"
    elif "\0" in name:
        why = "it has NUL"
    else:
        return name
    raise InvalidPath(f"{excerpt(name)} cannot be a file: {why}; nothing was written")


def check_names(names: Iterable[str], *, folds: bool) -> None:
    """Refuse names that cannot be in one directory, such as ``a`` and ``a/b``. Raises ``InvalidPath``.

    A name may not be another one's folder. On a disk that ``folds`` letters, two names may not be one.
    """
    shown: dict[str, str] = {}
    for name in names:
        check_file_name(name)
        key = unicodedata.normalize("NFC", name).casefold() if folds else name
        other = shown.setdefault(key, name)
        if other != name:
            raise InvalidPath(f"{excerpt(name)} and {excerpt(other)} are one file on this disk; nothing was written")
    for key, name in shown.items():
        for folder in folders_of(key):
            if folder in shown:
                other = excerpt(shown[folder])
                raise InvalidPath(f"{other} cannot be a file and the folder of {excerpt(name)}; nothing was written")


def folders_of(name: str) -> list[str]:
    """The folders that lead to a name."""
    return [name[:at] for at, letter in enumerate(name) if letter == "/"]


def folds_letters(folder: Path) -> bool:
    """Whether a clone's disk ignores the case of letters in names."""
    return (folder / PLACE.upper()).exists()


VERSION = 1

RACY_NS = 20_000_000
"""How coarsely a disk tells times, in nanoseconds. A file whose time is no earlier than this before the index may have
been changed again without another time, so it is read."""


@dataclass(frozen=True, slots=True)
class Known:
    """A file that was equal to its object: the object's checksum, and the file's size in bytes, time and digest."""

    checksum: str
    size_bytes: int
    mtime_ns: int
    sha256: str

    def is_like(self, status: os.stat_result) -> bool:
        """Whether the file on disk has this size and this time."""
        return (self.size_bytes, self.mtime_ns) == (status.st_size, status.st_mtime_ns)


@dataclass(frozen=True)
class Index:
    """The ref that a directory follows, and its files as they were last equal to objects, by name below the prefix.

    ``prefix`` is empty or ends in a slash. ``commit`` is empty when there was none yet. ``whole``: ``files`` are
    exactly what the commit has. ``written_ns`` is the disk's time when this was written. ``interrupted`` is the ref of
    a call that did not come to its end. ``claim_id`` is the repository's own id, if the index has it.
    """

    repository: str
    ref: str
    prefix: str
    commit: str = ""
    whole: bool = False
    files: Mapping[str, Known] = field(default_factory=dict)
    written_ns: int = 0
    interrupted: str | None = None
    claim_id: str = ""

    @property
    def uri(self) -> str:
        """The folder that the directory follows, as ``lakefs://REPO/REF/PREFIX``."""
        return f"{SCHEME}{self.repository}/{self.ref}/{self.prefix}"


def find(directory: str | Path) -> Path:
    """The clone that a directory is, or lies in. Raises ``InvalidInput``."""
    with translated(Path(directory)):
        start = given_place(directory).resolve()
        if not start.is_dir():
            raise InvalidInput(f"{excerpt(str(directory))} is no directory")
        for folder in (start, *start.parents):
            if (folder / PLACE / "index.json").is_file():
                return folder
    raise InvalidInput(
        f"{excerpt(str(directory))} follows no ref; begin with `lakeops local clone lakefs://REPO/REF/PREFIX DIR`"
    )


def below(directory: str | Path) -> Iterator[Path]:
    """The clones in a directory, at any depth, by name. Links are not followed."""
    with translated(Path(directory)):
        os.scandir(given_place(directory)).close()  # raises, and a walk would find nothing
        for folder, names, _ in os.walk(directory):
            if (Path(folder) / PLACE / "index.json").is_file():
                yield Path(folder)
            names[:] = sorted(name for name in names if name != PLACE)


def read(folder: Path) -> Index:
    """Read a clone's index, with what an interrupted call has done. Raises ``InvalidInput`` when it is damaged."""
    place = folder / PLACE
    with translated(place):
        text = (place / "index.json").read_bytes()
        written = (place / "index.json").stat().st_mtime_ns
        lines = (place / "journal").read_bytes().splitlines() if (place / "journal").exists() else []
    try:
        found = replace(_parsed(json.loads(text)), written_ns=written)
    except (ValueError, TypeError, KeyError, AttributeError, InvalidInput):
        raise InvalidInput(
            f"{excerpt(str(place / 'index.json'))} is damaged; remove {PLACE} there, and run `lakeops local init`"
        ) from None
    return _replayed(folder, found, lines) if lines else found


def _parsed(found: dict[str, Any]) -> Index:
    if found.pop("version") != VERSION:
        raise ValueError(VERSION)
    files = {check_file_name(name): _parse_known(row) for name, row in found.pop("files").items()}
    index = Index(**found, files=files)
    check_repository(index.repository)
    parse_ref(index.ref)
    types = [type(value) for value in (index.commit, index.claim_id, index.whole)]
    if as_folder(index.prefix) != index.prefix or types != [str, str, bool]:
        raise ValueError(index.prefix)
    return index


def _parse_known(row: list[Any]) -> Known:
    if [type(part) for part in row] != [str, int, int, str]:
        raise TypeError(row)
    return Known(*row)


def _replayed(folder: Path, index: Index, lines: list[bytes]) -> Index:
    """The index with those lines of a journal that came true. The last line may be torn."""
    files, interrupted = dict(index.files), index.ref
    for line in lines:
        try:
            words = json.loads(line)
            if words[0] == "ref":
                parse_ref(interrupted := words[1])
                continue
            name = check_file_name(words[1])
            known = None if words[0] == "gone" else _parse_known(words[2])
        except (ValueError, TypeError, IndexError, InvalidInput):
            continue
        try:
            status: os.stat_result | None = (folder / name).lstat()
        except (FileNotFoundError, NotADirectoryError):
            status = None
        if known is None and status is None:
            files.pop(name, None)
        elif known is not None and status is not None and known.is_like(status):
            files[name] = known
    return replace(index, files=files, whole=False, interrupted=interrupted)


def write(folder: Path, index: Index) -> None:
    """Keep an index, in place of the one before and its journal."""
    place = folder / PLACE
    document = {
        "version": VERSION,
        **{name: getattr(index, name) for name in ("repository", "ref", "prefix", "commit", "whole", "claim_id")},
        "files": {name: astuple(known) for name, known in index.files.items()},
    }
    with translated(place / "index.json"):
        place.mkdir(parents=True, exist_ok=True)
        with atomic_write(place / "index.json") as file:
            file.write(json.dumps(document).encode())
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            (place / "journal").unlink()


class Journal:
    """A journal of changes to files, written before each change. Threads may share one."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = Lock()

    def add(self, what: str, name: str, known: Known | None = None) -> None:
        """Note what is about to be so: a ``file`` has got its name, is ``gone``, or a clone follows another ``ref``."""
        with self._lock:
            self._file.write(json.dumps([what, name, *([astuple(known)] if known else [])]) + "\n")
            self._file.flush()


@contextmanager
def journal(folder: Path, ref: str) -> Iterator[Journal]:
    """A journal of a call that makes a clone equal to a ref. ``write`` ends it."""
    place = folder / PLACE / "journal"
    with translated(place), place.open("w", encoding="utf-8") as file:
        noted = Journal(file)
        noted.add("ref", ref)
        yield noted


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a clone against other calls. It ends with the process, even a killed one. Raises ``AlreadyExists``."""
    with translated(folder):
        (folder / PLACE).mkdir(parents=True, exist_ok=True)
        file = (folder / PLACE / "lock").open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyExists(f"another call works in {excerpt(str(folder))}; wait until it has ended") from None
        for left in (folder / PLACE).glob(".lakeops-*.part"):  # of calls that were killed
            with suppress(OSError):
                left.unlink()
        yield
