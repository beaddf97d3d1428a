"""``lakeops mirror``: read-only copies of repositories elsewhere, and what brings their objects there."""

from __future__ import annotations

import typer

from lakeops.cli import mirror_copy, mirror_setup

app = typer.Typer(help="Keep read-only copies of repositories elsewhere.", add_completion=False)

for part in (mirror_copy, mirror_setup):
    app.add_typer(part.app)
