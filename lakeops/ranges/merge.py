"""Merging three metaranges: what has to change in the destination, and which paths conflict.

A pure function of base, source, destination and strategy, path by path. Only ranges that the source changed are
opened, and of the destination only those that base and source both do not have. Equal means equal identity at one
path. An absent path is a state like any other.

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

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.records import ChangeType, Strategy, Summary
from lakeops.model.schema import STAGED_SCHEMA
from lakeops.ranges.align import Positions
from lakeops.ranges.delta import SKETCH_COLUMNS
from lakeops.ranges.diff import CHANGE_TYPES, DIFF_SCHEMA, diff, summary
from lakeops.ranges.metarange import Metarange, Rows
from lakeops.ranges.read import RangeReader
from lakeops.ranges.walk import Decided, MergeWalk


def spliced(base: Metarange, source: Metarange, dest: Metarange) -> Metarange | None:
    """``dest`` with the source's ranges in place of the base's wherever the source changed something.

    None when the destination changed something at one of those places or right beside it: then the merge has to look
    at paths. Opens nothing.
    """
    found = pc.index_in(base.table.column("id"), value_set=dest.table.column("id"))
    places = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    parts: list[pa.Table] = []
    done = 0
    for gap in _gaps(base, source):
        at = _place_of_gap(gap, places, base, dest)
        if at is None:
            return None
        parts += [dest.table.slice(done, at - done), source.table.slice(gap.start, gap.stop - gap.start)]
        done = at + gap.base_stop - gap.base_start
    return Metarange.splice([*parts, dest.table.slice(done)])


@dataclass(frozen=True, slots=True)
class _Gap:
    """Between two ranges that base and source share: the base's rows, and the source's in their place."""

    base_start: int
    base_stop: int
    start: int
    stop: int


def _gaps(base: Metarange, source: Metarange) -> Iterator[_Gap]:
    """Every place where base and source differ, in order."""
    old, new = np.flatnonzero(base.shared(source)), np.flatnonzero(source.shared(base))
    # Ranges that both have come in one order in both, because ids cover paths.
    sizes = np.maximum(np.diff(old, prepend=-1, append=len(base)), np.diff(new, prepend=-1, append=len(source)))
    for number in np.flatnonzero(sizes > 1).tolist():
        starts = [int(side[number - 1]) + 1 if number else 0 for side in (old, new)]
        stops = [
            int(side[number]) if number < len(side) else len(whole) for side, whole in ((old, base), (new, source))
        ]
        yield _Gap(starts[0], stops[0], starts[1], stops[1])


def _place_of_gap(gap: _Gap, places: Rows, base: Metarange, dest: Metarange) -> int | None:
    """Where the gap's base ranges, and the range on either side, lie in the destination. None: not as in the base."""
    first, last = max(gap.base_start - 1, 0), min(gap.base_stop + 1, len(base))
    here = places[first:last]
    if not len(here) or here[0] < 0 or (np.diff(here) != 1).any():
        return None
    at = int(here[0]) + gap.base_start - first
    begins, ends = gap.base_start == 0, gap.base_stop == len(base)
    if (begins and at > 0) or (ends and at + gap.base_stop - gap.base_start != len(dest)):
        return None
    return at


@dataclass(frozen=True)
class MergePlan:
    """What a merge will do.

    Attributes:
        changes: what to apply to the destination, ``STAGED_SCHEMA``.
        conflicts: every conflicting path, in order. Always empty with a strategy.
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
    """What merging ``source`` into ``dest`` takes. Writes nothing.

    A revert is the same call with the reverted commit as base and its parent as source. A cherry-pick has the picked
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
    """The plan of a merge whose outcome ``by_reference`` gave. ``changed`` is what differs from the destination."""
    return MergePlan(STAGED_SCHEMA.empty_table(), [], 0, changed, result)


def by_path(
    reader: RangeReader, base: Metarange, source: Metarange, dest: Metarange, strategy: Strategy | None
) -> MergePlan:
    """The plan of a merge, from the paths that the source changed; of the destination only ranges near them matter."""
    walk = MergeWalk(reader, base, source, dest, strategy)
    changes: list[pa.Table] = []
    conflicts: list[str] = []
    counts = np.zeros(3, np.int64)
    settled = 0
    for decided in walk.decisions():
        changes.append(decided.changes())
        conflicts += decided.conflicts.to_pylist()
        counts += decided.counts()
        settled += decided.settled
    rows = pa.concat_tables([STAGED_SCHEMA.empty_table(), *changes])
    nothing = not rows.num_rows and not conflicts
    return MergePlan(rows, conflicts, settled, Summary(*counts.tolist()), dest if nothing else None, walk.opened)


_TYPES = (*CHANGE_TYPES, ChangeType.CONFLICT)
_ADDED, _REMOVED, _CHANGED, _CONFLICT = range(4)


def foretold(
    reader: RangeReader,
    base: Metarange,
    source: Metarange,
    dest: Metarange,
    strategy: Strategy | None,
    *,
    prefix: str = "",
) -> Iterator[pa.Table]:
    """What merging ``source`` into ``dest`` would change in it, and the conflicts that would keep it from happening.

    Tables of ``DIFF_SCHEMA`` in path order, none empty. The type of a conflict is ``conflict``. The rows without
    conflicts are the difference between the destination before and after. A conflict's size is that of the source's
    object, or of the destination's where the source has none.

    Args:
        reader: the namespace.
        base: what both sides come from.
        source: what would be merged.
        dest: what it would be merged into.
        strategy: the side that settles conflicts, if one does. There are no conflicts then.
        prefix: leave out paths that do not start with it.
    """
    result = by_reference(base, source, dest)
    if result is not None:
        yield from diff(reader, dest, result, prefix=prefix)
        return
    walk = MergeWalk(reader, base, source, dest, strategy, columns=SKETCH_COLUMNS)
    for decided in walk.decisions(prefix):
        shown = np.flatnonzero(decided.take | decided.conflict)
        if len(shown):
            kinds = pa.DictionaryArray.from_arrays(
                pa.array(_kinds(decided)[shown], pa.int8()), pa.array([str(kind) for kind in _TYPES])
            )
            sizes = pa.array(_sizes(walk, decided, shown), pa.int64())
            yield pa.table([kinds, decided.paths.take(pa.array(shown)), sizes], schema=DIFF_SCHEMA)


def _kinds(decided: Decided) -> Positions:
    """What happens to each path of the destination that anything happens to, as a number of ``_TYPES``."""
    kinds = np.where(decided.present, _CHANGED, _ADDED)
    kinds[decided.right < 0] = _REMOVED
    kinds[decided.conflict] = _CONFLICT
    return kinds


def _sizes(walk: MergeWalk, decided: Decided, shown: Positions) -> Positions:
    """The sizes of the source's objects at some of the paths, or of the destination's where the source has none."""
    left, right = decided.left[shown], decided.right[shown]
    own = decided.own[shown]
    sizes = np.zeros(len(shown), np.int64)
    new = right >= 0
    sizes[new] = decided.delta.right.table.column("size_bytes").to_numpy()[right[new]]
    # What the destination has unchanged is as large as in the base.
    kept = ~new & ~own
    sizes[kept] = decided.delta.left.table.column("size_bytes").to_numpy()[left[kept]]
    changed = ~new & own
    if changed.any():
        sizes[changed] = walk.sizes(decided.paths.take(pa.array(shown[changed])))
    return sizes
