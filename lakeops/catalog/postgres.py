"""PostgreSQL: the catalog that a team shares.

Writers run at READ COMMITTED and lock the rows that they decide on. Reads of several statements run at REPEATABLE
READ, read-only, on one snapshot. Nothing outlives a transaction on a connection (settings are ``SET LOCAL``, no
prepared statements, temporary tables dropped at commit), so pools that hand out connections by transaction work.
"""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import URL, Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from lakeops.catalog.database import VERSION_TABLE, Dialect, TransactionFailure
from lakeops.catalog.records import STAGED_VALUES, insert_staged
from lakeops.catalog.tables import STAGED
from lakeops.model.errors import invalid_settings
from lakeops.model.names import next_prefix

if TYPE_CHECKING:
    import pyarrow as pa

LOCK_SECONDS = 15
STATEMENT_SECONDS = 600
IDLE_SECONDS = 120
"""A client that stops in the middle of a transaction keeps others waiting no longer than this."""

SERVER_ENCODING = "server_encoding"
_LOCK_KEY = 0x6C616B656F7073  # "lakeops", for the advisory lock around schema changes
_CONNECT: dict[str, Any] = {
    "application_name": "lakeops",
    "client_encoding": "utf8",
    "connect_timeout": 10,
    "prepare_threshold": None,
}
_LOCKED = "55P03"  # lock not available in time
_AGAIN = ("40001", "40P01", _LOCKED, "57014")  # serialization failure, deadlock, lock, statement timeout
_NOT_TOLD = ("42", "0A", "55")  # some services do not let their users ask
_DATABASE = "SELECT oid FROM pg_database WHERE datname = current_database()"
_CLUSTER = {
    "system": "SELECT system_identifier FROM pg_control_system()",
    "timeline": "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)",
}
_TUPLE = re.compile(r"tuple (\(\d+,\d+\)) in relation \"(lakeops_\w+)\"")
_HOLDER = (  # whoever locked or changed a row has written its transaction's number there
    "SELECT pid, application_name, usename, date_trunc('second', clock_timestamp() - xact_start) "
    "FROM pg_stat_activity JOIN pg_locks USING (pid) WHERE locktype = 'transactionid' AND granted "
    "AND transactionid = (SELECT xmax FROM {} WHERE ctid = %s::tid)"
)
_RELIED_ON = (
    # Databases and logins have defaults of their own for these.
    "SET LOCAL datestyle = 'ISO, YMD'; SET LOCAL intervalstyle = 'postgres'; SET LOCAL timezone = 'UTC'; "
    "SET LOCAL standard_conforming_strings = on; SET LOCAL transform_null_equals = off"
)
_SERVER = (
    # The schema of the tables that are there, whatever schema has come before it in the search path since.
    "SELECT coalesce((SELECT pg_catalog.quote_ident(nspname) FROM pg_catalog.pg_namespace AS n "  # noqa: S608
    "JOIN pg_catalog.pg_class AS c ON n.oid = relnamespace "
    f"WHERE c.oid = pg_catalog.to_regclass('{VERSION_TABLE}')), pg_catalog.quote_ident(pg_catalog.current_schema())), "
    "pg_catalog.current_setting('transaction_timeout', true)"
)
_BATCH = 50_000
_BLOCK = 8 << 20
_DENIED = "42501"  # insufficient privilege
_REFUSES = re.compile(
    r"authentication failed|no password supplied|pg_hba\.conf|permission denied for database|no such (user|database)"
    r'|(role|database|user) "[^"]*" (does not exist|is not permitted)'
)
"""The words of servers and poolers for a login or a database that is wrong. A failed connection brings no SQLSTATE."""
_LOST = ("08", "53", "57P0", "25P03")  # connection, resources, shutdown, idle in transaction


