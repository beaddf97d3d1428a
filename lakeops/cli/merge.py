"""``lakeops merge`` and ``cherry-pick``: bringing changes from one branch to another."""

from __future__ import annotations

from typing import Annotated

import typer

from lakeops.cli.options import (
    BranchUri,
    IdempotencyKey,
    Json,
    Metadata,
    NoProgress,
    ParentNumber,
    RefUri,
    parse_metadata,
    two_refs,
    uri,
)
from lakeops.cli.output import Output
from lakeops.cli.session import open_lake
from lakeops.model.records import Strategy
from lakeops.model.uris import LakeUri


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
    with open_lake(out, hide_progress=no_progress) as lake:
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
    with open_lake(out, hide_progress=no_progress) as lake:
        commit = lake.repository(repository_id).cherry_pick(picked, name, parent_number)
    out.answer(commit, ["Picked ", picked, " onto ", (name, "green"), ": commit ", (commit.id, "yellow")])
