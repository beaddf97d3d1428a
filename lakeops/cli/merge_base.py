"""``lakeops merge-base``: where two refs parted."""

from __future__ import annotations

import typer

from lakeops.cli.log import commit_lines
from lakeops.cli.options import Json, RefUri, two_refs
from lakeops.cli.output import Output
from lakeops.cli.session import open_lake

app = typer.Typer(add_completion=False)


@app.command("merge-base")
def merge_base(left: RefUri, right: RefUri, json: Json = False) -> None:
    """Show the best common ancestor of two refs."""
    out = Output(json)
    repository_id, one, other = two_refs(left, right)
    with open_lake(out) as lake:
        commit = lake.repository(repository_id).merge_base(one, other)
    out.answer(commit, *commit_lines(commit))
