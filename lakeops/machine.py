"""The cores and threads that a process takes of its machine. A container is often given few cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux tells a container of its limits."""

_QUOTAS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))
"""Files with a quota and the period that it is for, by control groups of version 2 and of version 1."""

_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
"""What OpenBLAS reads, of which the first one counts."""


def cores() -> int:
    """The cores that this process may keep busy.

    A thread for each core of the machine would wait for a turn most of the time, and hold its ranges in memory.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    here = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(filter(None, [here, *map(_quota, _QUOTAS)]))


@contextmanager
def without_blas_threads() -> Iterator[None]:
    """Let numpy start no threads for linear algebra, if it is imported inside the block and nobody said how many.

    There would be one for each core, and each waits busily for the first 80 ms. This is for processes that only run
    lakeops, which multiplies no matrices.
    """
    if "numpy" in sys.modules or any(name in os.environ for name in _BLAS_THREADS):
        yield
        return
    os.environ[_BLAS_THREADS[0]] = "1"
    try:
        yield
    finally:
        os.environ.pop(_BLAS_THREADS[0], None)  # children may want them


def _quota(names: tuple[str, ...]) -> int | None:
    """How many cores a quota comes to, rounded up. None where there is none."""
    try:
        quota, period = map(int, " ".join((CGROUP / name).read_text() for name in names).split())
    except (OSError, ValueError):  # no such limit, or `max`
        return None
    return -(-quota // period) if quota > 0 and period > 0 else None


POOL = "ARROW_DEFAULT_MEMORY_POOL"
"""The variable that Arrow reads when it is first imported."""


def choose_pool() -> None:
    """Let Arrow use jemalloc in this process, unless it is loaded already or somebody chose another pool.

    Arrow's own choice, mimalloc, asks the kernel for huge pages, which the kernel clears when they are first touched. A
    process that commits a thousand scattered changes waited longer for that than for its own work. Arrow's packages for
    other systems than Linux may lack jemalloc.
    """
    if sys.platform == "linux" and "pyarrow" not in sys.modules:
        os.environ.setdefault(POOL, "jemalloc")
