"""``lakeops mirror registrations`` and ``drop``: mirrors as their source knows them."""

from __future__ import annotations

from typing import Annotated

import typer

from lakeops.cli.ask import agree
from lakeops.cli.options import Json, RepositoryUri, Yes
from lakeops.cli.output import Output
from lakeops.cli.session import open_lake
from lakeops.cli.text import counted, moment
from lakeops.model.errors import NotFound

app = typer.Typer(add_completion=False)


@app.command("registrations")
def registrations(uri: RepositoryUri, json: Json = False) -> None:
    """At the source: list the mirrors that report, and how many commits are kept for them."""
    out = Output(json)
    with open_lake(out) as lake:
        out.table(
            lake.repository(uri.only_repository()).registrations(),
            ("Mirror", "Last report", "Commits kept"),
            lambda found: ((found.id, "cyan"), moment(found.at), f"{len(found.commits):,}"),
        )


@app.command("drop")
def drop(
    uri: RepositoryUri,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As listed by registrations.", show_default=False)],
    yes: Yes = False,
    json: Json = False,
) -> None:
    """At the source: keep nothing any more for a mirror that is gone. One that is alive reports again."""
    out = Output(json)
    with open_lake(out) as lake:
        repository = lake.repository(uri.only_repository())
        found = next((one for one in repository.registrations() if one.id == name), None)
        if found is None:
            raise NotFound(f"no mirror {name!r} has reported to repository {repository.id!r}")
        kept = counted(len(found.commits), "commit")
        agree(
            out, yes, f"Keep nothing for {name!r}?", lambda: out.say(f"{kept} may expire then; a living mirror breaks.")
        )
        repository.drop_registration(name)
    out.answer(found, ["Nothing is kept for ", (name, "green"), " any more"])
