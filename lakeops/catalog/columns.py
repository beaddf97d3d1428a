"""The kinds of columns that the catalog's tables have. ``models`` and the generated ``tables`` are made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Column, Dialect, Index, Integer, Text
from sqlalchemy import text as sql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

PREFIX = "lakeops_"
VERSION_TABLE = "lakeops_version"
"""Where alembic keeps the revision: not ``alembic_version``, which a neighbour may own."""

BYTEWISE = Text().with_variant(Text(collation="C"), "postgresql")
COUNTER = BigInteger().with_variant(Integer(), "sqlite")
WHOLE, YES_OR_NO = BigInteger(), Boolean()
"""One type for all columns of a kind: what a database makes of a type is then found out once."""


class Unreadable:
    """What a JSON column holds that is no JSON. It fits nothing, so decoding its row fails."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __repr__(self) -> str:
        return f"text that is no JSON ({self.reason})"


class CheckedJson(TypeDecorator[Any]):
    """JSON. Text that cannot be parsed comes as ``Unreadable``, so that one damaged row stops no query."""

    impl: type[JSON] = JSON
    cache_ok: bool | None = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """The dialect's own parser, with its errors caught."""
        parse = super().result_processor(dialect, coltype)
        if parse is None:
            return None

        def process(value: Any) -> Any:  # noqa: ANN401 - JSON is anything
            try:
                return parse(value)
            except (ValueError, TypeError) as error:
                return Unreadable(" ".join(str(error).split()))

        return process


CHECKED_JSON = CheckedJson()


def text(name: str | None = None, *, key: bool = False, null: bool = False) -> Column[str]:
    """Text, ordered by its bytes."""
    return Column(name, BYTEWISE, primary_key=key, nullable=null)


def number(name: str | None = None, *, key: bool = False, null: bool = False) -> Column[int]:
    """A whole number of 64 bits."""
    return Column(name, WHOLE, primary_key=key, nullable=null, autoincrement=False)


def flag(name: str | None = None) -> Column[bool]:
    """Yes or no."""
    return Column(name, YES_OR_NO, nullable=False)


def json(name: str | None = None) -> Column[Any]:
    """JSON."""
    return Column(name, CHECKED_JSON, nullable=False)


def counter(name: str | None = None) -> Column[int]:
    """A key that the database counts up."""
    return Column(name, COUNTER, primary_key=True, autoincrement=True)


class DatabaseLogin(FunctionElement[str]):
    """The login that the database has checked. SQLite has none, so an insert there names the account."""

    inherit_cache: bool | None = True


class DatabaseSeconds(FunctionElement[int]):
    """The database's time, in Unix seconds. SQLite's is the catalog's clock, so an insert there names it."""

    inherit_cache: bool | None = True


_ANSWERS = {DatabaseLogin: "SESSION_USER", DatabaseSeconds: "(floor(EXTRACT(epoch FROM clock_timestamp())))::bigint"}


@compiles(DatabaseLogin, "postgresql")
@compiles(DatabaseSeconds, "postgresql")
def _on_a_server(element: Any, _compiler: Any, **_options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's own types
    return _ANSWERS[type(element)]


@compiles(DatabaseLogin)
@compiles(DatabaseSeconds)
def _in_a_file(_element: Any, _compiler: Any, **_options: Any) -> str:  # noqa: ANN401
    return "NULL"


def login(name: str | None = None) -> Column[str]:
    """The login of whoever inserts the row. Who may not name the column cannot claim to be another one."""
    return Column(name, BYTEWISE, nullable=False, server_default=DatabaseLogin())


def seconds(name: str | None = None) -> Column[int]:
    """When the row was inserted, in Unix seconds, by the database's clock."""
    return Column(name, WHOLE, nullable=False, server_default=DatabaseSeconds())


def partial_index(name: str, condition: str, *columns: str) -> Index:
    """An index over the rows that meet a condition."""
    return Index(name, *columns, sqlite_where=sql(condition), postgresql_where=sql(condition))
