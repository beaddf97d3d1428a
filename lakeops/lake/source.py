"""Reaching the lake that a mirror's source is in: from a reference without secrets to an open lake."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakeops.catalog.open import open_catalog
from lakeops.model.clock import Clock
from lakeops.model.errors import (
    CatalogError,
    CatalogUnavailable,
    CatalogVersion,
    InvalidInput,
    InvalidSettings,
)
from lakeops.model.names import check_repository
from lakeops.model.sources import SourceKind, SourceReference, check_no_password, parse_source
from lakeops.model.text import excerpt, flaw
from lakeops.settings import CATALOG_FILE, Settings

if TYPE_CHECKING:
    from lakeops.lake.lake import Lake


_MAX_SOURCE_BYTES = 4096


def reference_to(source: Lake | str, repository: str | None, name: str) -> SourceReference:
    """How to find the source again. Raises ``InvalidInput`` where that would store a password.

    Args:
        source: an open lake, or a reference as text.
        repository: the repository there; what the text says, or else the mirror's name, when None.
        name: the mirror's name.
    """
    if isinstance(source, str):
        reason = flaw(source, at_least=1, at_most=_MAX_SOURCE_BYTES)
        if reason is None and not source.isprintable():
            reason = "has a character that cannot be printed"
        if reason is not None:
            raise InvalidInput(f"{excerpt(source)} is no mirror's source: it {reason}")
        reference = parse_source(source, repository or name)
        if repository is not None and reference.repository != repository:
            raise InvalidInput(f"the source is given as {reference.repository!r} and as {repository!r}; name it once")
        return reference
    if not hasattr(source, "settings"):
        raise InvalidInput(f"a mirror's source is a lake or a reference to one, not {excerpt(source)}")
    settings = source.settings
    kind, place = SourceKind.HOME, str(settings.home)
    if settings.database_url is not None:
        kind, place = SourceKind.DATABASE, check_no_password(settings.database_url.get_secret_value())
    return SourceReference(
        kind, place, check_repository(repository or name), settings.s3_endpoint_url, settings.s3_region
    )


@contextmanager
def reaching(reference: SourceReference, clock: Clock, *, given: Lake | None = None) -> Iterator[Lake]:
    """The source lake: the given one, or the one that the reference leads to, closed afterwards.

    Raises:
        CatalogUnavailable, CatalogError, CatalogVersion, InvalidSettings: it cannot be opened; no message holds a
            password.
    """
    if given is not None:
        yield given
        return
    try:
        lake = open_source(reference, clock)
    except (CatalogUnavailable, CatalogError, CatalogVersion, InvalidSettings) as error:
        raise type(error)(f"the source {_shown(reference)} cannot be reached: {error.message}") from None
    with lake:
        yield lake


def open_source(reference: SourceReference, clock: Clock) -> Lake:
    """The lake that a reference leads to; nothing of it is made or brought up to date."""
    from lakeops.lake.lake import Lake

    settings = Settings.load(**_given(reference))
    catalog = open_catalog(
        settings.catalog_url, clock=clock, grace_seconds=int(settings.grace_hours * 3600), must_exist=True
    )
    return Lake(catalog, settings, clock=clock)


def _given(reference: SourceReference) -> dict[str, Any]:
    """The settings of the source lake. The environment belongs to the mirror's own lake, so it decides no place."""
    place = reference.place
    match reference.kind:
        case SourceKind.HOME:
            given: dict[str, Any] = {"home": place}
        case SourceKind.SETTINGS:
            given = _from_file(Path(place))
        case SourceKind.DATABASE:
            given = {"database_url": place}
        case SourceKind.ENVIRONMENT:
            if not os.environ.get(place):
                raise InvalidSettings(
                    f"environment variable {place} is not set; it is to hold the source's database URL"
                )
            given = {"database_url": os.environ[place]}
        case SourceKind.CONNECTION:
            raise InvalidSettings(
                f"it is Airflow's connection {place!r}, which only tasks of Airflow can follow; sync this mirror there"
            )
    if "database_url" not in given:
        home = Path(given.get("home", "~/.lakeops")).expanduser().absolute()
        given["database_url"] = f"sqlite:///{home / CATALOG_FILE}"
    stores = {"s3_endpoint_url": reference.s3_endpoint_url, "s3_region": reference.s3_region}
    return {**given, **{name: value for name, value in stores.items() if value is not None}}


def _from_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise InvalidSettings(f"settings file {str(file)!r} cannot be read: {error.strerror}") from None
    except ValueError:
        # What a parser says may repeat a line, and a line may hold a password.
        raise InvalidSettings(f"settings file {str(file)!r} is not TOML") from None


def _shown(reference: SourceReference) -> str:
    """The reference for a message; a database URL shows no user."""
    if reference.kind is SourceKind.DATABASE:
        scheme, _, rest = reference.place.partition("://")
        return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}#{reference.repository}"
    return reference.text
