"""``lakeops fs``: objects at a ref."""

from __future__ import annotations

import typer

from lakeops.cli import download, objects, upload

app = typer.Typer(help="Upload, download, list and remove objects.", add_completion=False)

for part in (upload, download, objects):
    app.add_typer(part.app)
