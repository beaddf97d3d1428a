import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.sql.compiler import SQLCompiler
from support.catalogs import FIRST, REPO, an_entry, create, gone

from lakeops.catalog.database import Lookup, PageLookup
from lakeops.catalog.tables import BRANCH, COMMIT, METADATA, REPOSITORY, STAGED, TAG
from lakeops.model.errors import Corrupted, RefNotFound


@pytest.fixture
def filled(catalog):
    catalog.staging.put_staged(REPO, "main", [an_entry("a", colour="blåbær"), gone("b")], started=catalog.now())
    catalog.refs.create_tag(REPO, "v1", FIRST.id, actor="ada")
    return catalog


@pytest.mark.parametrize("table", METADATA.sorted_tables, ids=lambda table: table.name)
def test_a_lookup_gives_what_sqlalchemy_gives(filled, table):
    def both(conn):
        return Lookup(table.c, table.name).all(conn, {}), conn.execute(select(table)).all()

    found, expected = filled.database.read(both)
    assert found == expected
    assert [list(map(type, row)) for row in found] == [list(map(type, row)) for row in expected]
    assert [dict(row._mapping) for row in found] == [dict(row._mapping) for row in expected]
    if table in (REPOSITORY, BRANCH, COMMIT, STAGED, TAG):
        assert found


def test_a_row_that_an_outer_join_lacks_is_nothing_in_every_column(filled):
    query = Lookup((*TAG.c, *COMMIT.c), f"{TAG.name} LEFT JOIN {COMMIT.name} ON {COMMIT.name}.id = :other")
    row = filled.database.read(lambda conn: query.one(conn, {"other": "none"}))
    assert row[: len(TAG.c)] != (None,) * len(TAG.c)
    assert row[len(TAG.c) :] == (None,) * len(COMMIT.c)


def test_texts_are_values_and_never_statements(filled):
    query = Lookup(TAG.c, f"{TAG.name} WHERE name = :name")
    for name in ("' OR '1' = '1", "%(name)s", ":name", "?", "v1\\"):
        assert filled.database.read(lambda conn, name=name: query.one(conn, {"name": name, "more": 1})) is None


def test_a_page_is_what_begins_with_a_prefix_in_the_order_of_bytes(filled):
    names = ["a", "a%", "a_", "ab", "aé", "a\U0010ffff", "b", "é", "\U0010ffff"]
    filled.staging.put_staged(REPO, "main", [an_entry(name) for name in names], started=filled.now())
    query = PageLookup(STAGED, "path", "repository_id = :repository")

    def page(prefix, after, limit):
        given = {"prefix": prefix, "after": after, "limit": limit}
        rows = filled.database.read(lambda conn: query.page(conn, {"repository": REPO}, **given))
        return [row.path for row in rows]

    for prefix in ("", *names, "a\U0010ffff\U0010ffff"):
        for after in ("", "a", "ab", "c"):
            wanted = sorted((name for name in names if name.startswith(prefix) and name > after), key=str.encode)
            assert page(prefix, after, 100) == wanted
            assert page(prefix, after, 2) == wanted[:2]


def test_json_that_cannot_be_parsed_is_told_by_its_row(opened, sqlite_url):
    catalog = opened(sqlite_url)
    create(catalog)
    catalog.database.write(lambda conn: conn.execute(text("UPDATE lakeops_branch SET intents = '{'")) and None)
    with pytest.raises(Corrupted, match="lakeops_branch"):
        catalog.refs.branch(REPO, "main")


def test_what_a_process_reads_first_is_not_compiled(filled, opened, database_url, monkeypatch):
    """Compiling one statement takes longer than all of these reads take together."""
    compiled = []
    making = SQLCompiler.__init__

    def noted(compiler, dialect, statement, *args, **options):
        compiled.append(statement)
        making(compiler, dialect, statement, *args, **options)

    monkeypatch.setattr(SQLCompiler, "__init__", noted)
    monkeypatch.delattr(Engine, "_compiled_cache", raising=False)  # what other tests have compiled is not shared here
    fresh = opened(database_url)
    assert fresh.repositories.get(REPO).id == REPO
    assert [found.id for found in fresh.repositories.page()] == [REPO]
    assert [ref.id for ref in fresh.refs.branches(REPO, prefix="m")] == ["main"]
    assert [ref.id for ref in fresh.refs.tags(REPO)] == ["v1"]
    assert fresh.staging.staged_one(REPO, "main", "a")[1].path == "a"
    assert len(fresh.staging.staged_page(REPO, "main")[1]) == 2
    assert fresh.refs.branch(REPO, "main").commit_id == FIRST.id
    assert fresh.refs.tag(REPO, "v1").commit_id == FIRST.id
    assert fresh.commits.get(REPO, FIRST.id) == FIRST
    assert fresh.commits.first_parents(REPO, FIRST.id, limit=1) == [FIRST]
    with pytest.raises(RefNotFound):
        fresh.staging.staged_one(REPO, "none", "a")
    assert compiled == []
    assert fresh.refs.reflog(REPO)
    assert compiled
