"""Running the migrations on a connection that the caller opened, inside the caller's transaction."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def config() -> Config:
    """Alembic's configuration: the scripts beside this file."""
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    settings.set_main_option("path_separator", "os")
    return settings


def run_migrations(conn: Connection) -> None:
    """Bring the schema to the newest revision."""
    settings = config()
    settings.attributes["connection"] = conn
    command.upgrade(settings, "head")
