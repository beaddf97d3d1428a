"""Laying changes over the rows of one range: what a commit does, range by range.

A change that writes what is already there (same path, same identity) keeps the base row, a tombstone of an absent
path does nothing, and neither is counted. So re-uploading a whole prefix is no change at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrays import from_numpy, to_numpy
from lakeops.model.changes import Summary
from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.cutter import complete, with_digests
from lakeops.ranges.digest import entry_digests, same_identity

_FEW = 64
_AT_ONCE = 50_000
"""Changes that are digested at a time, which takes a copy of them."""


@dataclass(frozen=True, slots=True)
class Overlaid:
    """Rows after the changes (``RANGE_SCHEMA``, in order), and what really changed.

    Attributes:
        table: the rows.
        summary: how many paths changed.
        base: the rows before.
        gone: which of these are no more.
        after: the rows that are new.
    """

    table: pa.Table
    summary: Summary
    base: pa.Table
    gone: npt.NDArray[np.int64]
    after: pa.Table

    @property
    def before(self) -> pa.Table:
        """The rows that are no more."""
        return self.base.take(from_numpy(self.gone))


def overlay(base: pa.Table, changes: pa.Table) -> Overlaid:
    """The rows of ``base`` with ``changes`` applied.

    Args:
        base: ``RANGE_SCHEMA``, in order.
        changes: ``STAGED_SCHEMA``, strictly ascending paths. A column ``digest`` may come along.
    """
    places = _places(base, changes)
    found = _found(base, changes, places)
    dead = to_numpy(changes.column("tombstone"))
    rewritten = np.flatnonzero(found & ~dead)
    if len(rewritten):
        old = base.take(from_numpy(places[rewritten]))
        rewritten = rewritten[~same_identity(old, changes.take(from_numpy(rewritten)))]
    added = np.flatnonzero(~found & ~dead)
    removed = np.flatnonzero(found & dead)
    summary = Summary(added=len(added), removed=len(removed), changed=len(rewritten))
    if not summary.total:
        return Overlaid(base, summary, base, np.zeros(0, np.int64), base.slice(0, 0))
    written = np.union1d(added, rewritten)
    fresh = with_digests(changes.take(from_numpy(written)))
    gone = places[np.union1d(removed, rewritten)]
    return Overlaid(_spliced(base, fresh, places[written], gone), summary, base, gone, fresh)


def digested(changes: pa.Table) -> pa.Table:
    """Changes (``STAGED_SCHEMA``) with a column ``digest``, null for tombstones.

    ``overlay`` takes it as it is. Digests of the changes of each range apart would take longer than those of all.
    """
    blocks = (_digests(changes.slice(start, _AT_ONCE)) for start in range(0, changes.num_rows, _AT_ONCE))
    return changes.append_column("digest", pa.chunked_array(blocks, RANGE_SCHEMA.field("digest").type))


def _digests(changes: pa.Table) -> pa.Array:
    dead = to_numpy(changes.column("tombstone"))
    live = np.flatnonzero(~dead)
    digests = entry_digests(complete(changes.take(from_numpy(live))))
    return digests.take(from_numpy(np.cumsum(~dead) - 1, dead))


def _places(base: pa.Table, changes: pa.Table) -> npt.NDArray[np.int64]:
    """Where each changed path is in ``base``, or would be inserted."""
    found: npt.NDArray[np.int64] = to_numpy(pc.search_sorted(base.column("path"), changes.column("path")))
    return found.astype(np.int64)


def _found(base: pa.Table, changes: pa.Table, places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which changed paths are in ``base`` already."""
    if not base.num_rows:
        return np.zeros(changes.num_rows, np.bool_)
    present = base.column("path").take(from_numpy(np.minimum(places, base.num_rows - 1)))
    # Past the last row the last path is compared, which is smaller, so it is never equal.
    equal: npt.NDArray[np.bool_] = to_numpy(pc.equal(present, changes.column("path")))
    return equal


def _spliced(base: pa.Table, fresh: pa.Table, places: npt.NDArray[np.int64], gone: npt.NDArray[np.int64]) -> pa.Table:
    """``base`` without the rows ``gone``, with ``fresh`` rows put in before the rows ``places``."""
    if fresh.num_rows + len(gone) <= _FEW:
        return _spliced_by_slices(base, fresh, places, gone)
    keep = np.ones(base.num_rows, np.bool_)
    keep[gone] = False
    kept = np.flatnonzero(keep)
    order = np.insert(kept, np.searchsorted(kept, places), base.num_rows + np.arange(fresh.num_rows))
    return pa.concat_tables([base, fresh]).take(from_numpy(order))


def _spliced_by_slices(
    base: pa.Table, fresh: pa.Table, places: npt.NDArray[np.int64], gone: npt.NDArray[np.int64]
) -> pa.Table:
    """The same for a few changes, without copying the rows in between."""
    parts, done, row = [], 0, 0
    for place in np.union1d(places, gone).tolist():
        parts.append(base.slice(done, place - done))
        done = place
        while row < len(places) and places[row] == place:
            parts.append(fresh.slice(row, 1))
            row += 1
        if place in gone:
            done += 1
    return pa.concat_tables([*parts, base.slice(done)])
