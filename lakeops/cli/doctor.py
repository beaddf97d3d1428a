"""``lakeops doctor`` tries everything that a lake needs. ``config`` shows its settings."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from lakeops.cli.options import flag
from lakeops.cli.output import Styled
from lakeops.cli.session import Session, command
from lakeops.model.clock import SystemClock
from lakeops.model.errors import LakeopsError
from lakeops.model.formatting import counted
from lakeops.model.sanitising import masked, safe
from lakeops.version import __version__

if TYPE_CHECKING:
    from lakeops.lake import Lake, Repository
    from lakeops.model.marks import Owner
    from lakeops.settings import Settings

config_group: typer.Typer = typer.Typer(add_completion=False)


class Setting(NamedTuple):
    """One setting as it may be shown: secrets masked."""

    name: str
    value: str | int | float | bool | None
    source: str

    @property
    def text(self) -> str:
        """The value as text."""
        shown = "-" if self.value is None else str(self.value)
        return shown.lower() if isinstance(self.value, bool) else shown


@config_group.callback()
def config() -> None:
    """Show settings."""


@command(config_group, "show", example="config show")
def show_settings(session: Session) -> None:
    """Show the settings in force, secrets masked, and where each comes from."""
    from lakeops.settings import Settings

    settings = list(effective(Settings.load()))
    if session.as_json:
        session.document({name: {"value": value, "source": source} for name, value, source in settings})
        return

    def row(setting: Setting) -> tuple[Styled, ...]:
        source = (setting.source, "dim" if setting.source == "default" else "green")
        return ((setting.name, "cyan"), source, setting.text)

    session.table(settings, ("Setting", "Source", "Value"), row)


def effective(settings: Settings) -> Iterator[Setting]:
    """List the settings with their values, masked where they hold a secret, and their sources."""
    from lakeops.settings import ENVIRONMENT, PREFIX, sources

    origins: dict[str, str] = {}
    for place, values in sources():
        shown = place.removeprefix(f"{Path.cwd()}/")
        for name in values:
            origins.setdefault(name, PREFIX + name.upper() if place == ENVIRONMENT else shown)
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


OK = "ok"
ABSENT = "absent"
PROBLEM = "problem"
STYLES = {OK: "green", ABSENT: "yellow", PROBLEM: "red"}
"""What can be said of a part, and in which colour. ``absent`` stands for a part that only some work needs."""

PACKAGES = ("sqlmodel", "SQLAlchemy", "alembic", "pyarrow", "numpy", "boto3", "fsspec", "pydantic", "typer")
OPTIONAL_PACKAGES = {
    "psycopg": "PostgreSQL",
    "apache-airflow": "Airflow",
    "pyspark": "Spark",
    "obstore": "Azure, Google and quick requests to S3",
}


class Result(NamedTuple):
    """A part of the lake or the machine, and what was found of it."""

    name: str
    status: str
    detail: str


def environment() -> Iterator[Result]:
    """Look at Python, packages and Java."""
    yield Result("lakeops", OK, __version__)
    yield Result("python", OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in (*PACKAGES, *OPTIONAL_PACKAGES):
        try:
            yield Result(name, OK, version(name))
        except PackageNotFoundError:
            use = OPTIONAL_PACKAGES.get(name)
            advice = f"needed for {use}" if use else "install lakeops again"
            yield Result(name, ABSENT if use else PROBLEM, f"not installed; {advice}")
    yield _java()


def lake_results(*, upgrade: bool) -> Iterator[Result]:
    """Look at settings, the catalog, and every repository's storage."""
    from lakeops.settings import Settings, advice, strange_keys, strange_variables
    from lakeops.store.disk_cache import DiskCache

    try:
        settings = Settings.load()
    except LakeopsError as error:
        yield Result("settings", PROBLEM, error.message)
        return
    for setting in effective(settings):
        if setting.value is not None:
            yield Result(f"setting {setting.name}", OK, f"{setting.text} ({setting.source})")
    for name, place in (*strange_variables(), *strange_keys()):
        yield Result(f"setting {name}", ABSENT, advice(name, place))
    if settings.engine == "spark" or settings.spark_master:
        yield _engine(settings)
    cache = DiskCache.of(settings)
    if settings.s3_endpoint_url and not {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} & os.environ.keys():
        shown = _for_message(settings.s3_endpoint_url)
        told = f"not told of the S3 server; set AWS_ENDPOINT_URL={shown}, or their own options"
        yield Result("other programs", ABSENT, told)
    yield Result("disk cache", OK if cache.is_usable() or not cache.max_bytes else ABSENT, cache.described())
    try:
        if upgrade:
            from lakeops.catalog.open import open_catalog

            # A lake does not open on a catalog with an older schema.
            open_catalog(settings.catalog_url, clock=SystemClock(), upgrade=True).close()
        yield from _catalog()
    except LakeopsError as error:
        yield Result("catalog", PROBLEM, error.message)


