"""Arrow in and out of PostgreSQL's staging table: COPY, as CSV that Arrow writes and parses by columns.

Rows travel into a temporary table first, before the transition takes any lock, and one statement moves them under
the token. CSV tells null (nothing) from the empty text (two quotes), and every text is quoted.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
from sqlalchemy import Connection

from lakeops.catalog.arrow import COLUMNS, LOADED, from_columns, to_columns, with_digests
from lakeops.catalog.digests import MASK
from lakeops.catalog.tables import STAGED
from lakeops.model.names import next_prefix

_BATCH = 50_000
_BLOCK = 8 << 20
_LARGEST_BLOCK = (1 << 31) - 1
_NAMES = ", ".join(COLUMNS.names)
_LOADED = ", ".join(LOADED.names)
_CHANGES = ", ".join(
    f"trail = ({STAGED.name}.trail + excluded.trail) & {MASK}" if name == "trail" else f"{name} = excluded.{name}"
    for name in LOADED.names
    if name != "path"
)
_CREATE = f"CREATE TEMPORARY TABLE lakeops_load ON COMMIT DROP AS SELECT {_LOADED} FROM {STAGED.name} LIMIT 0"  # noqa: S608
_COPY_IN = f"COPY lakeops_load ({_LOADED}) FROM STDIN (FORMAT csv)"
_MOVE = (
    f"INSERT INTO {STAGED.name} (repository_id, token, {_LOADED}) SELECT %s, %s, {_LOADED} FROM lakeops_load "  # noqa: S608
    f"ON CONFLICT (repository_id, token, path) DO UPDATE SET {_CHANGES}"
)
_COPY_OUT = (
    f"COPY (SELECT {_NAMES} FROM {STAGED.name} WHERE repository_id = %s AND token = %s AND path >= %s "  # noqa: S608
    "AND (path < %s OR %s) ORDER BY path) TO STDOUT (FORMAT csv)"
)
_WRITE = pa_csv.WriteOptions(include_header=False, quoting_style="needed")
_READ: dict[str, Any] = {
    "parse_options": pa_csv.ParseOptions(newlines_in_values=True),
    "convert_options": pa_csv.ConvertOptions(
        column_types=COLUMNS,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["t"],
        false_values=["f"],
    ),
}


class Load:
    """A table of ``STAGED_SCHEMA`` on its way in; ``total`` is the sum of its rows' digests."""

    def __init__(self, rows: pa.Table) -> None:
        self._columns, self.total = with_digests(to_columns(rows))

    def bring(self, conn: Connection) -> None:
        """Send the rows to a temporary table of this transaction."""
        conn.exec_driver_sql(_CREATE)
        with _cursor(conn) as cursor, cursor.copy(_COPY_IN) as copy:
            for batch in self._columns.to_batches(max_chunksize=_BATCH):
                sink = pa.BufferOutputStream()
                pa_csv.write_csv(batch, sink, _WRITE)
                copy.write(sink.getvalue())

    def store(self, conn: Connection, repository_id: str, token: str) -> None:
        """Insert or replace the rows under a token."""
        conn.exec_driver_sql(_MOVE, (repository_id, token))


def read(conn: Connection, repository_id: str, token: str, prefix: str) -> pa.Table:
    """A token's rows under a prefix, sorted by path, as a table of ``STAGED_SCHEMA``."""
    above = next_prefix(prefix)
    sink = pa.BufferOutputStream()
    with _cursor(conn) as cursor:
        values = (repository_id, token, prefix, above or "", above is None)
        with cursor.copy(_COPY_OUT, values) as copy:
            for piece in copy:
                sink.write(piece)
    buffer = sink.getvalue()
    if not buffer.size:
        return from_columns(COLUMNS.empty_table())
    return from_columns(_parsed(buffer).cast(COLUMNS))


def _parsed(buffer: pa.Buffer) -> pa.Table:
    """The CSV as a table. Arrow refuses a row that is larger than a block, so the block grows until all rows fit."""
    block = _BLOCK
    while True:
        read = pa_csv.ReadOptions(column_names=COLUMNS.names, block_size=block, use_threads=False)
        try:
            return pa_csv.read_csv(pa.BufferReader(buffer), read_options=read, **_READ)
        except pa.ArrowInvalid:
            if block >= min(buffer.size, _LARGEST_BLOCK):
                raise
        block = min(8 * block, _LARGEST_BLOCK)


def _cursor(conn: Connection) -> Any:  # noqa: ANN401 - psycopg's cursor; the driver is not imported here
    return conn.connection.cursor()
