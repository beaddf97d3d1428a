"""Ref expressions: a branch, a tag, a commit id or a unique prefix of one, then steps to its ancestors.

::

    expression  = base step*  |  branch "@"
    step        = "^" [number]  |  "~" [number]

Steps have Git's meaning: ``^N`` is the N-th parent and ``~N`` the N-th ancestor along first parents, ``^`` is ``^1``,
``~`` is ``~1``, and ``^0`` and ``~0`` are the commit itself. ``<branch>@`` is the committed head of a branch, without
its staging area. No step follows it, because a step leads to a commit anyway.

A base means, in this order: a full commit id, a branch, a tag, a prefix of a commit id. Any length of prefix will do
as long as it is unique. One that is not unique is an error that lists what it could be, never a guess. What this room
keeps true: an expression of any size is read in linear time, and no number in it can make the walk longer than
history is.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lakeops.model.errors import (
    InvalidInput,
    InvalidUri,
    RefNotFound,
)
from lakeops.model.names import COMMIT_ID, broken_rule, check_path, check_prefix, check_repository
from lakeops.model.records import Commit
from lakeops.model.text import excerpt, flaw

MAX_EXPRESSION_BYTES = 64 * 1024

_STEP = re.compile(r"([~^])([0-9]*)")
_PREFIX = re.compile(r"[0-9a-fA-F]{1,63}")
_BEYOND = 2**63 - 1
"""What any number with more than 18 digits is read as: past every root, beyond every parent."""


class Step(NamedTuple):
    """Go to the ``parent``-th parent, ``times`` times. ``~3`` is ``Step(1, 3)``, ``^2`` is ``Step(2, 1)``."""

    parent: int
    times: int


@dataclass(frozen=True, slots=True)
class RefExpression:
    """A ref expression in parts.

    ``text`` is what was written. Steps that lead nowhere (``^0``, ``~0``) are left out of ``steps`` and equal ones
    are summed up: ``^^~2`` is ``(Step(1, 4),)``. ``committed_only`` stands for the ``@`` of ``<branch>@``.
    """

    text: str
    base: str
    steps: tuple[Step, ...] = ()
    committed_only: bool = False

    @property
    def is_name(self) -> bool:
        """Whether it is a bare base: then it may be a branch, whose staging area is meant too."""
        return not self.committed_only and self.text == self.base


class RefLookup(Protocol):
    """What resolving needs to know of a repository."""

    def branch(self, name: str) -> str | None:
        """The head of a branch, or None when there is no such branch."""
        ...

    def tag(self, name: str) -> str | None:
        """The commit of a tag, or None when there is no such tag."""
        ...

    def commit(self, commit_id: str) -> Commit | None:
        """The commit with this full id, or None."""
        ...

    def commits_with_prefix(self, prefix: str) -> list[str]:
        """Ids that begin with these lower-case hex digits, in order; enough of them to show when there are many."""
        ...


def parse_ref(text: str) -> RefExpression:
    """The parts of a ref expression.

    Raises:
        InvalidInput: ``invalid_ref``: it is not one. The message says where it goes wrong.
    """
    reason = flaw(text, at_least=1, at_most=MAX_EXPRESSION_BYTES)
    if reason is not None:
        raise _invalid(text, f"it {reason}")
    end = min((place for place in map(text.find, "~^") if place >= 0), default=len(text))
    if end == 0:
        raise _invalid(text, f"nothing comes before {text[0]!r}")
    base, committed_only = text[:end], False
    if len(base) > 1 and base.endswith("@"):
        base, committed_only = base[:-1], True
    broken = None if COMMIT_ID.fullmatch(base) else broken_rule(base)
    if broken is not None:
        raise _invalid(text, f"{excerpt(base)} cannot be a ref, it {broken}")
    if committed_only and end < len(text):
        raise _invalid(
            text, f"nothing may follow the '@' at character {end}; {excerpt(base + text[end:])} is a commit already"
        )
    return RefExpression(text, base, _steps(text, end), committed_only)


def _invalid(text: str, reason: str) -> InvalidInput:
    return InvalidInput(f"{excerpt(text)} is not a ref expression: {reason}", kind="invalid_ref")


def _steps(text: str, start: int) -> tuple[Step, ...]:
    steps: list[Step] = []
    place = start
    while place < len(text):
        match = _STEP.match(text, place)
        if match is None:
            raise _invalid(
                text, f"{text[place]!r} at character {place + 1}, where only '^', '^N', '~' or '~N' may follow"
            )
        place = match.end()
        number = _number(match[2])
        step = Step(1, number) if match[1] == "~" else Step(number, 1)
        if 0 in step:
            continue
        if steps and steps[-1].parent == step.parent:
            step = Step(step.parent, steps.pop().times + step.times)
        steps.append(step)
    return tuple(steps)


def _number(digits: str) -> int:
    if not digits:
        return 1
    digits = digits.lstrip("0")
    return _BEYOND if len(digits) > 18 else int(digits or "0")


def resolve(expression: RefExpression | str, lookup: RefLookup) -> str:
    """The id of the commit that a ref expression means.

    Without steps, nothing is read but the base.

    Raises:
        InvalidInput: ``invalid_ref``: the text is not a ref expression.
        RefNotFound: nothing answers to the base, or a step leads past the root or to a parent that is not there.
        InvalidInput: ``ambiguous_ref``: the base is a prefix of several commit ids.
    """
    if not isinstance(expression, RefExpression):
        expression = parse_ref(expression)
    commit_id = _base(expression, lookup)
    for step in expression.steps:
        commit_id = _walk(expression, commit_id, step, lookup)
    return commit_id


def _base(expression: RefExpression, lookup: RefLookup) -> str:
    name = expression.base
    if expression.committed_only:
        head = lookup.branch(name)
        if head is None:
            raise RefNotFound(f"no branch is called {excerpt(name)}, and only a branch can be followed by '@'")
        return head
    if COMMIT_ID.fullmatch(name):
        commit = lookup.commit(name.lower())
        if commit is None:
            raise RefNotFound(f"there is no commit {name}")
        return commit.id
    found = lookup.branch(name) or lookup.tag(name)
    if found is not None:
        return found
    candidates = lookup.commits_with_prefix(name.lower()) if _PREFIX.fullmatch(name) else []
    if not candidates:
        raise RefNotFound(f"no branch, tag or commit answers to {excerpt(name)}")
    if len(candidates) > 1:
        some = ", ".join(one[:16] for one in candidates)
        raise InvalidInput(f"{name!r} is ambiguous: it matches {some}; give more characters", kind="ambiguous_ref")
    return candidates[0]


def _walk(expression: RefExpression, commit_id: str, step: Step, lookup: RefLookup) -> str:
    for taken in range(step.times):
        commit = lookup.commit(commit_id)
        if commit is None:
            raise RefNotFound(f"{excerpt(expression.text)} needs commit {commit_id}, which is not there")
        # Every step lowers the generation: a walk that is longer than that ends past the root, so it need not begin.
        if step.parent > len(commit.parents) or step.times - taken >= commit.generation:
            raise RefNotFound(_describe_missing_step(expression, commit, step))
        commit_id = commit.parents[step.parent - 1]
    return commit_id


def _describe_missing_step(expression: RefExpression, commit: Commit, step: Step) -> str:
    text = excerpt(expression.text)
    if step.parent > 1 and commit.parents:
        count = len(commit.parents)
        parents = "one parent" if count == 1 else f"{count} parents"
        return f"{text} is not there: it asks for parent {step.parent} of commit {commit.id[:16]}, which has {parents}"
    return f"{text} is not there: it leads past the first commit"


SCHEME = "lakefs://"
OTHER_SCHEME = "lakeops://"
"""Means the same, for programs that take the first one for the address of a lakeFS server."""
MAX_URI_BYTES = 128 * 1024
"""Longest URI that is looked at."""
MAX_SHOWN = 80


@dataclass(frozen=True, slots=True)
class LakeUri:
    """A repository, maybe a ref expression in it, maybe a path or prefix in that.

    ``str()`` gives the URI. ``LakeUri.parse(str(uri)) == uri``.
    """

    repository: str
    ref: str | None = None
    path: str | None = None

    @classmethod
    def parse(cls, text: str) -> LakeUri:
        """The parts of a URI. As for lakectl, a slash after the repository alone means nothing.

        Raises:
            InvalidUri: it is not one. The message says which part is wrong.
        """
        reason = flaw(text, at_most=MAX_URI_BYTES)
        if reason is not None:
            raise InvalidUri(f"{_show_scheme(text)} is not a lakefs:// URI: it {reason}")
        if text.startswith(OTHER_SCHEME):
            text = SCHEME + text.removeprefix(OTHER_SCHEME)
        if not text.startswith(SCHEME):
            raise InvalidUri(f"{_show_scheme(text)} is not a lakefs:// URI; {_suggestion(text)}")
        repository, _, rest = text[len(SCHEME) :].partition("/")
        ref, slash, path = rest.partition("/")
        try:
            check_repository(repository)
            if ref or slash:
                parse_ref(ref)
            check_prefix(path)
        except InvalidInput as error:
            raise InvalidUri(f"{excerpt(text)} is not a lakefs:// URI: {error.message}") from None
        return cls(repository, ref or None, path if slash else None)

    def __str__(self) -> str:
        parts = [self.repository, self.ref, self.path]
        return SCHEME + "/".join(part for part in parts if part is not None)

    def only_repository(self) -> str:
        """The repository of a URI that has nothing else.

        Raises:
            InvalidUri: it has a ref.
        """
        if self.ref is not None:
            raise InvalidUri(f"{excerpt(str(self))} names more than a repository; write {SCHEME}{self.repository}")
        return self.repository

    def only_ref(self) -> tuple[str, str]:
        """Repository and ref expression of a URI that has no path.

        Raises:
            InvalidUri: it has no ref, or a path too.
        """
        if self.ref is None:
            raise InvalidUri(f"{excerpt(str(self))} lacks a ref; write {SCHEME}{self.repository}/REF")
        if self.path is not None:
            raise InvalidUri(f"{excerpt(str(self))} names more than a ref; write {SCHEME}{self.repository}/{self.ref}")
        return self.repository, self.ref

    def with_prefix(self) -> tuple[str, str, str]:
        """Repository, ref expression and prefix. A URI without a path has the empty prefix.

        Raises:
            InvalidUri: it has no ref.
        """
        if self.ref is None:
            raise InvalidUri(f"{excerpt(str(self))} lacks a ref; write {SCHEME}{self.repository}/REF/PREFIX")
        return self.repository, self.ref, self.path or ""

    def with_path(self) -> tuple[str, str, str]:
        """Repository, ref expression and the path of an object.

        Raises:
            InvalidUri: it has no ref or no path.
        """
        repository, ref, path = self.with_prefix()
        if not path:
            raise InvalidUri(f"{excerpt(str(self))} lacks a path; write {SCHEME}{repository}/{ref}/PATH")
        return repository, ref, check_path(path)


def _suggestion(text: str) -> str:
    """What to write instead. A text that only lacks the scheme is shown with it."""
    if "://" not in text and len(text) <= MAX_SHOWN:
        with suppress(InvalidUri):
            meant = LakeUri.parse(SCHEME + text)
            ref = f" for a repository, {SCHEME}REPO/{text} for a ref of it" if meant.ref is None else ""
            return f"write {meant}{ref}"
    return f"write {SCHEME}REPO, {SCHEME}REPO/REF[/KEY]"


def _show_scheme(text: str) -> str:
    """The scheme alone where there is another one: what follows may hold a password."""
    scheme, separator, _ = str(text).partition("://")
    return f"{excerpt(scheme + separator)}..." if separator and scheme != "lakefs" else excerpt(text)
