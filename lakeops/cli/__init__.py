"""The command line: git-like verbs over ``lakefs://`` URIs.

An edge: it reads arguments, calls one verb of the core and prints what came of it. What it keeps true: with ``--json``
stdout is JSON and nothing else, no error ends in a traceback, exit codes mean what the documentation says, and a
command imports no more than it needs.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from lakeops.machine import without_blas_threads


def main() -> None:
    """Run the command line that the process was started with, and leave with its exit code."""
    gc.disable()  # what imports make is there to stay: looking for garbage in it costs a tenth of a short command
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # or it would look for some in every package there is
    try:
        _open_streams()
        from lakeops.cli.app import app

        with without_blas_threads():
            app(prog_name="lakeops")
    except KeyboardInterrupt:  # before a command has begun, or after it has ended
        sys.exit(130)


def _open_streams() -> None:
    """Let any text be printed, whatever the terminal's encoding, and take a missing stream for an empty file."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started the process
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - open until the end
        elif mode == "w":
            stream.reconfigure(errors="backslashreplace")
