"""``lakeops merge``: bring what one branch changed to another, whole or not at all."""

from __future__ import annotations

from typing import Annotated

import typer

from lakeops.cli.options import (
    IdempotencyKey,
    Json,
    Metadata,
    NoProgress,
    parse_metadata,
    two_refs,
    uri,
)
from lakeops.cli.output import Output
from lakeops.cli.session import open_lake
from lakeops.model.records import Strategy
from lakeops.model.uris import LakeUri

app = typer.Typer(add_completion=False)


@app.command("merge", epilog="Example: lakeops merge lakefs://flights/dev lakefs://flights/main")
def merge(
    source: Annotated[LakeUri, uri("lakefs://REPO/SOURCE", "Any ref.")],
    destination: Annotated[LakeUri, uri("lakefs://REPO/DEST", "The branch that takes the changes.")],
    strategy: Annotated[
        Strategy | None, typer.Option(help="The side that settles every conflict.", show_default=False)
    ] = None,
    message: Annotated[
        str | None, typer.Option("--message", "-m", metavar="TEXT", help="The commit's message.", show_default=False)
    ] = None,
    meta: Metadata = None,
    idempotency_key: IdempotencyKey = None,
    no_progress: NoProgress = False,
    json: Json = False,
) -> None:
    """Merge what a ref changed into a branch.

    When both sides changed the same paths, nothing is published and all of them are listed.
    """
    out = Output(json)
    repository_id, ref, name = two_refs(source, destination)
    with open_lake(out, f"Merging {ref} into {name}", hide_progress=no_progress) as lake:
        result = lake.repository(repository_id).merge(
            ref,
            name,
            strategy=strategy,
            message=message,
            metadata=parse_metadata(meta),
            idempotency_key=idempotency_key,
        )
    if result.up_to_date:
        out.answer(result, ["Already up to date: ", (name, "green"), " has all of ", ref])
        return
    summary = result.summary
    out.answer(
        result,
        ["Merged ", ref, " into ", (name, "green"), ": commit ", (result.reference or "", "yellow")],
        ["Summary: ", (f"{summary.added:,} added", "green"), ", ", (f"{summary.removed:,} removed", "red"), ", ",
         (f"{summary.changed:,} changed", "yellow")],
    )  # fmt: skip
