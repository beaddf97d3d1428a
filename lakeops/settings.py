"""Settings: what a lake is opened with, from arguments, the environment or a file, in that order.

The file is ``lakeops.toml`` in the working directory, or ``[tool.lakeops]`` of a ``pyproject.toml`` there. Database
URLs may hold passwords, so they are secrets here and masked wherever settings are shown.
"""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    PyprojectTomlConfigSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from lakeops.model.errors import InvalidSettings

FILE = "lakeops.toml"
CATALOG_FILE = "catalog.db"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a passwd entry
        return "lakeops"


def _cache_home() -> Path:
    """The user's directory for what may be lost at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "lakeops"


class Settings(BaseSettings):
    """Everything that can be set; the environment's names are these with ``LAKEOPS_`` in front."""

    model_config = SettingsConfigDict(
        env_prefix="LAKEOPS_",
        toml_file=FILE,
        pyproject_toml_table_header=("tool", "lakeops"),
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
    )

    home: Path = Field(default=Path("~/.lakeops"), description="The embedded default's directory.")
    database_url: SecretStr | None = Field(default=None, description="The catalog; SQLite under home when unset.")
    s3_endpoint_url: str | None = Field(default=None, description="An S3-compatible store's endpoint.")
    s3_region: str | None = Field(default=None, description="The region, where the credential chain has none.")
    engine: Literal["auto", "local", "spark"] = Field(default="auto", description="Where range work runs.")
    spark_master: str | None = Field(default=None, description="The Spark master, for the spark engine.")
    committer: str = Field(default_factory=_user, min_length=1, description="Who commits are recorded as made by.")
    fsync: bool = Field(default=True, description="Whether local files are forced to disk before they are used.")
    grace_hours: float = Field(default=24.0, gt=0, description="The grace period of new repositories.")
    verify_checksums: bool = Field(default=True, description="Whether reads of whole objects check their contents.")
    cache_mb: int = Field(default=256, ge=1, description="Memory for decoded ranges, in MiB.")
    disk_cache_mb: int = Field(
        default=4096, ge=0, description="Disk for metadata of S3 stores, in MiB, for all processes; 0 for none."
    )
    disk_cache: Path = Field(default_factory=_cache_home, description="Where that metadata is kept.")
    publish_minutes: float = Field(
        default=60.0, gt=0, description="How long to wait for a turn to publish to a branch."
    )

    @field_validator("home", "disk_cache")
    @classmethod
    def _expand(cls, folder: Path) -> Path:
        return folder.expanduser().absolute()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then ``lakeops.toml``, then ``pyproject.toml``."""
        return (
            init_settings,
            env_settings,
            TomlConfigSettingsSource(settings_cls),
            PyprojectTomlConfigSettingsSource(settings_cls),
        )

    @classmethod
    def load(cls, **given: Any) -> Settings:  # noqa: ANN401 - whatever the fields take
        """Settings from ``given`` (None means not given), the environment and files.

        Raises:
            InvalidSettings: a value makes no sense; the message names the setting, never a secret's value.
        """
        try:
            return cls(**{name: value for name, value in given.items() if value is not None})
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            raise InvalidSettings(f"setting {name!r} (LAKEOPS_{name.upper()}): {first['msg']}") from None
        except ValueError as error:
            raise InvalidSettings(f"cannot read settings: {error}") from None

    @property
    def catalog_url(self) -> str:
        """The database URL to open, with the embedded default filled in. May hold a password: never print it."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.home / CATALOG_FILE}"

    def default_namespace(self, repository: str) -> str:
        """Where a repository's objects go when no storage namespace is named: below ``home``."""
        return (self.home / "storage" / repository).as_uri()
