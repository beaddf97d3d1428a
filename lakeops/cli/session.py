"""Opening the lake for one command. The core is imported here, late: ``--help`` and completion go without it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakeops.cli.output import Output
from lakeops.cli.progress import watched

if TYPE_CHECKING:
    from lakeops.lake import Lake


@contextmanager
def open_lake(out: Output, label: str = "", *, hide_progress: bool = True) -> Iterator[Lake]:
    """The lake that the settings name; ``label`` says what long work shows progress of, unless it is hidden."""
    from lakeops.lake import Lake

    if not gc.isenabled():  # main() switched it off for the imports, which are done now
        gc.freeze()
        gc.enable()
    with Lake.open() as lake, watched(out, label, hidden=hide_progress) as report:
        lake.progress = report
        yield lake
