"""What applying changes to a metarange will take: which ranges are touched, and the tasks that rewrite them.

Ranges that no change touches are not in any task, unread. A segment brings a few of them along only to find the cut
where the base's own ranges stand again. How the work is cut into tasks never shows in the ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.base import Engine
from lakeops.model.arrays import from_numpy
from lakeops.model.records import Split
from lakeops.model.schema import STAGED_SCHEMA
from lakeops.ranges.changelist import FEWEST_RANGES, MOST_CHANGES, MOST_OF_RANGE
from lakeops.ranges.chunker import check_ascending, check_split
from lakeops.ranges.metarange import Metarange, RangeRow, Rows
from lakeops.ranges.task import Segment, Task, TaskRows

LOOKAHEAD = 4
"""Untouched ranges that a segment brings along. Nearly every edit re-synchronises within one."""

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def plan(
    base: Metarange,
    changes: pa.Table,
    *,
    split: Split,
    attempt: str,
    reuse: Metarange | None = None,
    listing: bool = False,
) -> Plan:
    """What applying ``changes`` to ``base`` will take. Opens nothing.

    Args:
        base: what to change.
        changes: ``STAGED_SCHEMA``, paths strictly ascending; else ``InvalidInput``.
        split: the repository's split.
        attempt: fresh for every try.
        reuse: another metarange whose ranges may be referred to (its commit is checked live when this is published).
        listing: make a list of what changes, also where few ranges are touched.
    """
    check_split(split)
    changes = changes.select(STAGED_SCHEMA.names).cast(STAGED_SCHEMA)
    check_ascending(changes.column("path"))
    if not changes.num_rows:
        touched, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    elif not len(base):
        touched, counts = np.zeros(1, np.int64), np.array([changes.num_rows])
    else:
        touched, counts = np.unique(base.route(changes.column("path")), return_counts=True)
    scattered = len(touched) >= FEWEST_RANGES and changes.num_rows <= MOST_OF_RANGE * len(touched)
    listing = (listing or scattered) and changes.num_rows <= MOST_CHANGES
    return Plan(base, changes, touched, counts, split, attempt, reuse, listing)


@dataclass(frozen=True)
class Plan:
    """Changes routed over a base: ``counts[i]`` of them concern range ``touched[i]``.

    ``listing`` says whether the rows that change are listed.
    """

    base: Metarange
    changes: pa.Table
    touched: Rows
    counts: Rows
    split: Split
    attempt: str
    reuse: Metarange | None = None
    listing: bool = False

    @cached_property
    def file_bytes(self) -> int:
        """The size of the range files that will be read and written again."""
        if not len(self.base):
            return 0
        return int(pc.sum(self.base.table.column("file_bytes").take(from_numpy(self.touched))).as_py() or 0)

    def describe(self, engine: Engine) -> str:
        """What will happen, in one line for people."""
        if not len(self.touched):
            return "nothing to rewrite"
        where = engine.for_work(len(self.touched)).name
        if not len(self.base):
            return f"will write the first ranges for {self.changes.num_rows:,} changes, {where}"
        return (
            f"will rewrite {len(self.touched):,} of {len(self.base):,} ranges, {human_bytes(self.file_bytes)}, {where}"
        )

    def tasks(self, group: int) -> Iterator[Task]:
        """The tasks, with ``group`` touched ranges each, made one by one as the engine asks for them."""
        borders = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])
        for index, start in enumerate(range(0, len(self.touched), group)):
            stop = min(start + group, len(self.touched))
            rows = self.changes.slice(borders[start], borders[stop] - borders[start])
            segments = tuple(self._segments(start, stop))
            yield Task(
                index, segments, TaskRows(rows), self.split, self.attempt, self._reusable(segments), self.listing
            )

    def _segments(self, start: int, stop: int) -> Iterator[Segment]:
        """The segments of touched ranges ``[start, stop)``: a wide gap of untouched ranges parts two of them."""
        if not len(self.base):
            yield Segment(0, (), (self.changes.num_rows,), last=True)
            return
        gaps = np.flatnonzero(np.diff(self.touched[start:stop]) > LOOKAHEAD + 1) + 1 + start
        for first, last in zip([start, *gaps.tolist()], [*gaps.tolist(), stop], strict=True):
            begin = int(self.touched[first])
            following = int(self.touched[last]) if last < len(self.touched) else len(self.base)
            end = min(int(self.touched[last - 1]) + 1 + LOOKAHEAD, following)
            changes = np.zeros(end - begin, np.int64)
            changes[self.touched[first:last] - begin] = self.counts[first:last]
            rows = tuple(self.base.rows(begin, end))
            yield Segment(begin, rows, tuple(changes.tolist()), last=end == len(self.base))

    def _reusable(self, segments: tuple[Segment, ...]) -> tuple[RangeRow, ...]:
        """Ranges of ``reuse`` that the outcome of these segments may equal."""
        if self.reuse is None or not len(self._fresh_rows):
            return ()
        if not len(self.base):
            return tuple(self.reuse.at(self._fresh_rows))
        low = self.reuse.find(segments[0].rows[0].first_path.encode())
        high = self.reuse.find(segments[-1].rows[-1].last_path.encode())
        chosen = self._fresh_rows[(self._fresh_rows >= low - 1) & (self._fresh_rows <= high + 1)]
        return tuple(self.reuse.at(chosen))

    @cached_property
    def _fresh_rows(self) -> Rows:
        return self.reuse.without(self.base) if self.reuse is not None else np.zeros(0, np.int64)


def human_bytes(size: int) -> str:
    """A size as people read it, in powers of 1,000: ``598 MB``."""
    value, unit = float(size), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if value >= 9.95 or unit == 0 else f"{value:.1f} {_UNITS[unit]}"
