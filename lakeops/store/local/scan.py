"""Every file below a directory, in the order of whole keys, or a clear refusal.

A listing for readers may leave out what no key can spell and what vanished meanwhile. Whoever takes a directory into
a repository must not. So nothing is passed over here unless the caller said so, and a directory whose names change
between its first and its last look (its own modification time tells) ends the scan.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

from lakeops.model.errors import InvalidInput, ObjectNotFound, Transient
from lakeops.model.text import excerpt
from lakeops.store.ahead import Found, Threads, in_order
from lakeops.store.base import Listing
from lakeops.store.local.tree import HIDDEN, DirectoryTree

_THREADS = 4
_AHEAD = 32
_PAGE = 5_000
"""Files of one directory that are looked at in one step."""
_SHOWN = 3

Names = tuple[bytes, ...]


def scan(
    tree: DirectoryTree, url: str, under: str = "", *, skip_special: bool, moving: bool = False
) -> Iterator[Listing]:
    """All files below the root, or below a folder of it. See ``ObjectStore.scan``."""
    scanning = _LocalScan(tree, url, skip_special=skip_special, moving=moving)
    start = tuple(name.encode() for name in under.split("/")[:-1])
    yield from in_order(partial(scanning.folder, start), threads=Threads(_THREADS), ahead=_AHEAD)
    scanning.check_unchanged()


class _LocalScan:
    def __init__(self, tree: DirectoryTree, url: str, *, skip_special: bool, moving: bool) -> None:
        self._tree = tree
        self._url = url
        self._skip_special = skip_special
        self._moving = moving
        self._seen: list[tuple[Names, int]] = []

    def folder(self, names: Names) -> Sequence[Found]:
        """What is in one directory: listings of its files, and a step for each directory in it."""
        files: list[str] = []
        folders: list[str] = []
        special: list[tuple[str, str]] = []
        try:
            with self._tree.folder(names) as folder:
                if not self._moving or not names:
                    self._seen.append((names, os.fstat(folder).st_mtime_ns))
                with os.scandir(folder) as entries:
                    for entry in entries:
                        name = entry.name
                        if (name.isascii() or _is_text(name)) and name != HIDDEN.decode():
                            if entry.is_file(follow_symlinks=False):
                                files.append(name)
                                continue
                            if entry.is_dir(follow_symlinks=False):
                                folders.append(name + "/")
                                continue
                        special.append((name, _kind(entry)))
        except (FileNotFoundError, NotADirectoryError) as error:
            if names and self._moving:
                return []
            if names or isinstance(error, FileNotFoundError):
                raise self._missing_directory(names) from None
            raise InvalidInput(f"{self._url!a} is a file; name the directory that it is in") from None
        base = b"".join(name + b"/" for name in names).decode()
        if special and not self._skip_special:
            raise self._refusal(base, special)
        found: list[Found] = []
        for is_folder, group in groupby(sorted(files + folders), key=lambda name: name.endswith("/")):
            run = list(group)
            if is_folder:
                found += [partial(self.folder, (*names, name[:-1].encode())) for name in run]
            else:
                steps = [partial(self._files, names, base, run[at : at + _PAGE]) for at in range(0, len(run), _PAGE)]
                found += steps if len(run) > _PAGE else steps[0]()
        return found

    def check_unchanged(self) -> None:
        """Raise ``Transient`` when names came or went in any directory since it was first looked at."""
        if self._moving:
            return
        for names, then in self._seen:
            try:
                with self._tree.folder(names) as folder:
                    now = os.fstat(folder).st_mtime_ns
            except (FileNotFoundError, NotADirectoryError):
                raise self._missing_directory(names) from None
            if now != then:
                raise self._changed(names, "has changed")

    def _files(self, names: Names, base: str, run: list[str]) -> Sequence[Listing]:
        """The listing of some files of one directory."""
        keys, sizes, mtimes, marks = [], [], [], []
        name = ""
        try:
            with self._tree.folder(names) as folder:
                for name in run:
                    info = self._stat(folder, name)
                    if info is None:
                        continue
                    if not stat.S_ISREG(info.st_mode):
                        raise self._changed((*names, name.encode()), "is no file any more")
                    keys.append(base + name)
                    sizes.append(info.st_size)
                    mtimes.append(info.st_mtime_ns // 1_000_000_000)
                    marks.append(f"mtime-{info.st_mtime_ns}-{info.st_size}")
        except (FileNotFoundError, NotADirectoryError):
            if not self._moving:
                raise self._missing_directory((*names, name.encode())) from None
        return [Listing(keys, sizes, mtimes, marks)] if keys else []

    def _stat(self, folder: int, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            if self._moving:
                return None
            raise

    def _refusal(self, base: str, special: list[tuple[str, str]]) -> InvalidInput:
        shown = ", ".join(f"{excerpt(base + name)} ({kind})" for name, kind in sorted(special)[:_SHOWN])
        more = f" and {len(special) - _SHOWN:,} more beside them" if len(special) > _SHOWN else ""
        return InvalidInput(
            f"{self._url!a} holds what cannot be an object: {shown}{more}; remove it, or skip special files"
        )

    def _missing_directory(self, names: Names) -> ObjectNotFound | Transient:
        if not names and not self._seen:
            return ObjectNotFound(f"there is no directory {self._url!a}")
        return self._changed(names, "is gone")

    def _changed(self, names: Names, what: str) -> Transient:
        key = excerpt(b"/".join(names).decode()) if names else "the directory itself"
        return Transient(
            f"{self._url!a} changed while it was listed: {key} {what}; try again when nothing writes to it"
        )


def _kind(entry: os.DirEntry[str]) -> str:
    if not _is_text(entry.name):
        return "its name is not UTF-8"
    if entry.is_symlink():
        return "a symbolic link"
    return "a store's own files" if entry.name == HIDDEN.decode() else "a pipe, socket or device"


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeError:
        return False
    return True
