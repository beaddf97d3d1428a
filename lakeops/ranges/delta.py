"""What differs between two metaranges, range by range: the walk under diff and merge.

Ranges with equal ids hold equal rows at equal paths, so they are left out unread on both sides; of the others the rows
that one side alone has are read, a stretch of paths at a time, and paired by path. Most stretches hold a few such rows,
so those of several are handed on in one step. Memory holds the stretches that are being read, and what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow.compute as pc

from lakeops.ranges.align import Positions
from lakeops.ranges.digest import same_labels
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.part import Candidates, Columns, Pair, Part, compared
from lakeops.ranges.read import RangeReader
from lakeops.ranges.stretch import stretches

IDENTITY_COLUMNS = ["checksum", "size_bytes", "content_type", "metadata"]
SKETCH_COLUMNS = ["path", "size_bytes"]

MOST_TOGETHER = 16
"""Stretches whose differences are handed on in one step."""
_MANY_ROWS = 8_192


@dataclass(frozen=True)
class Delta:
    """The differing rows of some stretches of paths; a later delta's paths all come after an earlier one's.

    ``left`` and ``right`` hold candidate rows in path order. ``removed`` and ``added`` number the rows of ``left``
    and ``right`` whose path the other side does not have; ``pairs`` those of one path whose identities differ.
    """

    left: Candidates
    right: Candidates
    removed: Positions
    added: Positions
    pairs: tuple[Positions, Positions]

    @property
    def total(self) -> int:
        """How many paths differ."""
        return len(self.removed) + len(self.added) + len(self.pairs[0])


def deltas(
    reader: RangeReader,
    left: Metarange,
    right: Metarange,
    *,
    columns: Columns = (SKETCH_COLUMNS, SKETCH_COLUMNS),
    prefix: str = "",
) -> Iterator[Delta]:
    """Everything that differs under ``prefix``, in path order; none of the deltas is empty.

    Args:
        reader: the namespace of both.
        left: before.
        right: after.
        columns: what the left and the right rows hold, at least ``SKETCH_COLUMNS``. The rest of an identity is read
            later, where sizes are equal.
        prefix: leave out paths that do not start with it.
    """

    def read(parts: tuple[Part | None, Part | None]) -> Delta:
        delta = matched(*_candidates(parts, columns, prefix))
        _release(parts)
        return delta

    found = reader.ahead(read, stretches(reader, left, right, prefix))
    yield from _together(delta for delta in found if delta.total)


def candidates(
    reader: RangeReader, left: Metarange, right: Metarange, *, columns: Columns, prefix: str = ""
) -> Iterator[Pair]:
    """The rows that the sides do not share in whole, addresses and times included, a stretch of paths at a time.

    Args:
        reader: the namespace of both.
        left: before.
        right: after.
        columns: what the left and the right rows hold; with a prefix at least ``path``.
        prefix: leave out paths that do not start with it.
    """

    def read(parts: tuple[Part | None, Part | None]) -> Pair:
        pair = _candidates(parts, columns, prefix)
        _release(parts)
        return pair

    yield from reader.ahead(read, stretches(reader, left, right, prefix))


def _candidates(parts: tuple[Part | None, Part | None], columns: Columns, prefix: str) -> Pair:
    old, new = compared(*parts, columns)
    return old.under(prefix), new.under(prefix)


def _release(parts: tuple[Part | None, Part | None]) -> None:
    for part in parts:
        if part is not None:
            part.release()


def matched(left: Candidates, right: Candidates) -> Delta:
    """Candidate rows of both sides, paired by path; pairs of one identity are no difference.

    Both hold at least ``SKETCH_COLUMNS``. What else identities are made of is read as far as it matters.
    """
    partner = pc.index_in(left.table.column("path"), value_set=right.table.column("path"))
    paired = np.flatnonzero(pc.is_valid(partner).to_numpy())
    partners = pc.drop_null(partner).to_numpy().astype(np.int64)
    differ = _sizes(left)[paired] != _sizes(right)[partners]
    alike = np.flatnonzero(~differ)
    if len(alike):
        old, new = (side.rows(rows[alike], ["checksum"]) for side, rows in ((left, paired), (right, partners)))
        differ[alike] = pc.not_equal(old.column(0), new.column(0)).to_numpy()
        alike = alike[~differ[alike]]
    if len(alike):
        labels = ["content_type", "metadata"]
        old, new = (side.rows(rows[alike], labels) for side, rows in ((left, paired), (right, partners)))
        differ[alike] = ~same_labels(old, new)
    return Delta(left, right, _but(left, paired), _but(right, partners), (paired[differ], partners[differ]))


def _sizes(side: Candidates) -> Positions:
    sizes: Positions = side.table.column("size_bytes").to_numpy()
    return sizes


def _but(side: Candidates, rows: Positions) -> Positions:
    """The other rows of a side."""
    others = np.ones(side.table.num_rows, np.bool_)
    others[rows] = False
    return np.flatnonzero(others)


def _together(some: Iterable[Delta]) -> Iterator[Delta]:
    """Neighbouring deltas as one, more of them the longer the walk goes on, as long as they hold few rows."""
    held: list[Delta] = []
    most = 1
    for delta in some:
        held.append(delta)
        if len(held) == most or sum(one.total for one in held) > _MANY_ROWS:
            yield _joined(held)
            held, most = [], min(2 * most, MOST_TOGETHER)
    if held:
        yield _joined(held)


def _joined(some: list[Delta]) -> Delta:
    if len(some) == 1:
        return some[0]
    left, right = Candidates.together([one.left for one in some]), Candidates.together([one.right for one in some])
    before, after = (_starts(side) for side in ([one.left for one in some], [one.right for one in some]))
    return Delta(
        left,
        right,
        _shifted([one.removed for one in some], before),
        _shifted([one.added for one in some], after),
        (_shifted([one.pairs[0] for one in some], before), _shifted([one.pairs[1] for one in some], after)),
    )


def _starts(sides: list[Candidates]) -> list[int]:
    """Where the rows of each one begin among all of them."""
    return list(accumulate((side.table.num_rows for side in sides), initial=0))[:-1]


def _shifted(rows: list[Positions], starts: list[int]) -> Positions:
    return np.concatenate([one + start for one, start in zip(rows, starts, strict=True)])
