"""The store on a file system: what the embedded default uses.

How it keeps the seam's promises: contents go to a hidden file first, are forced to the disk, and only then get their
name by one rename (or, if the key must be new, by one hard link), so a key appears whole or not at all. A crash
leaves a hidden file at worst. A later put removes it once nobody has written to it for a day.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from lakeops.model.clock import Ids
from lakeops.model.errors import (
    AlreadyExists,
    InvalidInput,
    InvalidPath,
    LakeopsError,
    ObjectNotFound,
    StoreUnavailable,
    Unsupported,
)
from lakeops.store.base import (
    Capabilities,
    DeleteFailure,
    Listing,
    ObjectStore,
    Opened,
    PutResult,
    StoredObject,
    can_put_if_absent,
    can_read_ranges,
    lists_consistently,
)
from lakeops.store.copy import CheckedFile
from lakeops.store.layout import quote_path
from lakeops.store.local.draft import Draft, Drafts, translated
from lakeops.store.local.scan import scan
from lakeops.store.local.tree import HIDDEN, DirectoryTree, split_key, walk

_TRIES = 4
"""Tries to name a file whose directory a concurrent delete removes as empty. The next one keeps deletes waiting."""

_PRUNE = b"prune"
"""The lock of those who remove empty directories, and of a put that they were faster than."""

_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LocalStore:
    """A directory as an object store.

    Args:
        root: an absolute path. Made when the first object is written.
        fsync: whether a put returns only when the object would survive a loss of power.
    """

    remote = False

    def __init__(self, root: Path, *, fsync: bool = True) -> None:
        if not root.is_absolute():
            raise InvalidInput(f"the root of a local store must be an absolute path, not {str(root)!r}")
        self.root = root
        self._fsync = fsync
        self._tree = DirectoryTree(root, fsync=fsync)
        self._ids = Ids()
        self._drafts = Drafts(self._tree, self.url, self._ids)

    def __reduce__(self) -> tuple[object, ...]:
        return (_reopen, (self.root, self._fsync))

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    @cached_property
    def url(self) -> str:
        """The root as a percent-encoded ``file://`` URL, without a trailing slash."""
        return "file://" + quote_path(str(self.root)).rstrip("/")

    def get(self, key: str) -> bytes:
        """The object's contents. Raises ``ObjectNotFound``."""
        with self._file(key) as file:
            return file.read()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """``length`` bytes from ``start``. Fewer at the end of the object. Raises ``ObjectNotFound``."""
        if start < 0 or length < 0:
            raise InvalidInput(f"a range starts at 0 or later and has no negative length, not {start}, {length}")
        with translated(self.url, key):
            descriptor = self._descriptor(key)
            try:
                return _span(descriptor, start, length)
            finally:
                os.close(descriptor)

    def open(self, key: str) -> BinaryIO:
        """A seekable binary file. Raises ``ObjectNotFound``."""
        with translated(self.url, key):
            return os.fdopen(self._descriptor(key), "rb")

    def open_checked(self, item: StoredObject) -> Opened:
        """An object to be read once. A file system keeps no checksum, so only its size is checked.

        Programs that write to an output directory themselves may still be at it.
        """
        return Opened(CheckedFile(self.open(item.key), f"{self.url}/{item.key}", item.size_bytes))

    def copy_from(self, source: ObjectStore, item: StoredObject) -> bool:  # noqa: ARG002 - the protocol's
        """False: there is no server."""
        return False

    def make_directory(self, prefix: str) -> None:
        """Make the directory that programs write files to. One that is there already is fine."""
        with translated(self.url, prefix), self._tree.folder(split_key(prefix.rstrip("/")), create=True):
            pass

    def sync(self, keys: Iterable[str]) -> None:
        """Force files that other programs wrote to the disk, and the directories that name them."""
        if not self._fsync:
            return
        folders: set[tuple[bytes, ...]] = set()
        for key in keys:
            with self._file(key) as file:
                os.fsync(file.fileno())
            *names, _ = split_key(key)
            folders.update(tuple(names[:depth]) for depth in range(len(names) + 1))
        for place in sorted(folders, key=len, reverse=True):
            with translated(self.url, ""), self._tree.folder(place) as folder:
                self._tree.sync(folder)

    def put(self, key: str, data: bytes | BinaryIO, *, if_absent: bool = False, content_type: str = "") -> PutResult:
        """Write an object, durably, whole or not at all. ``content_type`` is not kept.

        Raises ``AlreadyExists`` with ``if_absent``, ``StoreError`` when the file system refuses, ``InvalidPath`` when
        it cannot hold the key beside what is there (``a/b`` beside ``a``).
        """
        del content_type
        split_key(key)
        with self._drafts.open(key) as draft:
            result = draft.fill(data, fsync=self._fsync)
            with translated(self.url, key):
                self._name(draft, key, if_absent=if_absent)
        return result

    def swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        """Replace a small object on the condition that it holds ``expected``. See ``ObjectStore.swap``."""
        with self._hold_lock(b"swap"):
            try:
                found = self.get(key)
            except ObjectNotFound:
                found = None
            if found == expected and found != data:
                self.put(key, data)
                found = data
        return found == data

    def head(self, key: str) -> StoredObject:
        """Size and time of an object. Raises ``ObjectNotFound``."""
        *folders, name = split_key(key)
        with translated(self.url, key), self._tree.folder(folders) as folder:
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            _check_regular(info)
        return StoredObject(key, info.st_size, int(info.st_mtime))

    def delete(self, keys: Iterable[str]) -> list[DeleteFailure]:
        """Delete many, and the directories that become empty. Returns what was refused, and why."""
        refused = []
        for key in keys:
            try:
                self._remove(key)
            except ObjectNotFound:
                continue
            except LakeopsError as error:
                refused.append(DeleteFailure(key, error.message))
        return refused

    def list(self, prefix: str = "", after: str = "") -> Iterator[StoredObject]:
        """Objects whose key starts with ``prefix`` and comes after ``after``, in byte order."""
        try:
            raw_prefix, raw_after = prefix.encode(), after.encode()
        except UnicodeError:
            raise InvalidPath("a listing's prefix or start holds a lone surrogate, which is no text") from None
        return self._listing(raw_prefix, raw_after)

    def scan(self, *, under: str = "", skip_special: bool = False, moving: bool = False) -> Iterator[Listing]:
        """Every file, in byte order, with its change mark. See ``ObjectStore.scan``."""
        with translated(self.url, ""):
            yield from scan(self._tree, self.url, under, skip_special=skip_special, moving=moving)

    def keeps_versions(self) -> bool:
        """False: a deleted file is gone."""
        return False

    def checksum(self, item: StoredObject) -> str:
        """The SHA-256 of the contents in hex. Reads them all."""
        with self._file(item.key) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def presign(self, key: str, expires: int = 900) -> str:
        """Raises ``Unsupported``: files have no such URL."""
        del expires
        raise Unsupported(f"{self.url}/{key} is a local file and has no presigned URL; read it through lakeops")

    def probe(self) -> Capabilities:
        """What this file system can do. User metadata and ETags are nothing it has."""
        return Capabilities(
            conditional_put=can_put_if_absent(self, self._ids),
            range_reads=can_read_ranges(self, self._ids),
            batch_delete=True,
            consistent_listing=lists_consistently(self, self._ids),
            notes=() if self._fsync else ("fsync is off: a loss of power may lose what was written last",),
        )

    @contextmanager
    def _hold_lock(self, what: bytes) -> Iterator[None]:
        """Keep others that do the same to this store waiting, in this process or another one."""
        with translated(self.url, ""), self._tree.folder([HIDDEN], create=True) as folder:
            lock = os.open(what, _LOCK, 0o666, dir_fd=folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except BaseException:
                os.close(lock)
                raise
        try:
            yield
        finally:
            os.close(lock)

    @contextmanager
    def _file(self, key: str) -> Iterator[io.BufferedReader]:
        with translated(self.url, key), os.fdopen(self._descriptor(key), "rb") as file:
            yield file

    def _descriptor(self, key: str) -> int:
        *folders, name = split_key(key)
        with self._tree.folder(folders) as folder:
            descriptor = os.open(name, _READ, dir_fd=folder)
        try:
            _check_regular(os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _name(self, draft: Draft, key: str, *, if_absent: bool) -> None:
        *folders, name = split_key(key)
        for tries in range(_TRIES + 1):
            try:
                with (
                    self._hold_lock(_PRUNE) if tries == _TRIES else nullcontext(),
                    self._tree.folder(folders, create=True) as folder,
                ):
                    draft.take_name(folder, name, if_absent=if_absent)
                    self._tree.sync(folder)
                return
            except FileNotFoundError:
                continue
            except FileExistsError:
                raise AlreadyExists(f"{self.url}/{key} exists") from None
            except (NotADirectoryError, IsADirectoryError):
                raise InvalidPath(f"{key!a} needs a directory where there is a file, or the reverse") from None
        raise StoreUnavailable(f"the directory of {self.url}/{key} was removed by others again and again; try again")

    def _listing(self, prefix: bytes, after: bytes) -> Iterator[StoredObject]:
        with translated(self.url, ""):
            yield from walk(self._tree, prefix, after)

    def _remove(self, key: str) -> None:
        *folders, name = split_key(key)
        with translated(self.url, key):
            with self._tree.folder(folders) as folder:
                _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))
                os.unlink(name, dir_fd=folder)
            if folders:
                with self._hold_lock(_PRUNE):
                    self._tree.prune(folders)


def _span(descriptor: int, start: int, length: int) -> bytes:
    data = os.pread(descriptor, length, start)
    while 0 < len(data) < length and (more := os.pread(descriptor, length - len(data), start + len(data))):
        data += more
    return data


def _check_regular(info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISLNK(info.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not stat.S_ISREG(info.st_mode):
        raise InvalidPath("a pipe, socket or device is no object")


def _reopen(root: Path, fsync: bool) -> LocalStore:
    return LocalStore(root, fsync=fsync)
