"""Arguments and options that several commands share, each written once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lakeops.model.errors import InvalidInput, InvalidUri
from lakeops.model.uris import SCHEME, LakeUri


def _json_anywhere(context: typer.Context, given: bool) -> bool:
    """Whether JSON is asked for, after the command's name or before it."""
    return given or bool(context.find_root().params.get("json"))


def uri(shape: str, text: str) -> Any:  # noqa: ANN401 - typer's own type for this
    """An argument that takes a ``lakefs://`` URI: how it is written, and what it stands for."""
    return typer.Argument(parser=LakeUri.parse, metavar=shape, help=text, show_default=False)


Json = Annotated[
    bool, typer.Option("--json", metavar="", help="Print JSON on stdout and nothing else.", callback=_json_anywhere)
]
Yes = Annotated[bool, typer.Option("--yes", "-y", metavar="", help="Do not ask.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", metavar="", help="Show no progress bar.")]
Metadata = Annotated[
    list[str] | None, typer.Option("--meta", metavar="KEY=VALUE", help="Metadata; may be repeated.", show_default=False)
]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="Run again with the same key, the same commit is returned.", show_default=False),
]
ParentNumber = Annotated[
    int | None,
    typer.Option("--parent-number", "-m", metavar="N", help="Of a merge commit: the parent to compare with, from 1."),
]
RepositoryUri = Annotated[LakeUri, uri("lakefs://REPO", "The repository.")]
BranchUri = Annotated[LakeUri, uri("lakefs://REPO/BRANCH", "The branch.")]
TagUri = Annotated[LakeUri, uri("lakefs://REPO/TAG", "The tag.")]
RefUri = Annotated[LakeUri, uri("lakefs://REPO/REF", "A branch, a tag or a commit id, with steps like ~2 or ^.")]
ObjectUri = Annotated[LakeUri, uri("lakefs://REPO/REF/PATH", "The object.")]


def parse_metadata(pairs: list[str] | None) -> dict[str, str]:
    """A map from ``KEY=VALUE`` texts; the last of equal keys counts. Raises ``InvalidInput``."""
    found: dict[str, str] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InvalidInput(f"--meta takes KEY=VALUE, not {pair!r}")
        found[key] = value
    return found


def two_refs(left: LakeUri, right: LakeUri) -> tuple[str, str, str]:
    """The repository that two URIs share, and their refs. Raises ``InvalidUri``."""
    repository, ref = left.only_ref()
    return repository, ref, ref_in(repository, str(right))


def ref_in(repository: str, text: str) -> str:
    """A ref of this repository, given as a URI or alone. Raises ``InvalidUri`` for another repository's."""
    if not text.startswith(SCHEME):
        return text
    other, ref = LakeUri.parse(text).only_ref()
    if other != repository:
        raise InvalidUri(f"both refs must be in one repository, not in {repository!r} and {other!r}")
    return ref
