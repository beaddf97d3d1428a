"""``lakeops blame`` and ``history``: who wrote what a ref shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from lakeops.cli.diff import SIGNS
from lakeops.cli.options import Amount, ObjectUri, uri, value
from lakeops.cli.output import SHORT_ID, Styled
from lakeops.cli.session import Session, command
from lakeops.model.changes import Version, Written
from lakeops.model.uris import LakeUri
from lakeops.model.words import moment

app: typer.Typer = typer.Typer(add_completion=False)
Depth = Annotated[int | None, value("--depth", "N", "Look at no more than this many commits.", min=0)]


@command(app, "blame", example="blame lakefs://flights/main/raw/", progress=True)
def blame(
    session: Session,
    under: Annotated[LakeUri, uri("lakefs://REPO/REF[/PREFIX]", "Where to look.")],
    after: Annotated[str, value("--after", "PATH", "Only what follows this path in byte order.")] = "",
    amount: Annotated[int | None, value("--amount -n", "N", "At most this many objects.", min=0)] = None,
    depth: Depth = None,
) -> None:
    """Show which commit wrote each object under a prefix.

    A caret before the commit says that an earlier one may have written the object: retention took what was before, or
    it lies deeper than --depth.
    """
    repository_id, ref, prefix = under.with_prefix()
    found = session.lake.repository(repository_id).ref(ref).blame(prefix, after=after, amount=amount, depth=depth)
    shown = session.awaited("Looking for writers", found)
    with session.paged():
        session.stream(shown, lambda one: (*_author_cells(one), "  ", one.path))


@command(app, "history", example="history lakefs://flights/main/raw/day1.csv", progress=True)
def history(session: Session, at: ObjectUri, amount: Amount = None, depth: Depth = None) -> None:
    """Show which commits wrote an object or removed it, newest first.

    There need not be an object at the ref now.
    """
    repository_id, ref, path = at.with_path()
    found = session.lake.repository(repository_id).ref(ref).history(path, amount=amount, depth=depth)
    shown = session.awaited("Looking for versions", found)
    with session.paged():
        session.stream(shown, _version)


def _version(one: Version) -> Iterable[Styled]:
    sign, colour = SIGNS[one.type]
    return (*_author_cells(one), "  ", (sign.ljust(9), colour), "  ", one.commit.message.partition("\n")[0])


def _author_cells(one: Written) -> Iterable[Styled]:
    """Commit, time, committer, and the DAG run with a link where there is one."""
    caret = "^" if one.boundary else " "
    who = f"  {moment(one.commit.creation_date)[:19]}  {one.commit.committer.ljust(12)}"
    run = one.dag_run
    made = "" if run is None else f"  {run['dag_id']} {run['run_id']}" + (f" {run['link']}" if run["link"] else "")
    return ((caret + one.commit.id[:SHORT_ID], "yellow"), who, (made, "cyan"))
