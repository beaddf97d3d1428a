"""``lakeops commit``: publish a branch's uncommitted changes, whole or not at all."""

from __future__ import annotations

from typing import Annotated

import typer

from lakeops.cli.log import commit_lines
from lakeops.cli.options import BranchUri, IdempotencyKey, Json, Metadata, NoProgress, parse_metadata
from lakeops.cli.output import Output
from lakeops.cli.session import open_lake

app = typer.Typer(add_completion=False)


@app.command("commit", epilog='Example: lakeops commit lakefs://flights/dev -m "load day 1" --meta rows=842')
def commit(
    uri: BranchUri,
    message: Annotated[
        str, typer.Option("--message", "-m", metavar="TEXT", help="What was done and why.", show_default=False)
    ],
    meta: Metadata = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty-commit", metavar="", help="Commit even when nothing has changed.")
    ] = False,
    idempotency_key: IdempotencyKey = None,
    no_progress: NoProgress = False,
    json: Json = False,
) -> None:
    """Commit the uncommitted changes of a branch."""
    out = Output(json)
    repository_id, name = uri.only_ref()
    with open_lake(out, f"Committing {name}", hide_progress=no_progress) as lake:
        branch = lake.repository(repository_id).branch(name)
        done = branch.commit(message, parse_metadata(meta), idempotency_key=idempotency_key, allow_empty=allow_empty)
    out.answer(done, ["Committed to ", (name, "green"), ":"], [""], *commit_lines(done))
