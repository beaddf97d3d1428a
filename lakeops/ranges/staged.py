"""What staged rows change over committed ones, without writing anything: uncommitted changes, and whether there are any.

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
        found = pc.equal(file.paths.take(pa.array(places)), staged["path"]).to_numpy() & (places < len(file.paths))
        rows = file.take(places[found], IDENTITY_COLUMNS)
        same = np.zeros(staged.num_rows, np.bool_)
        same[found] = same_identity(rows, staged.filter(pa.array(found)))
        kinds = np.select([found & dead, found & same, found], [1, -1, 2], kinds)
        sizes[found & dead] = rows["size_bytes"].to_numpy()[dead[found]]
    kept = np.flatnonzero(kinds >= 0)
    types = pa.DictionaryArray.from_arrays(pa.array(kinds[kept], pa.int8()), pa.array([str(kind) for kind in CHANGE_TYPES]))
    return pa.table([types, staged["path"].take(pa.array(kept)), pa.array(sizes[kept])], schema=DIFF_SCHEMA)
