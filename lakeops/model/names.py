"""Names of repositories, branches and tags, object paths, ref expressions and ``lakefs://`` URIs.

Branch and tag names follow ``git check-ref-format --branch``, but ``/`` is refused and ``:`` is allowed. Every name can
be written in a URI and in a ref expression, and means only itself there. So no name ends with ``@``, none looks like a
full commit id, and white space and control characters are refused in all of Unicode.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from lakeops.model.errors import InvalidInput, InvalidPath
from lakeops.model.sanitising import excerpt

MAX_NAME_BYTES = 255
"""A branch or tag name's limit in UTF-8 bytes, the length of a file name."""

MAX_PATH_BYTES = 1024
"""A path's limit in UTF-8 bytes, the one of S3 keys."""

COMMIT_ID = re.compile(r"[0-9a-fA-F]{64}")
"""A full commit id. Ids are lower-case, users may write either."""

_REPOSITORY = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")
_REFUSED = re.compile(r"(?P<part>/)|(?P<step>[~^])|(?P<glob>[?*\[\\])|(?P<space>\s)|(?P<control>[\x00-\x1f\x7f-\x9f])")
_MISPLACED = re.compile(
    r"(?P<head>\A(?:@|HEAD)\Z)|(?P<start>\A[-.])|(?P<inside>\.\.|@\{)|(?P<end>(?:\.|\.lock)\Z)|(?P<at>@\Z)"
    rf"|(?P<id>\A{COMMIT_ID.pattern}\Z)"
)
_RULES = {
    "part": "has {0} at character {1}, which separates the parts of a URI",
    "step": "has {0} at character {1}, which leads to an ancestor in a ref expression",
    "glob": "has {0} at character {1}, which Git refuses",
    "space": "has white space, {0} at character {1}",
    "control": "has a control character, {0} at character {1}",
    "head": "stands for the checked-out commit in Git, and nothing is checked out here",
    "start": "begins with {0}",
    "inside": "has {0} at character {1}",
    "end": "ends with {0}",
    "at": "ends with '@', which asks for the committed head of a branch",
    "id": "looks like a commit id",
}
"""How a branch or tag name breaks a rule, by the group of ``_REFUSED`` or ``_MISPLACED`` that matches."""


_bad_name = partial(InvalidInput, kind="invalid_name")


def given_place(place: str | Path) -> Path:
    """A place on this machine. An empty text would be the working directory. Raises ``InvalidInput``."""
    if not str(place) or not isinstance(place, str | Path):
        raise InvalidInput(f"{excerpt(place)} names no file or folder; write . for the working directory")
    return Path(place)


