"""The disk cache of remote stores' metadata files, which all processes share; and wrappers of stores.

A cached file is named by the SHA-256 of its bytes and compared with its name whenever it is read. So a damaged, swapped
or hostile file costs one request more and nothing else. The cache does not say whether a file is in its store.

A file is written under another name and renamed, so a process that is killed leaves at most a leftover. Files lie in
256 folders by the first byte of their name, each of which may hold a 256th of what all may. A writer trims its folder
once in a while: what was used longest ago goes.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

from lakeops.model.formatting import counted, human_size
from lakeops.store.base import ObjectStore, PutResult
from lakeops.store.in_flight import IN_FLIGHT

if TYPE_CHECKING:
    from lakeops.settings import Settings

FOLDERS = 256
_TRIMS = 16
"""A folder is trimmed after about a sixteenth of what it may hold was written to it."""

_USED_ANEW = 3600.0
"""Seconds after which the use of a file is noted again."""

_LEFT_BEHIND = 3600.0
"""Seconds after which a file that was never renamed belongs to nobody."""


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """The size of a disk cache."""

    files: int
    size_bytes: int


class DiskCache:
    """Files below a folder. Threads and processes may share it.

    Every failure of the disk counts as a miss, so a full or read-only disk is only slower. The folder is made when the
    first file is kept, for this user alone.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._root = folder / "v1"
        self._share = max_bytes // FOLDERS
        self._usable: bool | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The cache that the settings describe."""
        return cls(settings.disk_cache, settings.disk_cache_mb << 20)

    def get(self, digest: bytes) -> bytes | None:
        """The file with this SHA-256, if it is here and whole."""
        name = digest.hex()
        try:
            # No path and no buffer: a short command reads a few files, each of them once.
            with FileIO(f"{self._root}/{name[:2]}/{name}") as file:
                data = file.readall()
                if time.time() - os.fstat(file.fileno()).st_mtime > _USED_ANEW:
                    os.utime(file.name)
        except OSError:
            return None
        if hashlib.sha256(data).digest() == digest:
            return data
        with suppress(OSError):
            (self._root / name[:2] / name).unlink()
        return None

    def put(self, digest: bytes, data: bytes | memoryview) -> None:
        """Keep a file whose SHA-256 is ``digest``."""
        if not self.is_usable() or len(data) > self._share:
            return
        name = digest.hex()
        folder = self._root / name[:2]
        draft = folder / f".{secrets.token_hex(8)}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            draft.replace(folder / name)
        except OSError:
            with suppress(OSError):
                draft.unlink()
        # Many short processes write a little each, so each of them trims by chance rather than counts.
        if random.random() * self._share < _TRIMS * len(data):  # noqa: S311 - no secret
            self._trim(folder)

    def usage(self) -> CacheUsage:
        """Count the files, and their bytes."""
        sizes = [size for folder in self._folders() for _, size, _ in _files(folder)]
        return CacheUsage(len(sizes), sum(sizes))

    def described(self) -> str:
        """The state of the cache in words."""
        if not self.max_bytes:
            return "off (disk_cache_mb is 0)"
        if not self.is_usable():
            return f"{self.folder} is not used: it cannot be written, or other users may look into it"
        found = self.usage()
        sizes = f"{human_size(found.size_bytes)} of {human_size(self.max_bytes)}"
        return f"{self.folder}: {counted(found.files, 'file')}, {sizes}"

    def clear(self) -> CacheUsage:
        """Forget everything. Returns how much that was. Raises ``OSError`` for what cannot be removed."""
        found = self.usage()
        for folder in self._folders():
            shutil.rmtree(folder)
        return found

    def is_usable(self) -> bool:
        """Whether files can be kept: the folder is, or can be made, this user's own."""
        if self._usable is None:
            self._usable = self._share > 0 and self._make()
        return self._usable

    def _make(self) -> bool:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.folder.stat(follow_symlinks=False)
        except OSError:
            return False
        # Other users could see what is read, or fill the disk.
        return found.st_uid == os.geteuid() and not found.st_mode & 0o077 and os.access(self.folder, os.W_OK)

    def _folders(self) -> Iterator[Path]:
        with suppress(OSError):
            yield from sorted(self._root.iterdir())

    def _trim(self, folder: Path) -> None:
        """Remove what was used longest ago from a folder that holds more than it may."""
        room = self._share
        for used, size, path in sorted(_files(folder), reverse=True):
            is_draft = path.name.startswith(".")
            room -= 0 if is_draft else size
            if room < 0 or (is_draft and time.time() - used > _LEFT_BEHIND):
                with suppress(OSError):
                    path.unlink()


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """The files of a folder: when each was last used, its size, its name."""
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                yield status.st_mtime, status.st_size, Path(entry.path)


