"""The command line as a process of its own that need not load libraries: nearly all of what a short command costs.

A server of this test process has them loaded and forks for each command. Nothing of the command line itself is loaded
there. So each command looks at its own environment, streams and terminal, as a new process does.
"""

import multiprocessing
import os
import runpy
import sys
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

LIBRARIES = [
    "lakeops.lake", "pyarrow.compute", "pyarrow.parquet", "rich.console", "rich.progress", "rich.table",
    "sqlalchemy.dialects.sqlite", "typer",
]  # fmt: skip
"""What commands import. None of it looks at the environment or a terminal when it is imported."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(LIBRARIES)


def start_on_terminal(args: tuple[str, ...], terminal: int, environment: dict[str, str]) -> BaseProcess:
    """Start ``lakeops`` in the present directory, with all its streams on an open terminal."""
    # A connection is what multiprocessing knows to hand over; any descriptor may be in it.
    with Connection(os.dup(terminal)) as streams:
        process = CONTEXT.Process(target=_run, args=(streams, args, environment, Path.cwd()), daemon=True)
        process.start()
    return process


def _run(streams: Connection, args: tuple[str, ...], environment: dict[str, str], place: Path) -> None:
    for number in range(3):
        os.dup2(streams.fileno(), number)
    streams.close()
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(place)
    sys.argv = ["lakeops", *args]
    runpy.run_module("lakeops", run_name="__main__")
