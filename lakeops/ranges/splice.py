"""Merging by reference: the source's ranges take the place of the base's where the destination has kept those.

Where a range ends follows from the paths since the end before it. So what base and source have between two ends that
they share can be exchanged wherever the base's ranges stand, whatever the destination has before and behind them. The
outcome has the ids that building it from scratch would give. Nothing is opened for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import from_numpy, scalar, to_numpy
from lakeops.ranges.changelist import ChangeList, nothing_since
from lakeops.ranges.metarange import Metarange, Rows

Mask: TypeAlias = npt.NDArray[np.bool_]
Sides: TypeAlias = tuple[Metarange, Metarange]
"""Some ranges of the base, and those of the source in their place."""


@dataclass(frozen=True)
class Splicing:
    """A merge as far as whole ranges settle it.

    Attributes:
        dest: the destination with those of the source's ranges that could be put in.
        taken: what was exchanged for what.
        rest: what else differs between base and source. Merging this into ``dest`` gives the whole merge.
        exchanged: the rows that ``dest`` changes in the destination. None where nobody has a list of them.
        ours: the rows that the destination changes in the base. None where nobody has a list of them.
    """

    dest: Metarange
    taken: Sides
    rest: Sides
    exchanged: ChangeList | None
    ours: ChangeList | None = None

    @property
    def settled(self) -> bool:
        """Whether nothing is left to be merged."""
        return not any(map(len, self.rest))


def splice(base: Metarange, source: Metarange, dest: Metarange) -> Splicing:
    """What merging ``source`` into ``dest`` takes, as far as ranges that exist already make it up. Opens nothing.

    ``dest`` itself is given back where nothing changes in it, and ``source`` where it is all of the outcome.
    """
    nothing = Metarange.empty(), Metarange.empty()
    unchanged = nothing_since(dest.id)
    if source.id in (base.id, dest.id):
        return Splicing(dest, nothing, nothing, unchanged)
    listed, ours = source.changes_since(base), dest.changes_since(base)
    old, new = _stretches(base, source)
    if dest.id == base.id:
        taken = listed_sides(listed, base.only(old.rows), source.only(new.rows))
        return Splicing(source, taken, nothing, listed)
    at, fits = _places(old, new, base, source, dest)
    taken, rest = (
        listed_sides(listed, base.only(old.only(which).rows), source.only(new.only(which).rows))
        for which in (fits, ~fits)
    )
    if not fits.any():
        return Splicing(dest, nothing, rest, unchanged, ours)
    replaced = _Runs(at, at + old.sizes).only(fits)
    exchanged = None if taken[1].changes is None else taken[1].changes.made_to(dest.id)
    outcome = _exchanged(dest, replaced, source, new.only(fits)).telling(exchanged)
    return Splicing(outcome, taken, rest, exchanged, ours)


def listed_sides(listed: ChangeList | None, before: Metarange, after: Metarange) -> Sides:
    """Some ranges of both sides, with what differs between them where there is a list of all that does.

    Args:
        listed: all changes. Those at the paths of these ranges are all that differs between these.
        before: some ranges of the one side.
        after: those of the other side in their place.
    """
    if listed is None:
        return before, after
    here = listed.only(lambda paths: from_numpy(before.covers(paths) | after.covers(paths)))
    return before, after.telling(here.made_to(before.id))


def sides_behind(before: Metarange, after: Metarange, path: str) -> Sides:
    """The ranges of both sides that may hold paths behind one, and what is listed of these."""
    if not path:
        return before, after
    return listed_sides(after.changes_since(before), before.behind(path), after.behind(path))


@dataclass(frozen=True)
class _Runs:
    """Runs of a metarange's rows: from ``starts`` on, up to ``stops``."""

    starts: Rows
    stops: Rows

    @property
    def sizes(self) -> Rows:
        """How many rows each run has."""
        return self.stops - self.starts

    @property
    def rows(self) -> Rows:
        """All rows of all runs."""
        sizes = self.sizes
        before = np.cumsum(sizes) - sizes
        return np.repeat(self.starts - before, sizes) + np.arange(sizes.sum())

    def only(self, which: Mask) -> _Runs:
        """Some of the runs."""
        return _Runs(self.starts[which], self.stops[which])


