"""The commit graph as lanes: where each commit's dot is, and which lines run past it.

Rows come children before parents. A lane stands for a commit that is still to come. The first parent goes on in its
child's lane, so a branch is a straight line and a merge is where another lane comes in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lakeops.model.records import Commit

MOST = 12
"""Lanes that are drawn; what is further right is drawn in the last one."""
WIDTH = 14
HEIGHT = 36


@dataclass(frozen=True)
class Row:
    """A commit, and the picture beside it: the dot's lane, and lines as SVG paths with the lane of their colour."""

    commit: Commit
    lane: int
    lines: tuple[tuple[str, int], ...]
    width: int

    @property
    def x(self) -> int:
        """Where the dot is."""
        return _lane_x(self.lane)


def rows(commits: Sequence[Commit], open_lanes: Iterable[str] = ()) -> list[Row]:
    """The rows of some commits. ``open_lanes`` are commits that children on the page before wait for."""
    lanes: list[str | None] = list(open_lanes)
    drawn = []
    for commit in commits:
        before = list(lanes)
        if commit.id not in lanes:
            lanes[_free(lanes)] = commit.id
        here = lanes.index(commit.id)
        into = [lane for lane, waits in enumerate(before) if waits == commit.id]
        for lane in into:
            lanes[lane] = None
        out = []
        for number, parent in enumerate(dict.fromkeys(commit.parents)):
            if parent in lanes:
                lane = lanes.index(parent)
            else:
                lane = here if number == 0 else _free(lanes)
                lanes[lane] = parent
            out.append(lane)
        if lanes[here] is not None and here not in out:  # another lane took the place of the dot's
            out = [lane for lane in out if lane != here]
        passing = [lane for lane, waits in enumerate(before) if waits is not None and waits != commit.id]
        lines = [(_straight_line(lane), lane) for lane in passing]
        lines += [(_curve(lane, here, top=True), lane) for lane in into]
        lines += [(_curve(here, lane, top=False), lane) for lane in out]
        while lanes and lanes[-1] is None:
            lanes.pop()
        width = min(MOST, max(len(before), len(lanes), here + 1)) * WIDTH
        drawn.append(Row(commit, here, tuple((path, lane % 6) for path, lane in lines), width))
    return drawn


def _free(lanes: list[str | None]) -> int:
    if None in lanes:
        return lanes.index(None)
    lanes.append(None)
    return len(lanes) - 1


def _lane_x(lane: int) -> int:
    return min(lane, MOST - 1) * WIDTH + WIDTH // 2


def _straight_line(lane: int) -> str:
    return f"M{_lane_x(lane)} 0V{HEIGHT}"


def _curve(start: int, end: int, *, top: bool) -> str:
    above, below = (0, HEIGHT // 2) if top else (HEIGHT // 2, HEIGHT)
    middle = (above + below) // 2
    if start == end:
        return f"M{_lane_x(start)} {above}V{below}"
    return f"M{_lane_x(start)} {above}C{_lane_x(start)} {middle} {_lane_x(end)} {middle} {_lane_x(end)} {below}"
