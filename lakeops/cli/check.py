"""``lakeops check``: which checks a commit has passed. Branches may require them of what is merged."""

from __future__ import annotations

from typing import Annotated

import typer

from lakeops.cli.options import CheckName, RefUri, value
from lakeops.cli.session import Session, command
from lakeops.model.words import moment

app: typer.Typer = typer.Typer(help="Record and list the checks that a commit has passed.", add_completion=False)


@command(app, "pass", example="check pass lakefs://flights/dev quality")
def pass_(
    session: Session,
    at: RefUri,
    name: CheckName,
    by: Annotated[str | None, value("--by", "NAME", "Who says so, in place of the database login.")] = None,
) -> None:
    """Record that a commit has passed a check."""
    made = session.ref(at).pass_check(name, by=by)
    session.answer(made, [(made.commit_id, "yellow"), " has passed ", (made.name, "green"), ", says ", made.passed_by])


@command(app, "withdraw")
def withdraw(session: Session, at: RefUri, name: CheckName) -> None:
    """Forget that a commit has passed a check."""
    ref = session.ref(at)
    commit = ref.commit_id
    ref.withdraw_check(name)
    session.answer({"commit_id": commit, "name": name}, [(commit, "yellow"), " has no longer passed ", (name, "green")])


@command(app, "list")
def list_all(session: Session, at: RefUri) -> None:
    """List the checks that a commit has passed."""
    found = session.ref(at).passed_checks()
    session.table(found, ("Check", "By", "At"), lambda one: ((one.name, "cyan"), one.passed_by, moment(one.at)[:19]))
