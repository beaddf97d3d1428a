"""``lakeops gc``: retention rules, and taking away what no live commit needs."""

from __future__ import annotations

import typer

from lakeops.cli import gc_rules

app = typer.Typer(help="Set retention rules, and delete what no live commit needs.", add_completion=False)
app.add_typer(gc_rules.app, name="rules")


@app.callback()
def gc() -> None:
    """Set retention rules, and delete what no live commit needs."""
