"""Two metaranges side by side: their differing ranges, cut into stretches of paths that both are open at.

One range a side is open at a time, whatever the size of the repository, even when no two ranges line up.
"""

from __future__ import annotations

from collections.abc import Iterator

from lakeops.ranges.metarange import Metarange, RangeRow, Rows
from lakeops.ranges.part import Part
from lakeops.ranges.read import RangeReader

_AT_ONCE = 64
"""Rows of a metarange that become plain data in one step."""


def stretches(
    reader: RangeReader, left: Metarange, right: Metarange, prefix: str = ""
) -> Iterator[tuple[Part | None, Part | None]]:
    """Parts of both sides over the same stretch of paths, in order, each at most one range long.

    Ranges that both sides have are left out, and those without paths under ``prefix``.
    """
    one, other = (_Side(reader, *sides, prefix) for sides in ((left, right), (right, left)))
    while one.file is not None or other.file is not None:
        if one.file is None or other.file is None:
            frontier = (one if other.file is None else other).last
        else:
            frontier = min(one.last, other.last)
        yield one.cut(frontier), other.cut(frontier)


class _Side:
    """One side's differing ranges, passed through in order."""

    def __init__(self, reader: RangeReader, own: Metarange, other: Metarange, prefix: str) -> None:
        start, stop = own.overlapping(prefix)
        chosen = own.without(other)
        self._files = reader.open_each(_rows(own, chosen[(chosen >= start) & (chosen < stop)]))
        self._start = 0
        self.file = next(self._files, None)

    @property
    def last(self) -> str:
        """The last path of the open range."""
        return self.file.row.last_path if self.file else ""

    def cut(self, path: str) -> Part | None:
        """Pass the rows up to and including ``path``, which does not come after the open range's last."""
        if self.file is None:
            return None
        file, start = self.file, self._start
        if path == file.row.last_path:
            self.file, self._start = next(self._files, None), 0
            return Part(file, start, file.row.count)
        if path < file.row.first_path:
            return None
        self._start = file.first_at(path.encode() + b"\0")
        return Part(file, start, self._start)


def _rows(metarange: Metarange, chosen: Rows) -> Iterator[RangeRow]:
    for start in range(0, len(chosen), _AT_ONCE):
        yield from metarange.at(chosen[start : start + _AT_ONCE])
