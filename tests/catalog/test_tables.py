"""The tables that are kept beside the bytecode are those of the classes, or nobody uses them."""

from __future__ import annotations

import shutil
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from lakeops.catalog import models, tables


@pytest.fixture
def classes(tmp_path, monkeypatch) -> Path:
    """A copy of the classes' source, whose tables are not kept yet; what is made of it counts in ``made``."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return Path(shutil.copy(models.__file__, tmp_path))


@pytest.fixture
def made(monkeypatch) -> list[str]:
    """Grows whenever the tables are made of the classes."""
    calls: list[str] = []
    monkeypatch.setattr(tables, "_made", lambda: calls.append("") or models.METADATA)
    return calls


def kept_at(classes: Path) -> Path:
    return Path(cache_from_source(str(classes))).with_suffix(".tables")


def described(metadata) -> list[str]:
    """Everything that a database is told of the tables."""
    return [
        str(statement.compile(dialect=dialect))
        for dialect in (sqlite.dialect(), postgresql.dialect())
        for table in metadata.sorted_tables
        for statement in (CreateTable(table), *map(CreateIndex, sorted(table.indexes, key=lambda index: index.name)))
    ]


def test_kept_tables_are_those_of_the_classes(classes, made):
    assert tables.load(classes) is models.METADATA
    kept = tables.load(classes)
    assert kept is not models.METADATA
    assert len(made) == 1
    assert described(kept) == described(models.METADATA) == described(tables.METADATA)
    for table in models.METADATA.sorted_tables:
        same = kept.tables[table.name]
        assert [(column.name, repr(column.type)) for column in same.c] == [(c.name, repr(c.type)) for c in table.c]
        assert str(same.select()) == str(table.select())


def test_they_are_made_again_when_the_classes_or_sqlalchemy_change(classes, made, monkeypatch):
    tables.load(classes)
    classes.write_text(classes.read_text() + "\n")
    for _ in range(2):
        tables.load(classes)
    assert len(made) == 2
    monkeypatch.setattr("sqlalchemy.__version__", "0.0")
    for _ in range(2):
        tables.load(classes)
    assert len(made) == 3


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:99] + b"x" + data[100:]]
)
def test_damaged_ones_are_made_again(classes, made, damage):
    tables.load(classes)
    file = kept_at(classes)
    file.write_bytes(damage(file.read_bytes()))
    for _ in range(2):
        tables.load(classes)
    assert len(made) == 2
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_nothing_is_kept_where_bytecode_is_not(classes, made, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for _ in range(2):
        tables.load(classes)
    assert len(made) == 2
    assert not kept_at(classes).parent.exists()


def test_what_cannot_be_kept_is_used(classes, made, tmp_path):
    (tmp_path / "__pycache__").write_text("in the way")
    assert tables.load(classes) is tables.load(classes) is models.METADATA
    assert tables.load(tmp_path / "missing.py") is models.METADATA
    assert len(made) == 3
