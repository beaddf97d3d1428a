"""SVG pictures drawn on the server: bars and areas over time, and the commit graph in lanes.

Charts draw only numbers, times and words of lakeops. The rows of a graph come children before parents. A lane stands
for a commit that is still to come. The first parent continues in its child's lane, so a branch is a straight line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import count, pairwise
from typing import NamedTuple

from lakeops.model.formatting import human_size, span
from lakeops.model.records import Commit

WIDTH, HEIGHT = 960, 200
LEFT, RIGHT, TOP, BOTTOM = 84, 12, 10, 26
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_SPANS = (
    *(_MINUTE * many for many in (1, 2, 5, 10, 20, 30)),
    *(_HOUR * many for many in (1, 2, 4, 8, 12)),
    *(_DAY * many for many in (1, 2, 4, 7, 14, 30, 60, 120, 365)),
)


class Point(NamedTuple):
    """A number, not negative, at a Unix second. Its bar has a CSS class (``done``, ``open``) and a tooltip."""

    at: int
    value: int
    kind: str = "done"
    text: str = ""


class Bar(NamedTuple):
    """A bar of a chart, in SVG units."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    text: str


class Chart(NamedTuple):
    """A chart for the template to draw, in SVG units, with a description for screen readers.

    ``heights`` are the horizontal grid lines with their labels, ``moments`` the labels of the time axis with x and
    alignment. ``line`` is the upper edge of an area chart as an SVG path, and ``area`` the area below it.
    """

    title: str
    text: str
    heights: tuple[tuple[float, str], ...]
    moments: tuple[tuple[float, str, str], ...]
    bars: tuple[Bar, ...] = ()
    line: str = ""
    area: str = ""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT


def size_bars(title: str, text: str, points: Sequence[Point]) -> Chart:
    """Draw a bar of bytes for each point."""
    most = max([2, *(point.value for point in points)])
    tops = (step * 1000**power for power in count() for step in _STEPS)
    scale = _Scale(points, next(top for top in tops if top >= most))
    width = max(3.0, min(28.0, (WIDTH - LEFT - RIGHT) / max(1, len(points)) * 0.6))
    bars = []
    for point in points:
        y = scale.y(point.value)
        x = min(max(scale.x(point.at) - width / 2, LEFT), WIDTH - RIGHT - width)
        bars.append(Bar(round(x, 1), y, round(width, 1), round(scale.bottom - y, 1), point.kind, point.text))
    return Chart(title, text, scale.heights(human_size), scale.moments(), tuple(bars))


def lag_area(title: str, text: str, points: Sequence[Point]) -> Chart:
    """Draw an area of seconds. Each value holds until the next point."""
    most = max((point.value for point in points), default=0)
    scale = _Scale(points, next((one for one in _SPANS if one >= most), most))
    steps = [f"M{scale.x(points[0].at)} {scale.y(points[0].value)}"] if points else []
    steps += [f"H{scale.x(after.at)}V{scale.y(after.value)}" for _, after in pairwise(points)]
    line = "".join(steps)
    area = f"{line}V{scale.bottom}H{scale.x(points[0].at)}Z" if points else ""
    return Chart(title, text, scale.heights(span), scale.moments(), line=line, area=area)


class _Scale:
    bottom = HEIGHT - BOTTOM

    def __init__(self, points: Sequence[Point], top: int) -> None:
        times = [point.at for point in points] or [0]
        self._first, self._last, self._top = min(times), max(times), top

    def x(self, at: int) -> float:
        part = (at - self._first) / (self._last - self._first) if self._last > self._first else 0.5
        return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: int) -> float:
        return round(self.bottom - min(value / self._top, 1) * (self.bottom - TOP), 1)

    def heights(self, said: Callable[[int], str]) -> tuple[tuple[float, str], ...]:
        return tuple((self.y(value), said(value) if value else "0") for value in (0, self._top // 2, self._top))

    def moments(self) -> tuple[tuple[float, str, str], ...]:
        length = self._last - self._first
        form = "%H:%M" if 0 < length < _DAY else "%b %d" if length > 3 * _DAY else "%b %d %H:%M"
        middle = (self._first + self._last) // 2
        ends = (self._first, "start"), (self._last, "end")
        places = (ends[0], (middle, "middle"), ends[1]) if length else ((middle, "middle"),)
        return tuple((self.x(at), f"{datetime.fromtimestamp(at, UTC):{form}}", anchor) for at, anchor in places)


DRAWN_LANES = 12
"""Lanes that are drawn; those further right share the last one."""
LANE_WIDTH = 14
ROW_HEIGHT = 36


class GraphRow(NamedTuple):
    """A commit in the graph: the lane of its dot, and its lines as SVG paths, each with the number of its colour."""

    commit: Commit
    lane: int
    lines: tuple[tuple[str, int], ...]
    width: int
    x: int


def rows(commits: Sequence[Commit], open_lanes: Iterable[str] = ()) -> list[GraphRow]:
    """Lay out commits in lanes. ``open_lanes`` are the parents that the page before still waits for."""
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
        lines = [(f"M{_lane_x(lane)} 0V{ROW_HEIGHT}", lane) for lane in passing]
        lines += [(_curve(lane, here, top=True), lane) for lane in into]
        lines += [(_curve(here, lane, top=False), lane) for lane in out]
        while lanes and lanes[-1] is None:
            lanes.pop()
        width = min(DRAWN_LANES, max(len(before), len(lanes), here + 1)) * LANE_WIDTH
        drawn.append(GraphRow(commit, here, tuple((path, lane % 6) for path, lane in lines), width, _lane_x(here)))
    return drawn


def _free(lanes: list[str | None]) -> int:
    if None in lanes:
        return lanes.index(None)
    lanes.append(None)
    return len(lanes) - 1


def _lane_x(lane: int) -> int:
    return min(lane, DRAWN_LANES - 1) * LANE_WIDTH + LANE_WIDTH // 2


def _curve(start: int, end: int, *, top: bool) -> str:
    above, below = (0, ROW_HEIGHT // 2) if top else (ROW_HEIGHT // 2, ROW_HEIGHT)
    middle = (above + below) // 2
    if start == end:
        return f"M{_lane_x(start)} {above}V{below}"
    return f"M{_lane_x(start)} {above}C{_lane_x(start)} {middle} {_lane_x(end)} {middle} {_lane_x(end)} {below}"
