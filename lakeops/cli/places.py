"""Places that commands read objects from and write them to: as they were told, or as the catalog knows them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.model.errors import InvalidInput
from lakeops.model.uris import LakeUri

if TYPE_CHECKING:
    from lakeops.lake import Lake

OptionalRepositoryUri = Annotated[
    LakeUri | None,
    typer.Argument(
        parser=LakeUri.parse,
        metavar="lakefs://REPO",
        help="The repository whose storage namespace is the source.",
        show_default=False,
    ),
]
Source = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The storage namespace to copy from, in place of REPO's.", show_default=False),
]
Destination = Annotated[
    str | None, typer.Option(metavar="URL", help="The storage namespace to copy to.", show_default=False)
]


def namespaces(lake: Lake, uri: LakeUri | None, source: str | None, destination: str | None) -> tuple[str, str]:
    """The storage namespaces to copy from and to. Raises ``InvalidInput`` when one is not known."""
    if uri is not None:
        source = source or lake.repository(uri.only_repository()).storage_namespace
    if source is None:
        raise InvalidInput("name the repository to copy, lakefs://REPO, or its storage namespace with --source")
    if destination is None:
        raise InvalidInput("name the storage namespace to copy to with --destination")
    return url_of(source), url_of(destination)


def url_of(place: str) -> str:
    """The place as a URL; what has no scheme is a directory of this machine."""
    if "://" in place:
        return place
    from lakeops.store.layout import quote_path

    return "file://" + quote_path(str(Path(place).resolve()))
