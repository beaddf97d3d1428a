"""What staged rows would change: the diff between a metarange and itself with those rows applied."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.schema import ENTRY_SCHEMA
from lakeops.ranges.delta import IDENTITY_COLUMNS, Delta, matched
from lakeops.ranges.diff import batch
from lakeops.ranges.file import RangeFile
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.part import Candidates
from lakeops.ranges.read import RangeReader

_AT_ONCE = 50_000


def staged_changes(reader: RangeReader, base: Metarange, staged: pa.Table) -> Iterator[pa.Table]:
    """The staged rows that really change something, in path order: tables of ``DIFF_SCHEMA``, none empty.

    Opens the ranges that staged paths fall in, a few ahead. Writing what is already there and deleting what is not
    are no changes.

    Args:
        reader: the namespace.
        base: the head's metarange.
        staged: ``STAGED_SCHEMA``, paths strictly ascending.
    """
    if not staged.num_rows:
        return
    owners = base.route(staged.column("path")) if len(base) else np.zeros(staged.num_rows, np.int64)
    touched, starts = np.unique(owners, return_index=True)
    stops = [*starts[1:].tolist(), staged.num_rows]
    files = reader.open_each(base.at(touched) if len(base) else [])
    for start, stop in zip(starts.tolist(), stops, strict=True):
        file = next(files, None)
        for begin in range(start, stop, _AT_ONCE):
            delta = _over(file, staged.slice(begin, min(_AT_ONCE, stop - begin)))
            if delta.total:
                yield batch(delta)


def _over(file: RangeFile | None, staged: pa.Table) -> Delta:
    """What staged rows change over the range that their paths fall in (None: there is no range)."""
    columns = ["path", *IDENTITY_COLUMNS]
    # What is no tombstone holds no nulls.
    schema = pa.schema([ENTRY_SCHEMA.field(name) for name in columns])
    after = staged.filter(pc.invert(staged.column("tombstone"))).select(columns).cast(schema)
    before = after.slice(0, 0)
    if file is not None:
        before = file.rows_at(staged.column("path"), columns)[1]
    return matched(Candidates(before), Candidates(after))
