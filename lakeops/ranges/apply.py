"""Applying changes to a metarange on an engine: plan, run the tasks, put the metarange together. Publishes nothing.

Ranges that no change touches are not in any task, unread. A segment brings a few of them along only to find the cut
where the base's own ranges stand again. A task that could not re-synchronise before its border hands over a
remainder: rows whose range is still open. The driver goes on from there, over whatever follows, until a cut falls on
a range's end.

Whatever the history and however the work was cut into tasks, the outcome has the ids that building it from scratch
would give.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.base import Engine, TaskRows, from_ipc
from lakeops.model.arrow import STAGED_SCHEMA
from lakeops.model.clock import Ids
from lakeops.model.formatting import human_size
from lakeops.model.records import Progress, Split, Summary, quiet
from lakeops.ranges.chunker import Chunker, check_ascending, check_split
from lakeops.ranges.digest import Positions
from lakeops.ranges.metarange import Delta, Metarange, RangeRow, joined
from lakeops.ranges.range_file import RangeWriter, fetch_range
from lakeops.ranges.read import RangeReader
from lakeops.ranges.rewrite import RANGE_SECONDS, Segment, Task, TaskResult, run_task

_log = logging.getLogger(__name__)

LOOKAHEAD = 4
"""Untouched ranges that a segment brings along. Nearly every edit re-synchronises within one."""

FEW_CHANGES, MOST_OF_RANGE, MOST_CHANGES = 1_000, 100, 20_000
"""The most changes of which a list is kept: in all, or for each range that is rewritten; and the most of any list. With
more of them ranges are as quick to compare as a list is to read."""


def plan(
    base: Metarange,
    changes: pa.Table,
    *,
    split: Split,
    attempt: str,
    reuse: Metarange | None = None,
    listing: bool = False,
) -> ApplyPlan:
    """The plan of applying ``changes`` to ``base``, whose arguments it has. Opens nothing."""
    check_split(split)
    changes = changes.select(STAGED_SCHEMA.names).cast(STAGED_SCHEMA)
    check_ascending(changes.column("path"))
    if not changes.num_rows:
        touched, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    elif not len(base):
        touched, counts = np.zeros(1, np.int64), np.array([changes.num_rows])
    else:
        touched, counts = np.unique(base.route(changes.column("path")), return_counts=True)
    few = changes.num_rows <= max(FEW_CHANGES, MOST_OF_RANGE * len(touched))
    if few and len(base) and not listing:  # of two rows a change the list has no more than the ranges
        listing = 2 * changes.num_rows <= int(pc.sum(base.column("count", touched)).as_py() or 0)
    listing = listing and changes.num_rows <= MOST_CHANGES
    return ApplyPlan(base, changes, touched, counts, split, attempt, reuse, listing)


@dataclass(frozen=True)
class ApplyPlan:
    """Changes routed over a base: ``counts[i]`` of them concern range ``touched[i]``.

    ``listing`` says whether the rows that change are listed.
    """

    base: Metarange
    changes: pa.Table
    touched: Positions
    counts: Positions
    split: Split
    attempt: str
    reuse: Metarange | None = None
    listing: bool = False

    def describe(self, engine: Engine) -> str:
        """The plan in one line for people."""
        if not len(self.touched):
            return "nothing to rewrite"
        where = engine.for_work(len(self.touched) * RANGE_SECONDS).name
        if not len(self.base):
            return f"will write the first ranges for {self.changes.num_rows:,} changes, {where}"
        size = human_size(pc.sum(self.base.column("file_bytes", self.touched)).as_py())
        return f"will rewrite {len(self.touched):,} of {len(self.base):,} ranges, {size}, {where}"

    def tasks(self, group: int) -> Iterator[Task]:
        """The tasks, with ``group`` touched ranges each, made one by one as the engine asks for them."""
        borders = np.cumsum([0, *self.counts])
        reusable = np.zeros(0, np.int64) if self.reuse is None else self.reuse.without(self.base)
        for start in range(0, len(self.touched), group):
            stop = min(start + group, len(self.touched))
            rows = TaskRows(self.changes.slice(borders[start], borders[stop] - borders[start]))
            segments, reuse = tuple(self._segments(start, stop)), tuple[RangeRow, ...]()
            if self.reuse is not None and len(reusable):  # ranges that the outcome of these segments may equal
                chosen = reusable
                if len(self.base):
                    low = self.reuse.find(segments[0].rows[0].first_path.encode())
                    high = self.reuse.find(segments[-1].rows[-1].last_path.encode())
                    chosen = chosen[(chosen >= low - 1) & (chosen <= high + 1)]
                reuse = tuple(self.reuse.at(chosen))
            yield Task(segments, rows, self.split, self.attempt, reuse, self.listing)

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


@dataclass
class MetarangeBuilder:
    """Builds a metarange from ranges and rows in path order. It refers to existing ranges wherever cuts allow it."""

    chunker: Chunker
    writer: RangeWriter
    # Ranges of a metarange, or of the new ones. One table of all new ones takes less time than one for each.
    _parts: list[tuple[Metarange | None, int, int]] = field(default_factory=list, init=False)
    _new: list[RangeRow] = field(default_factory=list, init=False)

    def keep(self, ranges: Metarange, start: int, stop: int) -> None:
        """Add ranges ``[start, stop)`` of a metarange: by reference, once no range is open.

        Each of them ends with a cut, but for a last one that nothing follows.
        """
        while start < stop and self.chunker.open:
            self.cut_anew(ranges.row(start))
            start += 1
        self._parts.append((ranges, start, stop))

    def put(self, rows: tuple[RangeRow, ...]) -> None:
        """Add ranges that a task wrote."""
        done = 0
        while done < len(rows) and self.chunker.open:
            self.cut_anew(rows[done])
            done += 1
        self._parts.append((None, len(self._new), len(self._new) + len(rows) - done))
        self._new += rows[done:]

    def open(self, remainder: pa.Table) -> None:
        """Add rows whose range stays open."""
        self._write(self.chunker.add(remainder))

    def finish(self) -> Metarange:
        """The metarange. The range that is open becomes the last one."""
        if self.chunker.open:
            self._write([self.chunker.rest()])
        new = Metarange.from_rows(self._new)
        return joined((new if ranges is None else ranges, start, stop) for ranges, start, stop in self._parts)

    def cut_anew(self, row: RangeRow) -> None:
        """Cut the rows of a whole range anew: another range is open before it, or it does not end with a cut."""
        self.writer.known[row.id] = row
        self._write(self.chunker.add(fetch_range(self.writer.store, row).read()))

    def _write(self, closed: list[pa.Table]) -> None:
        self._parts.append((None, len(self._new), len(self._new) + len(closed)))
        self._new += map(self.writer.write, closed)


@dataclass(frozen=True)
class Applied:
    """The new metarange (its ranges are written, it is not), and how many paths changed.

    The metarange has the base's id exactly when nothing changed. Where many ranges were rewritten for few changes, it
    has a list of them.
    """

    metarange: Metarange
    summary: Summary


def apply(
    reader: RangeReader,
    base: Metarange,
    changes: pa.Table,
    *,
    engine: Engine,
    split: Split,
    attempt: str,
    reuse: Metarange | None = None,
    listing: bool = False,
    label: str = "apply",
    progress: Progress = quiet,
) -> Applied:
    """The metarange that ``base`` becomes with ``changes``.

    Args:
        reader: the namespace.
        base: what to change.
        changes: ``STAGED_SCHEMA``, paths strictly ascending; else ``InvalidInput``.
        engine: where to work.
        split: the repository's split.
        attempt: fresh for every try.
        reuse: another metarange whose ranges may be referred to (its commit is checked live when this is published).
        listing: make a list of what changes, also where few ranges are touched.
        label: the verb, for the log and the progress, which say what is rewritten.
        progress: told how many of the touched ranges are done.
    """
    planned = plan(base, changes, split=split, attempt=attempt, reuse=reuse, listing=listing)
    touched, label = len(planned.touched), f"{label}: {planned.describe(engine)}"
    _log.info("%s", label)
    progress(label, 0, touched)
    engine = engine.for_work(touched * RANGE_SECONDS)
    group, found, done = engine.group(touched, at_once=True), dict[int, TaskResult](), 0
    for number, result in engine.run(run_task, planned.tasks(group), reader.store):
        found[number] = result
        done += min(group, touched - number * group)
        progress(label, done, touched)
    building = MetarangeBuilder(Chunker(split), RangeWriter(reader.store, attempt + Ids().new()))
    summary, stop = Summary(), 0
    before: list[pa.Table] = []
    after: list[pa.Table] = []
    for _, result in sorted(found.items()):  # in the order of the base's ranges
        summary += result.summary
        if result.before is not None and result.after is not None:
            before.append(result.before.table)
            after.append(result.after.table)
        for run in result.runs:
            building.keep(base, stop, run.start)
            building.put(run.rows)
            if run.remainder:
                building.open(from_ipc(run.remainder))
            stop = run.stop
    building.keep(base, stop, len(base))
    metarange = building.finish()
    if metarange.id == base.id:
        metarange = base
    elif len(before) == len(found):
        metarange = metarange.with_delta(Delta(base.id, lambda: (pa.concat_tables(before), pa.concat_tables(after))))
    return Applied(metarange, summary)