def with_cache(store: ObjectStore, cache: DiskCache | None) -> ObjectStore:
    """The store, with a cache for readers of its immutable files where it is far."""
    return cast("ObjectStore", _CachedStore(store, cache)) if store.remote and cache is not None else store


class WrappedStore:
    """A wrapper that passes every call on to its store, and pickles as that store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the wrapped store has
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._store, name)

    def __reduce__(self) -> tuple[Callable[[ObjectStore], ObjectStore], tuple[ObjectStore]]:
        return unwrapped, (self._store,)


class _CachedStore(WrappedStore):
    def __init__(self, store: ObjectStore, cache: DiskCache) -> None:
        super().__init__(store)
        self.disk_cache = cache


MOST_HELD = 64 * 1024 * 1024
"""Bytes of files that wait to be written, at most. A larger file travels alone."""


@contextmanager
def background_writes(store: ObjectStore) -> Iterator[ObjectStore]:
    """Put to a far store in the background for a ``with``. All is written when the ``with`` ends.

    A put of bytes returns at once. Reads see what was put. The end raises what the first put that failed raised.
    """
    if not store.remote:
        yield store
        return
    writer = BackgroundWriter(store)
    with writer.pool:
        yield cast("ObjectStore", writer)
    flush(writer)


def flush(store: object) -> None:
    """Wait until all is written that was put in the background. Raises what the first put that failed raised."""
    if isinstance(store, BackgroundWriter):
        for put in store.puts:
            put.result()


def unwrapped(store: ObjectStore) -> ObjectStore:
    """The store without its wrappers, as other processes see it. All is written that was put in the background."""
    flush(store)
    return unwrapped(store._store) if isinstance(store, WrappedStore) else store  # noqa: SLF001 - this module's own


class BackgroundWriter(WrappedStore):
    """A store whose puts of bytes return at once. Reads see what was put."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="put")
        self.puts: list[Future[PutResult]] = []
        self._by_key: dict[str, Future[PutResult]] = {}
        self._room = Condition()
        self._held = 0

    def put(self, key: str, data: bytes | BinaryIO, *, if_absent: bool = False, content_type: str = "") -> PutResult:
        if not isinstance(data, bytes) or if_absent:
            return self._store.put(key, data, if_absent=if_absent, content_type=content_type)
        with self._room:
            self._room.wait_for(lambda: not self._held or self._held + len(data) <= MOST_HELD)
            self._held += len(data)
            self._by_key[key] = self.pool.submit(self._put, key, data, content_type)
            self.puts.append(self._by_key[key])
        return PutResult(len(data), hashlib.sha256(data).hexdigest())

    def get(self, key: str) -> bytes:
        self._wait_for(key)
        return self._store.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._wait_for(key)
        return self._store.get_range(key, start, length)

    def _wait_for(self, key: str) -> None:
        if key in self._by_key:
            self._by_key[key].result()

    def _put(self, key: str, data: bytes, content_type: str) -> PutResult:
        try:
            return self._store.put(key, data, content_type=content_type)
        finally:
            with self._room:
                self._held -= len(data)
                self._room.notify_all()


def with_scratch(store: ObjectStore) -> ObjectStore:
    """Wrap a store for reading: what is put is kept in memory, and read from there.

    It is for files that one piece of work needs for itself, so a reader without the right to write can do the work too.
    """
    return cast("ObjectStore", _ScratchStore(store))


class _ScratchStore(WrappedStore):
    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._written: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> PutResult:
        """See ``ObjectStore.put``. The namespace stays as it is."""
        self._written[key] = data
        return PutResult(len(data), hashlib.sha256(data).hexdigest())

    def get(self, key: str) -> bytes:
        return self._written[key] if key in self._written else self._store.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        found = self._written.get(key)
        return self._store.get_range(key, start, length) if found is None else found[start : start + length]
