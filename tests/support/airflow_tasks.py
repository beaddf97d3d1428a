"""Tasks that are killed: an operator's work in a process of its own, ended by SIGKILL at a chosen effect."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from support.faulty_catalog import ALL_EFFECTS
from support.scenes import open_faulty

from lakeops import Settings
from lakeops.store.faulty import Faults


def kill_at(home: Path, effect: int, when: str, act: Callable[[], object]) -> bool:
    """Run ``act`` in a child that dies at its ``effect``-th change of store or catalog; whether it died."""
    from lakeops.airflow.hook import LakeopsHook

    child = os.fork()
    if child == 0:
        try:
            faults = Faults()
            faults.hook(
                *ALL_EFFECTS,
                at=effect,
                when="before" if when == "before" else "after",
                action=lambda _: os.kill(os.getpid(), signal.SIGKILL),
            )
            settings = Settings.load(home=home, fsync=False, committer="ada")
            LakeopsHook.get_conn = lambda _: open_faulty(settings, faults)  # type: ignore[method-assign]
            act()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False
