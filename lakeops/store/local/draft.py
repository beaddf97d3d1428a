"""Hidden files that contents go to before they get their key's name.

They lie under the store's own hidden directory, on the same file system. Whoever writes one removes it. What a crash
left behind goes once nobody has written to it for a day, judged by the file system's own clock.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import BinaryIO

from lakeops.model.clock import Ids
from lakeops.model.errors import InvalidPath, LakeopsError, ObjectNotFound, StoreError, StoreUnavailable, Unsupported
from lakeops.store.base import PutResult, pieces
from lakeops.store.local.tree import HIDDEN, DirectoryTree, refuse_link

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
        return Unsupported(f"the file system cannot create {shown} only if it is absent; use a local disk or S3")
    advice = _ADVICE.get(code or 0, error.strerror or type(error).__name__)
    if code in _PASSING:
        return StoreUnavailable(f"{shown}: {advice}; try again")
    return StoreError(f"{shown}: {advice}")


ABANDONED_SECONDS = 24 * 3600
"""Age after which a hidden file that nobody wrote to counts as left behind."""

_PIECE = 1024 * 1024
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Draft:
    """One hidden file, open for writing until it is filled."""

    def __init__(self, url: str, key: str, hidden: int, name: bytes) -> None:
        self._url = url
        self._key = key
        self._hidden = hidden
        self._name = name
        self._hides = True
        self._file = os.open(name, _CREATE, 0o666, dir_fd=hidden)
        self.mtime: float = os.fstat(self._file).st_mtime

    def fill(self, data: bytes | BinaryIO, *, fsync: bool) -> PutResult:
        """Write the contents. What the caller's own file raises passes through as it is."""
        digest, size = hashlib.sha256(), 0
        for piece in pieces(data, _PIECE):
            digest.update(piece)
            size += len(piece)
            with translated(self._url, self._key):
                _write_all(self._file, piece)
        with translated(self._url, self._key):
            if fsync:
                os.fsync(self._file)
            self.close()
        return PutResult(size, digest.hexdigest())

    def take_name(self, folder: int, name: bytes, *, if_absent: bool) -> None:
        """Become the file ``name`` of a directory, in one step. A name in use raises when it must be new."""
        with suppress(FileNotFoundError):
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            refuse_link(mode, name)
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if if_absent:
            os.link(self._name, name, src_dir_fd=self._hidden, dst_dir_fd=folder, follow_symlinks=False)
        else:
            os.replace(self._name, name, src_dir_fd=self._hidden, dst_dir_fd=folder)
            self._hides = False

    def close(self) -> None:
        """Close the file, once."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def discard(self) -> None:
        """Remove the hidden file if it is still there."""
        self.close()
        if not self._hides:
            return
        with suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._hidden)


class Drafts:
    """The hidden files of one store."""

    def __init__(self, tree: DirectoryTree, url: str, ids: Ids) -> None:
        self._tree = tree
        self._url = url
        self._ids = ids
        self._swept = False

    @contextmanager
    def open(self, key: str) -> Iterator[Draft]:
        """A fresh hidden file for a key, gone again after the ``with`` whatever happened."""
        with ExitStack() as stack:
            with translated(self._url, key):
                hidden = stack.enter_context(self._tree.folder([HIDDEN, b"tmp"], create=True))
                draft = Draft(self._url, key, hidden, self._ids.new().encode())
                stack.callback(draft.discard)
                if not self._swept:
                    self._swept = True
                    _sweep(hidden, draft.mtime - ABANDONED_SECONDS)
            yield draft


def _sweep(hidden: int, before: float) -> None:
    """Remove hidden files last written before a moment. A neighbour may be doing the same."""
    for name in os.listdir(hidden):
        with suppress(FileNotFoundError):
            if os.stat(name, dir_fd=hidden, follow_symlinks=False).st_mtime < before:
                os.unlink(name, dir_fd=hidden)


def _write_all(file: int, piece: bytes | memoryview) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(file, rest) :]
