"""Branch protection: patterns of branches that change through merges only."""

from __future__ import annotations

from typing import Annotated

import typer

from lakeops.cli.options import Json, RepositoryUri
from lakeops.cli.output import Output
from lakeops.cli.session import open_lake

app = typer.Typer()

Pattern = Annotated[
    str, typer.Argument(metavar="PATTERN", help="A branch name, or a glob like 'release-*'.", show_default=False)
]


class Protection(str):
    """A pattern as a record of its own."""

    __slots__ = ()

    def to_json(self) -> dict[str, str]:
        """The record's only key, as in lakeFS's API."""
        return {"pattern": str(self)}


@app.command("protect", epilog="Example: lakeops branch protect lakefs://flights main")
def protect(uri: RepositoryUri, pattern: Pattern, json: Json = False) -> None:
    """Let branches that match a pattern change through merges only."""
    out = Output(json)
    with open_lake(out) as lake:
        lake.repository(uri.only_repository()).protect(pattern)
    out.answer(Protection(pattern), ["Branches that match ", (pattern, "green"), " now change through merges only"])


@app.command("unprotect")
def unprotect(uri: RepositoryUri, pattern: Pattern, json: Json = False) -> None:
    """Drop a protection pattern."""
    out = Output(json)
    with open_lake(out) as lake:
        lake.repository(uri.only_repository()).unprotect(pattern)
    out.answer(Protection(pattern), ["Pattern ", (pattern, "green"), " no longer protects branches"])


@app.command("protections")
def protections(uri: RepositoryUri, json: Json = False) -> None:
    """List the patterns of protected branches."""
    out = Output(json)
    with open_lake(out) as lake:
        patterns = lake.repository(uri.only_repository()).protections()
    out.table(map(Protection, patterns), ("Pattern",), lambda pattern: ((pattern, "cyan"),))
