"""A branch as its readers see it, in bulk: staged rows laid over committed ones, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from lakeops.model.schema import ENTRY_SCHEMA, RANGE_SCHEMA
from lakeops.ranges.metarange import SortedPaths
from lakeops.ranges.overlay import overlay


def shown(committed: Iterable[pa.Table], staged: pa.Table) -> Iterator[pa.Table]:
    """Entries (``ENTRY_SCHEMA``) in path order; never an empty batch.

    Args:
        committed: batches of rows (``RANGE_SCHEMA``) in path order.
        staged: staged rows (``STAGED_SCHEMA``) in path order, one a path.
    """
    rest = staged.combine_chunks()
    for batch in committed:
        behind = batch["path"][-1].as_py().encode() + b"\0"  # no path holds NUL
        end = SortedPaths(rest["path"]).first_at(behind)
        yield from _laid(batch, rest.slice(0, end))
        rest = rest.slice(end)
    yield from _laid(RANGE_SCHEMA.empty_table(), rest)


def _laid(rows: pa.Table, staged: pa.Table) -> Iterator[pa.Table]:
    table = overlay(rows, staged).table if staged.num_rows else rows
    if table.num_rows:
        yield table.select(ENTRY_SCHEMA.names)
