import subprocess
import sys

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable
from support import tables_source
from support.catalogs import REPO, create, everything
from support.errors import raising
from support.forked import run_forked
from support.quick_catalogs import run_migrations, schema_made_once

from lakeops.catalog import models, tables
from lakeops.catalog import open as schema
from lakeops.catalog.database import VERSION_TABLE
from lakeops.catalog.migrations import run
from lakeops.catalog.migrations.run import config
from lakeops.catalog.models import METADATA
from lakeops.catalog.open import open_catalog
from lakeops.model.clock import SystemClock
from lakeops.model.errors import CatalogError


@pytest.fixture(autouse=True)
def real_migrations(monkeypatch):
    """Each new catalog here runs the migrations themselves."""
    monkeypatch.setattr(run, "run_migrations", run_migrations)


def set_revision(catalog, name):
    catalog.database.write(
        lambda conn: conn.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '{name}'")) and None
    )


def test_migrations_make_what_the_models_say(empty):
    def differences(conn):
        context = MigrationContext.configure(conn, opts={"compare_type": True, "version_table": VERSION_TABLE})
        return compare_metadata(context, METADATA)

    assert empty.database.read(differences) == []


def test_catalogs_of_other_tests_have_the_schema_that_the_migrations_make(opened, tmp_path):
    def made(conn):
        version = conn.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars().all()
        return conn.execute(text("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name")).all(), version

    by_migrations = opened(f"sqlite:///{tmp_path}/migrations.db").database.read(made)
    with schema_made_once():
        found = [opened(f"sqlite:///{tmp_path}/{number}.db").database.read(made) for number in range(2)]
    assert found == [by_migrations] * 2


def test_keys_are_the_models_and_begin_with_the_repository(empty):
    def keys(conn):
        return {
            name: inspect(conn).get_pk_constraint(name)["constrained_columns"]
            for name in inspect(conn).get_table_names()
            if name != VERSION_TABLE
        }

    found = empty.database.read(keys)
    assert found == {table.name: [column.name for column in table.primary_key] for table in METADATA.sorted_tables}
    loose = {name for name, columns in found.items() if columns[0] != "repository_id"}
    assert loose == {"lakeops_repository", "lakeops_reflog", "lakeops_audit", "lakeops_catalog", "lakeops_clock"}


def test_every_text_is_ordered_by_bytes(empty):
    def collations(conn):
        if conn.dialect.name == "sqlite":
            created = conn.execute(text("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")).scalars().all()
            assert "WITHOUT ROWID" in next(sql for sql in created if "lakeops_staged" in sql)
            return {None for sql in created if "COLLATE" in sql}
        columns = text(
            "SELECT DISTINCT collation_name FROM information_schema.columns "
            "WHERE table_name LIKE 'lakeops%' AND table_name != 'lakeops_version' AND data_type = 'text'"
        )
        return set(conn.execute(columns).scalars())

    assert empty.database.read(collations) == (set() if empty.database.dialect.name == "sqlite" else {"C"})


def test_the_known_revisions_are_the_migrations():
    scripts = ScriptDirectory.from_config(config())
    assert tuple(script.revision for script in reversed(list(scripts.walk_revisions()))) == schema.REVISIONS
    assert scripts.get_current_head() == schema.REVISIONS[-1]


@pytest.mark.parametrize("found", ["9999", "0001"])
def test_a_newer_catalog_and_one_of_a_development_version_are_refused(empty, opened, database_url, found):
    set_revision(empty, found)
    try:
        with raising("catalog_version", f"'{found}' is none that this lakeops knows: .*newer.*development version"):
            opened(database_url)
        with raising("catalog_version", "newer"):
            opened(database_url, upgrade=True)
        with raising("catalog_version", "newer"):
            empty.upgrade()
    finally:
        set_revision(empty, schema.REVISIONS[-1])


def test_an_older_schema_is_brought_up_to_date_only_when_somebody_decides_it(monkeypatch):
    monkeypatch.setattr(schema, "REVISIONS", ("0001", "0002"))
    with raising("catalog_version", "lakeops doctor --upgrade"):
        schema.check_revision("0001", upgrade_first=False)
    assert schema.check_revision("0001", upgrade_first=True)
    assert not schema.check_revision("0002", upgrade_first=False)


