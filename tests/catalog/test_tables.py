"""The tables that statements use are those of the SQLModel classes."""

from __future__ import annotations

from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable
from support import tables_source

from lakeops.catalog import models, tables


def described(metadata) -> list[str]:
    """What PostgreSQL is told of the tables. It has no options of tables, and indexes are statements of their own."""
    return [str(CreateTable(table).compile(dialect=postgresql.dialect())) for table in metadata.sorted_tables]


def test_the_file_is_what_make_tables_writes():
    assert tables_source.FILE.read_text() == tables_source.source(), "the classes were changed: run `make tables`"


def test_the_tables_are_those_of_the_classes():
    assert described(tables.METADATA) == described(models.METADATA)
    for table in models.METADATA.sorted_tables:
        same = tables.METADATA.tables[table.name]
        assert [(column.name, repr(column.type)) for column in same.c] == [(c.name, repr(c.type)) for c in table.c]
        assert [(c.default and c.default.arg, c.onupdate and c.onupdate.arg) for c in same.c] == [
            (c.default and c.default.arg, c.onupdate and c.onupdate.arg) for c in table.c
        ]
        assert (same.autoincrement_column is None) == (table.autoincrement_column is None)


def test_each_table_has_a_name_of_its_own():
    named = {table.name for table in vars(tables).values() if isinstance(table, tables.Table)}
    assert named == tables.METADATA.tables.keys()
