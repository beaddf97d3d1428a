"""Taking ranges of a merge's source by reference, where the destination still has the base's around them.

Where a range ends depends on nothing before the range's own start. So when a run of base ranges, with the untouched
range on either side of it, lies in the destination as it does in the base, what the source put in the run's place fits
there too, cut for cut: the merged metarange is known without opening a range.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.ranges.metarange import Metarange, Rows


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
        at = _place(gap, places, base, dest)
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


def _place(gap: _Gap, places: Rows, base: Metarange, dest: Metarange) -> int | None:
    """Where the gap's base ranges, and the range on either side, lie in the destination; None: not as in the base."""
    first, last = max(gap.base_start - 1, 0), min(gap.base_stop + 1, len(base))
    here = places[first:last]
    if not len(here) or here[0] < 0 or (np.diff(here) != 1).any():
        return None
    at = int(here[0]) + gap.base_start - first
    begins, ends = gap.base_start == 0, gap.base_stop == len(base)
    if (begins and at > 0) or (ends and at + gap.base_stop - gap.base_start != len(dest)):
        return None
    return at
