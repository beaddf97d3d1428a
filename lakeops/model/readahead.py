"""A source of commits that asks for many at a time.

Walks over history ask for one commit after another, mostly along first parents. A statement a commit would make a
long walk slow, and loading all of history would make a short one slow. So a miss loads a run of first parents. A walk
that goes on where a run ended loads a longer one. A walk that turns to another line, as at the second parent of a
merge, begins with a short one: such a line mostly leads back to what is loaded already.
"""

from __future__ import annotations

from collections.abc import Callable

from lakeops.model.records import Commit

LONGEST_RUN = 1024
MOST_KEPT = 65_536
"""Commits kept at a time (about 60 MB); past that, all are dropped and read again when they are asked for."""


class ReadAhead:
    """Commits by id, as a ``CommitSource``. Cheap to make; use one for one call, so that it never grows stale.

    Args:
        load: gives a commit and its first parents, newest first, at most as many as asked for (``first_parents`` of a
            catalog); raises ``RefNotFound``.
        ahead: how many the first miss loads, where it is known how many will be asked for.
    """

    def __init__(self, load: Callable[[str, int], list[Commit]], ahead: int = 1) -> None:
        self._load = load
        self._ahead = max(1, min(ahead, LONGEST_RUN))
        self._asked = 0
        self._kept: dict[str, Commit] = {}
        self._goes_on: dict[str, int] = {}  # where a run ended: the commit behind it, and how long the run was

    def __call__(self, commit_id: str) -> Commit:
        """The commit. Raises ``RefNotFound``."""
        self._asked += 1
        commit = self._kept.get(commit_id)
        if commit is None:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
                self._goes_on.clear()
            run = self._length(commit_id)
            loaded = self._load(commit_id, run)
            self._kept.update((one.id, one) for one in loaded)
            for parent in loaded[-1].parents[:1]:
                self._goes_on[parent] = run
            commit = self._kept[commit_id]
        return commit

    def _length(self, commit_id: str) -> int:
        """How many commits to load at a miss."""
        before = self._goes_on.pop(commit_id, None)
        if before is not None:
            # Walks beside each other, as for a merge base, go further at a time: each pays for half of the misses.
            beside = 2 * self._asked if self._goes_on else 0
            return min(max(2 * before, beside), LONGEST_RUN)
        return min(max(1, self._asked // 8), LONGEST_RUN) if self._kept else self._ahead
