"""``lakeops audit``: who changed what, and when."""

from __future__ import annotations

from typing import Annotated

import typer

from lakeops.cli.options import AMOUNT, uri, value
from lakeops.cli.output import SHORT_ID
from lakeops.cli.session import Session, command
from lakeops.model.records import AuditRecord
from lakeops.model.uris import LakeUri
from lakeops.model.words import moment

_COMMIT_ID = 64

app: typer.Typer = typer.Typer(add_completion=False)


@command(app, "audit", example="audit lakefs://flights --since 2026-01-01 --actor ada")
def audit(
    session: Session,
    where: Annotated[LakeUri | None, uri("[lakefs://REPO]", "Only this repository, which may be deleted.")] = None,
    since: Annotated[str | None, value("--since", "TIME", "Not before this, such as 2026-01-31.")] = None,
    until: Annotated[str | None, value("--until", "TIME", "Before this.")] = None,
    actor: Annotated[str | None, value("--actor", "NAME", "Only what this user or database login did.")] = None,
    amount: Annotated[int | None, value(AMOUNT, "N", "At most this many records.", min=0)] = None,
) -> None:
    """Show who changed what, newest first: of one repository, or of all."""
    repository = None if where is None else where.only_repository()
    for record in session.lake.audit(repository, since=since, until=until, actor=actor, amount=amount):
        session.answer(
            record,
            [
                moment(record.at)[:19],
                "  ",
                record.action.ljust(18),
                " ",
                (_describe_place(record), "cyan"),
                _change(record),
            ],
            ["    by ", (record.actor, "green"), *_other_names(record)],
        )


def _describe_place(record: AuditRecord) -> str:
    names = [record.repository, *((record.kind, record.ref) if record.kind != "repository" else ())]
    return " ".join(name for name in names if name)


def _change(record: AuditRecord) -> str:
    if record.before is None and record.after is None:
        return ""
    return f": {_shortened(record.before)} -> {_shortened(record.after)}"


def _shortened(text: str | None) -> str:
    """A commit id in short, anything else as it is."""
    if text is None:
        return "-"
    return text[:SHORT_ID] if len(text) == _COMMIT_ID and text.isalnum() else text


def _other_names(record: AuditRecord) -> list[str]:
    """The login, where somebody else is the actor, and the name that was only claimed."""
    login = [f" (login {record.login})"] if record.login != record.actor else []
    return [*login, f" (claimed: {record.claimed})"] if record.claimed else login
