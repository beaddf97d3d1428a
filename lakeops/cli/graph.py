"""The lines that join commits in ``log --graph``, drawn as ``git log --graph`` draws them."""

from __future__ import annotations

from collections.abc import Iterator

from lakeops.model.records import Commit


class Graph:
    """Draws commits that come children first. A lane goes down from each commit to each of its parents."""

    def __init__(self) -> None:
        self._lanes: list[str] = []

    def node(self, commit: Commit) -> tuple[str, str, list[str]]:
        """What stands before the commit's first line, before its other lines, and the lines that follow these."""
        lanes = self._lanes
        if commit.id not in lanes:
            lanes.append(commit.id)
        column = lanes.index(commit.id)
        first = "".join("* " if number == column else "| " for number in range(len(lanes)))
        parents = [*dict.fromkeys(commit.parents)]
        following: list[str] = []
        if not parents:
            del lanes[column]
            if column < len(lanes):
                following.append("| " * column + " /" * (len(lanes) - column))
        else:
            lanes[column] = parents[0]
            for number, parent in enumerate(parents[1:], column + 1):
                following.append("| " * (number - 1) + "|\\" + " \\" * (len(lanes) - number))
                lanes.insert(number, parent)
        rest = "".join("  " if not parents and number == column else "| " for number in range(first.count(" ")))
        return first, rest, [line.rstrip() for line in [*following, *self._join()]]

    def _join(self) -> Iterator[str]:
        """Join lanes that lead to the same commit, the right one to the left one."""
        lanes = self._lanes
        while True:
            again = next((right for right, name in enumerate(lanes) if name in lanes[:right]), None)
            if again is None:
                return
            left = lanes.index(lanes[again])
            crossed = "|_" * (again - left - 1)
            yield "| " * left + crossed + "|/" + " /" * (len(lanes) - again - 1)
            del lanes[again]
