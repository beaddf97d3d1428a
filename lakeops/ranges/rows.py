"""Rows on their way into ranges: complete, in order, and with their digests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.errors import InvalidInput
from lakeops.model.records import Split
from lakeops.model.schema import ENTRY_SCHEMA, RANGE_SCHEMA
from lakeops.ranges.cutter import Cut, Cutter
from lakeops.ranges.digest import entry_digests

_AT_ONCE = 100_000


def with_digests(table: pa.Table) -> pa.Table:
    """The rows with their digests: ``RANGE_SCHEMA``, from a table with at least ``ENTRY_SCHEMA``'s columns.

    A ``digest`` column that is there already is taken as it is. Raises ``InvalidInput`` for a null in any of them.
    """
    plain = complete(table)
    digests = table.column("digest") if "digest" in table.column_names else entry_digests(plain)
    return pa.table([*plain.columns, digests], schema=RANGE_SCHEMA)


def complete(table: pa.Table) -> pa.Table:
    """The columns of ``ENTRY_SCHEMA``. Raises ``InvalidInput`` for a null in any of them."""
    for name in ENTRY_SCHEMA.names:
        if table.column(name).null_count:
            raise InvalidInput(f"column {name!r} holds nulls; every entry needs a value there")
    return table.select(ENTRY_SCHEMA.names).cast(ENTRY_SCHEMA)


def check_ascending(paths: pa.Array | pa.ChunkedArray, after: str | None = None) -> None:
    """Raise ``InvalidInput`` unless paths ascend strictly by their bytes, all of them after ``after``."""
    chunks = paths.chunks if isinstance(paths, pa.ChunkedArray) else [paths]
    for chunk in chunks:
        if not len(chunk):
            continue
        rising = pc.less(chunk.slice(0, len(chunk) - 1), chunk.slice(1))
        where = pc.index(rising, value=False).as_py()
        if where >= 0 or (after is not None and chunk[0].as_py() <= after):
            raise InvalidInput(
                f"paths must be unique and sorted by their bytes; they are not at {chunk[where + 1].as_py()!r}"
            )
        after = chunk[-1].as_py()


def cut(tables: Iterable[pa.Table], split: Split) -> Iterator[Cut]:
    """The rows of each range in turn, from nothing before to nothing after; digests come along where there are any.

    Raises ``InvalidInput`` unless paths ascend strictly within and across the tables.
    """
    cutter = Cutter(split)
    last: str | None = None
    for table in tables:
        if not table.num_rows:
            continue
        check_ascending(table.column("path"), last)
        last = table.column("path")[-1].as_py()
        for start in range(0, table.num_rows, _AT_ONCE):
            rows = table.slice(start, _AT_ONCE)
            yield from cutter.add(with_digests(rows) if "digest" in rows.column_names else complete(rows))
    if cutter.open:
        yield cutter.rest()
