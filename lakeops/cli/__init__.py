"""The command line: git-like verbs over ``lakefs://`` URIs.

A command reads arguments, calls one verb of the core and prints the result. With ``--json`` stdout is JSON and nothing
else. No error ends in a traceback. Exit codes mean what the documentation says. A command imports only what it needs.
"""

from __future__ import annotations

import gc as collector  # the package has a module gc
import os
import sys
from pathlib import Path

from lakeops.machine import without_blas_threads


def main() -> None:
    """Run the command line that the process was started with, and leave with its exit code."""
    collector.disable()  # what is imported stays alive: a search for garbage there takes a tenth of a short command
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # or it looks for some in every installed package
    try:
        _open_streams()
        from lakeops.cli.app import app

        with without_blas_threads():
            app(prog_name="lakeops")
    except KeyboardInterrupt:  # before a command has begun, or after it has ended
        sys.exit(130)
    finally:
        collector.freeze()  # or the interpreter looks through all that was imported once more at its end


def _open_streams() -> None:
    """Let any text be printed, whatever the terminal's encoding. A missing stream can be written and not read."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started the process
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open until the end
        elif name != "stdin":
            stream.reconfigure(errors="backslashreplace")
