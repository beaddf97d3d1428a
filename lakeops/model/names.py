"""Names of repositories, branches and tags.

Branch and tag names follow ``git check-ref-format --branch``, with two changes: ``/`` is refused, because it would
make URIs ambiguous, and ``:`` is allowed. What this room keeps true: every name that exists can be written in a
``lakefs://`` URI and in a ref expression, and means only itself there. Hence three rules beyond Git's: no name ends
with ``@`` (``main@`` is the committed head of ``main``), none looks like a full commit id (ids are looked up first),
and white space and control characters are refused in all of Unicode, not in ASCII alone.
"""

from __future__ import annotations

import re
from typing import Self

from lakeops.model.errors import (
    InvalidInput,
    InvalidPath,
)
from lakeops.model.text import excerpt, flaw


class HeldRepository(str):
    """A repository's name as a handle holds it, with the storage namespace that the handle writes its files to.

    Somebody may delete the repository and give its name to another one while the handle is open. By the namespace a
    transition finds that out, before it records files that lie elsewhere.

    Attributes:
        namespace: the URL of the storage namespace.
    """

    __slots__ = ("namespace",)

    namespace: str

    def __new__(cls, name: str, namespace: str) -> Self:
        """The name ``name``, equal to the plain text."""
        held = super().__new__(cls, name)
        held.namespace = namespace
        return held

    def __reduce__(self) -> tuple[type[HeldRepository], tuple[str, str]]:
        """What a copy is made from, also in another process."""
        return HeldRepository, (str(self), self.namespace)


MAX_NAME_BYTES = 255
"""A branch or tag name's limit in UTF-8 bytes, the length of a file name."""

COMMIT_ID = re.compile(r"[0-9a-fA-F]{64}")
"""What a full commit id looks like. Ids are lower-case, users may write either."""

_REPOSITORY = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")
_STEPS = "~^"
_GLOBS = "?*[\\"
_REFUSED = re.compile(rf"[/{_STEPS}{re.escape(_GLOBS)}\s\x00-\x1f\x7f-\x9f]")
"""What no name of a branch or tag has: separators, white space and control characters."""


def check_repository(name: str) -> str:
    """The name, when it is a repository name: 3 to 63 of ``a-z``, ``0-9`` and ``-``, not beginning with ``-``.

    Raises:
        InvalidInput: ``invalid_name``: it is not.
    """
    if flaw(name, at_most=MAX_NAME_BYTES) is None and _REPOSITORY.fullmatch(name):
        return name
    raise InvalidInput(
        f"{excerpt(name)} is not a repository name: it takes 3 to 63 lower-case letters, digits and hyphens, "
        "and begins with a letter or digit",
        kind="invalid_name",
    )


def check_branch(name: str) -> str:
    """The name, when it is a branch name.

    Raises:
        InvalidInput: ``invalid_name``: it is not. The message says which rule it breaks, and where.
    """
    return _check(name, "branch")


def check_tag(name: str) -> str:
    """The name, when it is a tag name. Tags and branches follow the same rules.

    Raises:
        InvalidInput: ``invalid_name``: it is not. The message says which rule it breaks, and where.
    """
    return _check(name, "tag")


def _check(name: str, what: str) -> str:
    broken = broken_rule(name)
    if broken is not None:
        raise InvalidInput(f"{excerpt(name)} is not a {what} name: it {broken}", kind="invalid_name")
    return name


def broken_rule(name: str) -> str | None:
    """The first rule that a branch or tag name breaks, in words that follow "it". None when it breaks none."""
    return flaw(name, at_least=1, at_most=MAX_NAME_BYTES) or _broken_by_character(name) or _broken_by_place(name)


def _broken_by_character(name: str) -> str | None:
    found = _REFUSED.search(name)
    if found is None:
        return None
    character = found[0]
    here = f"{character!r} at character {found.start() + 1}"
    if character == "/":
        return f"has {here}, which separates the parts of a URI"
    if character in _STEPS:
        return f"has {here}, which leads to an ancestor in a ref expression"
    if character in _GLOBS:
        return f"has {here}, which Git refuses"
    return f"has white space, {here}" if character.isspace() else f"has a control character, {here}"


def _broken_by_place(name: str) -> str | None:
    if name in {"@", "HEAD"}:
        return "stands for the checked-out commit in Git, and nothing is checked out here"
    for start in ("-", "."):
        if name.startswith(start):
            return f"begins with {start!r}"
    for inside in ("..", "@{"):
        if inside in name:
            return f"has {inside!r} at character {name.index(inside) + 1}"
    for end in (".", ".lock"):
        if name.endswith(end):
            return f"ends with {end!r}"
    if name.endswith("@"):
        return "ends with '@', which asks for the committed head of a branch"
    return "looks like a commit id" if COMMIT_ID.fullmatch(name) else None


MAX_PATH_BYTES = 1024
"""A path's limit in UTF-8 bytes, the one of S3 keys."""

_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


def check_path(path: str) -> str:
    """The path, when it can name an object: 1 to 1,024 bytes of UTF-8, without NUL and lone surrogates.

    Raises:
        InvalidPath: it cannot. The message says why.
    """
    reason = flaw(path, at_least=1, at_most=MAX_PATH_BYTES)
    if reason is not None:
        raise InvalidPath(f"{excerpt(path)} is not an object path: it {reason}")
    return path


def check_prefix(prefix: str) -> str:
    """The prefix, when paths can begin with it: as a path, and it may be empty (every path begins with it).

    Raises:
        InvalidPath: no path begins with it. The message says why.
    """
    reason = flaw(prefix, at_most=MAX_PATH_BYTES)
    if reason is not None:
        raise InvalidPath(f"{excerpt(prefix)} is not a path prefix: it {reason}")
    return prefix


def as_folder(prefix: str) -> str:
    """The prefix with a slash at its end, so that ``data`` means what is in it and never ``data2``. Empty stays empty.

    Raises:
        InvalidPath: no path begins with it. The message says why.
    """
    check_prefix(prefix)
    return prefix if not prefix or prefix.endswith("/") else prefix + "/"


def next_prefix(prefix: str) -> str | None:
    """The least text above every path that begins with ``prefix``. None when nothing is above them all.

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