def is_text(name: str) -> bool:
    """Whether a name is text that UTF-8 can spell, as one with a lone surrogate is not."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def flaw(text: object, *, at_most: int, at_least: int = 0) -> str | None:
    """Why a text cannot be kept, in words that follow "it". None when every store and database can keep it.

    PostgreSQL cannot keep NUL, and UTF-8 has no lone surrogates. The bounds are in UTF-8 bytes.
    """
    if not isinstance(text, str):
        return "is not text"
    nul = text.find("\0")
    if nul >= 0:
        return f"has NUL at character {nul + 1}"
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        return f"has half of a character at character {error.start + 1}"
    if size < at_least:
        return "is empty" if size == 0 else f"takes {size} bytes in UTF-8, and needs {at_least}"
    return f"takes {size} bytes in UTF-8, and {at_most} is the limit" if size > at_most else None


def _kept(text: str, refuse: Callable[[str], InvalidInput], what: str, *, at_most: int, at_least: int = 0) -> str:
    """Return a text without a ``flaw``. Raises what ``refuse`` makes of the words that name the flaw."""
    reason = flaw(text, at_most=at_most, at_least=at_least)
    if reason is not None:
        raise refuse(f"{excerpt(text)} {what}: it {reason}")
    return text


class HeldRepository(str):
    """A repository's name as a handle holds it, with the URL of the ``namespace`` that the handle writes to.

    Somebody may delete the repository and give its name to another one while the handle is open. The catalog compares
    the namespace before it records files that lie elsewhere.
    """

    __slots__ = ("namespace",)

    namespace: str

    def __new__(cls, name: str, namespace: str) -> Self:
        """Make a name that is equal to the plain text."""
        held = super().__new__(cls, name)
        held.namespace = namespace
        return held

    def __reduce__(self) -> tuple[type[HeldRepository], tuple[str, str]]:
        return HeldRepository, (str(self), self.namespace)


def check_repository(name: str) -> str:
    """Return the name of a repository: 3 to 63 of ``a-z``, ``0-9`` and ``-``, not beginning with ``-``.

    Raises ``InvalidInput`` (``invalid_name``) for another one.
    """
    if flaw(name, at_most=MAX_NAME_BYTES) is None and _REPOSITORY.fullmatch(name):
        return name
    raise _bad_name(
        f"{excerpt(name)} is not a repository name: it takes 3 to 63 lower-case letters, digits and hyphens, "
        "and begins with a letter or digit"
    )


def _check_ref_name(name: str, what: str) -> str:
    broken = broken_rule(name)
    if broken is not None:
        raise _bad_name(f"{excerpt(name)} is not a {what} name: it {broken}")
    return name


check_branch = partial(_check_ref_name, what="branch")
check_tag = partial(_check_ref_name, what="tag")
"""Return a name that a branch or tag can have. Raise ``InvalidInput`` (``invalid_name``) that names the broken rule."""


def broken_rule(name: str) -> str | None:
    """The first rule that a branch or tag name breaks, in words that follow "it". None when it breaks none."""
    reason = flaw(name, at_least=1, at_most=MAX_NAME_BYTES)
    if reason is not None:
        return reason
    found = _REFUSED.search(name) or _MISPLACED.search(name)
    return None if found is None else _RULES[str(found.lastgroup)].format(repr(found[0]), found.start() + 1)


def check_path(path: str) -> str:
    """Return a path of 1 to 1,024 bytes of UTF-8, without NUL and lone surrogates. Raises ``InvalidPath``."""
    return _kept(path, InvalidPath, "is not an object path", at_least=1, at_most=MAX_PATH_BYTES)


def check_prefix(prefix: str) -> str:
    """Return a prefix that paths can begin with. The empty one begins every path. Raises ``InvalidPath``."""
    return _kept(prefix, InvalidPath, "is not a path prefix", at_most=MAX_PATH_BYTES)


def as_folder(prefix: str) -> str:
    """Add a slash to a prefix, so that ``data`` never covers ``data2``. The empty one stays. Raises ``InvalidPath``."""
    check_prefix(prefix)
    return prefix if not prefix or prefix.endswith("/") else prefix + "/"


TABLE_FORMATS = ("parquet", "csv", "json", "text", "orc", "avro")


def is_table_file(name: str) -> bool:
    """Tell whether Spark reads a file of a table, by its path below the table's folder."""
    return not ("/" + name).endswith(("/", "._COPYING_", "_$folder$")) and not any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) for part in name.split("/")
    )


def table_format(path: str) -> str | None:
    """The format that the ending of a table's file names, as Spark spells it, if it names one."""
    for part in reversed(path.rpartition("/")[2].lower().split(".")[1:]):
        found = {"jsonl": "json", "ndjson": "json", "parq": "parquet", "txt": "text"}.get(part, part)
        if found in TABLE_FORMATS:
            return found
    return None


def next_prefix(prefix: str) -> str | None:
    """The least text above every path that begins with ``prefix``. None when nothing is above them all.

    The paths under a prefix are those with ``prefix <= path < next_prefix(prefix)``: an index finds them.
    """
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    if following == 0xD800:  # surrogates are no characters
        following = 0xE000
    return stem[:-1] + chr(following)


MAX_EXPRESSION_BYTES = 64 * 1024

_STEP = re.compile(r"([~^])([0-9]*)")
_BEYOND = 2**63 - 1
"""Stands for any number with more than 18 digits: past every root, beyond every parent."""


class Step(NamedTuple):
    """Go to the ``parent``-th parent, ``times`` times. ``~3`` is ``Step(1, 3)``, ``^2`` is ``Step(2, 1)``."""

    parent: int
    times: int


@dataclass(frozen=True, slots=True)
class RefExpression:
    """A ref expression in parts.

    Steps that lead nowhere (``^0``, ``~0``) are left out of ``steps``, and equal ones are summed up: ``^^~2`` is
    ``(Step(1, 4),)``. ``committed_only`` stands for the ``@`` of ``<branch>@``. ``is_name`` says that the text is a
    bare base: then it may be a branch, whose staging area is meant too.
    """

    text: str
    base: str
    steps: tuple[Step, ...] = ()
    committed_only: bool = False
    is_name: bool = field(default=False, compare=False)


