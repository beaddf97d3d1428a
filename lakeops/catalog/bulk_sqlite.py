"""Arrow in and out of SQLite's staging table: ``executemany`` on the driver's tuples, in batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from sqlalchemy import Connection

from lakeops.catalog.arrow import COLUMNS, from_columns, to_columns
from lakeops.catalog.guards import under
from lakeops.catalog.tables import STAGED

_BATCH = 10_000
_NAMES = ", ".join(COLUMNS.names)
_CHANGES = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS.names if name != "path")
_UPSERT = (
    f"INSERT INTO {STAGED.name} (repository_id, token, {_NAMES}) "  # noqa: S608 - our own names
    f"VALUES (?, ?, {', '.join('?' * len(COLUMNS))}) "
    f"ON CONFLICT (repository_id, token, path) DO UPDATE SET {_CHANGES}"
)


class Load:
    """A table of ``STAGED_SCHEMA`` on its way in."""

    def __init__(self, rows: pa.Table) -> None:
        self._columns = to_columns(rows)

    def bring(self, conn: Connection) -> None:
        """Nothing to do: the database is in this process."""

    def store(self, conn: Connection, repository_id: str, token: str) -> None:
        """Insert or replace the rows under a token."""
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
    while rows := cursor.fetchmany(_BATCH):
        path, tombstone, *others = zip(*rows, strict=True)
        values = [path, list(map(bool, tombstone)), *others]
        batches.append(pa.record_batch([pa.array(v, f.type) for v, f in zip(values, COLUMNS, strict=True)], COLUMNS))
    return from_columns(pa.Table.from_batches(batches, COLUMNS))
