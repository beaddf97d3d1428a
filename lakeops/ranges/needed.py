"""The objects that one metarange needs and another does not: what a mirror waits for before it promotes a head.

Cost follows the ranges that differ. Rows are skipped by their digests, which cover the address; so an uploaded copy
of contents that were there before is needed, and a changed path that keeps its object is not. The answer may name an
object that the other metarange has at another path, and never leaves out one that it does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.schema import ENTRY_SCHEMA
from lakeops.ranges.delta import candidates
from lakeops.ranges.metarange import Metarange, RangeRow, Rows
from lakeops.ranges.part import Candidates
from lakeops.ranges.read import RangeReader

NEEDED_SCHEMA = pa.schema([ENTRY_SCHEMA.field(name) for name in ("physical_address", "checksum", "size_bytes", "path")])
"""One object a row; ``path`` is one of its paths in this range, the first where the object is new. Addresses are as the
ranges hold them: relative to the namespace, absolute for imported objects."""

_OBJECT = NEEDED_SCHEMA.names[:3]


@dataclass(frozen=True)
class NeededOfRange:
    """What one range needs: ``NEEDED_SCHEMA``, in path order, no object twice; possibly no rows at all."""

    row: RangeRow
    objects: pa.Table


def needed(
    reader: RangeReader, wanted: Metarange, known: Metarange, *, proved: Iterable[bytes] = ()
) -> Iterator[NeededOfRange]:
    """The objects that ``wanted`` needs and ``known`` does not, range by range, in path order.

    Every range that ``known`` lacks and that is not proved is given once, and opened once. Of ``known`` only those
    ranges are opened that ``wanted`` lacks and whose paths overlap one of these.

    Args:
        reader: the namespace of both.
        wanted: what has to be there.
        known: what is there already; ``Metarange.empty()`` for nothing.
        proved: ids (32 bytes) of ranges whose objects are known to be there.
    """
    missing = _subset(wanted, wanted.without(known))
    if ids := list(proved):
        proven = pc.is_in(missing.table.column("id"), value_set=pa.array(ids, pa.binary(32)))
        missing = Metarange(missing.table.filter(pc.invert(proven)))
    others = _overlapping(_subset(known, known.without(wanted)), missing)
    pairs = candidates(reader, others, missing, columns=(["physical_address"], NEEDED_SCHEMA.names))
    for row, parts in groupby(pairs, key=lambda pair: pair[1].row):
        if row is not None:
            yield NeededOfRange(row, _objects(pa.concat_tables([_moved(*pair) for pair in parts])))


def _subset(metarange: Metarange, rows: Rows) -> Metarange:
    return Metarange(metarange.table.take(pa.array(rows)))


def _overlapping(ranges: Metarange, others: Metarange) -> Metarange:
    """Those of the ranges whose paths overlap one of the others."""
    if not len(ranges) or not len(others):
        return Metarange.empty()
    first = pc.search_sorted(others.table.column("last_path"), ranges.table.column("first_path"))
    begins = others.table.column("first_path").take(pc.min_element_wise(first, len(others) - 1))
    # Past the last of the others nothing overlaps, whatever range was looked at in its place.
    overlaps = pc.and_(pc.less(first, len(others)), pc.less_equal(begins, ranges.table.column("last_path")))
    return Metarange(ranges.table.filter(overlaps))


def _moved(old: Candidates, new: Candidates) -> pa.Table:
    """The new rows whose object is not among the old ones of this stretch."""
    same = pc.is_in(new.table.column("physical_address"), value_set=old.table.column("physical_address"))
    return new.table.filter(pc.invert(same))


def _objects(rows: pa.Table) -> pa.Table:
    """One row an object."""
    once = rows.group_by(_OBJECT, use_threads=False).aggregate([("path", "first")])
    return once.rename_columns(NEEDED_SCHEMA.names).cast(NEEDED_SCHEMA)
