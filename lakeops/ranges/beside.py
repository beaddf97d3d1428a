"""What one range of a merge's destination holds at paths that base and source do not agree on.

Digests settle most. What a row group of the base holds is known, so one that the destination has too is not read. Of
the others the digests of rows are: one covers its path, so a row whose digest is there is there unchanged. Only for the
paths that are left the destination is searched, and identities are read only where it has them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakeops.ranges.align import Positions, among
from lakeops.ranges.delta import IDENTITY_COLUMNS, Candidates, Delta
from lakeops.ranges.digest import same_identity
from lakeops.ranges.file import RangeFile

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
    owners = file.groups_of(paths)
    shared = np.array([mark.digest in delta.left.groups for mark in file.marks], np.bool_)[owners]
    _as_in_base(file, owners, delta, (left, right), np.flatnonzero(shared), found)
    rest = np.flatnonzero(~shared)
    if len(rest):
        ours = file.digests(np.unique(owners[rest]).tolist())
        for side, rows, like in ((delta.left, left, found.like_base), (delta.right, right, found.like_source)):
            asked = rest[(rows[rest] >= 0) & ~found.present[rest]]
            settled = asked[among(side.digests(rows[asked]), ours)]
            like[settled] = found.present[settled] = True
        _search(file, paths, delta, (left, right), rest[~found.present[rest]], found)
    return found


def _as_in_base(
    file: RangeFile, owners: Positions, delta: Delta, sides: tuple[Positions, Positions], here: Positions, known: States
) -> None:
    """The states of paths that would be in a row group that the base has too, row for row."""
    left, right = (rows[here] for rows in sides)
    in_base = np.flatnonzero(left >= 0)
    ours = np.array([file.marks[owner].digest for owner in owners[here[in_base]].tolist()], object)
    known.present[here[in_base]] = delta.left.group_digests(left[in_base]) == ours
    # What the base does not have, or has in another row group, is absent.
    present = known.present[here]
    known.like_base[here] = present | (left < 0)
    known.like_source[here] = ~known.like_base[here] & (right < 0)


def _search(
    file: RangeFile, paths: pa.Array, delta: Delta, sides: tuple[Positions, Positions], rest: Positions, known: States
) -> None:
    """The states of paths that digests did not settle."""
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