_READ = ", ".join(STAGED_VALUES)
_CREATE = f"CREATE TEMPORARY TABLE lakeops_load ON COMMIT DROP AS SELECT {_READ} FROM {STAGED.name} LIMIT 0"  # noqa: S608
_COPY_IN = f"COPY lakeops_load ({_READ}) FROM STDIN (FORMAT csv)"
_MOVE = insert_staged(f"SELECT %s, %s, {_READ}, 1 FROM lakeops_load")  # noqa: S608
_COPY_OUT = (
    f"COPY (SELECT {_READ} FROM {STAGED.name} WHERE repository_id = %s AND token = %s AND path >= %s "  # noqa: S608
    "AND (path < %s OR %s) ORDER BY path) TO STDOUT (FORMAT csv)"
)


class Postgres(Dialect):
    """A catalog on a server."""

    name = "postgresql"
    table_names: str = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    account: str | None = None
    insert_staged: str = insert_staged(f"VALUES ({', '.join(['%s'] * len(STAGED.columns))})")

    def __init__(self) -> None:
        self._settings: str | None = None

    def engine(self, url: URL) -> Engine:
        given = {name: value for name, value in _CONNECT.items() if name not in url.query or name == "client_encoding"}
        pool = {"pool_pre_ping": True, "pool_size": 5, "max_overflow": 15}
        try:
            return create_engine(
                url, connect_args=given, isolation_level="READ COMMITTED", hide_parameters=True, **pool
            )
        except ModuleNotFoundError:
            raise invalid_settings("PostgreSQL needs its driver: install lakeops with its extra 'postgres'") from None

    def reader(self, engine: Engine) -> Engine:
        return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def begin(self, conn: Connection, *, write: bool) -> None:  # noqa: ARG002 - readers are told apart by ``reader``
        """With limits on how long it may wait, run and idle, and what else the catalog relies on."""
        if self._settings is None:  # no schema behind it may shadow a function of PostgreSQL
            schema, transaction_timeout = conn.exec_driver_sql(_SERVER).one()
            if schema is None or schema.startswith("pg_"):  # PostgreSQL's own
                flaw = "no schema of the database login's search_path exists, or the login may use none of them"
                raise invalid_settings(flaw)
            self._settings = f"SET LOCAL search_path = {schema}, pg_temp; {_RELIED_ON}"
            if transaction_timeout is not None:  # a server before version 17 has none
                self._settings += "; SET LOCAL transaction_timeout = 0"
        conn.exec_driver_sql(
            f"{self._settings}; "
            f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'; SET LOCAL statement_timeout = '{STATEMENT_SECONDS}s'; "
            f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'"
        )

    def now(self, conn: Connection) -> datetime:
        moment = conn.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
        return cast("datetime", moment).astimezone(UTC)

    def failure_of(self, error: BaseException) -> TransactionFailure:
        """By SQLSTATE. An operation that failed without any was not answered by a server, unless it refused the login.

        A pooler whose server broke may answer one command twice, which psycopg calls an internal error.
        """
        import psycopg

        state = getattr(error, "sqlstate", None) or ""
        kinds = psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError
        unanswered = not state and isinstance(error, kinds)
        if unanswered and _REFUSES.search(str(error)):
            return TransactionFailure.REFUSED
        if state in _AGAIN:
            return TransactionFailure.RETRY
        if unanswered or state.startswith(_LOST):
            return TransactionFailure.LOST
        return TransactionFailure.DENIED if state == _DENIED else TransactionFailure.REFUSED

    def explain(self, engine: Engine, error: BaseException) -> str:
        """The process that has locked the row which the error names, and for how long. Some logins may not ask."""
        found = _TUPLE.search(getattr(getattr(error, "diag", None), "context", None) or "")
        if getattr(error, "sqlstate", None) != _LOCKED or found is None:
            return ""
        try:
            with engine.connect() as conn:
                self.begin(conn, write=False)
                row = conn.exec_driver_sql(_HOLDER.format(found[2]), (found[1],)).first()
        except SQLAlchemyError:
            return ""  # the error that is told is the one before
        if row is None:
            return ""
        pid, program, login, age = row
        since = "" if age is None else f", whose transaction has been open for {age}"
        return f"; process {pid} of the database ({program or 'unnamed'}, login {login}) holds the lock{since}"

    def lock_schema(self, conn: Connection) -> None:
        conn.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK_KEY})")

    def facts(self, conn: Connection) -> dict[str, str]:
        names = ("server_version", SERVER_ENCODING, "synchronous_commit", "fsync", "default_transaction_read_only")
        return {name: str(conn.exec_driver_sql(f"SHOW {name}").scalar_one()) for name in names}

    def identify(self, conn: Connection) -> dict[str, str]:
        """The cluster, its timeline and the database's number in it.

        A dump has another number, another cluster another identifier, and a server that was promoted or restored to a
        point in time another timeline.
        """
        facts = {"database": str(conn.exec_driver_sql(_DATABASE).scalar_one())}
        for name, query in _CLUSTER.items():
            try:
                with conn.begin_nested():
                    facts[name] = str(conn.exec_driver_sql(query).scalar_one())
            except DBAPIError as error:
                if not str(getattr(error.orig, "sqlstate", None)).startswith(_NOT_TOLD):
                    raise
        return facts

    def copy_in(self, conn: Connection, rows: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.csv as pa_csv

        conn.exec_driver_sql(_CREATE)
        options = pa_csv.WriteOptions(include_header=False, quoting_style="needed")
        with _cursor(conn) as cursor, cursor.copy(_COPY_IN) as copy:
            for batch in rows.to_batches(max_chunksize=_BATCH):
                sink = pa.BufferOutputStream()
                pa_csv.write_csv(batch, sink, options)
                copy.write(sink.getvalue())

    def load(self, conn: Connection, repository_id: str, token: str, rows: pa.Table) -> None:  # noqa: ARG002 - they came
        conn.exec_driver_sql(_MOVE, (repository_id, token))

    def unload(self, conn: Connection, repository_id: str, token: str, prefix: str) -> pa.Table:
        import pyarrow as pa

        from lakeops.model.arrow import STAGING_COLUMNS, no_rows

        above = next_prefix(prefix)
        tables, rows, size = [no_rows(STAGING_COLUMNS)], io.BytesIO(), 0
        with _cursor(conn) as cursor:
            values = (repository_id, token, prefix, above or "", above is None)
            with cursor.copy(_COPY_OUT, values) as copy:
                for piece in copy:
                    size += rows.write(piece)
                    # Rows may hold newlines, but only between quotes.
                    if size >= _BLOCK and piece[-1] in b"\n" and not rows.getvalue().count(b'"') % 2:
                        tables.append(_parsed(rows.getvalue(), STAGING_COLUMNS))
                        rows, size = io.BytesIO(), 0
        if size:
            tables.append(_parsed(rows.getvalue(), STAGING_COLUMNS))
        return pa.concat_tables(tables)


def _parsed(rows: bytes, columns: pa.Schema) -> pa.Table:
    """Whole rows of CSV as a table. Arrow refuses a row that is larger than a block, so all of it is one."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    read = pa_csv.ReadOptions(column_names=columns.names, block_size=len(rows), use_threads=False)
    parse = pa_csv.ParseOptions(newlines_in_values=True)
    nulls: dict[str, Any] = {"null_values": [""], "strings_can_be_null": True, "quoted_strings_can_be_null": False}
    convert = pa_csv.ConvertOptions(column_types=columns, true_values=["t"], false_values=["f"], **nulls)
    return pa_csv.read_csv(pa.BufferReader(rows), read, parse, convert).cast(columns)


def _cursor(conn: Connection) -> Any:  # noqa: ANN401 - psycopg's cursor; the driver is not imported here
    return conn.connection.cursor()
