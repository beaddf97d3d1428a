"""Object paths and prefixes: what may be one, and how they are ordered.

A path is kept byte-exact. Nothing is normalised, decoded or split: ``a//b``, ``a/../b``, ``%2e`` and the two ways to
write ``é`` are all different paths. Paths are ordered by their UTF-8 bytes everywhere. Python compares ``str`` by code
points, which is the same order for every text without surrogates, so ``sorted`` and ``<`` may be used on paths as
they are. (Comparing UTF-16, as Java does, is a different order beyond U+FFFF.)
"""

from __future__ import annotations

from lakeops.model.errors import InvalidPath
from lakeops.model.text import excerpt, flaw

MAX_PATH_BYTES = 1024
"""A path's limit in UTF-8 bytes, the one of S3 keys."""

_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


def check_path(path: str) -> str:
    """The path, when it can name an object: 1 to 1,024 bytes of UTF-8, without NUL and lone surrogates.

    Raises:
        InvalidPath: it cannot; the message says why.
    """
    reason = flaw(path, at_least=1, at_most=MAX_PATH_BYTES)
    if reason is not None:
        raise InvalidPath(f"{excerpt(path)} is not an object path: it {reason}")
    return path


def check_prefix(prefix: str) -> str:
    """The prefix, when paths can begin with it: as a path, and it may be empty (every path begins with it).

    Raises:
        InvalidPath: no path begins with it; the message says why.
    """
    reason = flaw(prefix, at_most=MAX_PATH_BYTES)
    if reason is not None:
        raise InvalidPath(f"{excerpt(prefix)} is not a path prefix: it {reason}")
    return prefix


def as_folder(prefix: str) -> str:
    """The prefix with a slash at its end, so that ``data`` means what is in it and never ``data2``; empty stays empty.

    Raises:
        InvalidPath: no path begins with it; the message says why.
    """
    check_prefix(prefix)
    return prefix if not prefix or prefix.endswith("/") else prefix + "/"


def next_prefix(prefix: str) -> str | None:
    """The least text above every path that begins with ``prefix``; None when nothing is above them all.

    So the paths under a prefix are those with ``prefix <= path < next_prefix(prefix)``, in any order-keeping index:
    no pattern matching, nothing to escape.
    """
    stem = prefix.rstrip(chr(_LAST))
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    if following in _SURROGATES:
        following = _SURROGATES.stop
    return stem[:-1] + chr(following)
