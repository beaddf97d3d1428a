"""The command line: git-like verbs over ``lakefs://`` URIs.

An edge: it reads arguments, calls one verb of the core and prints what came of it. What it keeps true: with ``--json``
stdout is JSON and nothing else, no error ends in a traceback, exit codes mean what the documentation says, and a
command imports no more than it needs.
"""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run the command line that the process was started with, and leave with its exit code."""
    gc.disable()  # what imports make is there to stay: looking for garbage in it costs a tenth of a short command
    from lakeops.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # text files, if streams at all
    app(prog_name="lakeops")
