"""``lakeops log``: the commits that lead to a ref."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from lakeops.cli.options import Json, RefUri
from lakeops.cli.output import SHORT_ID, Output, Part, moment
from lakeops.cli.session import open_lake
from lakeops.model.records import Commit

app = typer.Typer(add_completion=False)


@app.command("log", epilog="Example: lakeops log lakefs://flights/main --amount 5")
def log(
    at: RefUri,
    amount: Annotated[
        int | None,
        typer.Option("--amount", "-n", min=0, metavar="N", help="At most this many commits.", show_default=False),
    ] = None,
    first_parent: Annotated[
        bool, typer.Option("--first-parent", metavar="", help="Follow only the first parent of merge commits.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the commits that lead to a ref, newest first."""
    out = Output(json)
    repository_id, ref = at.only_ref()
    with open_lake(out) as lake:
        commits = lake.repository(repository_id).log(ref, first_parent=first_parent, amount=amount)
        commit = None
        for number, commit in enumerate(commits):
            if json:
                out.document(commit.to_json())
                continue
            if number:
                out.line()
            for parts in commit_lines(commit):
                out.line(*parts)
    if commit is not None and commit.parents and amount is None:
        out.note("History before this was pruned.")


def commit_lines(commit: Commit) -> Iterator[Sequence[Part]]:
    """A commit as ``git log`` shows one."""
    expired: Sequence[Part] = (" ", ("(expired)", "red")) if commit.expired else ()
    yield (("commit " + commit.id, "yellow"), *expired)
    if len(commit.parents) > 1:
        yield ("Merge:  " + " ".join(parent[:SHORT_ID] for parent in commit.parents),)
    yield ("Author: ", commit.committer)
    yield ("Date:   ", moment(commit.creation_date))
    yield ("",)
    for line in commit.message.splitlines() or [""]:
        yield ("    ", line)
    if commit.metadata:
        yield ("",)
        for key, value in sorted(commit.metadata.items()):
            yield ("    ", (key, "cyan"), " = ", value)
