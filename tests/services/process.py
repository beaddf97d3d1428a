"""Keeps what tests start from outliving them, also when they are killed."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


def die_with_parent() -> None:
    """For ``preexec_fn``: the new process is killed when the thread that started it ends. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; it stays over the exec


@contextmanager
def stopped_by(command: list[str]) -> Iterator[None]:
    """Run a command if this process ends inside the block, however it ends.

    For servers that stay when their parent dies and that a command stops.
    """
    with subprocess.Popen(
        [sys.executable, "-P", __file__, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # what is sent to the whole group of a test run does not reach it
    ) as watching:
        try:
            yield
        finally:
            watching.terminate()


def wait_for(pid: int) -> None:
    """Return when a process has ended that need not be a child of this one."""
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait()


if __name__ == "__main__":
    wait_for(int(sys.argv[1]))
    subprocess.run(sys.argv[2:], check=True)
