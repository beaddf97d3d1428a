"""What the operating system's refusals mean to a caller, and what to do about them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from lakeops.model.errors import InvalidPath, LakeopsError, ObjectNotFound, StoreError, StoreUnavailable, Unsupported

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
    except OSError as error:
        raise _meaning(error, f"{url}/{key}" if key else url, key) from error


def _meaning(error: OSError, where: str, key: str) -> LakeopsError:
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