def _stretches(base: Metarange, source: Metarange) -> tuple[_Runs, _Runs]:
    """Where base and source differ: for each stretch of paths the rows of both, of which one may have none.

    A stretch ends at the next range that both have, or at the next path at which a range ends in both.
    """
    rows = base.without(source), source.without(base)
    ends = [
        side.table.column("last_path").take(from_numpy(own)) for side, own in zip((base, source), rows, strict=True)
    ]
    common = [to_numpy(pc.is_in(own, value_set=other)).astype(np.int64) for own, other in (ends, ends[::-1])]
    passed = [np.cumsum(ended) - ended for ended in common]
    # Ranges that both have come in one order in both. So their number before a row tells where on both sides it is.
    numbers = [own - np.arange(len(own)) + ended for own, ended in zip(rows, passed, strict=True)]
    every = np.union1d(*numbers)
    starts, stops = ([np.searchsorted(own, every, side=side) for own in numbers] for side in ("left", "right"))
    shared = every - np.append(passed[0], common[0].sum())[starts[0]]
    old, new = (_Runs(shared + start, shared + stop) for start, stop in zip(starts, stops, strict=True))
    return old, new


def _places(old: _Runs, new: _Runs, base: Metarange, source: Metarange, dest: Metarange) -> tuple[Rows, Mask]:
    """Where in the destination the source's rows of each stretch belong, and whether they fit in there."""
    at, fits = _base_rows(old, base, dest)
    begins, ends = (
        _paths(source, "first_path", new.starts, new.sizes),
        _paths(source, "last_path", new.stops - 1, new.sizes),
    )
    added = old.sizes == 0
    at[added] = to_numpy(pc.search_sorted(dest.table.column("last_path"), begins.filter(from_numpy(added))))
    fits[added] = (at[added] < len(dest)) | _can_be_followed(dest, source)
    stop = at + old.sizes
    fits &= (new.stops < len(source)) | (new.sizes == 0) | (stop == len(dest))
    fits &= _rising(_paths(dest, "last_path", at - 1), begins)
    fits &= _rising(ends, _paths(dest, "first_path", stop))
    return at, fits


def _can_be_followed(dest: Metarange, source: Metarange) -> bool:
    """Whether the destination's last range is known to end by the rule: the source has others behind it.

    A last range ends where the paths end.
    """
    last = dest.table.column("id").slice(max(0, len(dest) - 1))
    found = pc.index_in(last, value_set=source.table.column("id")).to_pylist()
    return bool(found) and found[0] is not None and found[0] < len(source) - 1


def _base_rows(old: _Runs, base: Metarange, dest: Metarange) -> tuple[Rows, Mask]:
    """Where in the destination each run of the base's rows begins, and whether all of it is there, unbroken."""
    found = pc.index_in(base.table.column("id").take(from_numpy(old.rows)), value_set=dest.table.column("id"))
    places = np.append(to_numpy(pc.fill_null(found, scalar(-1, found.type))).astype(np.int64), -1)
    stops = np.cumsum(old.sizes)
    starts = stops - old.sizes
    lacking = np.append(0, np.cumsum(places < 0))
    whole = (lacking[starts] == lacking[stops]) & (places[stops - 1] - places[starts] == old.sizes - 1)
    return places[starts], whole


def _paths(side: Metarange, column: str, rows: Rows, sizes: Rows | None = None) -> pa.ChunkedArray:
    """A path of each of some rows: null where there is no such row, and for runs of no rows."""
    lacking = (rows < 0) | (rows >= len(side)) | (False if sizes is None else sizes == 0)
    return side.table.column(column).take(from_numpy(rows, lacking))


def _rising(ones: pa.ChunkedArray, others: pa.ChunkedArray) -> Mask:
    """Whether each path comes before its other one. A null is in nobody's way."""
    rising: Mask = to_numpy(pc.fill_null(pc.less(ones, others), scalar(True, pa.bool_())))
    return rising


def _exchanged(dest: Metarange, replaced: _Runs, source: Metarange, runs: _Runs) -> Metarange:
    """The destination with runs of the source's rows in place of runs of its own."""
    starts, stops = (np.zeros(2 * len(runs.starts) + 1, np.int64) for _ in range(2))
    starts[2::2], stops[:-1:2], stops[-1] = replaced.stops, replaced.starts, len(dest)
    starts[1::2], stops[1::2] = runs.starts + len(dest), runs.stops + len(dest)
    rows = pa.concat_tables([dest.table, source.table])
    return Metarange(rows.take(from_numpy(_Runs(starts, stops).rows)))
