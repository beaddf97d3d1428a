"""Helpers for tests of tasks: work that SIGKILL ends at a chosen effect, and repositories with old garbage."""

import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from support.faulty_catalog import ALL_EFFECTS
from support.scenes import open_faulty

from lakeops import Lake, Settings
from lakeops.testing import Faults, ManualClock


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
            LakeopsHook.get_conn = lambda _: open_faulty(settings, faults, clock=ManualClock(datetime.now(UTC)))  # type: ignore[method-assign]
            act()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def with_garbage(name: str, *, days: int = 40) -> Path:
    """Where a repository lies that was left alone some days ago, with an object that nobody needs.

    Its rules let branches ``idle-*`` go after ten days; there is one, and one with uncommitted changes.
    """
    moment = datetime.now(UTC) - timedelta(days=days)
    with Lake.open(clock=ManualClock(moment)) as lake:
        repo = lake.create_repository(name)
        main = repo.branch("main")
        main.put("kept", b"kept")
        main.commit("one")
        main.put("lost", b"garbage")
        main.reset()
        for branch in ("idle-1", "idle-2"):
            repo.create_branch(branch)
        repo.branch("idle-2").put("staged", b"1")
        repo.gc.set_rules(
            {"default_retention_days": 90, "branches": [{"branch_id": "idle-*", "expire_after_days": 10}]}
        )
        place = Path(repo.storage_namespace.removeprefix("file://"))
    with Lake.open() as lake:
        lake.catalog.marks.confirm_clock()  # nothing happened for so long
    for file in place.rglob("*"):
        os.utime(file, (moment.timestamp(), moment.timestamp()))
    return place
