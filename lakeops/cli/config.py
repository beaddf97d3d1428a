"""``lakeops config``: which settings are in force, and where each comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from lakeops.cli.session import Session, command

if TYPE_CHECKING:
    from lakeops.settings import Settings

app = typer.Typer(add_completion=False)

_PASSWORD = re.compile(r"(?<=://)(?P<user>[^/@:\s]*):[^/\s]*@")
_QUERY = re.compile(r"\?.*")


@dataclass(frozen=True)
class Setting:
    """One setting as it may be shown: secrets masked."""

    name: str
    value: str | int | float | bool | None
    source: str

    @property
    def text(self) -> str:
        """The value as people read it."""
        return (
            "-" if self.value is None else str(self.value).lower() if isinstance(self.value, bool) else str(self.value)
        )

    def to_json(self) -> dict[str, Any]:
        """The setting's fields."""
        return asdict(self)


@app.callback()
def config() -> None:
    """Look at settings."""


@command(app, "show")
def show(session: Session) -> None:
    """Show the settings in force, secrets masked, and where each comes from."""
    from lakeops.settings import Settings

    settings = list(effective(Settings.load()))
    if session.as_json:
        session.document({setting.name: {"value": setting.value, "source": setting.source} for setting in settings})
        return
    session.table(
        settings,
        ("Setting", "Source", "Value"),
        lambda setting: (
            (setting.name, "cyan"),
            (setting.source, "dim" if setting.source == "default" else "green"),
            setting.text,
        ),
    )


def effective(settings: Settings) -> Iterator[Setting]:
    """Every setting with its value, masked where it holds a secret, and its source."""
    origins = _origins()
    for name in type(settings).model_fields:
        yield Setting(name, _shown(getattr(settings, name)), origins.get(name, "default"))


def mask(url: str) -> str:
    """A URL without its password, and without its query, which may hold one too."""
    if "://" not in url:
        return url
    return _QUERY.sub("?***", _PASSWORD.sub(r"\g<user>:***@", url))


def _shown(value: object) -> str | int | float | bool | None:
    from pydantic import SecretStr

    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or isinstance(value, int | float):
        return value
    return mask(str(value))


def _origins() -> dict[str, str]:
    """The source of each setting that is not a default. Environment beats file."""
    from pydantic_settings import (
        EnvSettingsSource,
        InitSettingsSource,
        PyprojectTomlConfigSettingsSource,
        TomlConfigSettingsSource,
    )

    from lakeops.settings import FILE, Settings

    environment = EnvSettingsSource(Settings)
    nothing = InitSettingsSource(Settings, {})
    found: dict[str, str] = {}
    for source in Settings.settings_customise_sources(Settings, nothing, environment, nothing, nothing):
        for name in source():
            if source is environment:
                found.setdefault(name, f"LAKEOPS_{name.upper()}")
            elif isinstance(source, PyprojectTomlConfigSettingsSource):
                found.setdefault(name, "pyproject.toml")
            elif isinstance(source, TomlConfigSettingsSource):
                found.setdefault(name, FILE)
    return found
