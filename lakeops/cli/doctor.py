"""``lakeops doctor``: looks at everything a lake needs, and says what is wrong."""

from __future__ import annotations

from typing import Annotated

import typer

from lakeops.cli.options import Json
from lakeops.cli.output import Output
from lakeops.cli.text import counted

app = typer.Typer(add_completion=False)


@app.command("doctor")
def doctor(
    upgrade: Annotated[
        bool, typer.Option("--upgrade", metavar="", help="First bring the catalog's schema to this version.")
    ] = False,
    json: Json = False,
) -> None:
    """Check settings, catalog, stores and packages.

    Leaves with exit code 1 when something is wrong.
    """
    from lakeops.cli.checks import PROBLEM, STYLES, environment, lake_checks

    out = Output(json)
    checks = [*environment(), *lake_checks(upgrade=upgrade)]
    problems = sum(1 for check in checks if check.status == PROBLEM)
    if json:
        out.document({"ok": not problems, "checks": [check.to_json() for check in checks]})
    else:
        out.table(
            checks,
            ("", "Check", "Found"),
            lambda check: ((check.status, STYLES[check.status]), check.name, check.detail),
        )
        out.note(
            (f"{counted(problems, 'problem')} found.", "red") if problems else ("Everything is in order.", "green")
        )
    if problems:
        raise typer.Exit(1)
