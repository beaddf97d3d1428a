"""Merging three metaranges: what has to change in the destination, and which paths conflict.

A pure function of base, source, destination and strategy, path by path, as far as whole ranges do not settle it. Only
ranges that the source changed are opened, and of the destination only those that base and source both do not have. A
side that has a list of what it changes in the base is not opened at all.
Equal means equal identity at one path. An absent path is a state like any other.

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
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from lakeops.model.arrays import array, from_numpy, no_rows, to_numpy
from lakeops.model.changes import ChangeType, Strategy, Summary
from lakeops.model.schema import STAGED_SCHEMA
from lakeops.ranges.changelist import ChangeList
from lakeops.ranges.delta import SKETCH_COLUMNS
from lakeops.ranges.diff import CHANGE_TYPES, DIFF_SCHEMA, diff, summary
from lakeops.ranges.digest import Positions
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.ranges.splice import Splicing, splice
from lakeops.ranges.task import total
from lakeops.ranges.walk import Decided, MergeWalk


@dataclass(frozen=True)
class MergePlan:
    """What a merge will do.

    Attributes:
        changes: what to apply to ``onto``, ``STAGED_SCHEMA``.
        conflicts: every conflicting path, in order. Always empty with a strategy.
        settled: how many conflicts the strategy settled.
        summary: how many paths of the destination the merge adds, removes and changes.
        onto: the destination with the source's ranges where those settle it, itself where none do.
        opened: how many ranges of the destination had to be opened.
        exchanged: the rows that ``onto`` changes in the destination. None where nobody has a list of them.
    """

    changes: pa.Table
    conflicts: list[str]
    settled: int
    summary: Summary
    onto: Metarange
    opened: int = 0
    exchanged: ChangeList | None = None

    @property
    def result(self) -> Metarange | None:
        """The merged metarange where ranges that exist already make it up: nothing to apply."""
        return None if self.changes.num_rows or self.conflicts else self.onto


def three_way(
    reader: RangeReader, base: Metarange, source: Metarange, dest: Metarange, strategy: Strategy | None
) -> MergePlan:
    """What merging ``source`` into ``dest`` takes. Writes nothing.

    A revert is the same call with the reverted commit as base and its parent as source. A cherry-pick has the picked
    commit's parent as base.
    """
    return planned(reader, splice(base, source, dest), strategy)


def planned(reader: RangeReader, splicing: Splicing, strategy: Strategy | None) -> MergePlan:
    """The plan of a merge from what whole ranges settle of it and what paths do."""
    plan = by_path(reader, *splicing.rest, splicing.dest, strategy, splicing.ours)
    changed = total((summary(reader, *splicing.taken), plan.summary))
    return replace(plan, summary=changed, exchanged=splicing.exchanged)


def by_path(
    reader: RangeReader,
    base: Metarange,
    source: Metarange,
    dest: Metarange,
    strategy: Strategy | None,
    ours: ChangeList | None = None,
) -> MergePlan:
    """The plan of a merge, from the paths that the source changed; of the destination only ranges near them matter.

    With ``ours``, which lists the rows that the destination changes in the base, none of its ranges is opened.
    """
    walk = MergeWalk(reader, base, source, dest, strategy, ours=ours)
    changes: list[pa.Table] = [no_rows(STAGED_SCHEMA)]
    conflicts: list[str] = []
    counts = np.zeros(3, np.int64)
    settled = 0
    for decided in walk.decisions():
        changes.append(decided.changes())
        conflicts += decided.conflicts.to_pylist()
        counts += decided.counts()
        settled += decided.settled
    return MergePlan(pa.concat_tables(changes), conflicts, settled, Summary(*counts.tolist()), dest, walk.opened)


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
    splicing = splice(base, source, dest)
    if splicing.settled:
        yield from diff(reader, *splicing.taken, prefix=prefix)
        return
    walk = MergeWalk(reader, base, source, dest, strategy, columns=SKETCH_COLUMNS, ours=splicing.ours)
    for decided in walk.decisions(prefix):
        shown = np.flatnonzero(decided.take | decided.conflict)
        if len(shown):
            kinds = pa.DictionaryArray.from_arrays(
                from_numpy(_kinds(decided)[shown].astype(np.int8)), array([str(kind) for kind in _TYPES], pa.string())
            )
            sizes = from_numpy(_sizes(walk, decided, shown))
            yield pa.table([kinds, decided.paths.take(from_numpy(shown)), sizes], schema=DIFF_SCHEMA)


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
    sizes[new] = to_numpy(decided.delta.right.table.column("size_bytes"))[right[new]]
    # What the destination has unchanged is as large as in the base.
    kept = ~new & ~own
    sizes[kept] = to_numpy(decided.delta.left.table.column("size_bytes"))[left[kept]]
    changed = ~new & own
    if changed.any():
        sizes[changed] = walk.sizes(decided.paths.take(from_numpy(shown[changed])))
    return sizes
