"""Merging three metaranges: what has to change in the destination, and which paths conflict.

A pure function of base, source, destination and strategy, path by path. Only ranges that the source changed are
opened, and of the destination only those that base and source both do not have. Equal means equal identity at one
path; an absent path is a state like any other.

=====  ======  =====  ========  ==================================
base   source  dest   result
=====  ======  =====  ========  ==================================
A      A       any    dest      the source did not change the path
A      B       A      source
A      B       B      dest      both made the same change
A      B       C      conflict
=====  ======  =====  ========  ==================================

A, B and C are different states, any of them may be "absent".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.records import Strategy, Summary
from lakeops.model.schema import ENTRY_SCHEMA, STAGED_SCHEMA
from lakeops.ranges.align import Positions
from lakeops.ranges.beside import Mask, states
from lakeops.ranges.delta import SKETCH_COLUMNS, Delta, deltas
from lakeops.ranges.diff import summary
from lakeops.ranges.file import RangeFile
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.ranges.splice import spliced


@dataclass(frozen=True)
class MergePlan:
    """What a merge will do.

    Attributes:
        changes: what to apply to the destination, ``STAGED_SCHEMA``.
        conflicts: every conflicting path, in order; always empty with a strategy.
        settled: how many conflicts the strategy settled.
        summary: how many paths of the destination the changes add, remove and change.
        result: the merged metarange where ranges that exist already make it up: nothing to apply.
        opened: how many ranges of the destination had to be opened.
    """

    changes: pa.Table
    conflicts: list[str]
    settled: int
    summary: Summary
    result: Metarange | None = None
    opened: int = 0


def three_way(
    reader: RangeReader, base: Metarange, source: Metarange, dest: Metarange, strategy: Strategy | None
) -> MergePlan:
    """What merging ``source`` into ``dest`` takes; writes nothing.

    A revert is the same call with the reverted commit as base and its parent as source; a cherry-pick has the picked
    commit's parent as base.
    """
    result = by_reference(base, source, dest)
    if result is None:
        return by_path(reader, base, source, dest, strategy)
    return referred(result, Summary() if result is dest else summary(reader, base, source))


def by_reference(base: Metarange, source: Metarange, dest: Metarange) -> Metarange | None:
    """The merged metarange where ranges that exist already make it up, ``dest`` itself where nothing changes.

    None when paths have to be looked at. Opens nothing.
    """
    if source.id in (base.id, dest.id):
        return dest
    if dest.id == base.id:
        return source
    return spliced(base, source, dest)


def referred(result: Metarange, changed: Summary) -> MergePlan:
    """The plan of a merge whose outcome ``by_reference`` gave; ``changed`` is what differs from the destination."""
    return MergePlan(STAGED_SCHEMA.empty_table(), [], 0, changed, result)


def by_path(
    reader: RangeReader, base: Metarange, source: Metarange, dest: Metarange, strategy: Strategy | None
) -> MergePlan:
    """The plan of a merge, from the paths that the source changed; of the destination only ranges near them matter."""
    merging = _Merging(reader, base, source, dest, strategy)
    for delta in deltas(reader, base, source, columns=(SKETCH_COLUMNS, ENTRY_SCHEMA.names)):
        merging.add(delta)
    return merging.plan()


class _Merging:
    def __init__(
        self, reader: RangeReader, base: Metarange, source: Metarange, dest: Metarange, strategy: Strategy | None
    ) -> None:
        self._reader = reader
        self._dest = dest
        self._strategy = strategy
        self._as_base = dest.shared(base)
        self._as_source = dest.shared(source)
        self._open: tuple[int, RangeFile] | None = None
        self._opened = 0
        self._changes: list[pa.Table] = []
        self._conflicts: list[str] = []
        self._settled = 0
        self._counts = [0, 0, 0]

    def plan(self) -> MergePlan:
        """What came together."""
        changes = pa.concat_tables([STAGED_SCHEMA.empty_table(), *self._changes])
        nothing = not changes.num_rows and not self._conflicts
        return MergePlan(
            changes,
            self._conflicts,
            self._settled,
            Summary(*self._counts),
            self._dest if nothing else None,
            self._opened,
        )

    def add(self, delta: Delta) -> None:
        """Decide on the paths of a delta between base and source."""
        paths, left, right = _sides(delta)
        like_base, like_source, present = self._states(delta, paths, left, right)
        conflict = ~like_base & ~like_source
        take = like_base & ~like_source
        if self._strategy is None:
            self._conflicts += paths.filter(pa.array(conflict)).to_pylist()
        else:
            self._settled += int(conflict.sum())
            if self._strategy is Strategy.SOURCE_WINS:
                take |= conflict
        self._take(delta.right.table, paths, np.flatnonzero(take), right, present)

    def _take(self, source: pa.Table, paths: pa.Array, chosen: Positions, right: Positions, present: Mask) -> None:
        """The source's states of the chosen paths are to be applied to the destination."""
        rows, there = right[chosen], present[chosen]
        dead = rows < 0
        self._counts[0] += int((~dead & ~there).sum())
        self._counts[1] += int((dead & there).sum())
        self._counts[2] += int((~dead & there).sum())
        numbers = pa.array(rows, pa.int64(), mask=dead)
        columns = [source.column(name).take(numbers) for name in STAGED_SCHEMA.names[2:]]
        self._changes.append(pa.table([paths.take(pa.array(chosen)), pa.array(dead), *columns], schema=STAGED_SCHEMA))

    def _states(self, delta: Delta, paths: pa.Array, left: Positions, right: Positions) -> tuple[Mask, Mask, Mask]:
        """For each path whether the destination is as the base, is as the source, and has it at all."""
        total = len(paths)
        owner = pc.search_sorted(self._dest.table.column("last_path"), paths).to_numpy().astype(np.int64)
        inside = owner < len(self._dest)
        firsts = self._dest.table.column("first_path").take(pa.array(owner[inside]))
        inside[inside] = pc.less_equal(firsts, paths.filter(pa.array(inside))).to_numpy()
        like_base, like_source = ~inside & (left < 0), ~inside & (right < 0)
        present = np.zeros(total, np.bool_)
        known = np.flatnonzero(inside)
        by_base, by_source = self._as_base[owner[known]], self._as_source[owner[known]]
        # A range that base or source has too holds their state of every path within it.
        like_base[known[by_base]] = True
        present[known[by_base]] = left[known[by_base]] >= 0
        only_source = known[by_source & ~by_base]
        like_source[only_source] = True
        present[only_source] = right[only_source] >= 0
        unknown = known[~by_base & ~by_source]
        numbers, starts = np.unique(owner[unknown], return_index=True)
        for number, here in zip(numbers.tolist(), np.split(unknown, starts)[1:], strict=True):
            found = states(self._file(number), paths.take(pa.array(here)), delta, left[here], right[here])
            like_base[here], like_source[here], present[here] = found.like_base, found.like_source, found.present
        return like_base, like_source, present

    def _file(self, number: int) -> RangeFile:
        """A range of the destination; the next delta may begin in the one that this one ended in."""
        if self._open is None or self._open[0] != number:
            self._open = number, self._reader.open(self._dest.row(number))
            self._opened += 1
        return self._open[1]


def _sides(delta: Delta) -> tuple[pa.Array, Positions, Positions]:
    """The delta's paths in order, and each one's row on both sides: -1 where a side does not have it."""
    left = np.concatenate([np.full(len(delta.added), -1), delta.removed, delta.pairs[0]])
    right = np.concatenate([delta.added, np.full(len(delta.removed), -1), delta.pairs[1]])
    in_left = pa.array(left, pa.int64(), mask=left < 0)
    in_right = pa.array(right, pa.int64(), mask=right < 0)
    sides = ((delta.left, in_left), (delta.right, in_right))
    paths = pc.coalesce(*(side.table.column("path").take(rows) for side, rows in sides))
    paths = paths.combine_chunks()
    order = pc.sort_indices(paths)
    return paths.take(order), left[order.to_numpy()], right[order.to_numpy()]
