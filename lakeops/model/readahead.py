"""A source of commits that asks for many at a time.

Walks over history ask for one commit after another, mostly along first parents. A statement a commit would make a
long walk slow, and loading all of history would make a short one slow. So a miss loads a run of first parents, and
each miss loads a longer run than the one before.
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
        self._run = max(1, min(ahead, LONGEST_RUN))
        self._kept: dict[str, Commit] = {}

    def __call__(self, commit_id: str) -> Commit:
        """The commit. Raises ``RefNotFound``."""
        commit = self._kept.get(commit_id)
        if commit is None:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept.update((loaded.id, loaded) for loaded in self._load(commit_id, self._run))
            self._run = min(self._run * 2, LONGEST_RUN)
            commit = self._kept[commit_id]
        return commit
