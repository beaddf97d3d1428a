"""What merges rest on: for any two of some commits, their best common ancestors, and those of these again.

A best common ancestor of two heads is reached by both, and no child of it is. So it is reached by more heads than any
of its children: that is all this room looks for, in one walk from the newest generation to the oldest, with the set of
heads that reach a commit as the bits of one number. It finds every best common ancestor of every two heads, and none
where branches were merged and deleted, or fork from each other's history.

A merge with several best common ancestors (a criss-cross) merges those first. So each one that is found counts as a
head from there on, and what any two of them rest on is found as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping

from lakeops.model.lineage import Node


def shared(commits: Mapping[str, Node], heads: Collection[str]) -> set[str]:
    """The commits that a merge of any two heads may rest on, beside the heads themselves.

    A number for each commit that was reached and not yet passed is held: one bit for each head and each commit found.

    Args:
        commits: all commits by id.
        heads: ids; those that are not among the commits do not matter.
    """
    found: set[str] = set()
    reached: dict[str, int] = {}
    widest: dict[str, int] = {}
    queue: list[tuple[int, str]] = []

    def reach(commit_id: str, by: int, width: int) -> None:
        if commit_id not in reached:
            heapq.heappush(queue, (-commits[commit_id].generation, commit_id))
        reached[commit_id] = reached.get(commit_id, 0) | by
        widest[commit_id] = max(widest.get(commit_id, 0), width)

    own = {*heads} & commits.keys()
    for bits, head in enumerate(sorted(own)):
        reach(head, 1 << bits, 0)
    while queue:
        commit_id = heapq.heappop(queue)[1]
        by, width = reached.pop(commit_id), widest.pop(commit_id)
        count = by.bit_count()
        if count > max(width, 1) and commit_id not in own:
            by |= 1 << (len(own) + len(found))
            count += 1
            found.add(commit_id)
        for parent in dict.fromkeys(commits[commit_id].parents):
            if parent in commits:
                reach(parent, by, count)
    return found
