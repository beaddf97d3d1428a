"""Where Arrow takes memory from."""

from __future__ import annotations

import os
import sys

POOL = "ARROW_DEFAULT_MEMORY_POOL"
"""The variable that Arrow reads when it is first imported."""


def choose_pool() -> None:
    """Let Arrow use jemalloc in this process, unless it is loaded already or somebody chose another pool.

    Arrow's own choice is mimalloc. It asks the kernel for huge pages, and the kernel clears two megabytes whenever one
    of them is first touched. A process that commits a thousand scattered changes waited longer for that than for all
    of its own work. Arrow's packages for other systems than Linux may lack jemalloc, so their choice stays.
    """
    if sys.platform == "linux" and "pyarrow" not in sys.modules:
        os.environ.setdefault(POOL, "jemalloc")
