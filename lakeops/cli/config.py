"""``lakeops config``: which settings are in force, and where each comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lakeops.cli.session import Session, command
from lakeops.model.json_record import JsonRecord
from lakeops.model.text import masked

if TYPE_CHECKING:
    from lakeops.settings import Settings

app: typer.Typer = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Setting(JsonRecord):
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
        yield Setting(name, _for_message(getattr(settings, name)), origins.get(name, "default"))


def _for_message(value: object) -> str | int | float | bool | None:
    from pydantic import SecretStr

    if isinstance(value, SecretStr):
        value = value.get_secret_value()
        if "://" not in value:  # no URL, so nobody can tell what of it is secret
            return "***"
    if value is None or isinstance(value, int | float):
        return value
    return masked(str(value))


def _file_for_message(file: Any) -> str:  # noqa: ANN401 - what pydantic calls a path
    """A settings file's name in the working directory, its path elsewhere."""
    path = Path(file)
    return path.name if path.parent == Path.cwd() else str(path)


def _origins() -> dict[str, str]:
    """The source of each setting that is not a default. Environment beats file."""
    from pydantic_settings import EnvSettingsSource, InitSettingsSource, TomlConfigSettingsSource

    from lakeops.settings import Settings

    environment = EnvSettingsSource(Settings)
    nothing = InitSettingsSource(Settings, {})
    found: dict[str, str] = {}
    for source in Settings.settings_customise_sources(Settings, nothing, environment, nothing, nothing):
        for name in source():
            if source is environment:
                found.setdefault(name, f"LAKEOPS_{name.upper()}")
            elif isinstance(source, TomlConfigSettingsSource):
                found.setdefault(name, _file_for_message(source.toml_file_path))
    return found
