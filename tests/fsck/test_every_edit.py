"""Edits of the catalog by hand: what proves itself by an id, the reflog or its form must be found by ``fsck``.

The edits go past lakeops, as plain SQL. The database is trusted to keep the values of all other columns.
"""

import pytest
from sqlalchemy import Boolean, Integer
from sqlalchemy.exc import DBAPIError
from support.catalogs import follow
from support.damage import catalog

from lakeops.catalog import tables as t
from lakeops.catalog.database import CheckedJson
from lakeops.catalog.tables import METADATA
from lakeops.model.errors import RepositoryNotFound
from lakeops.ops.fsck.findings import Severity

PROVEN = {
    # A commit's id covers what it says.
    "lakeops_commit": {
        *(f"change {name}" for name in ("id", "committer", "message", "creation_date", "meta_range_id", "generation")),
        "change first_parent",
        *("reshape parents", "map parents", "list parents", "reshape metadata", "list metadata", "map metadata"),
    },
    # The moves of a ref lead to where it points.
    "lakeops_branch": {"change name", "change commit_id", "delete", "copy name"},
    "lakeops_tag": {"change name", "change commit_id", "delete", "copy name"},
}
"""Edits beside broken JSON that have to be found, by table."""


@pytest.fixture
def everything(in_database):
    """A repository with a row in every table."""
    repo = in_database
    repo.protect("release-*")
    repo.ref("main").pass_check("quality")
    repo.gc.set_rules({"default_retention_days": 7})
    repo.gc.mark()
    repo.branch("main").put("with", b"metadata", metadata={"a": "b"})
    catalog(repo).staging.begin_upload(repo.id, "main", "data/2020010100/x/", upload="u")
    catalog(repo).mirrors.report_mirror(repo.id, "far", frozenset([repo.ref("main").commit.id]), sequence=1)
    follow(catalog(repo), repo.id)
    return repo


@pytest.mark.parametrize("name", sorted(PROVEN))
def test_what_proves_itself_is_found(everything, name):
    table = METADATA.tables[name]
    assert findings(everything) == set()
    unnoticed = {edit.replace("mistype", "change") for edit in unnoticed_edits(everything, table)}
    assert unnoticed & PROVEN[name] == set()
    assert findings(everything) == set()


def test_text_that_is_no_json_is_found_in_every_table(everything):
    tables = [table for table in METADATA.sorted_tables if table.name != "lakeops_report"]
    parsed = [table for table in tables if any(isinstance(column.type, CheckedJson) for column in table.columns)]
    assert len(parsed) > 5
    for table in parsed:
        assert list(unnoticed_edits(everything, table, only="break")) == [], table.name


def findings(repo):
    try:
        return {finding.kind for finding in repo.fsck() if finding.severity is not Severity.INFO}
    except RepositoryNotFound:
        return {"repository_not_found"}


def unnoticed_edits(repo, table, only=""):
    run(repo, f"CREATE TABLE kept AS SELECT * FROM {table.name}")
    try:
        assert done(repo, f"UPDATE {table.name} SET {table.columns.keys()[0]} = {table.columns.keys()[0]}"), table.name
        for edit, statement in edits(repo, table):
            if not edit.startswith(only) or not done(repo, statement):
                continue  # a constraint forbids it
            if not findings(repo):
                yield edit
            run(repo, f"DELETE FROM {table.name}", f"INSERT INTO {table.name} SELECT * FROM kept")
    finally:
        run(repo, "DROP TABLE kept")


def edits(repo, table):
    """The damage, and the statement that does it to one row of the table."""
    where = f"WHERE {one_row(repo, table)}"
    for column in table.columns:
        for word, value in values(column, postgres=catalog(repo).database.dialect.name == "postgresql"):
            given = f'{where} AND "{column.name}" IS NOT NULL' if word == "null" else where
            yield f"{word} {column.name}", f'UPDATE {table.name} SET "{column.name}" = {value} {given}'
    yield "delete", f"DELETE FROM {table.name} {where}"
    names = [column.name for column in table.columns]
    for key in table.primary_key.columns:
        if key.name not in {"repository_id", "shard"}:
            copied = ", ".join(other(key) if name == key.name else f'"{name}"' for name in names)
            columns = ", ".join(f'"{name}"' for name in names)
            yield f"copy {key.name}", f"INSERT INTO {table.name} ({columns}) SELECT {copied} FROM {table.name} {where}"


def values(column, *, postgres):
    if isinstance(column.type, CheckedJson):
        for word, text in (("break", "{"), ("reshape", "5"), ("list", '["x"]'), ("map", '{"x": "y"}')):
            yield word, f"CAST('{text}' AS JSON)" if postgres else f"'{text}'"
    else:
        yield "change", other(column)
        if not postgres and not isinstance(column.type, Boolean):
            yield "mistype", "x'00ff'"
    yield "null", "NULL"


def other(column):
    """Another value than the column has."""
    if isinstance(column.type, Boolean):
        return f'NOT "{column.name}"'
    if isinstance(column.type, Integer):
        return f'COALESCE("{column.name}", 0) + 1'
    return f"COALESCE(\"{column.name}\", '') || 'x'"


def one_row(repo, table):
    """A condition that holds for one row; in the commit table for one that nothing points to."""
    keys = [key.name for key in table.primary_key.columns]
    rows = run(repo, f"SELECT {', '.join(keys)} FROM {table.name}")
    if table is t.COMMIT:
        rows = [(repo.id, repo.ref("main~2").commit.id)]
    return " AND ".join(f"{key} = '{value}'" for key, value in zip(keys, min(rows), strict=True))


def done(repo, statement):
    try:
        return bool(run(repo, statement))
    except DBAPIError:
        return False


def run(repo, *statements):
    with catalog(repo).database.engine.connect() as conn:
        for statement in statements:
            result = conn.exec_driver_sql(statement)
        rows = result.all() if result.returns_rows else result.rowcount
        conn.commit()
        return rows
