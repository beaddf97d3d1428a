"""A directory as an object store.

Every step from the root opens the next directory relative to the one before and follows no link (``openat`` with
``O_NOFOLLOW``). So no key leads out of the root, whatever becomes of a path after it was checked. A put writes a hidden
file, forces it to the disk and gives it its name in one step.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from lakeops.model.clock import Ids
from lakeops.model.errors import (
    AlreadyExists,
    InvalidInput,
    InvalidPath,
    LakeopsError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    Transient,
    unsupported,
)
from lakeops.model.names import is_text
from lakeops.model.sanitising import excerpt
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
    pieces,
)
from lakeops.store.layout import quote_path
from lakeops.store.listing import Found, ParallelListing, folder_borders, in_order
from lakeops.store.reader import CheckedFile

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

HIDDEN = b".lakeops"
"""The name, at any depth, that is the store's own: no key may hold it and no listing shows it."""

MAX_KEY_BYTES = 1024
_MAX_NAME_BYTES = 255
_REMEMBERED = 10_000
"""Directories that are known to be on the disk. Forgotten all at once, because that costs little."""

ABANDONED_SECONDS = 24 * 3600
"""Age after which a hidden file that nobody wrote to counts as left behind."""

_PIECE = 1024 * 1024
_TRIES = 4
"""Tries to name a file whose directory a concurrent delete removes as empty. The next one keeps deletes waiting."""

_PRUNE = b"prune"
"""The lock of those who remove or make empty directories, and of a put that they were faster than."""

_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Names = tuple[bytes, ...]


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
    if len(raw) > MAX_KEY_BYTES or max(map(len, names)) > _MAX_NAME_BYTES:
        raise InvalidPath(f"key {shown} is too long: 1,024 bytes in all and 255 between slashes are the limits here")
    if b"\0" in raw:
        raise InvalidPath(f"key {shown} holds NUL, which no file name may")
    if not {b"", b".", b".."}.isdisjoint(names):
        raise InvalidPath(f"key {shown} has an empty, '.' or '..' segment, which a file system cannot keep apart")
    if HIDDEN in names:
        raise InvalidPath(f"key {shown} has the segment {HIDDEN.decode()!r}, which is the store's own")
    return names