def parse_ref(text: str) -> RefExpression:
    """Parse a ref expression: a branch, a tag, a commit id or a unique prefix of one, then steps to its ancestors.

    ::

        expression  = base step*  |  branch "@"
        step        = "^" [number]  |  "~" [number]

    Steps have Git's meaning: ``^N`` is the N-th parent and ``~N`` the N-th ancestor along first parents, ``^`` is
    ``^1``, ``~`` is ``~1``, and ``^0`` and ``~0`` are the commit itself. ``<branch>@`` is the committed head of a
    branch, without its staging area. An expression of any size is read in linear time.

    Raises ``InvalidInput`` (``invalid_ref``), which says where it goes wrong.
    """
    reason = flaw(text, at_least=1, at_most=MAX_EXPRESSION_BYTES)
    if reason is not None:
        raise _invalid(text, f"it {reason}")
    first = _STEP.search(text)
    end = len(text) if first is None else first.start()
    if end == 0:
        raise _invalid(text, f"nothing comes before {text[0]!r}")
    base, committed_only = text[:end], False
    if len(base) > 1 and base.endswith("@"):
        base, committed_only = base[:-1], True
    broken = None if COMMIT_ID.fullmatch(base) else broken_rule(base)
    if broken is not None:
        why = f"{excerpt(base)} cannot be a ref, it {broken}"
        raise InvalidInput(why, kind="invalid_ref") if base == text else _invalid(text, why)
    if first is None:
        return RefExpression(text, base, (), committed_only, is_name=not committed_only)
    if committed_only:
        whole = excerpt(base + text[end:])
        raise _invalid(text, f"nothing may follow the '@' at character {end}; {whole} is a commit already")
    return RefExpression(text, base, _steps(text, end))


def _invalid(text: str, reason: str) -> InvalidInput:
    return InvalidInput(f"{excerpt(text)} is not a ref expression: {reason}", kind="invalid_ref")


def _steps(text: str, place: int) -> tuple[Step, ...]:
    steps: list[Step] = []
    while place < len(text):
        match = _STEP.match(text, place)
        if match is None:
            found = f"{text[place]!r} at character {place + 1}"
            raise _invalid(text, f"{found}, where only '^', '^N', '~' or '~N' may follow")
        place = match.end()
        digits = match[2].lstrip("0")
        number = _BEYOND if len(digits) > 18 else int(digits or ("0" if match[2] else "1"))
        step = Step(1, number) if match[1] == "~" else Step(number, 1)
        if 0 in step:
            continue
        if steps and steps[-1].parent == step.parent:
            step = Step(step.parent, steps.pop().times + step.times)
        steps.append(step)
    return tuple(steps)


SCHEME = "lakefs://"
OTHER_SCHEME = "lakeops://"
"""Means the same, for programs that take the first one for the address of a lakeFS server."""
MAX_URI_BYTES = 128 * 1024
"""The longest URI."""
MAX_SHOWN = 80
DEFAULT_CONN_ID = "lakeops_default"
"""The connection that counts in Airflow where none is named. Where nobody defined it, it is the environment's lake."""


def connection_in(path: object) -> str:
    """The Airflow connection that a path or URL names before an ``@`` in its first part. Empty without one."""
    first = str(path).removeprefix(SCHEME).removeprefix(OTHER_SCHEME).lstrip("/").partition("/")[0]
    return first.rpartition("@")[0]


def did_you_mean(wanted: str, known: Iterable[str]) -> str:
    """The question whether the most similar of other names was meant, to end a message. Empty when none is similar."""
    names = {one.casefold(): one for one in known if one != wanted}
    near = get_close_matches(wanted.casefold(), names, 1)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def split_connection(uri: str) -> tuple[str, str]:
    """The connection that a URI names (empty without one), and the URI without it."""
    connection = connection_in(uri)
    return connection, uri.replace(f"{connection}@", "", 1) if connection else uri


