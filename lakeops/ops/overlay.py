"""A branch as its readers see it, in bulk: staged rows laid over committed ones, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.schema import ENTRY_SCHEMA


def overlay(committed: Iterable[pa.Table], staged: pa.Table) -> Iterator[pa.Table]:
    """Entries (``ENTRY_SCHEMA``) in path order.

    Args:
        committed: batches in path order, with at least the columns of ``ENTRY_SCHEMA``.
        staged: staged rows (``STAGED_SCHEMA``), sorted, one a path.
    """
    rest = staged.combine_chunks()
    for batch in committed:
        entries = batch.select(ENTRY_SCHEMA.names)
        last = entries["path"][-1]
        upto = int(pc.sum(pc.less_equal(rest["path"], last)).as_py() or 0)
        yield from _laid(entries, rest.slice(0, upto))
        rest = rest.slice(upto)
    yield from _laid(ENTRY_SCHEMA.empty_table(), rest)


def _laid(entries: pa.Table, staged: pa.Table) -> Iterator[pa.Table]:
    """One batch with the staged rows of its interval laid over it, when anything is left."""
    if staged.num_rows:
        kept = entries.filter(pc.invert(pc.is_in(entries["path"], staged["path"])))
        live = staged.filter(pc.invert(staged["tombstone"])).select(ENTRY_SCHEMA.names).cast(ENTRY_SCHEMA)
        entries = pa.concat_tables([kept, live]).sort_by("path")
    if entries.num_rows:
        yield entries
