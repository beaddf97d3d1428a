"""The search for the first bad commit among those that lead from a good one to a bad one."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from lakeops.model.graph import CommitSource, first_parents
from lakeops.model.records import Commit

MOST_WEIGHED = 10_000
"""Commits of which each one's ancestors are counted: one bit for each pair is held."""


def between(get: CommitSource, good: str, bad: str, *, first_parent: bool = False) -> list[Commit]:
    """The commits that ``bad`` reaches and ``good`` does not, children before parents.

    With ``first_parent`` only those of the line of first parents. Commits are read down to the lowest of them, and
    their parents.
    """
    is_good = {bad: False, good: True}
    queue = [(-commit.generation, commit.id, commit) for commit in map(get, is_good)]
    heapq.heapify(queue)
    queued, unsure = {*is_good}, int(good != bad)
    found = []
    while unsure:
        _, _, commit = heapq.heappop(queue)
        known_good = is_good[commit.id]
        if not known_good:
            found.append(commit)
            unsure -= 1
        for parent in commit.parents:
            before = is_good.get(parent)
            is_good[parent] = known_good or bool(before)
            if before is None:
                unsure += not is_good[parent]
            elif not before and is_good[parent]:
                unsure -= 1
            if parent not in queued:
                queued.add(parent)
                heapq.heappush(queue, (-get(parent).generation, parent, get(parent)))
    if not first_parent:
        return found
    among = {commit.id for commit in found}
    line = []
    for commit in first_parents(get, bad):
        if commit.id not in among:
            break
        line.append(commit)
    return line


class Search:
    """Narrows commits down to the first bad one, as ``git bisect`` does.

    Each look is at the commit that tells most: as near as can be, half of those that are left are its ancestors.

    Args:
        commits: children before parents. The first one is bad, and what comes before all of them is good.
    """

    def __init__(self, commits: Sequence[Commit]) -> None:
        self.left: list[Commit] = list(commits)
        self._skipped: set[str] = set()

    @property
    def is_done(self) -> bool:
        """Whether the first of ``left`` is the first bad one."""
        return len(self.left) == 1

    def next(self) -> Commit | None:
        """The commit to look at. None when nothing could be told of all that are left but the bad one."""
        open_ = [commit for commit in self.left[1:] if commit.id not in self._skipped]
        if not open_:
            return None
        if len(self.left) > MOST_WEIGHED:
            return open_[len(open_) // 2]
        weights = {id_: mask.bit_count() for id_, mask in self._masks().items()}
        return max(open_, key=lambda commit: min(weights[commit.id], len(self.left) - weights[commit.id]))

    def tell(self, commit: Commit, is_good: bool | None) -> None:
        """What a look at a commit said. None: nothing could be told."""
        if is_good is None:
            self._skipped.add(commit.id)
            return
        get = {one.id: one for one in self.left}
        waiting, reached = [commit.id], {commit.id}
        while waiting:
            new = {parent for parent in get[waiting.pop()].parents if parent in get} - reached
            reached |= new
            waiting += new
        self.left = [one for one in self.left if (one.id in reached) != is_good]

    def _masks(self) -> dict[str, int]:
        """For each commit that is left, a bit for each of its ancestors among them, itself included."""
        masks: dict[str, int] = {}
        for place, commit in enumerate(reversed(self.left)):
            mask = 1 << place
            for parent in commit.parents:
                mask |= masks.get(parent, 0)
            masks[commit.id] = mask
        return masks