def _catalog() -> Iterator[Result]:
    from lakeops.catalog.open import check_encoding
    from lakeops.lake import Lake

    with Lake.open() as lake:
        facts = lake.catalog.describe()
        for name, value in facts.items():
            yield Result(f"catalog {name}", OK, value)
        check_encoding(facts)
        for repository in lake.repositories():
            yield _storage(lake, repository)


def _engine(settings: Settings) -> Result:
    from lakeops.engine.spark.session import check_master

    try:
        check_master(settings.spark_master)
    except LakeopsError as error:
        return Result("engine", PROBLEM, error.message)
    return Result("engine", OK, f"Spark at {settings.spark_master or 'local[*]'} can be asked")


def _storage(lake: Lake, repository: Repository) -> Result:
    name = f"repository {repository.id}"
    try:
        found = lake.stores().at(repository.storage_namespace).probe()
        owner, ours = (None, True) if repository.read_only else repository.owner()
    except LakeopsError as error:
        return Result(name, PROBLEM, error.message)
    flaw = None if ours else _not_ours(owner)
    if flaw is None and not found.consistent_listing:
        flaw = "its listings do not show what was just written or deleted: objects would be lost; use another store"
    return Result(name, PROBLEM if flaw else OK, f"{repository.storage_namespace}: {flaw or found.summary}")


def _not_ours(owner: Owner | None) -> str:
    """Explain why this catalog must not write to a namespace that it does not own."""
    if owner is None:
        return (
            "it has no owner record; mount its disk, or if its files were moved, make this address lead to them again, "
            "for a directory by a link: otherwise lakeops begins a new, empty place in a bucket"
        )
    return (
        f"belongs to the catalog at {safe(owner.identity.shown)}; this catalog is a copy of it, or was moved: the "
        "other catalog may delete what you write here; use that one, or take over with `lakeops repo adopt`"
    )


def _java() -> Result:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if java is None:
        return Result("java", ABSENT, "not found on PATH; needed for Spark")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return Result("java", ABSENT, f"{java} does not run: {type(error).__name__}")
    quoted = re.search(r'"([^"]+)"', said)
    return Result("java", OK, f"{quoted[1] if quoted else said.splitlines()[0]} ({java})")


app: typer.Typer = typer.Typer(add_completion=False)


@command(app, "doctor", example="doctor")
def doctor(
    session: Session,
    upgrade: Annotated[bool, flag("--upgrade", "First bring the catalog's schema to this version.")] = False,
) -> None:
    """Try settings, catalog, stores and packages, and say what is wrong.

    The exit code is 1 when something is wrong.
    """
    results = [*environment(), *lake_results(upgrade=upgrade)]
    problems = sum(1 for result in results if result.status == PROBLEM)
    if session.as_json:
        session.document({"ok": not problems, "results": [result._asdict() for result in results]})
    else:
        header = ("", "Part", "Found")
        session.table(results, header, lambda one: ((one.status, STYLES[one.status]), one.name, one.detail))
        strange = sum(1 for result in results if result.status == ABSENT and result.name.startswith("setting "))
        names = "a name that is no setting" if strange == 1 else f"{strange} names that are no settings"
        said = (f"No problem found, but {names}.", "yellow") if strange else ("Everything is in order.", "green")
        session.note((f"{counted(problems, 'problem')} found.", "red") if problems else said)
    if problems:
        raise typer.Exit(1)
