"""The settings that a lake is opened with, from arguments, the environment or files, in that order.

A file is named by ``LAKEOPS_CONFIG``, or it is ``lakeops.toml`` in the working directory, ``[tool.lakeops]`` of a
``pyproject.toml`` there, or the user's own. Settings decide where passwords and data are sent. So a file in the working
directory is used only if nobody else may write it, and if it did not come with a clone of somebody's repository.
Database URLs may hold passwords, so they are secrets here and masked wherever settings are shown.
"""

from __future__ import annotations

import getpass
import os
import re
import stat
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, ValidationError, field_validator

from lakeops.model.clock import LONGEST
from lakeops.model.errors import InvalidInput, NotFound, invalid_settings, unsupported
from lakeops.model.ids import MAX_COMMITTER_BYTES, check_text
from lakeops.model.names import DEFAULT_CONN_ID, given_place
from lakeops.model.records import Credentials
from lakeops.model.sanitising import excerpt

FILE = "lakeops.toml"
PROJECT_FILE = "pyproject.toml"
TABLE = ("tool", "lakeops")
CONFIG = "LAKEOPS_CONFIG"
"""The environment variable that names a settings file."""
_VERSION_CONTROL = (".git", ".hg", ".svn", ".jj")
_NAME_IT = f"name it with --config or {CONFIG} if you trust it"
CATALOG_FILE = "catalog.db"
PREFIX = "LAKEOPS_"
ENVIRONMENT = "environment"
"""The source of settings that are environment variables."""
_OTHERS = {CONFIG, "LAKEOPS_DEBUG", "LAKEOPS_JAVA_RUNTIME", "LAKEOPS_DB_PASSWORD"}
"""Environment variables of lakeops, its Java launcher and its compose file that are no settings."""
_TESTS = "LAKEOPS_TEST_"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a passwd entry
        return "lakeops"


def _cache_home() -> Path:
    """Find the user's directory for caches."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lakeops"
    except RuntimeError:  # a container's user without a home
        return Path(tempfile.gettempdir()) / f"lakeops-{os.geteuid()}"


class Settings(BaseModel):
    """The settings of a lake. Environment variables have these names with ``LAKEOPS_`` in front."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", frozen=True, validate_default=True)

    home: Path = Field(default=Path("~/.lakeops"), description="The embedded default's directory.")
    database_url: SecretStr | None = Field(default=None, description="The catalog; SQLite under home when unset.")
    s3_endpoint_url: str | None = Field(default=None, description="An S3-compatible store's endpoint.")
    s3_region: str | None = Field(default=None, description="The region, where the credential chain has none.")
    s3_requester_pays: bool = Field(default=False, description="Whether requests to buckets agree to pay for them.")
    engine: Literal["auto", "local", "spark"] = Field(default="auto", description="Where range work runs.")
    spark_master: str | None = Field(default=None, description="The Spark master, for the spark engine.")
    committer: str = Field(default_factory=_user, min_length=1, description="The name of the committer in new commits.")
    fsync: bool = Field(default=True, description="Whether local files are forced to disk before they are used.")
    grace_hours: float = Field(
        default=24.0, ge=1 / 3600, le=LONGEST / 3600, description="The grace period of new repositories."
    )
    verify_checksums: bool = Field(default=True, description="Whether reads of whole objects check their contents.")
    cache_mb: int = Field(default=256, ge=1, description="Memory for decoded ranges, in MiB.")
    disk_cache_mb: int = Field(
        default=4096, ge=0, description="Disk for metadata of S3 stores, in MiB, for all processes; 0 for none."
    )
    disk_cache: Path = Field(default_factory=_cache_home, description="Where that metadata is kept.")
    external_prefixes: tuple[str, ...] | None = Field(
        default=None, description="Where objects outside the namespaces may lie; anywhere when unset."
    )
    publish_minutes: float = Field(
        default=60.0, gt=0, le=LONGEST / 60, description="How long to wait for a turn to publish to a branch."
    )
    outage_minutes: float | None = Field(
        default=None, ge=0, le=LONGEST / 60, description="How long to wait for a catalog or store that does not answer."
    )
    gateway_access_key: str | None = Field(default=None, description="Who may read through the gateway.")
    gateway_secret_key: SecretStr | None = Field(default=None, description="What requests to it are signed with.")

    _credentials: Credentials | None = PrivateAttr(default=None)

    @field_validator("external_prefixes", mode="before")
    @classmethod
    def _locations(cls, given: object) -> object:
        """A list of locations. The environment separates them by commas."""
        listed = [one.strip() for one in given.split(",") if one.strip()] if isinstance(given, str) else given
        known = ("file:///", "s3://", "gs://", "az://")
        if isinstance(listed, list | tuple) and not all(str(one).startswith(known) for one in listed):
            raise ValueError("give locations such as s3://bucket/prefix or file:///absolute/path")
        return listed

    _storable = field_validator("committer")(partial(check_text, "committer", at_most=MAX_COMMITTER_BYTES))

    @field_validator("home", "disk_cache", mode="before")
    @classmethod
    def _expand(cls, folder: str | Path) -> Path:
        try:
            return given_place(folder).expanduser().absolute()
        except RuntimeError:  # a container's user without a home, or a user that is not there
            raise ValueError(f"{excerpt(str(folder))} lies in no user's home; write an absolute path") from None

    @classmethod
    def load(cls, **given: Any) -> Settings:  # noqa: ANN401 - whatever the fields take
        """Settings from ``given`` (None means not given), the environment and files.

        Raises ``InvalidInput`` (``invalid_settings``), which names the setting, and never a secret's value.
        """
        try:
            found = {name: value for name, value in given.items() if value is not None}
            if "home" in found:  # it has its own catalog, whatever the environment and files name
                found.setdefault("database_url", None)
            for _, values in sources():
                found = {**values, **found}
            return cls(**found)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            raise invalid_settings(f"setting {name!r} (LAKEOPS_{name.upper()}): {first['msg']}") from None
        except InvalidInput:  # a ValueError too
            raise
        except (ValueError, OSError) as error:
            # What a parser says may repeat a value, and a value may be a password.
            raise invalid_settings(f"cannot read settings ({type(error).__name__})") from None

    @property
    def credentials(self) -> Credentials | None:
        """Keys of the stores. None: boto3's chain has them."""
        return self._credentials

    def with_credentials(self, credentials: Credentials | None) -> Self:
        """Copy the settings with credentials of the stores, which no file, environment variable or output has."""
        found = self.model_copy()
        found._credentials = credentials  # noqa: SLF001 - the copy's own
        return found

    @property
    def catalog_url(self) -> str:
        """The database URL to open, with the embedded default filled in. May hold a password: never print it."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return catalog_in(self.home)

    def default_namespace(self, repository: str) -> str:
        """Where a repository's objects go when no storage namespace is named: below ``home``."""
        return (self.home / "storage" / repository).as_uri()


