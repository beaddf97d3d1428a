"""Pieces of immutable metadata files of far stores, kept on this machine's disk for all its processes.

A piece is named by the SHA-256 of its bytes. It is compared with its name whenever it is read, so a damaged, swapped
or hostile file here costs one request more and nothing else. Nothing here says whether a file is in its store.

Each piece is one file. It is written under another name and renamed, so a process that is killed leaves at most a
leftover. The pieces lie in 256 folders by the first byte of their name. Names are spread evenly, so each folder may
hold a 256th of what all may. Whoever writes into a folder trims it once in a while: what was used longest ago goes.
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
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

from lakeops.model.formatting import counted, human_size
from lakeops.store.base import ObjectStore, PutResult
from lakeops.store.in_flight import IN_FLIGHT

if TYPE_CHECKING:
    from lakeops.settings import Settings

FOLDERS = 256
_LOOKS = 16
"""A folder is trimmed after about a sixteenth of what it may hold was written to it."""

_USED_ANEW = 3600.0
"""Seconds after which the use of a piece is noted again."""

_LEFT_BEHIND = 3600.0
"""Seconds after which a file that was never renamed belongs to nobody."""

_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """What the pieces of a folder, or of all folders, come to."""

    files: int
    size_bytes: int


class Pieces:
    """Pieces below a folder. Threads and processes may share it.

    Every failure of the disk is taken for a piece that is not here, so a full or read-only disk is only slower.

    Args:
        folder: made when the first piece is kept, for this user alone.
        max_bytes: what all pieces together may take.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._root = str(folder / _VERSION)
        self._share = max_bytes // FOLDERS
        self._usable: bool | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The pieces that the settings speak of."""
        return cls(settings.disk_cache, settings.disk_cache_mb << 20)

    def get(self, digest: bytes) -> bytes | None:
        """The piece with this SHA-256, if it is here and whole."""
        data = self._read(digest.hex())
        if data is not None and hashlib.sha256(data).digest() != digest:
            self._discard(digest.hex())
            return None
        return data

    def put(self, digest: bytes, data: bytes | memoryview) -> None:
        """Keep a piece whose SHA-256 is ``digest``."""
        self._write(digest.hex(), data)

    def kept(self) -> CacheUsage:
        """How much is here."""
        sizes = [size for folder in self._folders() for _, size, _ in _files(folder)]
        return CacheUsage(len(sizes), sum(sizes))

    def described(self) -> str:
        """How much is here, in words."""
        if not self.max_bytes:
            return "off (disk_cache_mb is 0)"
        if not self.is_usable():
            return f"{self.folder} is not used: it cannot be written, or other users may look into it"
        found = self.kept()
        sizes = f"{human_size(found.size_bytes)} of {human_size(self.max_bytes)}"
        return f"{self.folder}: {counted(found.files, 'file')}, {sizes}"

    def clear(self) -> CacheUsage:
        """Forget everything. Returns how much that was. Raises ``OSError`` for what cannot be removed."""
        found = self.kept()
        for folder in self._folders():
            shutil.rmtree(folder)
        return found

    def is_usable(self) -> bool:
        """Whether pieces can be kept: the folder is, or can be made, this user's own."""
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
            yield from sorted((self.folder / _VERSION).iterdir())

    def _path(self, name: str) -> Path:
        return self.folder / _VERSION / name[:2] / name

    def _opened(self, name: str) -> FileIO:
        """A piece's file. Text and no path, and no buffer: a short command reads a few pieces, each of them once."""
        return FileIO(f"{self._root}/{name[:2]}/{name}")

    def _read(self, name: str) -> bytes | None:
        try:
            with self._opened(name) as file:
                data = file.readall()
                if time.time() - os.fstat(file.fileno()).st_mtime > _USED_ANEW:
                    os.utime(file.name)
        except OSError:
            return None
        return data

    def _write(self, name: str, data: bytes | memoryview) -> None:
        if not self.is_usable() or len(data) > self._share:
            return
        path = self._path(name)
        draft = path.with_name(f".{secrets.token_hex(8)}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            draft.replace(path)
        except OSError:
            with suppress(OSError):
                draft.unlink()
        # Many short processes write a little each, so each of them looks now and then rather than counts.
        if random.random() * self._share < _LOOKS * len(data):  # noqa: S311 - no secret
            self._trim(path.parent)

    def _trim(self, folder: Path) -> None:
        """Remove what was used longest ago from a folder that holds more than it may."""
        files = sorted(_files(folder), reverse=True)
        room = self._share
        for used, size, path in files:
            is_draft = path.name.startswith(".")
            room -= 0 if is_draft else size
            if room < 0 or (is_draft and time.time() - used > _LEFT_BEHIND):
                with suppress(OSError):
                    path.unlink()

    def _discard(self, name: str) -> None:
        with suppress(OSError):
            self._path(name).unlink()


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """The files of a folder: when each was last used, its size, its name."""
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                yield status.st_mtime, status.st_size, Path(entry.path)


MOST_HELD = 64 * 1024 * 1024
"""Bytes of files that wait to be written, at most. A larger file travels alone."""


def nearby(store: ObjectStore, pieces: Pieces | None) -> ObjectStore:
    """The store, with the pieces that this machine keeps of its files."""
    return cast("ObjectStore", _Nearby(store, pieces)) if store.remote and pieces is not None else store


def pieces_of(store: ObjectStore) -> Pieces | None:
    """The pieces that this machine keeps of a store's files, where it keeps any."""
    found: Pieces | None = getattr(store, "pieces", None)
    return found


def together(store: ObjectStore) -> AbstractContextManager[ObjectStore]:
    """Put in the background for a ``with``. All is written when the ``with`` ends.

    The end raises what the first put that failed raised. A put of bytes returns at once. Reads see what was put.
    """
    return _in_background(store) if store.remote else nullcontext(store)


class _Wrapped:
    """Everything is the inner store's own. Elsewhere it is the inner store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the inner store has
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._store, name)

    def __reduce__(self) -> tuple[Callable[[ObjectStore], ObjectStore], tuple[ObjectStore]]:
        return _same_store, (self._store,)


def _same_store(store: ObjectStore) -> ObjectStore:
    return store


class _Nearby(_Wrapped):
    def __init__(self, store: ObjectStore, pieces: Pieces) -> None:
        super().__init__(store)
        self.pieces = pieces


@contextmanager
def _in_background(store: ObjectStore) -> Iterator[ObjectStore]:
    found = Travelling(store)
    try:
        yield as_store(found)
    finally:
        found.close()
    for file in found.taken():
        file.result()


def as_store(found: Travelling) -> ObjectStore:
    """Type a store whose puts travel in the background as a store."""
    return cast("ObjectStore", found)


class Travelling(_Wrapped):
    """A store whose puts of bytes return at once and travel in the background. Reads see what was put."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="put")
        self._room = Condition(Lock())
        self._held = 0
        self._written: dict[str, Future[PutResult]] = {}
        self._new: list[Future[Any]] = []

    def taken(self) -> list[Future[Any]]:
        """The puts since the last call. Each raises what its write raised."""
        with self._room:
            new, self._new = self._new, []
            self._written = {key: put for key, put in self._written.items() if not put.done() or put.exception()}
        return new

    def close(self) -> None:
        """Wait for all puts."""
        self._pool.shutdown(wait=True)

    def put(self, key: str, data: bytes | BinaryIO, *, if_absent: bool = False, content_type: str = "") -> PutResult:
        """See ``ObjectStore.put``."""
        if not isinstance(data, bytes) or if_absent:
            return self._store.put(key, data, if_absent=if_absent, content_type=content_type)
        with self._room:
            self._room.wait_for(lambda: not self._held or self._held + len(data) <= MOST_HELD)
            self._held += len(data)
            self._written[key] = self._pool.submit(self._put, key, data, content_type)
            self._new.append(self._written[key])
        return PutResult(len(data), hashlib.sha256(data).hexdigest())

    def get(self, key: str) -> bytes:
        """See ``ObjectStore.get``."""
        self._settle(key)
        return self._store.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See ``ObjectStore.get_range``."""
        self._settle(key)
        return self._store.get_range(key, start, length)

    def _settle(self, key: str) -> None:
        put = self._written.get(key)
        if put is not None:
            put.result()

    def _put(self, key: str, data: bytes, content_type: str) -> PutResult:
        try:
            return self._store.put(key, data, content_type=content_type)
        finally:
            with self._room:
                self._held -= len(data)
                self._room.notify_all()
