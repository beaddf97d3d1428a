"""What staged rows change over committed ones: found out without writing anything.

Only ranges that a staged path falls into are opened.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.ranges.delta import IDENTITY_COLUMNS
from lakeops.ranges.diff import CHANGE_TYPES, DIFF_SCHEMA
from lakeops.ranges.digest import same_identity
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader


def staged_changes(reader: RangeReader, base: Metarange, staged: pa.Table) -> Iterator[pa.Table]:
    """The staged rows that really change something, in path order: tables of ``DIFF_SCHEMA``, none empty.

    Args:
        reader: the namespace.
        base: the head's metarange.
        staged: ``STAGED_SCHEMA``, strictly ascending paths.
    """
    if not staged.num_rows:
        return
    staged = staged.combine_chunks()
    owner = base.route(staged["path"]) if len(base) else np.zeros(staged.num_rows, np.int64)
    numbers, starts = np.unique(owner, return_index=True)
    for number, start, stop in zip(numbers, starts, [*starts[1:], staged.num_rows], strict=True):
        batch = _compared(reader, base, int(number), staged.slice(start, stop - start))
        if batch.num_rows:
            yield batch


def _compared(reader: RangeReader, base: Metarange, number: int, staged: pa.Table) -> pa.Table:
    dead = staged["tombstone"].to_numpy()
    kinds = np.where(dead, -1, 0)  # places in CHANGE_TYPES: added; what is absent and deleted is no change
    sizes = pc.fill_null(staged["size_bytes"], 0).to_numpy().copy()
    if len(base):
        file = reader.open(base.row(number))
        places = pc.search_sorted(file.paths, staged["path"].combine_chunks()).to_numpy().astype(np.int64)
        within = pa.array(np.minimum(places, len(file.paths) - 1))
        found = pc.equal(file.paths.take(within), staged["path"]).to_numpy()
        gone, kept = found & dead, found & ~dead
        same = np.zeros(staged.num_rows, np.bool_)
        same[kept] = same_identity(file.take(places[kept], IDENTITY_COLUMNS), staged.filter(pa.array(kept)))
        kinds = np.select([gone, same, kept], [1, -1, 2], kinds)
        sizes[gone] = file.take(places[gone], ["size_bytes"])["size_bytes"].to_numpy()
    real = np.flatnonzero(kinds >= 0)
    types = pa.DictionaryArray.from_arrays(
        pa.array(kinds[real], pa.int8()), pa.array([str(kind) for kind in CHANGE_TYPES])
    )
    return pa.table([types, staged["path"].take(pa.array(real)), pa.array(sizes[real])], schema=DIFF_SCHEMA)