_ADVICE = {
    errno.ENOSPC: "no space left; free some or enlarge the disk",
    errno.EDQUOT: "the disk quota is used up; free some space or raise it",
    errno.EFBIG: "the file is larger than this file system or the process may write; raise the limit",
    errno.EACCES: "permission denied; give this user access to the storage namespace",
    errno.EPERM: "not permitted; give this user access to the storage namespace",
    errno.EROFS: "the file system is mounted read-only; mount it writable",
    errno.EIO: "the disk reports an input/output error; check it before you go on",
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n)",
    errno.ENFILE: "too many files are open on this machine; raise the limit",
    errno.EXDEV: "another file system is mounted inside the storage namespace; a namespace must be on one",
}
_PASSING = frozenset({errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT})
_NO_LINKS = frozenset({errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


@contextmanager
def translated(url: str, key: str) -> Iterator[None]:
    """Turn the operating system's errors inside the ``with`` into lakeops' own, naming the file."""
    try:
        yield
    except LakeopsError:  # a missing object is an OSError too, and says already what is wrong
        raise
    except OSError as error:
        raise _translate(error, f"{url}/{key}" if key else url, key) from error


def _translate(error: OSError, where: str, key: str) -> LakeopsError:
    shown = ascii(where)
    code = error.errno
    if code in {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}:
        return ObjectNotFound(f"there is no object {shown}")
    if code == errno.ELOOP:
        return InvalidPath(f"{shown} is a symbolic link; a store keeps real files and directories only")
    if code == errno.ENAMETOOLONG:
        return InvalidPath(f"key {key[:200]!a} is too long for this file system")
    if code in _NO_LINKS:
        return unsupported(f"the file system cannot create {shown} atomically; use a local disk or S3")
    advice = _ADVICE.get(code or 0, error.strerror or type(error).__name__)
    if code in _PASSING:
        return StoreUnavailable(f"{shown}: {advice}; try again")
    return StoreError(f"{shown}: {advice}")


class DirectoryTree:
    """The directories of one store. See ``LocalStore``."""

    def __init__(self, root: Path, *, fsync: bool, needs: str) -> None:
        self.root = root
        self._fsync = fsync
        self._needs = needs
        self._lasting: set[Names] = set()

    @contextmanager
    def folder(self, names: Sequence[bytes], *, create: bool = False) -> Iterator[int]:
        """A file descriptor of the directory that ``names`` lead to, open inside the ``with``.

        Raises ``FileNotFoundError`` or ``NotADirectoryError`` when there is none, ``InvalidPath`` when a link is in
        the way. With ``create`` missing directories are made, and last through a crash.
        """
        current = self._open_root(create=create)
        try:
            for depth, name in enumerate(names, 1):
                above, (current, made) = current, _open_directory(current, name, create=create)
                try:
                    if create and self._fsync and ((path := tuple(names[:depth])) not in self._lasting or made):
                        # Whoever made it: what is put below would go with it.
                        self._lasting.discard(path)
                        os.fsync(above)
                        if len(self._lasting) >= _REMEMBERED:
                            self._lasting.clear()
                        self._lasting.add(path)
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

    def _open_root(self, *, create: bool) -> int:
        if create and self._needs and not (self.root / self._needs).is_dir():
            raise StoreUnavailable(f"{str(self.root)!a} has no {self._needs}: is its disk mounted? Nothing was written")
        try:
            return os.open(self.root, _ROOT)
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


def _open_directory(above: int, name: bytes, *, create: bool) -> tuple[int, bool]:
    """Open a directory, and tell whether it was not there a moment ago: another store may have pruned it."""
    try:
        return os.open(name, _FOLDER, dir_fd=above), False
    except FileNotFoundError:
        if not create:
            raise
    except NotADirectoryError:
        _refuse_link(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode, name)
        raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=above)
    return _open_directory(above, name, create=False)[0], True


def _refuse_link(mode: int, name: bytes) -> None:
    if stat.S_ISLNK(mode):
        raise InvalidPath(f"{os.fsdecode(name)!a} is a symbolic link; a store keeps real files and directories only")


def _check_regular(info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISLNK(info.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not stat.S_ISREG(info.st_mode):
        raise InvalidPath("a pipe, socket or device is no object")


# --- listing ---

_THREADS = 4
_AHEAD = 32
_SCAN_PAGE = 5_000
"""Files of one directory that are looked at in one step."""
_SHOWN = 3


@dataclass
class _LocalScan:
    """Lists files below a folder. ``wanted`` tells which keys, and which folders, whose names end in a slash."""

    tree: DirectoryTree
    url: str
    skip_special: bool
    moving: bool
    wanted: Callable[[str], bool] = lambda _: True
    seen: list[tuple[Names, int]] = field(default_factory=list)

    def listings(self, under: str) -> Iterator[Listing]:
        """All files below the root, or below a folder of it. See ``ObjectStore.scan``."""
        start = tuple(name.encode() for name in under.split("/")[:-1])
        yield from ParallelListing(_THREADS, _AHEAD).run(partial(self.folder, start))
        for names, then in [] if self.moving else self.seen:
            try:
                with self.tree.folder(names) as folder:
                    now = os.fstat(folder).st_mtime_ns
            except (FileNotFoundError, NotADirectoryError):
                raise self._missing_directory(names) from None
            if now != then:
                raise self._changed(names, "has changed")

    def folder(self, names: Names) -> Sequence[Found]:
        """The contents of one directory: listings of its files, and a step for each directory in it."""
        files: list[str] = []
        folders: list[str] = []
        special: list[tuple[str, str]] = []
        try:
            with self.tree.folder(names) as folder:
                if not self.moving or not names:
                    self.seen.append((names, os.fstat(folder).st_mtime_ns))
                with os.scandir(folder) as entries:
                    for entry in entries:
                        name = entry.name
                        if (name.isascii() or is_text(name)) and name != HIDDEN.decode():
                            if entry.is_file(follow_symlinks=False):
                                files.append(name)
                                continue
                            if entry.is_dir(follow_symlinks=False):
                                folders.append(name + "/")
                                continue
                        special.append((name, _kind(entry)))
        except (FileNotFoundError, NotADirectoryError) as error:
            if names and self.moving:
                return []
            if names or isinstance(error, FileNotFoundError):
                raise self._missing_directory(names) from None
            raise InvalidInput(f"{self.url!a} is a file; name the directory that it is in") from None
        base = b"".join(name + b"/" for name in names).decode()
        if special and not self.skip_special:
            raise self._refusal(base, special)
        shown = (name for name in files + folders if self.wanted(base + name))
        found: list[Found] = []
        for is_folder, group in groupby(sorted(shown), key=lambda name: name.endswith("/")):
            run = list(group)
            if is_folder:
                found += [partial(self.folder, (*names, name[:-1].encode())) for name in run]
            else:
                pages = (run[at : at + _SCAN_PAGE] for at in range(0, len(run), _SCAN_PAGE))
                steps = [partial(self._files, names, base, page) for page in pages]
                found += steps if len(steps) > 1 else steps[0]()
        return found

    def _files(self, names: Names, base: str, run: list[str]) -> Sequence[Listing]:
        keys, sizes, mtimes, marks = [], [], [], []
        name = ""
        try:
            with self.tree.folder(names) as folder:
                for name in run:
                    try:
                        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    except FileNotFoundError:
                        if self.moving:
                            continue
                        raise
                    if not stat.S_ISREG(info.st_mode):
                        raise self._changed((*names, name.encode()), "is no file any more")
                    keys.append(base + name)
                    sizes.append(info.st_size)
                    mtimes.append(info.st_mtime_ns // 1_000_000_000)
                    marks.append(f"mtime-{info.st_mtime_ns}-{info.st_size}")
        except (FileNotFoundError, NotADirectoryError):
            if not self.moving:
                raise self._missing_directory((*names, name.encode())) from None
        return [Listing(keys, sizes, mtimes, marks)] if keys else []

    def _refusal(self, base: str, special: list[tuple[str, str]]) -> InvalidInput:
        shown = ", ".join(f"{excerpt(base + name)} ({kind})" for name, kind in sorted(special)[:_SHOWN])
        more = f" and {len(special) - _SHOWN:,} more beside them" if len(special) > _SHOWN else ""
        return InvalidInput(
            f"{self.url!a} holds what cannot be an object: {shown}{more}; "
            + ("remove it" if self.moving else "remove it, or leave it out with --skip-special")
        )

    def _missing_directory(self, names: Names) -> ObjectNotFound | Transient:
        if not names and not self.seen:
            return ObjectNotFound(f"there is no directory {self.url!a}")
        return self._changed(names, "is gone")

    def _changed(self, names: Names, what: str) -> Transient:
        key = excerpt(b"/".join(names).decode()) if names else "the directory itself"
        return Transient(f"{self.url!a} changed while it was listed: {key} {what}; try again when nothing writes to it")


def _is_between(after: str, until: str, name: str) -> bool:
    """Whether a key comes behind ``after`` and not behind ``until``, or a folder (ending in a slash) may hold such."""
    return (name > after or (name.endswith("/") and after.startswith(name))) and (not until or name <= until)


def _kind(entry: os.DirEntry[str]) -> str:
    if not is_text(entry.name):
        return "its name is not UTF-8"
    if entry.is_symlink():
        return "a symbolic link"
    return "a store's own files" if entry.name == HIDDEN.decode() else "a pipe, socket or device"


# --- the store ---


class RawFile(io.FileIO):
    """Unbuffered reads of one file. They raise lakeops' errors: a disk may fail after a file was opened."""

    def __init__(self, descriptor: int, translated: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(descriptor)
        self._translated = translated

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        with self._translated():
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with self._translated():
            return super().readall()


class LocalStore(ObjectStore):
    """A directory as an object store.

    Args:
        root: an absolute path. Made when the first object is written.
        fsync: whether a put returns only when the object would survive a loss of power.
        needs: a folder that must be in the root before anything is written. Then a root is never made, and a write
            below the place of a disk that is not mounted raises ``StoreUnavailable``.
    """

    remote = False

    def __init__(self, root: Path, *, fsync: bool = True, needs: str = "") -> None:
        if not root.is_absolute():
            raise InvalidInput(f"the root of a local store must be an absolute path, not {str(root)!r}")
        self.root = root
        self._fsync = fsync
        self._needs = needs
        self._tree = DirectoryTree(root, fsync=fsync, needs=needs)
        self._ids = Ids()
        self._swept = False

    def __reduce__(self) -> tuple[object, ...]:
        return (partial(LocalStore, fsync=self._fsync, needs=self._needs), (self.root,))

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    @cached_property
    def url(self) -> str:
        """The root as a percent-encoded ``file://`` URL, without a trailing slash."""
        return "file://" + quote_path(str(self.root)).rstrip("/")

    def get(self, key: str) -> bytes:
        with self._file(key) as file:
            return file.read()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise InvalidInput(f"a range starts at 0 or later and has no negative length, not {start}, {length}")
        with self._file(key) as file:
            data = os.pread(file.fileno(), length, start)
            while 0 < len(data) < length and (more := os.pread(file.fileno(), length - len(data), start + len(data))):
                data += more
        return data

    def open(self, key: str) -> BinaryIO:
        with translated(self.url, key):
            return io.BufferedReader(RawFile(self._descriptor(key), partial(translated, self.url, key)))

    def open_checked(self, item: StoredObject) -> Opened:
        """An object to be read once. A file system keeps no checksum, so only its size is checked.

        Programs that write to an output directory themselves may still be at it.
        """
        return Opened(CheckedFile(self.open(item.key), f"{self.url}/{item.key}", item.size_bytes))

    def make_directory(self, prefix: str) -> None:
        names = split_key(prefix.rstrip("/"))
        with self._hold_lock(_PRUNE), translated(self.url, prefix), self._tree.folder(names, create=True):
            pass

    def sync(self, keys: Iterable[str]) -> None:
        """Force files that other programs wrote to the disk, and the directories that name them."""
        if not self._fsync:
            return
        folders: set[Names] = set()
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
        it cannot hold the key beside what is there (``a/b`` beside ``a``). What the caller's own file raises passes
        through as it is.
        """
        del content_type
        split_key(key)
        draft, digest, size = self._ids.new().encode(), hashlib.sha256(), 0
        with ExitStack() as stack:
            with translated(self.url, key):
                hidden = stack.enter_context(self._tree.folder([HIDDEN, b"tmp"], create=True))
                descriptor = os.open(draft, _CREATE, 0o666, dir_fd=hidden)
                stack.callback(_remove_if_there, draft, hidden)
                file = stack.enter_context(io.FileIO(descriptor, "w"))
                if not self._swept:
                    self._swept = True
                    _sweep(hidden, os.fstat(descriptor).st_mtime - ABANDONED_SECONDS)
            for piece in pieces(data, _PIECE):
                digest.update(piece)
                size += len(piece)
                with translated(self.url, key):
                    rest = memoryview(piece)
                    while rest:
                        rest = rest[os.write(descriptor, rest) :]
            with translated(self.url, key):
                self._tree.sync(descriptor)
                file.close()
                self._name(draft, hidden, key, if_absent=if_absent)
        return PutResult(size, digest.hexdigest())

    def _name(self, draft: bytes, hidden: int, key: str, *, if_absent: bool) -> None:
        """Let a hidden file become the key's, in one step."""
        *folders, name = split_key(key)
        for tries in range(_TRIES + 1):
            try:
                with (
                    self._hold_lock(_PRUNE) if tries == _TRIES else nullcontext(),
                    self._tree.folder(folders, create=True) as folder,
                ):
                    with suppress(FileNotFoundError):
                        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                        _refuse_link(mode, name)
                        if stat.S_ISDIR(mode):
                            raise IsADirectoryError
                    if if_absent:
                        os.link(draft, name, src_dir_fd=hidden, dst_dir_fd=folder, follow_symlinks=False)
                    else:
                        os.replace(draft, name, src_dir_fd=hidden, dst_dir_fd=folder)
                    self._tree.sync(folder)
                return
            except FileNotFoundError:
                continue
            except FileExistsError:
                raise AlreadyExists(f"{self.url}/{key} exists") from None
            except (NotADirectoryError, IsADirectoryError):
                raise InvalidPath(f"{key!a} needs a directory where there is a file, or the reverse") from None
        raise StoreUnavailable(f"the directory of {self.url}/{key} was removed by others again and again; try again")

    def swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
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
                *folders, name = split_key(key)
                with translated(self.url, key):
                    with self._tree.folder(folders) as folder:
                        _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))
                        os.unlink(name, dir_fd=folder)
                    if folders:
                        with self._hold_lock(_PRUNE):
                            self._tree.prune(folders)
            except ObjectNotFound:
                continue
            except LakeopsError as error:
                refused.append(DeleteFailure(key, error.message))
        return refused

    def list(self, prefix: str = "", after: str = "") -> Iterator[StoredObject]:
        if not (is_text(prefix) and is_text(after)):
            raise InvalidPath("a listing's prefix or start holds a lone surrogate, which is no text")
        return self._listing(prefix, after)

    def _listing(self, prefix: str, after: str) -> Iterator[StoredObject]:
        folders = tuple(name.encode() for name in prefix.split("/")[:-1])
        if "\0" in prefix or any(name in {b"", b".", b"..", HIDDEN} for name in folders):
            return

        def wanted(key: str) -> bool:
            if key.endswith("/"):
                return (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key))
            return key.startswith(prefix) and key > after and len(key.encode()) <= MAX_KEY_BYTES

        scan = _LocalScan(self._tree, self.url, skip_special=True, moving=True, wanted=wanted)
        with translated(self.url, ""), suppress(ObjectNotFound):  # a root that is not there has no objects
            for listing in in_order(partial(scan.folder, folders)) if self.root.is_dir() else ():
                yield from map(StoredObject, listing.keys, listing.sizes, listing.mtimes)

    def scan(
        self, *, under: str = "", after: str = "", until: str = "", skip_special: bool = False, moving: bool = False
    ) -> Iterator[Listing]:
        scanning = _LocalScan(self._tree, self.url, skip_special, moving, partial(_is_between, after, until))
        with translated(self.url, ""):
            yield from scanning.listings(under)

    def borders(self, after: str, count: int) -> Sequence[str]:
        """Folders. See ``ObjectStore.borders``. A scan reads those between its borders, and those that lead there."""
        with translated(self.url, ""):
            return folder_borders(self._folders, "", after, count)

    def _folders(self, name: str) -> Sequence[str]:
        """The folders in one, among the first of its entries: one that begins with many files has few of them."""
        with self._tree.folder(name.encode().split(b"/")[:-1]) as folder, os.scandir(folder) as entries:
            some = islice(entries, _SCAN_PAGE)
            return [f"{name}{one.name}/" for one in some if one.is_dir(follow_symlinks=False) and is_text(one.name)]

    def checksum(self, item: StoredObject) -> str:
        """The SHA-256 of the contents in hex. Reads them all."""
        with self._file(item.key) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def presign(self, key: str, expires: int = 900) -> str:
        """Raises ``unsupported``: files have no such URL."""
        del expires
        raise unsupported(f"{self.url}/{key} is a local file and has no presigned URL; read it through lakeops")

    def probe(self) -> Capabilities:
        """The abilities of this file system. It has no user metadata and no ETags."""
        return Capabilities(
            conditional_put=can_put_if_absent(self, self._ids),
            range_reads=can_read_ranges(self, self._ids),
            batch_delete=True,
            consistent_listing=lists_consistently(self, self._ids),
            notes=() if self._fsync else ("fsync is off: a loss of power may lose what was written last",),
        )

    @contextmanager
    def _hold_lock(self, what: bytes) -> Iterator[None]:
        """Hold a lock on this store against other threads and processes that take the same lock."""
        with ExitStack() as at_the_end:
            with translated(self.url, ""), self._tree.folder([HIDDEN], create=True) as folder:
                lock = os.open(what, _LOCK, 0o666, dir_fd=folder)
                at_the_end.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

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


def _remove_if_there(name: bytes, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _sweep(hidden: int, before: float) -> None:
    """Remove hidden files last written before a moment. A neighbour may be doing the same."""
    for name in os.listdir(hidden):
        with suppress(FileNotFoundError):
            if os.stat(name, dir_fd=hidden, follow_symlinks=False).st_mtime < before:
                os.unlink(name, dir_fd=hidden)