def catalog_in(home: Path) -> str:
    """The database URL of the catalog in a home. Characters that mean something else in a URL are quoted."""
    return "sqlite:///" + str(home / CATALOG_FILE).replace("%", "%25").replace("?", "%3F")


L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class LakeAddress:
    """The address of a lake, by which every edge that takes a URI opens it, so that a URI means one lake everywhere.

    ``connection`` is an Airflow connection of type ``lakeops``. One that cannot be read is an error, and never another
    lake. None: ``home`` (of the embedded default) and ``database_url`` count, then the settings.
    """

    connection: str | None = None
    home: str | None = None
    database_url: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, connection: str | None = None, *, home: str | None = None, database_url: str | None = None) -> Self:
        """Make the address of what was given. Nothing means ``lakeops_default`` in Airflow's tasks and their commands.

        Raises ``InvalidInput`` for a connection beside another address.
        """
        if connection and (home or database_url):
            raise invalid_settings(
                f"the lake is named twice, by connection {excerpt(connection)} and by home or database_url; give one"
            )
        return cls(connection or (None if home or database_url else _default_connection()), home, database_url)

    def settings(self) -> Settings:
        """The settings of the lake. Raises ``InvalidInput``, and what Airflow raises for a missing connection."""
        if self.connection is None:
            return Settings.load(home=self.home, database_url=self.database_url)
        found: Settings = self._hook().settings()
        return found

    def open(self, here: Callable[..., L]) -> L:
        """Open the lake: by ``here``, which is ``Lake.open``, or by the connection. Raises what these raise."""
        if self.connection is None:
            return here(home=self.home, database_url=self.database_url)
        found: L = self._hook().get_conn()
        return found

    def _hook(self) -> Any:  # noqa: ANN401 - imported by name: only Airflow knows its connections, and it stays above
        if find_spec("airflow") is None:
            raise unsupported(f"{excerpt(self.connection)} is a connection of Airflow, which is not installed here")
        return import_module("lakeops.airflow.hook").LakeopsHook(self.connection)

    def describe(self, shown: str) -> str:
        """Say which lake it is. ``shown`` is its catalog's URL without user and password."""
        return f"in the lake at {shown}" + ("" if self.connection is None else f", connection {self.connection!r}")

    @contextmanager
    def naming(self, shown: str) -> Iterator[None]:
        """Name the lake in each *not found*: another one may have what was looked for."""
        try:
            yield
        except NotFound as error:
            error.args = (f"{error.message} ({self.describe(shown)})", *error.args[1:])
            raise


