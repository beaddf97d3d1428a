"""Listing a directory tree in the order of whole keys, with one directory's names in memory at a time.

A directory sorts as its name with a slash, because that is how every key below it goes on: ``a!``, ``a/b``, ``a0``.
What no key can spell (links, devices, names that are not UTF-8, the store's own hidden files) is left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import groupby, islice

from lakeops.store.base import StoredObject
from lakeops.store.local.tree import HIDDEN, MAX_KEY_BYTES, Tree

_PAGE = 1000


def walk(tree: Tree, prefix: bytes, after: bytes) -> Iterator[StoredObject]:
    """Files whose key starts with ``prefix`` and comes after ``after``, in byte order.

    What appears or vanishes meanwhile may be listed or not; everything else is listed once.
    """
    folders = prefix.split(b"/")[:-1]
    if b"\0" in prefix or any(name in {b"", b".", b"..", HIDDEN} for name in folders):
        return
    yield from _below(tree, folders, prefix, after)


def _below(tree: Tree, folders: list[bytes], prefix: bytes, after: bytes) -> Iterator[StoredObject]:
    base = b"".join(name + b"/" for name in folders)
    names = sorted(name for name in _names(tree, folders) if _wanted(base + name, prefix, after))
    for is_folder, group in groupby(names, key=lambda name: name.endswith(b"/")):
        if is_folder:
            for name in group:
                yield from _below(tree, [*folders, name[:-1]], prefix, after)
        else:
            while page := list(islice(group, _PAGE)):
                yield from _files(tree, folders, base, page)


def _wanted(key: bytes, prefix: bytes, after: bytes) -> bool:
    if len(key) > MAX_KEY_BYTES:
        return False
    if key.endswith(b"/"):
        return (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key))
    return key.startswith(prefix) and key > after


def _names(tree: Tree, folders: list[bytes]) -> list[bytes]:
    """The names in one directory, those of directories with a slash behind; none when there is no such directory."""
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


def _files(tree: Tree, folders: list[bytes], base: bytes, names: list[bytes]) -> list[StoredObject]:
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
