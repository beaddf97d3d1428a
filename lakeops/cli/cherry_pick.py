"""``lakeops cherry-pick``: do on one branch what a commit did on another."""

from __future__ import annotations

import typer

from lakeops.cli.options import BranchUri, Json, NoProgress, ParentNumber, RefUri, two_refs
from lakeops.cli.output import Output
from lakeops.cli.session import open_lake

app = typer.Typer(add_completion=False)


@app.command("cherry-pick", epilog="Example: lakeops cherry-pick lakefs://flights/dev~1 lakefs://flights/main")
def cherry_pick(
    ref: RefUri,
    destination: BranchUri,
    parent_number: ParentNumber = None,
    no_progress: NoProgress = False,
    json: Json = False,
) -> None:
    """Apply what one commit did onto a branch, with a new commit."""
    out = Output(json)
    repository_id, picked, name = two_refs(ref, destination)
    with open_lake(out, f"Picking {picked} onto {name}", hide_progress=no_progress) as lake:
        commit = lake.repository(repository_id).cherry_pick(picked, name, parent_number)
    out.answer(commit, ["Picked ", picked, " onto ", (name, "green"), ": commit ", (commit.id, "yellow")])
