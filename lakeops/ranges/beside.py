"""What one range of a merge's destination holds at paths that base and source do not agree on.

Digests settle most: one covers its path, so a row of the base whose digest is in the destination's range is there
unchanged. Only for the other paths the destination is searched, and identities are read only where it has the path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakeops.ranges.align import Positions, among
from lakeops.ranges.delta import IDENTITY_COLUMNS, Delta
from lakeops.ranges.digest import same_identity
from lakeops.ranges.file import RangeFile
from lakeops.ranges.part import Candidates

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class States:
    """For each path whether the destination is as the base, is as the source, and has it at all."""

    like_base: Mask
    like_source: Mask
    present: Mask


def states(file: RangeFile, paths: pa.Array, delta: Delta, left: Positions, right: Positions) -> States:
    """The states of some ascending paths that would be in a range of the destination.

    Args:
        file: the range.
        paths: some of those that differ between base and source.
        delta: what differs between base (left) and source (right).
        left: each path's row in the base, -1 where it is absent.
        right: the same of the source.
    """
    none = np.zeros(len(paths), np.bool_)
    found = States(none, none.copy(), none.copy())
    ours = file.digests(np.unique(file.groups_of(paths)).tolist())
    for side, rows, like in ((delta.left, left, found.like_base), (delta.right, right, found.like_source)):
        open_ones = np.flatnonzero((rows >= 0) & ~found.present)
        settled = open_ones[among(side.digests(rows[open_ones]), ours)]
        like[settled] = found.present[settled] = True
    _search(file, paths, delta, (left, right), found)
    return found


def _search(file: RangeFile, paths: pa.Array, delta: Delta, sides: tuple[Positions, Positions], known: States) -> None:
    """Complete the states of paths that digests did not settle."""
    rest = np.flatnonzero(~known.present)
    if not len(rest):
        return
    here, places = file.find(paths.take(pa.array(rest)))
    known.present[rest] = here
    left, right = (rows[rest] for rows in sides)
    like_base = _equal(file, places, delta.left, left)
    known.like_base[rest] = like_base
    # Base and source differ at every path here, so what is as the base is not as the source.
    other = np.flatnonzero(~like_base)
    known.like_source[rest[other]] = _equal(file, places[other], delta.right, right[other])


def _equal(file: RangeFile, places: Positions, side: Candidates, rows: Positions) -> Mask:
    """Whether what the destination has at ``places`` is what a side has at ``rows``; -1 is absent."""
    equal: Mask = (places < 0) & (rows < 0)
    both = np.flatnonzero((places >= 0) & (rows >= 0))
    if len(both):
        equal[both] = same_identity(file.take(places[both], IDENTITY_COLUMNS), side.rows(rows[both], IDENTITY_COLUMNS))
    return equal
