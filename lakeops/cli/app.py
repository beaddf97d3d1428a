"""The tree of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from lakeops.cli import branch, commit, config, diff, doctor, download, fs, history, merge, protect, repo, tag, upload
from lakeops.cli.options import Json
from lakeops.cli.output import Output
from lakeops.cli.root import USAGE, Root
from lakeops.version import __version__

HELP = """Git for an object store: branches, atomic commits and merges for data.

Everything is named by URIs: lakefs://REPO, lakefs://REPO/REF, lakefs://REPO/REF/PATH. A ref is a branch, a tag or a
commit id, with Git's steps to its ancestors: main~2, v1^.
"""
EPILOG = """First steps:

  lakeops repo create lakefs://flights
  lakeops branch create lakefs://flights/dev --source lakefs://flights/main
  lakeops fs upload -s day1.csv lakefs://flights/dev/raw/day1.csv
  lakeops commit lakefs://flights/dev -m "load day 1"
  lakeops merge lakefs://flights/dev lakefs://flights/main

Exit codes: 0 ok, 1 error, 2 usage, 3 conflict, 4 not found, 5 precondition failed."""

app = typer.Typer(cls=Root, help=HELP, epilog=EPILOG, pretty_exceptions_enable=False)

REPOSITORIES = "Repositories, branches and tags"
OBJECTS = "Objects"
HISTORY = "Changes and history"
HOUSE = "Housekeeping"

branch.app.add_typer(protect.app)
fs.app.add_typer(upload.app)
fs.app.add_typer(download.app)
for group, name, panel in (
    (repo.app, "repo", REPOSITORIES),
    (branch.app, "branch", REPOSITORIES),
    (tag.app, "tag", REPOSITORIES),
    (fs.app, "fs", OBJECTS),
    (history.show_app, "show", HISTORY),
    (config.app, "config", HOUSE),
):
    app.add_typer(group, name=name, rich_help_panel=panel)
for command, name, panel in (
    (commit.commit, "commit", HISTORY),
    (diff.diff, "diff", HISTORY),
    (merge.merge, "merge", HISTORY),
    (merge.cherry_pick, "cherry-pick", HISTORY),
    (history.merge_base, "merge-base", HISTORY),
    (history.log, "log", HISTORY),
    (history.reflog, "reflog", HISTORY),
    (doctor.doctor, "doctor", HOUSE),
):
    app.command(name, rich_help_panel=panel)(command)


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