@dataclass(frozen=True, slots=True)
class LakeUri:
    """A repository, maybe a ref expression in it, maybe a path or prefix in that.

    ``str()`` gives the URI without the Airflow ``connection`` of its lake. ``LakeUri.parse(str(uri)) == uri``.
    """

    repository: str
    ref: str | None = None
    path: str | None = None
    connection: str = field(default="", compare=False)

    @classmethod
    def parse(cls, text: str) -> LakeUri:
        """The parts of a URI. As for lakectl, a slash after the repository alone means nothing.

        Raises ``InvalidInput`` (``invalid_uri``), which says which part is wrong.
        """
        reason = flaw(text, at_most=MAX_URI_BYTES)
        if reason is not None:
            raise InvalidInput(f"{_show_scheme(text)} is not a lakefs:// URI: it {reason}", kind="invalid_uri")
        if text.startswith(OTHER_SCHEME):
            text = SCHEME + text.removeprefix(OTHER_SCHEME)
        if not text.startswith(SCHEME):
            raise InvalidInput(f"{_show_scheme(text)} is not a lakefs:// URI; {_suggestion(text)}", kind="invalid_uri")
        repository, _, rest = text[len(SCHEME) :].partition("/")
        ref, slash, path = rest.partition("/")
        try:
            check_repository(repository)
            if ref or slash:
                parse_ref(ref)
            check_prefix(path)
        except InvalidInput as error:
            raise InvalidInput(f"{excerpt(text)}: {error.message}", kind="invalid_uri") from None
        return cls(repository, ref or None, path if slash else None)

    def __str__(self) -> str:
        parts = [self.repository, self.ref, self.path]
        return SCHEME + "/".join(part for part in parts if part is not None)

    def only_repository(self) -> str:
        """The repository of a URI that has nothing else. Raises ``InvalidInput`` (``invalid_uri``)."""
        if self.ref is not None:
            raise self._flawed("names more than a repository", self.repository)
        return self.repository

    def only_ref(self) -> tuple[str, str]:
        """Repository and ref expression of a URI without a path. Raises ``InvalidInput`` (``invalid_uri``)."""
        if self.ref is None:
            raise self._flawed("lacks a ref", f"{self.repository}/REF")
        if self.path is not None:
            name = f"{self.repository}/{self.ref}-{self.path.strip('/').replace('/', '-')}"
            how = f"names more than a ref, whose name has no '/'; write {SCHEME}{name} for a branch or tag of that name"
            raise self._flawed(how, f"{self.repository}/{self.ref} for {self.ref!r}")
        return self.repository, self.ref

    def with_prefix(self) -> tuple[str, str, str]:
        """Repository, ref expression and prefix, which may be empty. Raises ``InvalidInput`` (``invalid_uri``)."""
        if self.ref is None:
            raise self._flawed("lacks a ref", f"{self.repository}/REF/PREFIX")
        return self.repository, self.ref, self.path or ""

    def with_path(self) -> tuple[str, str, str]:
        """Repository, ref expression and the path of an object. Raises ``InvalidInput`` (``invalid_uri``)."""
        repository, ref, path = self.with_prefix()
        if not path:
            raise self._flawed("lacks a path", f"{repository}/{ref}/PATH")
        return repository, ref, check_path(path)

    def _flawed(self, how: str, better: str) -> InvalidInput:
        return InvalidInput(f"{excerpt(str(self))} {how}; write {SCHEME}{better}", kind="invalid_uri")


def _suggestion(text: str) -> str:
    """The advice for a text that is no URI. One that only lacks the scheme is shown with it."""
    if "://" not in text and len(text) <= MAX_SHOWN:
        with suppress(InvalidInput):
            meant = LakeUri.parse(SCHEME + text)
            ref = f" for a repository, {SCHEME}REPO/{text} for a ref of it" if meant.ref is None else ""
            return f"write {meant}{ref}"
    return f"write {SCHEME}REPO, {SCHEME}REPO/REF[/KEY]"


def _show_scheme(text: str) -> str:
    """The scheme alone where there is another one: what follows may hold a password."""
    scheme, separator, _ = str(text).partition("://")
    return f"{excerpt(scheme + separator)}..." if separator and scheme != "lakefs" else excerpt(text)


MAX_ASKED_BYTES = 1024

MAX_AMOUNT = (1 << 63) - 1
"""The largest number of a database."""


def check_asked(text: str, what: str) -> str:
    """Return a text that the catalog can be asked for. Raises ``InvalidInput`` (``invalid_name``) for another one."""
    return _kept(text, _bad_name, f"cannot be {what}", at_most=MAX_ASKED_BYTES)


def check_glob(pattern: str, what: str, of: str) -> str:
    """Return a glob pattern that names ``of`` something can match. Raises ``InvalidInput`` (``invalid_name``)."""
    if not check_asked(pattern, what) or any(character in pattern for character in "/\0\n"):
        raise _bad_name(f"{excerpt(pattern)} matches no {of}; use a name or a glob such as 'release-*'")
    return pattern


def check_amount(amount: int, what: str) -> int:
    """Return the number of things that a caller asks for: 0 or more. Raises ``InvalidInput``."""
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise InvalidInput(f"{what} is {excerpt(amount)}; give a whole number")
    if not 0 <= amount <= MAX_AMOUNT:
        raise InvalidInput(f"{what} is {'below 0' if amount < 0 else 'too large'}; give 0 or more")
    return amount
