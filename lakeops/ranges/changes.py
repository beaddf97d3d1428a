"""Applying changes to the rows of ranges: what a commit does, some ranges at a time.

A change that writes what is already there (same path, same identity) keeps the base row, a tombstone of an absent
path does nothing, and neither is counted. So re-uploading a whole prefix is no change at all.

Every step over some rows has a fixed price, and for a small range that is more than what its rows cost. So ranges are
read one by one, but their rows are changed and hashed together, a *window* of them at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import RANGE_SCHEMA, array, from_numpy, to_numpy
from lakeops.model.records import Summary
from lakeops.ranges.chunker import Hashes, path_hashes
from lakeops.ranges.digest import complete, entry_digests, same_identity, with_digests
from lakeops.ranges.file import fetch_ranges
from lakeops.ranges.metarange import RangeRow
from lakeops.store.base import ObjectStore

_FEW = 64
_AT_ONCE = 50_000
"""Changes that are digested or applied at a time: a bulk load into one range streams through."""
_ROWS = 24_000
"""Rows of a window at most, changes included. More of them gain nothing and take memory."""


@dataclass(frozen=True, slots=True)
class AppliedRows:
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


def apply_changes(base: pa.Table, changes: pa.Table) -> AppliedRows:
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
        return AppliedRows(base, summary, base, np.zeros(0, np.int64), base.slice(0, 0))
    written = np.union1d(added, rewritten)
    fresh = with_digests(changes.take(from_numpy(written)))
    gone = places[np.union1d(removed, rewritten)]
    return AppliedRows(_spliced(base, fresh, places[written], gone), summary, base, gone, fresh)


def digested(changes: pa.Table) -> pa.Table:
    """Changes (``STAGED_SCHEMA``) with a column ``digest``, null for tombstones.

    ``apply_changes`` takes it as it is. Digests of the changes of each range apart would take longer than those of all.
    """
    blocks = (_digests(changes.slice(start, _AT_ONCE)) for start in range(0, changes.num_rows, _AT_ONCE))
    return changes.append_column("digest", pa.chunked_array(blocks, RANGE_SCHEMA.field("digest").type))


class ChangedRows(NamedTuple):
    """Rows that changes were applied to, ``RANGE_SCHEMA``, and the boundary hash of each path."""

    table: pa.Table
    hashes: Hashes


OnApplied: TypeAlias = Callable[[AppliedRows], None]


def changed_ranges(
    store: ObjectStore, touched: Sequence[tuple[RangeRow, int]], changes: pa.Table, on_applied: OnApplied
) -> Iterator[Iterable[ChangedRows]]:
    """The rows that each of some ranges becomes with its changes, in order, not cut yet.

    Args:
        store: the namespace.
        touched: ranges, ascending, and how many of the changes belong to each.
        changes: ``STAGED_SCHEMA``, strictly ascending paths. A column ``digest`` may come along.
        on_applied: called with what really changed, in order. Several ranges' changes come together.

    Raises ``Corrupted`` or ``ObjectNotFound`` for a range that cannot be trusted.
    """
    done = 0
    for window in _windows(touched):
        tables = [file.read() for file in fetch_ranges(store, [row for row, _ in window])]
        counts = [count for _, count in window]
        mine = changes.slice(done, sum(counts))
        done += mine.num_rows
        if len(window) == 1 and mine.num_rows > _AT_ONCE:
            yield apply_in_batches(tables[0], mine, on_applied)
        else:
            yield from ([one] for one in _together(tables, counts, mine, on_applied))


def apply_in_batches(base: pa.Table, changes: pa.Table, on_applied: OnApplied) -> Iterator[ChangedRows]:
    """The rows that ``base`` becomes with very many changes, of which some are applied at a time."""
    done = 0
    for start in range(0, changes.num_rows, _AT_ONCE):
        part = changes.slice(start, _AT_ONCE)
        # The base's rows up to the next part's first path go with this part.
        following = changes.slice(start + _AT_ONCE, 1).column("path")
        stop = base.num_rows
        if len(following):
            stop = pc.search_sorted(base.column("path"), following[0]).as_py()
        applied = apply_changes(base.slice(done, stop - done), part)
        on_applied(applied)
        done = stop
        yield ChangedRows(applied.table, path_hashes(applied.table.column("path")))


def _windows(touched: Sequence[tuple[RangeRow, int]]) -> Iterator[list[tuple[RangeRow, int]]]:
    window: list[tuple[RangeRow, int]] = []
    size = 0
    for row, count in touched:
        if window and size + row.count + count > _ROWS:
            yield window
            window, size = [], 0
        window.append((row, count))
        size += row.count + count
    if window:
        yield window


def _together(
    tables: list[pa.Table], counts: list[int], changes: pa.Table, on_applied: OnApplied
) -> Iterator[ChangedRows]:
    """Ranges whose changes are applied to all of them in one step."""
    applied = apply_changes(pa.concat_tables(tables).combine_chunks(), changes)
    on_applied(applied)
    rows = applied.table.combine_chunks()
    hashes = path_hashes(rows.column("path"))
    starts = [0, *np.cumsum(counts).tolist()[:-1]]
    # What is new may come before a range's first path. Strings compare by code points, as UTF-8 does by bytes.
    firsts = [
        min(table.column("path")[0].as_py(), changes.column("path")[start].as_py())
        for table, start in zip(tables, starts, strict=True)
    ]
    borders = [*pc.search_sorted(rows.column("path"), array(firsts, pa.string())).to_pylist(), rows.num_rows]
    for start, end in pairwise(borders):
        yield ChangedRows(rows.slice(start, end - start), hashes[start:end])


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
    """Put a few changes into a table, without copying the rows in between."""
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
