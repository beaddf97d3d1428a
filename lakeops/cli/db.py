"""``lakeops db``: what logins of the catalog's database may do."""

from __future__ import annotations

from typing import Annotated

import typer

from lakeops.cli.options import flag, value
from lakeops.cli.session import Session, command

app: typer.Typer = typer.Typer(help="Roles of a team, enforced by PostgreSQL.", add_completion=False)


@app.callback()
def group() -> None:
    """A group of its own, although it has one command."""


@command(app, "grants", example="db grants --role writer --login airflow --apply")
def grants(
    session: Session,
    role: Annotated[str, value("--role", "reader|writer|maintainer|mirror", "What the login may do.")],
    login: Annotated[str | None, value("--login", "NAME", "A login of the database.")] = None,
    repository: Annotated[
        list[str] | None, value("--repository", "REPO", "In this repository alone. May be given several times.")
    ] = None,
    apply: Annotated[bool, flag("--apply", "Run the statements. Otherwise they are only printed.")] = False,
) -> None:
    """Print the statements that let PostgreSQL enforce roles, and give one to a login."""
    catalog = session.lake.catalog
    places = repository or []
    statements = (catalog.grant_role if apply else catalog.role_statements)(role, login, places)
    session.answer(
        {"role": role, "login": login, "repositories": places, "applied": apply, "statements": statements},
        *([f"{statement};"] for statement in statements),
    )
    if apply:
        session.note(f"{len(statements)} statements were run.")
