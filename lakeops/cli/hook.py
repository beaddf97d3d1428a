"""``lakeops hook``: code of your own that runs before or after branches and tags change."""

from __future__ import annotations

from typing import Annotated

import typer

from lakeops.cli.options import RepositoryUri, value
from lakeops.cli.session import Session, command
from lakeops.model.hooks import ACTIONS, BEFORE, SECONDS

HookName = Annotated[
    str, typer.Argument(metavar="HOOK", help="An entry point in the group lakeops.hooks.", show_default=False)
]

app: typer.Typer = typer.Typer(help="Run code of your own before or after changes.", add_completion=False)


@command(app, "set", example="hook set lakefs://flights schema-check --on commit --on merge --ref main")
def set_one(
    session: Session,
    uri: RepositoryUri,
    name: HookName,
    when: Annotated[str, value("--when", "WHEN", "before: it can stop the change; or after.")] = BEFORE,
    on: Annotated[list[str] | None, value("--on", "ACTION", f"Beside what: {', '.join(ACTIONS)}.")] = None,
    ref: Annotated[str, value("--ref", "PATTERN", "Of which branches and tags: a name, or a glob.")] = "*",
    seconds: Annotated[int, value("--seconds", "N", "How long it may take.")] = SECONDS,
) -> None:
    """Let a hook run beside changes in every process, in place of one of its name."""
    hook = session.repository(uri).set_hook(name, when=when, actions=on or (), pattern=ref, seconds=seconds)
    what = ", ".join(hook.actions) or "every change"
    session.answer(hook, ["Hook ", (name, "green"), f" runs {when} {what} of ", hook.pattern])


@command(app, "list")
def list_all(session: Session, uri: RepositoryUri) -> None:
    """List the hooks of a repository."""
    session.table(
        session.repository(uri).hooks(),
        ("Hook", "When", "Beside", "Refs", "Seconds"),
        lambda hook: (
            (hook.name, "cyan"), hook.when, ", ".join(hook.actions) or "everything", hook.pattern, str(hook.seconds),
        ),
    )  # fmt: skip


@command(app, "remove")
def remove(session: Session, uri: RepositoryUri, name: HookName) -> None:
    """Let a hook run no longer."""
    session.repository(uri).remove_hook(name)
    session.answer({"name": name}, ["Hook ", (name, "green"), " no longer runs"])
