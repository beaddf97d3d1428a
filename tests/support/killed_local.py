"""One call on a clone in a process of its own, which dies by SIGKILL at a chosen effect on the clone's directory.

An effect is what Python tells its auditors: opening, renaming, removing and making files and folders there.
"""

import os
import signal
import sys
from pathlib import Path
from threading import Lock

from support.warm import CONTEXT

from lakeops import Lake, Settings

EFFECTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}


def run(home: Path, folder: Path, verb: str, at: int) -> tuple[int, int]:
    """The exit code, and how many effects there were when the process ended by itself. ``at`` counts from 1."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_work, args=(sender, home, folder, verb, at))
    process.start()
    sender.close()
    process.join(60)
    seen = receiver.recv() if process.exitcode == 0 else 0
    return process.exitcode, seen


def _work(sender, home: Path, folder: Path, verb: str, at: int) -> None:
    settings = Settings.model_construct(home=home, fsync=False, committer="tester", disk_cache_mb=0)
    lock, seen = Lock(), 0
    with Lake.open(settings=settings) as lake:
        place = os.fspath(folder)

        def watch(event: str, args: tuple[object, ...]) -> None:
            nonlocal seen
            if event in EFFECTS and isinstance(args[0], str | Path) and os.fspath(args[0]).startswith(place):
                with lock:
                    seen += 1
                    if seen == at:
                        os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        if verb == "clone":
            lake.repository("repo").ref("main").clone(folder, "raw")
        elif verb == "checkout":
            lake.local(folder).checkout("dev")
        elif verb == "commit":
            lake.local(folder).commit("mine")
        else:
            lake.local(folder).pull()
    sender.send(seen)
