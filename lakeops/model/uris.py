"""``lakefs://`` URIs: how a repository, a ref and a key are written in one text.

::

    lakefs://REPO
    lakefs://REPO/REF
    lakefs://REPO/REF/KEY

The first two slashes separate; all that follows is the key, byte for byte. Nothing is decoded: ``%``, ``?``, ``#``
and spaces are part of a key. ``lakefs://r/main`` has no key, ``lakefs://r/main/`` has the empty one, the prefix of
everything. A URI that was parsed has valid parts, so verbs need not check them again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from lakeops.model.errors import InvalidInput, InvalidUri
from lakeops.model.names import check_path, check_prefix, check_repository
from lakeops.model.refs import parse_ref
from lakeops.model.text import excerpt, flaw

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
