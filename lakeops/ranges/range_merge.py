"""Range-level merge: the source's ranges take the place of the base's where the destination has kept those.

Where a range ends follows from the paths since the end before it. So what base and source have between two ends that
they share can be exchanged wherever the base's ranges stand, whatever the destination has before and behind them. The
outcome has the ids that building it from scratch would give. Nothing is opened for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import RANGE_SCHEMA, from_numpy, no_rows, scalar, to_numpy
from lakeops.ranges.digest import Positions
from lakeops.ranges.metarange import Delta, DeltaRows, Metarange, Piece, joined

Mask: TypeAlias = npt.NDArray[np.bool_]
Sides: TypeAlias = tuple[Metarange, Metarange]
"""Some ranges of the base, and those of the source in their place."""


@dataclass(frozen=True)
class RangeMerge:
    """The part of a merge that whole ranges decide. ``taken`` are replaced ranges and those in their place.

    ``rest`` is what else differs between base and source. Merging this into ``dest`` gives the whole merge.
    ``exchanged`` is the delta from the destination to ``dest``, and ``ours`` that from the base to the destination.
    They are None where nobody has a list.
    """

    dest: Metarange
    taken: Sides
    rest: Sides
    exchanged: Delta | None
    ours: Delta | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing is left to be merged."""
        return not any(map(len, self.rest))


def merge_ranges(base: Metarange, source: Metarange, dest: Metarange) -> RangeMerge:
    """Merge ``source`` into ``dest`` as far as ranges that exist already make up the outcome. Opens nothing.

    ``dest`` itself is given back where nothing changes in it, and ``source`` where it is all of the outcome.
    """
    nothing = Metarange.empty(), Metarange.empty()
    unchanged = Delta(dest.id, lambda: (no_rows(RANGE_SCHEMA), no_rows(RANGE_SCHEMA)))
    if source.id in (base.id, dest.id):
        return RangeMerge(dest, nothing, nothing, unchanged)
    delta, ours = source.delta_since(base), dest.delta_since(base)
    old, new = _differing_runs(base, source)
    if dest.id == base.id:
        taken = with_delta_of(delta, base.only(old.rows), source.only(new.rows), whole=True)
        return RangeMerge(source, taken, nothing, delta)
    at, fits = _places(old, new, base, source, dest)
    whole = bool(fits.all())
    taken = with_delta_of(delta, base.only(old.only(fits).rows), source.only(new.only(fits).rows), whole=whole)
    rest = with_delta_of(delta, base.only(old.only(~fits).rows), source.only(new.only(~fits).rows))
    if not fits.any():
        return RangeMerge(dest, nothing, rest, unchanged, ours)
    replaced, runs = _Runs(at, at + old.sizes).only(fits), new.only(fits)
    # The destination's rows between the replaced runs, and the source's runs in their place, in turn.
    kept = np.append(0, replaced.stops).tolist(), np.append(replaced.starts, len(dest)).tolist()
    pieces: list[Piece] = [(dest, start, stop) for start, stop in zip(*kept, strict=True)]
    put = [(source, start, stop) for start, stop in zip(runs.starts.tolist(), runs.stops.tolist(), strict=True)]
    changes = taken[1].delta
    exchanged = None if changes is None else changes.about(dest.id)
    outcome = joined(chain.from_iterable(zip(pieces, [*put, (source, 0, 0)], strict=True))).with_delta(exchanged)
    return RangeMerge(outcome, taken, rest, exchanged, ours)


def with_delta_of(delta: Delta | None, before: Metarange, after: Metarange, *, whole: bool = False) -> Sides:
    """Ranges and their replacements, with the delta between them where ``delta`` of all ranges is known.

    The changes of ``delta`` at the paths of these ranges are all that differs between these. ``whole`` says that all of
    its changes are.
    """
    if delta is None or whole:
        return before, after.with_delta(delta and delta.about(before.id))

    def load() -> DeltaRows:
        inside = [(before.holding(side["path"]) >= 0) | (after.holding(side["path"]) >= 0) for side in delta.rows]
        old, new = (side.filter(from_numpy(mask)) for side, mask in zip(delta.rows, inside, strict=True))
        return old, new

    return before, after.with_delta(Delta(before.id, load))