def test_an_older_postgresql_catalog_names_the_command(opened, postgres_url, monkeypatch):
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "next"))
    with raising("catalog_version", "back the database up and run `lakeops doctor --upgrade`"):
        opened(postgres_url)


def test_lakeops_tables_without_a_revision_are_not_a_catalog(empty, opened, database_url):
    empty.database.write(lambda conn: conn.execute(text(f"DELETE FROM {VERSION_TABLE}")) and None)
    try:
        with raising("catalog_version", "not a lakeops catalog"):
            opened(database_url)
    finally:
        insert = text(f"INSERT INTO {VERSION_TABLE} VALUES ('{schema.REVISIONS[-1]}')")
        empty.database.write(lambda conn: conn.execute(insert) and None)


@pytest.mark.parametrize("kind", ["sqlite_url", "empty_postgres_url"])
def test_many_processes_may_open_a_new_catalog_at_once(request, opened, kind):
    url = request.getfixturevalue(kind)

    def open_and_list(_number):
        catalog = open_catalog(url, clock=SystemClock())
        assert catalog.repositories.page() == []
        catalog.upgrade()
        catalog.close()

    run_forked(open_and_list, range(4))
    catalog = opened(url)
    assert catalog.describe()["schema_revision"] == schema.REVISIONS[-1]
    create(catalog)


def test_opening_again_keeps_everything(opened, database_url):
    first = opened(database_url)
    create(first)
    before = everything(first)
    second = opened(database_url)
    second.upgrade()
    assert everything(second) == before
    assert second.repositories.get(REPO) == first.repositories.get(REPO)


def test_neighbours_in_a_postgresql_database_are_left_alone(empty_postgres_url, opened):
    import psycopg

    with psycopg.connect(empty_postgres_url.replace("+psycopg", ""), autocommit=True) as conn:
        conn.execute("CREATE TABLE alembic_version (version_num varchar(32))")
        conn.execute("INSERT INTO alembic_version VALUES ('theirs')")
        opened(empty_postgres_url)
        assert conn.execute("SELECT version_num FROM alembic_version").fetchall() == [("theirs",)]


def test_a_file_that_is_no_database_is_refused(tmp_path, opened):
    (tmp_path / "catalog.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(CatalogError, match="file is not a database"):
        opened(f"sqlite:///{tmp_path}/catalog.db")


@pytest.mark.parametrize(
    "url",
    [
        *(
            "sqlite://",
            "sqlite:///:memory:",
            "sqlite://tmp/x.db",
            "sqlite://u:hush@/x.db",
            "sqlite://:5/x",
            "sqlite:///~/x",
        ),
        *("sqlite:////tmp/\0/x", "mysql://u:hush@h/d", "no url: hush", "postgresql+asyncpg://u:hush@h/d"),
    ],
)
def test_urls_that_cannot_be_catalogs_are_settings_errors(opened, url):
    with raising("invalid_settings") as caught:
        opened(url)
    assert "hush" not in str(caught.value)


HEAVY = ("pyarrow", "numpy", "pandas", "alembic", "boto3", "airflow", "pyspark", "psycopg")


def test_refs_and_logs_import_nothing_heavy(opened, sqlite_url):
    create(opened(sqlite_url))
    program = f"""
import sys
from lakeops.catalog.open import open_catalog
from lakeops.model.clock import SystemClock
catalog = open_catalog({sqlite_url!r}, clock=SystemClock())
state = catalog.refs.branch("repo", "main")
catalog.refs.create_branch("repo", "dev", state.commit_id, token="t", actor="ada")
assert len(catalog.commits.first_parents("repo", state.commit_id, limit=9)) == 1
catalog.refs.branches("repo"), catalog.refs.tags("repo"), catalog.refs.reflog("repo"), catalog.describe()
catalog.refs.delete_branch("repo", "dev", actor="ada")
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# --- the tables that statements use are those of the sqlmodel classes ---
def described(metadata):
    """PostgreSQL gets tables without options, and indexes as statements of their own."""
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
