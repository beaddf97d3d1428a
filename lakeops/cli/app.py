"""The tree of commands. It imports a command's module when the command is asked for, so no command pays for others.

Every command ends here, with an exit code, and its error as one line or JSON document. A traceback is shown only for an
unexpected error, and only with ``LAKEOPS_DEBUG=1``.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TextIO

import typer
import typer.main
from typer.core import TyperGroup

from lakeops.cli.options import BadArgument, Json, parsed, value
from lakeops.cli.output import Printer, StdoutClosed, StdoutFailed
from lakeops.model.errors import LakeopsError, MergeConflict, out_of_resources
from lakeops.model.names import given_place
from lakeops.model.sanitising import masked
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

PANELS = {
    "Repositories, branches and tags": "repo branch tag:branch protection:branch",
    "Objects": "fs import:history local gateway:serve",
    "Changes and history": "commit:history diff:changes merge:changes cherry-pick:changes log:history bisect "
    "blame:history history show:history reflog:history check:branch hook:repo ui:serve",
    "Housekeeping": "gc mirror fsck:upkeep audit:history doctor config:doctor",
    "Rarely needed": "merge-base:history refs:upkeep db:upkeep cache:upkeep",
}
"""The commands of each panel of the help page, with their modules where these have other names."""
MODULES = {
    name: (module or name, panel)
    for panel, commands in PANELS.items()
    for name, _, module in (command.partition(":") for command in commands.split())
}
"""The module in ``lakeops.cli`` and the panel of each command."""

_MEANT = {
    "diff, local status": "status",
    "fs upload": "add stage",
    "local commit": "push",
    "local pull": "pull",
    "local pull, mirror sync": "fetch",
    "local checkout, local clone": "checkout",
    "local checkout": "switch",
    "branch create": "stash rename",
    "merge": "rebase squash",
    "fs cp, branch reset, gc restore, refs restore": "restore",
    "branch reset": "reset",
    "mirror list": "remote",
    "fs ls": "grep",
    "repo list, branch list, fs ls": "list",
    "show commit": "describe",
    "local clone": "worktree",
    "repo create, local init": "init",
    "import": "ingest",
    "blame": "annotate",
    "db grants": "auth users permissions",
    "config show": "identity whoami login set get",
    "hook list": "actions runs",
    "gateway": "metastore",
    "refs dump": "refs-dump",
    "refs restore": "refs-restore",
    "merge-base": "find-merge-base",
    "protection add, protection list": "branch-protect",
    "protection delete": "unprotect unrequire",
    "protection list": "protections requirements",
    "protection add": "require",
    "gc rules get": "get-config",
    "gc rules set": "set-config",
    "gc rules delete": "delete-config",
    "gc mark, gc sweep": "run",
    "--help": "help docs",
    "--version": "version",
    "--install-completion": "completion",
}
OTHER_WORDS = {word: meant for meant, words in _MEANT.items() for word in words.split()}
"""Names of git and lakectl for commands, with the commands that do it here."""

INTERRUPTED = 130
PIPE_CLOSED = 141
USAGE = 2

CONFIG = "LAKEOPS_CONFIG"


class Root(TyperGroup):
    """The outermost command group. It never lets an exception out, only an exit code."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - what typer passes on
        super().__init__(**options)
        self.commands: dict[str, Any] = dict.fromkeys(MODULES)  # each is imported when it is first asked for

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override] # noqa: ARG002 - typer's signature
        """The commands' names, without importing them."""
        return list(self.commands)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override] # noqa: ANN401, ARG002
        """The command of a name, imported now. None when there is none."""
        if cmd_name in MODULES and self.commands[cmd_name] is None:
            name, panel = MODULES[cmd_name]
            module = import_module(f"lakeops.cli.{name}")
            found: Any = typer.main.get_command(getattr(module, f"{cmd_name}_group", module.app))
            # ``app`` is a group that is called like the command, or it holds several commands.
            found = getattr(found, "commands", {}).get(cmd_name, found)
            found.name = cmd_name
            found.rich_help_panel = panel  # typer reads it from any command
            self.commands[cmd_name] = found
        return self.commands.get(cmd_name)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002 - this group always ends the process itself
        windows_expand_args: bool = True,
        **extra: Any,  # noqa: ANN401 - the signature is typer's
    ) -> NoReturn:
        """Run a command line and leave with its exit code."""
        given = list(sys.argv[1:] if args is None else args)
        end = given.index("--") if "--" in given else len(given)
        given[:end] = ["--pre-sign=true" if word == "--pre-sign" else word for word in given[:end]]
        out = Printer("--json" in given[:end])
        try:
            code = super().main(given, prog_name, complete_var, False, windows_expand_args, **extra)
            out.flush()
            if code == INTERRUPTED:
                out.fail({"kind": "interrupted", "message": "interrupted"})
        except SystemExit as left:  # also raised by typer and rich, for a help page that nobody reads
            code = PIPE_CLOSED if isinstance(left.__context__, BrokenPipeError) else left.code
        except Exception as error:  # noqa: BLE001 - the last place that can turn it into a message
            lost = _drop_unwritten(sys.stdout)
            if lost and isinstance(error, OSError):  # typer writes help pages itself
                error = StdoutFailed(error.strerror)
            code = _report(out, error)
        _drop_unwritten(sys.stderr)
        sys.exit(code or 0)


