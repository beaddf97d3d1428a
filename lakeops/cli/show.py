"""``lakeops show``: one thing in full."""

from __future__ import annotations

import typer

from lakeops.cli.log import commit_lines
from lakeops.cli.options import Json, RefUri
from lakeops.cli.output import Output
from lakeops.cli.session import open_lake

app = typer.Typer(add_completion=False)


@app.callback()
def show() -> None:
    """Show one thing in full."""


@app.command("commit")
def show_commit(at: RefUri, json: Json = False) -> None:
    """Show the commit that a ref means."""
    out = Output(json)
    repository_id, ref = at.only_ref()
    with open_lake(out) as lake:
        commit = lake.repository(repository_id).ref(ref).commit
    out.answer(
        commit,
        *commit_lines(commit),
        [""],
        ["Generation: ", str(commit.generation)],
        ["Metarange:  ", commit.meta_range_id],
        *(("Parent:     ", (parent, "yellow")) for parent in commit.parents),
    )
