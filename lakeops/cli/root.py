"""Where every command ends: its error as one line or one JSON document, and its exit code.

Nothing below prints an error or decides an exit code by itself. A traceback is shown only for an error that nobody
expected, and only with ``LAKEOPS_DEBUG=1``.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from lakeops.cli.output import Output, Part, StdoutClosed
from lakeops.model.errors import LakeopsError, MergeConflict

INTERRUPTED = 130
PIPE_CLOSED = 141
USAGE = 2

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


class Root(TyperGroup):
    """The outermost command group. It never lets an exception out, only an exit code."""

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
        out = Output("--json" in given)
        try:
            code = super().main(given, prog_name, complete_var, False, windows_expand_args, **extra)
            out.flush()
            if code == INTERRUPTED:
                out.fail({"kind": "interrupted", "message": "interrupted"})
        except Exception as error:  # noqa: BLE001 - the last place that can turn it into a message
            _drop_unwritten()
            code = _report(out, error)
            _drop_unwritten()
        sys.exit(code or 0)


def _report(out: Output, error: Exception) -> int:
    try:
        return _explain(out, error)
    except StdoutClosed:
        return PIPE_CLOSED


def _explain(out: Output, error: Exception) -> int:
    """Print what went wrong; returns the exit code."""
    match error:
        case StdoutClosed():
            raise error
        case LakeopsError():
            out.fail(error.to_json(), _details(error))
            return error.exit_code
        case typer.Abort():
            out.fail({"kind": "aborted", "message": "aborted; nothing was changed"})
            return 1
        case typer.TyperException():
            out.fail({"kind": "usage", "message": _usage(error)})
            return error.exit_code
    if os.environ.get("LAKEOPS_DEBUG"):
        traceback.print_exception(error)
    message = f"unexpected {type(error).__name__}: {error}".splitlines()[0]
    out.fail({"kind": "internal", "message": _CREDENTIALS.sub("***@", message)})
    if not os.environ.get("LAKEOPS_DEBUG"):
        out.note("LAKEOPS_DEBUG=1 shows where it happened.")
    return 1


def _details(error: LakeopsError) -> list[Sequence[Part]]:
    if isinstance(error, MergeConflict):
        return [((("! conflict", "magenta"), " ", path)) for path in error.conflicts]
    return []


def _usage(error: typer.TyperException) -> str:
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message} Try '{context.command_path} --help'."


def _drop_unwritten() -> None:
    """Let the interpreter end in silence: what stdout did not take (a closed pipe, a full disk) goes nowhere.

    The interpreter flushes once more at its end, and would overrule the exit code when that fails again.
    """
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, sys.stdout.fileno())
        except OSError:  # a stdout without a file behind it, as in an embedding program
            pass
        finally:
            os.close(nowhere)
