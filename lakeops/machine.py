"""How many cores this process may use: a container is often given fewer than its machine has."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux tells a container of its limits."""

_QUOTAS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))
"""Files with a quota and the period that it is for, by control groups of version 2 and of version 1."""


def cores() -> int:
    """The cores that this process may keep busy.

    A thread for each core of the machine would wait for a turn most of the time, and hold its ranges in memory.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    here = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min([here, *(quota for names in _QUOTAS if (quota := _quota(names)))])


def _quota(names: tuple[str, ...]) -> int | None:
    """How many cores a quota comes to, rounded up. None where there is none."""
    try:
        quota, period = map(int, " ".join((CGROUP / name).read_text() for name in names).split())
    except (OSError, ValueError):  # no such limit, or `max`
        return None
    return -(-quota // period) if quota > 0 and period > 0 else None
