"""Arguments and options that several commands share, and what a shell offers while a URI is typed."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from threading import Thread
from typing import Annotated, Any, TypeVar

import typer

from lakeops.model.errors import InvalidInput
from lakeops.model.names import OTHER_SCHEME, SCHEME, LakeUri, given_place, split_connection
from lakeops.model.sanitising import excerpt

T = TypeVar("T")
_NEXT_PAIR = re.compile(r"[\w.:/-]+=")

_COLON = "lakefs:"
MAX_OFFERED = 100
"""Most words that a shell is offered."""
COMPLETION_SECONDS = 2.0
"""Seconds that completion may take. To import the lake takes up to one on a busy machine."""


def complete(incomplete: str) -> list[str]:
    """List the URIs that a word may become: none without a lake, after an error, or after ``COMPLETION_SECONDS``.

    Bash ends words at colons. Then neither the word nor the answer has the scheme.
    """
    bare = incomplete.startswith("//")
    text = _COLON + incomplete if bare else incomplete
    found: list[str] = []

    def look() -> None:
        with suppress(Exception):  # a shell that completes a word is no place for an error message
            found.extend(_offers(text))

    looking = Thread(target=look, daemon=True)
    looking.start()
    looking.join(COMPLETION_SECONDS)
    words = [word for word in list(found) if "\n" not in word]  # shells take the answer line by line
    return [word.removeprefix(_COLON) if bare else word for word in words]


def _offers(text: str) -> list[str]:
    from lakeops.lake import Lake  # late: --help and commands need none of it

    if not text.startswith(SCHEME):
        if not SCHEME.startswith(text):
            return []
        text = SCHEME
    repository, *rest = text.removeprefix(SCHEME).split("/", 2)
    with Lake.open(must_exist=True) as lake:
        if not rest:
            return [f"{SCHEME}{one.id}" for one in islice(lake.repositories(prefix=repository), MAX_OFFERED)]
        if len(rest) == 1:
            repo = lake.repository(repository)
            refs = chain(repo.branches(prefix=rest[0]), repo.tags(prefix=rest[0]))
            return [f"{SCHEME}{repository}/{ref.id}" for ref in islice(refs, MAX_OFFERED)]
        listed = lake.repository(repository).ref(rest[0]).list(rest[1], delimiter="/")
        return [f"{SCHEME}{repository}/{rest[0]}/{item.path}" for item in islice(listed, MAX_OFFERED)]


def _json_anywhere(context: typer.Context, given: bool) -> bool:
    return given or bool(context.find_root().params.get("json"))


class BadArgument(Exception):
    """A wrong argument. Its cause is the error to show, which typer would wrap in words of its own."""


def parsed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Wrap the parser of an argument, so that its ``InvalidInput`` becomes the cause of a ``BadArgument``."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except InvalidInput as error:
            raise BadArgument from error

    return read


def lake_uri(text: str) -> LakeUri:
    """Parse a ``lakefs://`` URI, with the Airflow connection that it may name. Raises ``InvalidInput``."""
    connection, plain = split_connection(text) if text.startswith((SCHEME, OTHER_SCHEME)) else ("", text)
    return replace(LakeUri.parse(plain), connection=connection)


def uri(shape: str, text: str) -> Any:  # noqa: ANN401 - typer's own type for this
    """Declare an argument that takes a ``lakefs://`` URI of this shape."""
    return argument(shape, text, parser=parsed(lake_uri), autocompletion=complete)


def argument(metavar: str, text: str, **more: Any) -> Any:  # noqa: ANN401
    """Declare an argument. Its default is not shown, so the text says what happens without it."""
    return typer.Argument(metavar=metavar, help=text, show_default=False, **more)


def ref(shape: str, text: str) -> Any:  # noqa: ANN401
    """Declare an argument that takes a ref as a URI, or alone, because another argument names its repository."""
    parse = parsed(lambda given: lake_uri(given) if "://" in given else given)
    return argument(shape, text, parser=parse, autocompletion=complete)


def flag(name: str, text: str) -> Any:  # noqa: ANN401
    """Declare an option without a value."""
    return typer.Option(*name.split(), metavar="", help=text)


def value(names: str, metavar: str, text: str, **more: Any) -> Any:  # noqa: ANN401
    """Declare an option with a value. Its default is not shown, so the text says what happens without it."""
    return typer.Option(*names.split(), metavar=metavar, help=text, show_default=False, **more)


def url_of(place: str) -> str:
    """Turn a place into a URL. A place without a scheme is a directory of this machine."""
    if "://" in place:
        return place
    from lakeops.store.layout import quote_path

    return "file://" + quote_path(str(given_place(place).resolve()))


