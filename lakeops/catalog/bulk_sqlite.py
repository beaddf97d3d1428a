"""Arrow in and out of SQLite's staging table: ``executemany`` on the driver's tuples, in batches."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection

from lakeops.catalog.arrow import COLUMNS, LOADED, from_columns, to_columns, with_digests
from lakeops.catalog.digests import MASK
from lakeops.catalog.guards import under
from lakeops.catalog.tables import STAGED

_BATCH = 10_000
_LOADED = ", ".join(LOADED.names)
_CHANGES = ", ".join(
    f"trail = ({STAGED.name}.trail + excluded.trail) & {MASK}" if name == "trail" else f"{name} = excluded.{name}"
    for name in LOADED.names
    if name != "path"
)
_UPSERT = (
    f"INSERT INTO {STAGED.name} (repository_id, token, {_LOADED}) "  # noqa: S608 - our own names
    f"VALUES (?, ?, {', '.join('?' * len(LOADED))}) "
    f"ON CONFLICT (repository_id, token, path) DO UPDATE SET {_CHANGES}"
)


class Load:
    """A table of ``STAGED_SCHEMA`` on its way in; ``total`` is the sum of its rows' digests."""

    def __init__(self, rows: pa.Table) -> None:
        self._columns, self.total = with_digests(to_columns(rows))

    def bring(self, conn: Connection) -> None:
        """Nothing to do: the database is in this process."""

    def store(self, conn: Connection, repository_id: str, token: str) -> None:
        """Insert or replace the rows under a token."""
        with _many_tuples():
            for batch in self._columns.to_batches(max_chunksize=_BATCH):
                same = [[repository_id] * batch.num_rows, [token] * batch.num_rows]
                rows = list(zip(*same, *(column.to_pylist() for column in batch.columns), strict=True))
                if rows:  # Arrow may give a batch without any
                    conn.exec_driver_sql(_UPSERT, rows)


def read(conn: Connection, repository_id: str, token: str, prefix: str) -> pa.Table:
    """A token's rows under a prefix, sorted by path, as a table of ``STAGED_SCHEMA``."""
    query = STAGED.select().with_only_columns(*(STAGED.c[name] for name in COLUMNS.names))
    where = (STAGED.c.repository_id == repository_id, STAGED.c.token == token, *under(STAGED.c.path, prefix))
    cursor: Any = conn.execute(query.where(*where).order_by(STAGED.c.path)).cursor
    batches = []
    with _many_tuples():
        while rows := cursor.fetchmany(_BATCH):
            path, tombstone, *others = zip(*rows, strict=True)
            values = [path, list(map(bool, tombstone)), *others]
            arrays = [pa.array(value, field.type) for value, field in zip(values, COLUMNS, strict=True)]
            batches.append(pa.record_batch(arrays, COLUMNS))
    return from_columns(pa.Table.from_batches(batches, COLUMNS))


@contextmanager
def _many_tuples() -> Iterator[None]:
    """Without the search for cycles: tuples of plain values form none, and so many make it search the whole process.

    Half a million rows set it off a thousand times, which took a third of the time to read them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
