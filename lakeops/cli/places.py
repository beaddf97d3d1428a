"""Places that commands read objects from and write them to: as they were told, or as the catalog knows them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.model.errors import InvalidInput, NotAMirror
from lakeops.model.uris import LakeUri

if TYPE_CHECKING:
    from lakeops.lake import Lake
    from lakeops.lake.mirror import Mirror

OptionalRepositoryUri = Annotated[
    LakeUri | None,
    typer.Argument(
        parser=LakeUri.parse,
        metavar="lakefs://REPO",
        help="A repository, whose storage namespace is the source; or a mirror, which knows source and destination.",
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


def mirror_at(lake: Lake, uri: LakeUri | None, source: str | None, destination: str | None) -> Mirror | None:
    """The mirror, when that is all that was named: it knows both places."""
    if uri is None or source is not None or destination is not None:
        return None
    name = uri.only_repository()
    try:
        return lake.mirror(name)
    except NotAMirror:
        return None


def namespaces(lake: Lake, uri: LakeUri | None, source: str | None, destination: str | None) -> tuple[str, str]:
    """The storage namespaces to copy from and to. Raises ``InvalidInput`` when one is not known."""
    mirror = mirror_at(lake, uri, source, destination)
    if mirror is not None:
        return mirror.source_namespace(), mirror.storage_namespace
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
