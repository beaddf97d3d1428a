"""How a mirror's source is written down: a place, never a secret.

::

    /path/to/home#flights, file:///path/to/home#flights    the embedded default of another lake
    /path/to/lakeops.toml#flights                          a settings file. It may hold what it likes
    postgresql+psycopg://user@host/db#flights              a database. Its password comes from ~/.pgpass or the like
    env:SOURCE_DATABASE_URL#flights                        an environment variable that holds the database URL
    airflow:source_lake#flights                            an Airflow connection; only Airflow's tasks can follow it

The repository's name may be left out where it is the mirror's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from lakeops.model.errors import InvalidInput
from lakeops.model.json_record import JsonRecord
from lakeops.model.names import check_repository
from lakeops.model.text import flaw

_MAX_BYTES = 4096
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_OPTIONS = {"password", "sslpassword"}
_HOW = "write HOME#REPO, SETTINGS.toml#REPO, postgresql+psycopg://user@host/db#REPO or env:VARIABLE#REPO"


class SourceKind(StrEnum):
    """What leads to the source lake."""

    HOME = "home"
    SETTINGS = "settings"
    DATABASE = "database"
    ENVIRONMENT = "env"
    CONNECTION = "airflow"


@dataclass(frozen=True, slots=True)
class SourceReference(JsonRecord):
    """A repository of another lake.

    Attributes:
        kind: what ``place`` is.
        place: a directory, a settings file, a database URL without a password, a variable's or a connection's name.
        repository: the repository there.
        s3_endpoint_url: the S3-compatible server of its storage, where it is not the one that settings name.
        s3_region: its region.
    """

    kind: SourceKind
    place: str
    repository: str
    s3_endpoint_url: str | None = None
    s3_region: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether the source's catalog is a file of this machine, so that its files are those that it names."""
        return self.kind is SourceKind.HOME or (self.kind is SourceKind.DATABASE and self.place.startswith("sqlite"))

    @property
    def text(self) -> str:
        """The reference as it is written."""
        named = self.kind in {SourceKind.ENVIRONMENT, SourceKind.CONNECTION}
        return f"{self.kind}:{self.place}#{self.repository}" if named else f"{self.place}#{self.repository}"

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> SourceReference:
        """The reference that ``to_json`` gave."""
        return cls(**{**values, "kind": SourceKind(values["kind"])})


def parse_source(
    text: str, default: str, *, s3_endpoint_url: str | None = None, s3_region: str | None = None
) -> SourceReference:
    """The source that a text names.

    Args:
        text: see the module.
        default: the repository, where the text names none.
        s3_endpoint_url: the S3-compatible server of its storage.
        s3_region: its region.

    Raises:
        InvalidInput: it is none of these, or holds a password, which must not be stored.
    """
    broken = flaw(text, at_least=1, at_most=_MAX_BYTES)
    if broken is not None:
        raise InvalidInput(f"the mirror's source {broken}; {_HOW}")
    place, mark, repository = text.rpartition("#")
    if not mark:
        place, repository = text, default
    check_repository(repository)
    kind, place = _parse_place(place)
    return SourceReference(kind, place, repository, s3_endpoint_url, s3_region)


def check_no_password(url: str) -> str:
    """The database URL, when it holds no password. Raises ``InvalidInput``. The message repeats nothing of it."""
    try:
        parts = urlsplit(url)
        options = {name.lower() for name, _ in parse_qsl(parts.query)}
        secret = parts.password is not None or bool(options & _SECRET_OPTIONS) or parts.netloc.count("@") > 1
    except ValueError:
        secret = True
    if secret:
        raise InvalidInput(
            "the source's database URL holds a password, which is never stored: leave it out and keep it in ~/.pgpass, "
            "or put the whole URL into an environment variable and give env:VARIABLE#REPO, or name a settings file"
        )
    return url


def _parse_place(text: str) -> tuple[SourceKind, str]:
    scheme, colon, rest = text.partition(":")
    if colon and scheme == SourceKind.ENVIRONMENT:
        if not _VARIABLE.fullmatch(rest):
            raise InvalidInput(f"env: takes the name of an environment variable; {_HOW}")
        return SourceKind.ENVIRONMENT, rest
    if colon and scheme == SourceKind.CONNECTION:
        if not rest or rest.strip() != rest:
            raise InvalidInput("airflow: takes the id of an Airflow connection, for instance airflow:source_lake#REPO")
        return SourceKind.CONNECTION, rest
    if text.startswith("file://"):
        host, slash, path = rest.removeprefix("//").partition("/")
        if host not in {"", "localhost"} or not slash:
            raise InvalidInput(f"a source's file:// URL names a directory of this machine; {_HOW}")
        return _local(unquote("/" + path))
    if "://" in text:
        if scheme.partition("+")[0] not in {"postgresql", "postgres", "sqlite"}:
            raise InvalidInput(f"a mirror's source is a lake, not a location of objects; {_HOW}")
        return SourceKind.DATABASE, check_no_password(text)
    if not text:
        raise InvalidInput(f"the mirror's source names no lake; {_HOW}")
    return _local(text)


def _local(text: str) -> tuple[SourceKind, str]:
    path = Path(text).expanduser().absolute()
    return (SourceKind.SETTINGS if path.suffix == ".toml" else SourceKind.HOME), str(path)
