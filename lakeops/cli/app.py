"""The tree of commands: which file each one is in. A file is imported when one of its commands is asked for."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lakeops.cli.late import LateCommands
from lakeops.cli.options import Json
from lakeops.cli.output import Output
from lakeops.cli.root import USAGE, Root
from lakeops.version import __version__

HELP = """Git for an object store: branches, atomic commits and merges for data.

Everything is named by URIs: lakefs://REPO, lakefs://REPO/REF, lakefs://REPO/REF/PATH.
A ref is a branch, a tag or a commit id, with Git's steps to its ancestors: main~2, v1^.
"""
EPILOG = """First steps:

  lakeops repo create lakefs://flights
  lakeops branch create lakefs://flights/dev --source lakefs://flights/main
  lakeops fs upload -s day1.csv lakefs://flights/dev/raw/day1.csv
  lakeops commit lakefs://flights/dev -m "load day 1"
  lakeops merge lakefs://flights/dev lakefs://flights/main

Exit codes: 0 ok, 1 error, 2 usage, 3 conflict, 4 not found, 5 precondition failed."""

REPOSITORIES = "Repositories, branches and tags"
OBJECTS = "Objects"
HISTORY = "Changes and history"
HOUSE = "Housekeeping"

COMMANDS = LateCommands(
    {
        "repo": REPOSITORIES,
        "branch": REPOSITORIES,
        "tag": REPOSITORIES,
        "fs": OBJECTS,
        "import": OBJECTS,
        "commit": HISTORY,
        "diff": HISTORY,
        "merge": HISTORY,
        "cherry-pick": HISTORY,
        "log": HISTORY,
        "show": HISTORY,
        "merge-base": HISTORY,
        "reflog": HISTORY,
        "gc": HOUSE,
        "mirror": HOUSE,
        "fsck": HOUSE,
        "doctor": HOUSE,
        "config": HOUSE,
    }
)


class Lakeops(Root):
    """The root of all commands."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - what typer passes on
        super().__init__(**options)
        self.commands = COMMANDS

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override] # noqa: ARG002 - typer's signature
        """The commands' names, without importing them."""
        return list(COMMANDS)


app = typer.Typer(cls=Lakeops, help=HELP, epilog=EPILOG, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def lakeops(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", metavar="", help="Show the version.")] = False,
    json: Json = False,
) -> None:
    """What comes before the command."""
    if version:
        Output(json).answer({"version": __version__}, [f"lakeops {__version__}"])
    elif context.invoked_subcommand is None:
        if json:
            context.fail("Missing command.")
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(USAGE)