def _default_connection() -> str | None:
    in_airflow = "airflow.sdk" in sys.modules or ("AIRFLOW_CTX_DAG_ID" in os.environ and find_spec("airflow"))
    return DEFAULT_CONN_ID if in_airflow else None


def sources() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the sources of settings with what they set, the strongest first: ``ENVIRONMENT``, then paths of files.

    An empty variable is not set. Raises ``InvalidInput``.
    """
    known = {PREFIX + name.upper(): name for name in Settings.model_fields}
    yield ENVIRONMENT, {known[one.upper()]: text for one, text in os.environ.items() if text and one.upper() in known}
    for file in _files():
        yield str(file), parsed(file)


def strange_variables() -> Iterator[tuple[str, str]]:
    """List environment variables that look like settings and are none, with ``ENVIRONMENT``."""
    known = {*_OTHERS, *(PREFIX + field.upper() for field in Settings.model_fields)}
    for name in sorted(os.environ):
        if name.upper().startswith(PREFIX) and not name.startswith(_TESTS) and name.upper() not in known:
            yield name, ENVIRONMENT


def advice(stranger: str, place: str) -> str:
    """Explain that a name is no setting and changes nothing, and suggest the setting that may be meant."""
    near = get_close_matches(stranger.upper().removeprefix(PREFIX).lower(), Settings.model_fields, 1)
    meant = [PREFIX + name.upper() if place == ENVIRONMENT else name for name in near]
    return f"is no setting of lakeops and changes nothing ({place})" + (f"; did you mean {meant[0]}?" if meant else "")


def strange_keys() -> Iterator[tuple[str, str]]:
    """List keys of settings files that are no settings, with their file. Raises ``InvalidInput``."""
    for place, found in sources():
        for name in sorted({*found} - {*Settings.model_fields}):
            yield name, place


def _files() -> Iterator[Path]:
    """List the settings files in use, the one that beats the others first. Raises ``InvalidInput``."""
    named = os.environ.get(CONFIG)
    if named:
        # Unlike those of Path, these raise nothing for what cannot be a name.
        file = Path(os.path.expanduser(named))  # noqa: PTH111
        if not os.path.isfile(file):  # noqa: PTH113
            raise invalid_settings(f"{CONFIG} names {named!r}, and there is no such file")
        yield file
        return
    for file in (Path.cwd() / FILE, Path.cwd() / PROJECT_FILE):
        if file.is_file() and (file.name == FILE or _has_table(file)):
            _check_trusted(file)
            yield file
    with suppress(RuntimeError):  # a container's user without a home has no file
        own = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "lakeops" / FILE
        if own.is_file():
            yield own


def parsed(file: Path) -> dict[str, Any]:
    """Parse a settings file, or a project's table. Errors give a line, and none of the text: it may hold a password."""
    try:
        found: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise invalid_settings(f"settings file {str(file)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        place = re.search(r"at (line \d+, column \d+|end of document)", str(error))
        raise invalid_settings(f"settings file {str(file)!r} is not TOML{f', {place[0]}' if place else ''}") from None
    for key in TABLE if file.name == PROJECT_FILE else ():
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise invalid_settings(f"settings file {str(file)!r} has no table [{'.'.join(TABLE)}]")
    return found


def _has_table(file: Path) -> bool:
    """Whether a ``pyproject.toml`` has settings. One that is broken has those that its text names."""
    try:
        text = file.read_text(encoding="utf-8")
        # Parsing takes milliseconds, and the file of most projects says nothing of lakeops.
        found = tomllib.loads(text) if TABLE[1] in text else {}
    except tomllib.TOMLDecodeError:
        return ".".join(TABLE) in text
    except (OSError, ValueError):
        return False
    return isinstance(found.get(TABLE[0]), dict) and TABLE[1] in found[TABLE[0]]


def _check_trusted(file: Path) -> None:
    """Refuse a file of the working directory that somebody else may have written. Raises ``InvalidInput``.

    It is an error, and not passed over: with other settings the same command would work on another lake.
    """
    status = file.stat()
    if status.st_uid not in {os.geteuid(), 0} or status.st_mode & stat.S_IWOTH:
        raise invalid_settings(f"settings file {str(file)!r} is not used, because others can write it; {_NAME_IT}")
    place = file.resolve().parent
    for folder in {file.parent, place, *file.parent.parents, *place.parents}:
        if any((folder / name).exists() for name in _VERSION_CONTROL):
            raise invalid_settings(
                f"settings file {str(file)!r} is not used, because it lies in a version-controlled directory, "
                f"{str(folder)!r}: those who may write there would choose where passwords and data are sent; {_NAME_IT}"
            )
