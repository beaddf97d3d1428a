"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from lakeops.cli.completion import complete
from lakeops.model.errors import InvalidInput, InvalidUri
from lakeops.model.uris import SCHEME, LakeUri

T = TypeVar("T")


def _json_anywhere(context: typer.Context, given: bool) -> bool:
    """Whether JSON is asked for, after the command's name or before it."""
    return given or bool(context.find_root().params.get("json"))


class Unreadable(Exception):
    """An argument that is wrong. Its cause is the error to show. Typer would put words of its own around that one."""


def parsed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """The parser of an argument, with its ``InvalidInput`` behind an ``Unreadable``."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except InvalidInput as error:
            raise Unreadable from error

    return read


def uri(shape: str, text: str) -> Any:  # noqa: ANN401 - typer's own type for this
    """An argument that takes a ``lakefs://`` URI: how it is written, and what it stands for."""
    return typer.Argument(
        parser=parsed(LakeUri.parse), metavar=shape, help=text, show_default=False, autocompletion=complete
    )


def flag(name: str, text: str) -> Any:  # noqa: ANN401
    """An option without a value."""
    return typer.Option(*name.split(), metavar="", help=text)


def value(names: str, metavar: str, text: str, **more: Any) -> Any:  # noqa: ANN401
    """An option with a value. Its default is not shown. The text says what happens without the option."""
    return typer.Option(*names.split(), metavar=metavar, help=text, show_default=False, **more)


def url_of(place: str) -> str:
    """The place as a URL. What has no scheme is a directory of this machine."""
    if "://" in place:
        return place
    from lakeops.store.layout import quote_path

    return "file://" + quote_path(str(Path(place).resolve()))


Json = Annotated[
    bool, typer.Option("--json", metavar="", help="Print JSON on stdout and nothing else.", callback=_json_anywhere)
]
Yes = Annotated[bool, flag("--yes -y", "Do not ask.")]
Progress = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Show progress or not. A terminal gets a bar anyway; elsewhere --progress prints a line now and then.",
        show_default=False,
    ),
]
Message = Annotated[str, value("--message -m", "TEXT", "What was done and why.")]
Metadata = Annotated[list[str] | None, value("--meta", "KEY=VALUE", "Metadata; may be repeated.")]
IdempotencyKey = Annotated[
    str | None, value("--idempotency-key", "KEY", "Run again with the same key, the same commit is returned.")
]
ParentNumber = Annotated[
    int | None,
    typer.Option("--parent-number", "-m", metavar="N", help="Of a merge commit: the parent to compare with, from 1."),
]
AMOUNT = "--amount -n"
Amount = Annotated[int | None, value(AMOUNT, "N", "At most this many commits.", min=0)]
SkipSpecial = Annotated[
    bool, flag("--skip-special", "Leave out links, pipes, devices and names that are not UTF-8. Otherwise refuse them.")
]
RepositoryUri = Annotated[LakeUri, uri("lakefs://REPO", "The repository.")]
BranchUri = Annotated[LakeUri, uri("lakefs://REPO/BRANCH", "The branch.")]
TagUri = Annotated[LakeUri, uri("lakefs://REPO/TAG", "The tag.")]
RefUri = Annotated[LakeUri, uri("lakefs://REPO/REF", "A branch, a tag or a commit id, with steps like ~2 or ^.")]
Pattern = Annotated[
    str, typer.Argument(metavar="PATTERN", help="A name, or a glob like 'release-*'.", show_default=False)
]
CheckName = Annotated[str, typer.Argument(metavar="CHECK", help="The check's name.", show_default=False)]
ObjectUri = Annotated[LakeUri, uri("lakefs://REPO/REF/PATH", "The object.")]


class Protection(str):
    """A pattern as a record of its own."""

    __slots__ = ()

    def to_json(self) -> dict[str, str]:
        """The record's only key, as in lakeFS's API."""
        return {"pattern": str(self)}


def parse_metadata(pairs: list[str] | None) -> dict[str, str]:
    """A map from ``KEY=VALUE`` texts. The last of equal keys counts. Raises ``InvalidInput``."""
    found: dict[str, str] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InvalidInput(f"--meta takes KEY=VALUE, not {pair!r}")
        found[key] = value
    return found


def ref_in(repository: str, text: str) -> str:
    """A ref of this repository, given as a URI or alone. Raises ``InvalidUri`` for another repository's."""
    if not text.startswith(SCHEME):
        return text
    other, ref = LakeUri.parse(text).only_ref()
    if other != repository:
        raise InvalidUri(f"both refs must be in one repository, not in {repository!r} and {other!r}")
    return ref
