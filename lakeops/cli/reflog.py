"""``lakeops reflog``: where branches and tags pointed before."""

from __future__ import annotations

from typing import Annotated

import typer

from lakeops.cli.options import Json, uri
from lakeops.cli.output import SHORT_ID, Output, moment
from lakeops.cli.session import open_lake
from lakeops.model.records import ReflogRecord
from lakeops.model.uris import LakeUri

app = typer.Typer(add_completion=False)


@app.command("reflog")
def reflog(
    where: Annotated[LakeUri, uri("lakefs://REPO[/REF]", "A repository, or one of its branches or tags.")],
    amount: Annotated[int, typer.Option("--amount", "-n", min=0, metavar="N", help="At most this many moves.")] = 1000,
    json: Json = False,
) -> None:
    """Show where branches and tags pointed before, newest first."""
    out = Output(json)
    name = None if where.ref is None else where.only_ref()[1]
    with open_lake(out) as lake:
        moves = lake.repository(where.repository).reflog(name, limit=amount)
    if json:
        for move in moves:
            out.document(_to_json(move))
        return
    for move in moves:
        was = f" (was {move.old[:SHORT_ID]})" if move.old and move.new else ""
        to = move.new or move.old or ""
        out.line(
            (to[:SHORT_ID], "yellow"), "  ", moment(move.at)[:19], "  ", move.action.ljust(17), "  ",
            (move.ref, "cyan"), was, " by ", move.actor,
        )  # fmt: skip


def _to_json(move: ReflogRecord) -> dict[str, object]:
    return {
        "sequence": move.sequence,
        "ref": move.ref,
        "old": move.old,
        "new": move.new,
        "action": move.action,
        "actor": move.actor,
        "at": move.at,
    }
