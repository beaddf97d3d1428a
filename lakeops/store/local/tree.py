"""Directories below one root, reached one step at a time so that no link can lead out.

Every step opens the next directory relative to the one before and refuses to follow a link (``openat`` with
``O_NOFOLLOW``), so that nothing depends on a path staying what it was when it was checked.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby, islice
from pathlib import Path

from lakeops.model.errors import InvalidPath, StoreError
from lakeops.store.base import StoredObject

HIDDEN = b".lakeops"
"""The name, at any depth, that is the store's own: no key may hold it and no listing shows it."""

MAX_KEY_BYTES = 1024
_MAX_NAME_BYTES = 255
_REMEMBERED = 10_000
"""Directories that are known to be on the disk. Forgotten all at once, because that costs little."""

_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def split_key(key: str) -> list[bytes]:
    """The names that lead from the root to the key's file. Raises ``InvalidPath`` for what a file system cannot hold.

    Refused are keys that would come back changed or land elsewhere: empty, ``.`` and ``..`` segments, NUL, lone
    surrogates, names over 255 bytes, keys over 1,024, and the store's own hidden name.
    """
    try:
        raw = key.encode()
    except UnicodeError:
        raise InvalidPath(f"key {key[:200]!a} holds a lone surrogate, which is no text") from None
    shown = ascii(key[:200])
    names = raw.split(b"/")
    if len(raw) > MAX_KEY_BYTES or any(len(name) > _MAX_NAME_BYTES for name in names):
        raise InvalidPath(f"key {shown} is too long: 1,024 bytes in all and 255 between slashes are the limits here")
    if b"\0" in raw:
        raise InvalidPath(f"key {shown} holds NUL, which no file name may")
    if any(name in {b"", b".", b".."} for name in names):
        raise InvalidPath(f"key {shown} has an empty, '.' or '..' segment, which a file system cannot keep apart")
    if HIDDEN in names:
        raise InvalidPath(f"key {shown} has the segment {HIDDEN.decode()!r}, which is the store's own")
    return names


class DirectoryTree:
    """The directories of one store."""

    def __init__(self, root: Path, *, fsync: bool) -> None:
        self.root = root
        self._path = os.fspath(root)
        self._fsync = fsync
        self._lasting: set[tuple[bytes, ...]] = set()

    @contextmanager
    def folder(self, names: Sequence[bytes], *, create: bool = False) -> Iterator[int]:
        """A file descriptor of the directory that ``names`` lead to, open inside the ``with``.

        Raises ``FileNotFoundError`` or ``NotADirectoryError`` when there is none, ``InvalidPath`` when a link is in
        the way. With ``create`` missing directories are made, and last through a crash.
        """
        current = self._open_root(create=create)
        try:
            for depth, name in enumerate(names, 1):
                above, current = current, self._step(current, name, create=create)
                try:
                    if create:
                        self._make_last(tuple(names[:depth]), above)
                finally:
                    os.close(above)
            yield current
        finally:
            os.close(current)

    def prune(self, names: Sequence[bytes]) -> None:
        """Remove directories on the way to ``names`` that are empty, the deepest first, never the root."""
        for depth in range(len(names), 0, -1):
            self._lasting.discard(tuple(names[:depth]))
            try:
                with self.folder(names[: depth - 1]) as above:
                    os.rmdir(names[depth - 1], dir_fd=above)
            except (OSError, InvalidPath):
                return

    def sync(self, folder: int) -> None:
        """Force a directory's entries to the disk, where that was asked for."""
        if self._fsync:
            os.fsync(folder)

    def _make_last(self, names: tuple[bytes, ...], above: int) -> None:
        """Force a directory's own name to the disk, once, whoever made it: what is put below would go with it."""
        if self._fsync and names not in self._lasting:
            os.fsync(above)
            if len(self._lasting) >= _REMEMBERED:
                self._lasting.clear()
            self._lasting.add(names)

    def _step(self, above: int, name: bytes, *, create: bool) -> int:
        try:
            return os.open(name, _FOLDER, dir_fd=above)
        except FileNotFoundError:
            if not create:
                raise
        except NotADirectoryError:
            refuse_link(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode, name)
            raise
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
        return self._step(above, name, create=False)

    def _open_root(self, *, create: bool) -> int:
        try:
            return os.open(self._path, _ROOT)
        except FileNotFoundError:
            if not create:
                raise
        except NotADirectoryError:
            if create:
                raise StoreError(f"{str(self.root)!a} is not a directory; choose another storage namespace") from None
            raise
        for path in [*reversed(self.root.parents), self.root]:
            if not path.exists():
                path.mkdir(exist_ok=True)
                above = os.open(path.parent, _ROOT)
                try:
                    self.sync(above)
                finally:
                    os.close(above)
        return os.open(self.root, _ROOT)


def refuse_link(mode: int, name: bytes) -> None:
    """Raise ``InvalidPath`` when a file's mode is that of a symbolic link."""
    if stat.S_ISLNK(mode):
        raise InvalidPath(f"{os.fsdecode(name)!a} is a symbolic link; a store keeps real files and directories only")


_PAGE = 1000


def walk(tree: DirectoryTree, prefix: bytes, after: bytes) -> Iterator[StoredObject]:
    """Files whose key starts with ``prefix`` and comes after ``after``, in byte order.

    What appears or vanishes meanwhile may be listed or not. Everything else is listed once.
    """
    folders = prefix.split(b"/")[:-1]
    if b"\0" in prefix or any(name in {b"", b".", b"..", HIDDEN} for name in folders):
        return
    yield from _below(tree, folders, prefix, after)


def _below(tree: DirectoryTree, folders: list[bytes], prefix: bytes, after: bytes) -> Iterator[StoredObject]:
    base = b"".join(name + b"/" for name in folders)
    names = sorted(name for name in _names(tree, folders) if _is_wanted(base + name, prefix, after))
    for is_folder, group in groupby(names, key=lambda name: name.endswith(b"/")):
        if is_folder:
            for name in group:
                yield from _below(tree, [*folders, name[:-1]], prefix, after)
        else:
            while page := list(islice(group, _PAGE)):
                yield from _files(tree, folders, base, page)


def _is_wanted(key: bytes, prefix: bytes, after: bytes) -> bool:
    if len(key) > MAX_KEY_BYTES:
        return False
    if key.endswith(b"/"):
        return (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key))
    return key.startswith(prefix) and key > after


def _names(tree: DirectoryTree, folders: list[bytes]) -> list[bytes]:
    """The names in one directory, those of directories with a slash behind. None when there is no such directory."""
    names = []
    try:
        with tree.folder(folders) as folder, os.scandir(folder) as entries:
            for entry in entries:
                name = os.fsencode(entry.name)
                if name == HIDDEN or not _is_text(name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    names.append(name + b"/")
                elif entry.is_file(follow_symlinks=False):
                    names.append(name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return names


def _files(tree: DirectoryTree, folders: list[bytes], base: bytes, names: list[bytes]) -> list[StoredObject]:
    found = []
    try:
        with tree.folder(folders) as folder:
            for name in names:
                try:
                    info = os.stat(name, dir_fd=folder, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(info.st_mode):
                    found.append(StoredObject((base + name).decode(), info.st_size, int(info.st_mtime)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return found


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeError:
        return False
    return True