app: typer.Typer = typer.Typer(cls=Root, help=HELP, epilog=EPILOG, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def lakeops(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", metavar="", help="Show the version.")] = False,
    config: Annotated[
        Path | None, value("--config", "FILE", "Take settings from this file.", parser=parsed(given_place))
    ] = None,
    engine: Annotated[
        Literal["auto", "local", "spark"] | None,
        typer.Option(help="Where heavy work runs, in place of what the settings say.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Take the options that stand before the command."""
    for name, chosen in ((CONFIG, None if config is None else str(config)), ("LAKEOPS_ENGINE", engine)):
        if chosen is not None:  # child processes, such as Spark's, take the same settings
            before = {} if name not in os.environ else {name: os.environ[name]}
            context.call_on_close(partial(os.environ.update, before))
            context.call_on_close(partial(os.environ.pop, name, None))  # the last one is called first
            os.environ[name] = chosen
    if version:
        Printer(json).answer({"version": __version__}, [f"lakeops {__version__}"])
    elif context.invoked_subcommand is None:
        if json:
            context.fail("Missing command.")
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(USAGE)


def _report(out: Printer, error: Exception) -> int:
    try:
        code = _explain(out, error)
        out.flush()
    except StdoutClosed:
        _drop_unwritten(sys.stdout)
        return PIPE_CLOSED
    except StdoutFailed:  # the report, as JSON, had to go there
        _drop_unwritten(sys.stdout)
        return _explain(Printer(as_json=False), error)
    return code


def _explain(out: Printer, error: Exception) -> int:
    """Print what went wrong. Returns the exit code."""
    error = out_of_resources(error) or error
    match error:
        case StdoutClosed():
            raise error
        case StdoutFailed():
            words = f"stdout cannot be written: {error}; what the command has done is done"
            Printer(as_json=False).fail({"message": words})
            return 1
        case BadArgument(__cause__=Exception() as cause):
            return _explain(out, cause)
        case LakeopsError():
            conflicts = error.conflicts if isinstance(error, MergeConflict) else ()
            out.fail(error.to_json(), [(("! conflict", "magenta"), " ", path) for path in conflicts])
            return error.exit_code
        case typer.Abort():
            out.fail({"kind": "aborted", "message": "aborted; nothing was changed"})
            return 1
        case typer.TyperException():
            context = getattr(error, "ctx", None)
            message = _advised(" ".join(error.format_message().split()), context)
            end = "" if message.endswith((".", "?")) else "."
            advice = "" if context is None else f"{end} Try '{context.command_path} --help'."
            out.fail({"kind": "usage", "message": message + advice})
            return error.exit_code
    if os.environ.get("LAKEOPS_DEBUG"):
        traceback.print_exception(error)
    message = f"unexpected {type(error).__name__}: {error}".splitlines()[0]
    out.fail({"kind": "internal", "message": masked(message)})
    if not os.environ.get("LAKEOPS_DEBUG"):
        out.note("LAKEOPS_DEBUG=1 shows where it happened.")
    return 1


def _advised(message: str, context: typer.Context | None) -> str:
    """Name the commands that an unknown one may mean: git's or lakectl's word, or a command of another group."""
    word = message.removeprefix("No such command '").partition("'")[0]
    if context is None or not message.startswith("No such command"):
        return message
    root: Any = context.find_root().command
    groups = [one for one in MODULES if word in getattr(root.get_command(context, one), "commands", {})]
    meant = OTHER_WORDS[word].split(", ") if word in OTHER_WORDS else [f"{group} {word}" for group in groups]
    return f"No such command {word!r}. Did you mean {', '.join(map(repr, meant))}?" if meant else message


def _drop_unwritten(stream: TextIO) -> bool:
    """Drop text that a stream did not take, because a pipe was closed or a disk is full. Returns whether there was any.

    The interpreter flushes once more at its end, and a second failure would change the exit code.
    """
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with suppress(OSError):  # a stream without a file behind it, as in an embedding program
            os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return True
    return False