Json = Annotated[
    bool, typer.Option("--json", metavar="", help="Print JSON on stdout and nothing else.", callback=_json_anywhere)
]
Yes = Annotated[bool, flag("--yes -y", "Do not ask.")]
_PROGRESS = "Show progress: a bar on a terminal, which is the default there, and elsewhere a line every 2 s."
Progress = Annotated[bool | None, typer.Option("--progress/--no-progress", help=_PROGRESS, show_default=False)]
Message = Annotated[str, value("--message -m", "TEXT", "What was done and why.")]
Metadata = Annotated[list[str] | None, value("--meta", "KEY=VALUE", "Metadata; may be repeated.")]
_KEY = "A key for this call: a second call with it returns the first one's commit."
IdempotencyKey = Annotated[str | None, value("--idempotency-key", "KEY", _KEY)]
_PARENT = "For a merge commit: the parent to compare with, counted from 1."
ParentNumber = Annotated[int | None, typer.Option("--parent-number", "-m", metavar="N", help=_PARENT)]
Amount = Annotated[int | None, value("--amount -n", "N", "Show at most this many.", min=0, max=sys.maxsize)]
After = Annotated[str, value("--after", "NAME", "Show only items after this one.")]
Prefix = Annotated[str, value("--prefix", "TEXT", "Show only those that begin with this.")]
PreSign = Annotated[str, value("--pre-sign", "true|false", "Show a URL that anyone can read for a while.")]
Transfer = Annotated[str, value("--pre-sign", "true|false", "No effect: contents always pass through this machine.")]
"""``--pre-sign`` alone means true, as in lakectl (``Root.main``)."""
FirstParent = Annotated[bool, flag("--first-parent", "Follow first parents only: a merge counts as one commit.")]
RemovedKeys = Annotated[list[str] | None, value("--remove", "KEY", "A key to remove; may be repeated.")]
SkipSpecial = Annotated[
    bool, flag("--skip-special", "Leave out links, pipes, devices and names that are not UTF-8. Otherwise refuse them.")
]
RepositoryUri = Annotated[LakeUri, uri("lakefs://REPO", "The repository.")]
BranchUri = Annotated[LakeUri, uri("lakefs://REPO/BRANCH", "The branch.")]
TagUri = Annotated[LakeUri, uri("lakefs://REPO/TAG", "The tag.")]
ShortRef = Annotated[Any, ref("REF", "Another ref of the repository: main, or lakefs://REPO/main.")]
RefUri = Annotated[LakeUri, uri("lakefs://REPO/REF", "A branch, a tag or a commit id, with steps like ~2 or ^.")]
Pattern = Annotated[str, argument("PATTERN", "A name, or a glob like 'release-*'.")]
CheckName = Annotated[str, argument("CHECK", "The check's name.")]
Checks = Annotated[list[str] | None, value("--check", "CHECK", "A check that the commit declares; may be repeated.")]
DespiteChecks = Annotated[
    list[str] | None, value("--despite-check", "CHECK", "A declared check to ignore in this merge; may be repeated.")
]
ObjectUri = Annotated[LakeUri, uri("lakefs://REPO/REF/PATH", "The object.")]


def parse_metadata(pairs: list[str] | None) -> dict[str, str]:
    """Parse texts of ``KEY=VALUE[,KEY=VALUE]...``. The last of equal keys counts. Raises ``InvalidInput``.

    As in lakectl, a text with one equals sign is one pair, and a pair in double quotes may have commas.
    """
    found: dict[str, str] = {}
    for text in pairs or ():
        line = text.replace("\n", "\0n").replace(
            "\r", "\0r"
        )  # no argument has NUL, and a line end would end the record
        try:
            fields = next(csv.reader([line]), [""]) if text.count("=") > 1 else [line]
        except csv.Error as error:  # it is too long
            raise InvalidInput(f"--meta {excerpt(text)} cannot be split into pairs: {error}") from None
        first, *rest = (one.replace("\0n", "\n").replace("\0r", "\r") for one in fields)
        if not all(_NEXT_PAIR.match(pair) for pair in rest):
            raise InvalidInput(f"--meta {text!r} may be one pair or several; put a pair with a comma in double quotes")
        for key, equals, value in (pair.partition("=") for pair in (first, *rest)):
            if not equals or not key:
                raise InvalidInput(f"--meta takes KEY=VALUE, not {text!r}")
            found[key] = value
    return found


def ref_in(repository: str, text: str | LakeUri) -> str:
    """The ref of this repository, given as a URI or alone. Raises ``InvalidInput`` for another repository."""
    if isinstance(text, str) and not text.startswith(SCHEME):
        return text
    other, ref = (LakeUri.parse(text) if isinstance(text, str) else text).only_ref()
    if other != repository:
        raise InvalidInput(
            f"both refs must be in one repository, not in {repository!r} and {other!r}", kind="invalid_uri"
        )
    return ref
