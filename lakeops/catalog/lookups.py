"""Statements that a process runs first, as fixed texts: SQLAlchemy takes a millisecond to compile a statement anew.

That is longer than the database takes to answer, and a short command runs two or three statements in all. A ``Lookup``
is written down as SQL that SQLite and PostgreSQL both understand. It names whole columns of ``tables``, and its values
come as the types of these columns say, so nothing is said twice. What runs seldom, or is put together as it is asked
for, is better left to SQLAlchemy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Connection, Dialect, Table
from sqlalchemy.engine import result_tuple

from lakeops.catalog.rows import AnyRow
from lakeops.model.names import next_prefix

_PARAMETER = re.compile(r":(\w+)")

MakeRow = Callable[[Sequence[Any]], AnyRow]


class Lookup:
    """A query of fixed text. Threads may share it.

    Args:
        columns: what it selects, in order. Attributes of a row have their names.
        source: what stands behind ``FROM``: tables, conditions, order. Parameters are written ``:name``.
    """

    def __init__(self, columns: Iterable[Column[Any]], source: str) -> None:
        self._columns = tuple(columns)
        names = ", ".join(f'{column.table.name}."{column.name}"' for column in self._columns)
        self._text = f"SELECT {names} FROM {source}"  # noqa: S608 - of names that are written down in the program
        # By the dialect's name: all catalogs of a kind of database are opened alike.
        self._made: dict[str, tuple[str, MakeRow]] = {}

    def all(self, conn: Connection, values: Mapping[str, Any]) -> list[AnyRow]:
        """The rows, with these values of the parameters. Values that are no parameter's are left out."""
        text, make_row = self._made.get(conn.dialect.name) or self._prepared(conn.dialect)
        # The driver's own tuples: describing a result to SQLAlchemy takes longer than reading a row.
        cursor: Any = conn.exec_driver_sql(text, dict(values)).cursor
        return [make_row(row) for row in cursor.fetchall()]

    def one(self, conn: Connection, values: Mapping[str, Any]) -> AnyRow | None:
        """The row of a query that finds one at most, by a key."""
        rows = self.all(conn, values)
        return rows[0] if rows else None

    def _prepared(self, dialect: Dialect) -> tuple[str, MakeRow]:
        # SQLite's driver knows ":name", PostgreSQL's "%(name)s".
        text = self._text if dialect.paramstyle == "qmark" else _PARAMETER.sub(r"%(\1)s", self._text)
        processors = [column.type.dialect_impl(dialect).result_processor(dialect, None) for column in self._columns]
        converted = [(place, process) for place, process in enumerate(processors) if process is not None]
        named = result_tuple([column.name for column in self._columns])

        def make_row(row: Sequence[Any]) -> AnyRow:
            values = list(row)
            for place, process in converted:
                values[place] = process(values[place])
            return named(values)

        made = self._made[dialect.name] = (text, make_row)
        return made


class PageLookup:
    """A table's rows by a text that tells them apart, in the order of its bytes, a page at a time.

    Args:
        table: the table. All its columns are selected.
        key: the column that tells the rows apart.
        where: which rows, as in a ``Lookup``. All of them by default.
    """

    def __init__(self, table: Table, key: str, where: str = "") -> None:
        start = f"{table.name} WHERE {where and where + ' AND'} {key} > :after AND {key} >= :prefix"
        end = f"ORDER BY {key} LIMIT :limit"
        self._all = Lookup(table.c, f"{start} {end}")
        self._below = Lookup(table.c, f"{start} AND {key} < :above {end}")

    def page(self, conn: Connection, values: Mapping[str, Any], *, prefix: str, after: str, limit: int) -> list[AnyRow]:
        """Up to ``limit`` rows whose key begins with a prefix and comes after another key."""
        above = next_prefix(prefix)
        query = self._all if above is None else self._below
        return query.all(conn, {**values, "prefix": prefix, "after": after, "limit": limit, "above": above})
