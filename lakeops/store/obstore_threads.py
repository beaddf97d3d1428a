"""Whether this process may use obstore, whose threads do not cross a fork.

A child process that goes on with what its parent had loaded would wait forever for threads that are not there.
"""

from __future__ import annotations

import os
import sys


class _Process:
    """What this process knows of the one it was forked from."""

    lost = False

    def forked(self) -> None:
        self.lost = self.lost or "obstore" in sys.modules


_process = _Process()
os.register_at_fork(after_in_child=_process.forked)


def threads_lost() -> bool:
    """Whether this process was forked from one that had loaded obstore."""
    return _process.lost
