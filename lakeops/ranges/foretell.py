"""What a merge would do, as rows that stream; the walk is the one that the merge itself takes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lakeops.model.records import ChangeType, Strategy
from lakeops.ranges.align import Positions
from lakeops.ranges.delta import SKETCH_COLUMNS
from lakeops.ranges.diff import CHANGE_TYPES, DIFF_SCHEMA, diff
from lakeops.ranges.merge import by_reference
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.ranges.walk import Decided, Walk

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

    Tables of ``DIFF_SCHEMA`` in path order, none empty; the type of a conflict is ``conflict``. The rows without
    conflicts are the difference between the destination before and after. A conflict's size is that of the source's
    object, or of the destination's where the source has none.

    Args:
        reader: the namespace.
        base: what both sides come from.
        source: what would be merged.
        dest: what it would be merged into.
        strategy: the side that settles conflicts, if one does; there are no conflicts then.
        prefix: leave out paths that do not start with it.
    """
    result = by_reference(base, source, dest)
    if result is not None:
        yield from diff(reader, dest, result, prefix=prefix)
        return
    walk = Walk(reader, base, source, dest, strategy, columns=SKETCH_COLUMNS)
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


def _sizes(walk: Walk, decided: Decided, shown: Positions) -> Positions:
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