def sides_behind(before: Metarange, after: Metarange, path: str) -> Sides:
    """The ranges of both sides that may hold paths behind one, and the delta between these."""
    return with_delta_of(after.delta_since(before), before.behind(path), after.behind(path))


@dataclass(frozen=True)
class _Runs:
    """Runs of a metarange's rows: from ``starts`` on, up to ``stops``."""

    starts: Positions
    stops: Positions

    @property
    def sizes(self) -> Positions:
        return self.stops - self.starts

    @property
    def rows(self) -> Positions:
        sizes = self.sizes
        before = np.cumsum(sizes) - sizes
        return np.repeat(self.starts - before, sizes) + np.arange(sizes.sum())

    def only(self, which: Mask) -> _Runs:
        return _Runs(self.starts[which], self.stops[which])


def _differing_runs(base: Metarange, source: Metarange) -> tuple[_Runs, _Runs]:
    """Where base and source differ: for each stretch of paths the rows of both, of which one may have none.

    A stretch ends at the next range that both have, or at the next path at which a range ends in both.
    """
    rows = base.without(source), source.without(base)
    ends = base.column("last_path", rows[0]), source.column("last_path", rows[1])
    numbers, passed = [], []
    for own, mine, other in zip(rows, ends, ends[::-1], strict=True):
        passed.append(np.append(0, np.cumsum(to_numpy(pc.is_in(mine, value_set=other)), dtype=np.int64)))
        # Shared ranges have one order on both sides. So the number of shared ranges before a row aligns both sides.
        numbers.append(own - np.arange(len(own)) + passed[-1][:-1])
    every = np.union1d(*numbers)
    old, new = np.searchsorted(numbers[0], every), np.searchsorted(numbers[1], every)
    shared = every - passed[0][old]
    stops = np.searchsorted(numbers[0], every, "right"), np.searchsorted(numbers[1], every, "right")
    return _Runs(shared + old, shared + stops[0]), _Runs(shared + new, shared + stops[1])


def _places(old: _Runs, new: _Runs, base: Metarange, source: Metarange, dest: Metarange) -> tuple[Positions, Mask]:
    """Where in the destination the source's rows of each stretch belong, and whether they fit in there."""
    # Where in the destination each run of the base's rows begins, and whether all of it is there, unbroken.
    found = dest.search(base.column("last_path", old.rows))
    same = pc.equal(base.column("id", old.rows), dest.column("id", found, found == len(dest)))
    there = to_numpy(pc.fill_null(same, scalar(False, pa.bool_())))
    places, stops = np.append(np.where(there, found, -1), -1), np.cumsum(old.sizes)
    starts = stops - old.sizes
    lacking = np.append(0, np.cumsum(places < 0))
    fits = (lacking[starts] == lacking[stops]) & (places[stops - 1] - places[starts] == old.sizes - 1)
    at = places[starts]
    begins, ends = _paths(source, "first_path", new.starts), _paths(source, "last_path", new.stops - 1)
    added = old.sizes == 0
    at[added] = dest.search(begins.filter(from_numpy(added)))
    # A last range ends where the paths end, so what comes behind it may belong to it.
    fits[added] = at[added] < len(dest)
    stop = at + old.sizes
    fits &= (new.stops < len(source)) | (new.sizes == 0) | (stop == len(dest))
    fits &= _ascending(_paths(dest, "last_path", at - 1), begins)
    fits &= _ascending(ends, _paths(dest, "first_path", stop))
    return at, fits


def _paths(side: Metarange, column: str, rows: Positions) -> pa.ChunkedArray:
    """A path of each of some rows: null where there is no such row."""
    return side.column(column, rows, (rows < 0) | (rows >= len(side)))


def _ascending(ones: pa.ChunkedArray, others: pa.ChunkedArray) -> Mask:
    """For each pair of paths whether the first comes before the second. A missing neighbour cannot overlap."""
    return to_numpy(pc.fill_null(pc.less(ones, others), scalar(True, pa.bool_())))
