"""``lakeops mirror registrations`` and ``drop``: mirrors as their source knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli.options import Json, RepositoryUri, Yes
from lakeops.cli.output import Output, counted, moment, span
from lakeops.cli.session import agree, open_lake
from lakeops.model.errors import NotFound

if TYPE_CHECKING:
    from lakeops.model.mirrors import Registration

app = typer.Typer(add_completion=False)


@app.command("registrations")
def registrations(uri: RepositoryUri, json: Json = False) -> None:
    """At the source: list the mirrors that report, those that reported longest ago first, and what is kept for them.

    One that is gone keeps its commits until it is dropped.
    """
    out = Output(json)
    with open_lake(out) as lake:
        registered = lake.repository(uri.only_repository()).registrations()
        now = int(lake.catalog.now().timestamp())
        oldest_first = sorted(registered, key=lambda one: (one.at, one.id))
        out.table(
            oldest_first,
            ("Mirror", "Last report", "Commits kept"),
            lambda one: ((one.id, "cyan"), _age(one, now), f"{len(one.commits):,}"),
        )


def _age(one: Registration, now: int) -> str:
    return f"{moment(one.at)} ({span(max(0, now - one.at))} ago)"


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
