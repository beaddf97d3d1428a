"""Tests of two lakes that disagree: clear errors, nothing changed, and the next pass goes on."""

import json
import shutil
from functools import partial

import pytest
from support.catalogs import mirror_needs
from support.errors import raising
from support.mirrors import SPLIT

from lakeops import Lake, Settings
from lakeops.catalog.tables import COMMIT
from lakeops.model.errors import (
    AlreadyExists,
    CatalogError,
    InvalidInput,
    NamespaceTaken,
    NotAMirror,
    RefNotFound,
    RepositoryNotFound,
    Transient,
)
from lakeops.model.mirrors import SourceKind, parse_source
from lakeops.store import layout


@pytest.mark.parametrize(
    ("text", "kind", "place", "repository"),
    [
        ("/lakes/us#flights", SourceKind.HOME, "/lakes/us", "flights"),
        ("/lakes/us", SourceKind.HOME, "/lakes/us", "mirror"),
        ("file:///lakes/u%20s#flights", SourceKind.HOME, "/lakes/u s", "flights"),
        ("/etc/us.toml#flights", SourceKind.SETTINGS, "/etc/us.toml", "flights"),
        ("file:///etc/us.toml", SourceKind.SETTINGS, "/etc/us.toml", "mirror"),
        ("sqlite:////x/catalog.db#flights", SourceKind.DATABASE, "sqlite:////x/catalog.db", "flights"),
        ("postgresql+psycopg://ada@db/l#flights", SourceKind.DATABASE, "postgresql+psycopg://ada@db/l", "flights"),
        ("env:SOURCE_URL#flights", SourceKind.ENVIRONMENT, "SOURCE_URL", "flights"),
        ("airflow:us lake#flights", SourceKind.CONNECTION, "us lake", "flights"),
    ],
)
def test_sources_are_places(text, kind, place, repository):
    found = parse_source(text, "mirror")
    assert (found.kind, found.place, found.repository) == (kind, place, repository)
    again = parse_source(found.text, "other")
    assert again == found
    assert type(found).from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    "text",
    ["", "#flights", "s3://bucket/flights", "env:", "env:a b", "airflow:", "/x#Not A Name", "file://host/x", "a\0b"],
)
def test_what_is_no_source_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_source(text, "mirror")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ada:s3cr3t@db/lake#flights",
        "postgresql://db/lake?user=ada&password=s3cr3t#flights",
        "postgresql+psycopg://db/lake?sslpassword=s3cr3t",
        "postgresql://ada:s3cr3t@x@db/lake",
    ],
)
def test_a_password_is_refused_and_not_repeated(pair, text):
    with pytest.raises(InvalidInput, match=r"never stored.*env:VARIABLE") as caught:
        pair.there.create_mirror("other", source=text)
    assert "s3cr3t" not in str(caught.value)


def test_a_lake_with_a_password_is_refused_as_a_source(pair, tmp_path):
    url = "postgresql+psycopg://ada:s3cr3t@db/lake"
    lake = Lake(pair.here.catalog, Settings.load(home=tmp_path, database_url=url))
    with pytest.raises(InvalidInput, match="password") as caught:
        pair.there.create_mirror("other", source=lake, source_repository="flights")
    assert "s3cr3t" not in str(caught.value)


def names(lake):
    return [repository.id for repository in lake.repositories()]


def test_creation_that_is_refused_leaves_nothing(pair, tmp_path):
    there, here = pair.there, pair.here
    there.create_repository("writable", split=SPLIT)
    before = names(there), mirror_needs(here.catalog, "flights")
    own = pair.repo.storage_namespace
    make = partial(there.create_mirror, "mirror2")
    flights = partial(make, source=here, source_repository="flights")
    refused = [
        (AlreadyExists, lambda: there.create_mirror("writable", source=here, source_repository="flights")),
        (AlreadyExists, lambda: there.create_mirror("flights", source=here)),
        (NamespaceTaken, lambda: flights(own)),
        (NamespaceTaken, lambda: flights(own + "/x")),
        (NamespaceTaken, lambda: flights(there.repository("writable").storage_namespace)),
        (NamespaceTaken, lambda: flights(pair.mirror.storage_namespace)),
        (RepositoryNotFound, lambda: make(source=here)),
        ("catalog_unavailable", lambda: make(source=str(tmp_path / "nothing"))),
        ("invalid_settings", lambda: make(source="env:NOT_SET_AT_ALL")),
        ("invalid_settings", lambda: make(source=str(tmp_path / "no.toml"))),
        ("invalid_settings", lambda: make(source="airflow:conn")),
        (InvalidInput, lambda: flights(branches=("a/b",))),
        (InvalidInput, lambda: make(source=str(tmp_path) + "#a-b-c", source_repository="flights")),
    ]
    for error, call in refused:
        with raising(error):
            call()
        assert (names(there), mirror_needs(here.catalog, "flights")) == before, error
    assert not (tmp_path / "nothing").exists()


def test_a_source_that_cannot_be_reached_is_noted_and_the_next_pass_goes_on(pair, tmp_path):
    made = pair.arrived(a="1")
    mirror = pair.there.mirror("flights")
    home = tmp_path / "here"
    pair.here.close()
    home.rename(tmp_path / "away")
    with raising("catalog_unavailable", "cannot be reached"):
        mirror.sync()
    assert "cannot be reached" in (mirror.status().mirror.error or "")
    assert not home.exists()
    (tmp_path / "away").rename(home)
    assert mirror.sync()["main"].promoted == made.id
    assert mirror.status().mirror.error is None


def test_a_source_is_found_by_a_settings_file_or_a_variable(pair, tmp_path, monkeypatch):
    made = pair.arrived(a="1")
    file, project = tmp_path / "source.toml", tmp_path / "pyproject.toml"
    file.write_text(f'home = "{tmp_path}/here"\n')
    project.write_text(f'[tool.lakeops]\nhome = "{tmp_path}/here"\n')
    monkeypatch.setenv("SOURCE_URL", f"sqlite:///{tmp_path}/here/catalog.db")
    monkeypatch.setenv("LAKEOPS_DATABASE_URL", f"sqlite:///{tmp_path}/there/catalog.db")
    for number, text in enumerate([str(file), str(project), "env:SOURCE_URL", f"{tmp_path}/here"]):
        mirror = pair.there.create_mirror(f"mirror{number}", source=f"{text}#flights")
        replica = tmp_path / "there" / "storage" / f"mirror{number}"
        replica.parent.mkdir(exist_ok=True, parents=True)
        shutil.copytree(tmp_path / "here" / "storage" / "flights", replica, dirs_exist_ok=True)
        assert pair.there.mirror(mirror.id).sync()["main"].promoted == made.id
    file.write_text("home = 5\n")
    with raising("invalid_settings", "cannot be reached: setting 'home'"):
        pair.there.mirror("mirror0").sync()
    file.write_text('database_url = "postgresql://ada:s3cr3t@\n')
    with raising("invalid_settings", "is not TOML") as caught:
        pair.there.mirror("mirror0").sync()
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("name", ["a%2Fb", "a?b=c", "a#b", "a b+c@d:e"])
def test_a_home_is_a_directory_and_no_part_of_a_url(tmp_path, name):
    home = tmp_path / name
    with Lake.open(home=home) as lake, Lake.open(home=tmp_path / "there") as there:
        lake.create_repository("flights")
        assert (home / "catalog.db").is_file()
        assert there.create_mirror("flights", source=f"{home}#flights").sync()["main"].lag_commits == 0


def test_wrong_credentials_show_no_secret(pair, monkeypatch):
    monkeypatch.setenv("SOURCE_URL", "postgresql+psycopg://ada:s3cr3t@127.0.0.1:1/lake?connect_timeout=2")
    monkeypatch.setattr("lakeops.catalog.database.TRIES", 1)
    with pytest.raises((Transient, CatalogError)) as caught:
        pair.there.create_mirror("other", source="env:SOURCE_URL#flights")
    assert "s3cr3t" not in str(caught.value)


def test_a_database_without_a_catalog_is_left_alone(pair, tmp_path):
    import sqlite3

    file = tmp_path / "other.db"
    sqlite3.connect(file).close()
    with raising("catalog_version", "holds no lakeops catalog"):
        pair.there.create_mirror("other", source=f"sqlite:///{file}#flights")
    with sqlite3.connect(file) as found:
        assert found.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    found.close()


def test_an_object_of_another_size_is_named_and_nothing_is_shown(pair):
    first = pair.head()
    made = pair.commit(**{"dir/a": "right"})
    pair.repo.create_branch("dev", source="main~1")
    other = pair.arrived("dev", b="2")
    address = layout.relative(pair.repo.storage_namespace, pair.repo.ref("main").stat("dir/a").physical_address)
    pair.store.put(address, b"wrong size")
    with raising("replica_mismatch", r"'dir/a'.*10 bytes and the source recorded 5"):
        pair.mirror.sync()
    assert pair.heads() == {"main": first, "dev": other.id}  # the other branch went on
    status = pair.mirror.status()
    assert "dir/a" in (status["main"].error or "")
    assert "dir/a" in (status.mirror.error or "")
    pair.store.put(address, b"right")
    assert pair.mirror.sync()["main"].promoted == made.id
    assert pair.mirror.status()["main"].error is None


def test_a_namespace_that_is_another_repositorys_is_said_to_be(pair):
    pair.commit(a="1")
    other = pair.here.create_repository("other", split=SPLIT)
    claim = pair.replicator.source.get(layout.CLAIM)
    pair.store.put(layout.CLAIM, pair.here.stores().at(other.storage_namespace).get(layout.CLAIM))
    for _ in range(2):
        with raising("not_a_replica", "belongs to repository 'other'"):
            pair.mirror.sync()
    pair.store.put(layout.CLAIM, claim)
    assert pair.catch_up().caught_up


def test_a_repository_that_was_made_again_under_the_name_is_another_one(pair, clock):
    pair.commit(a="1")
    shown = pair.heads()
    pair.here.delete_repository("flights")
    clock.advance(hours=1)
    pair.here.create_repository("flights", "file://" + pair.repo.storage_namespace.removeprefix("file://") + "-2")
    with raising("not_a_replica", "deleted and created again"):
        pair.mirror.sync()
    assert pair.heads() == shown


def test_a_repository_that_is_gone_is_not_found(pair):
    pair.here.delete_repository("flights")
    with pytest.raises(RepositoryNotFound):
        pair.mirror.sync()
    assert pair.mirror.status().mirror.error is not None


def test_only_mirrors_are_synced_and_none_collects(pair):
    with pytest.raises(NotAMirror, match="'flights' is no mirror"):
        pair.here.mirror("flights")
    with pytest.raises(RepositoryNotFound):
        pair.here.mirror("nothing")
    with raising("read_only_repository"):
        pair.mirror.gc.mark()


def test_a_source_that_takes_no_reports_says_what_to_do(pair, monkeypatch):
    def refuse(*_args, **_given):
        raise CatalogError("permission denied for table lakeops_mirror_need")

    monkeypatch.setattr(pair.here.catalog.mirrors, "report_mirror", refuse)
    with pytest.raises(CatalogError, match="--read-only-source"):
        pair.there.create_mirror("other", source=pair.here, source_repository="flights")
    assert names(pair.there) == ["flights"]
    pair.there.create_mirror("other", source=pair.here, source_repository="flights", reports=False)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_ref_whose_history_the_source_lacks_is_an_error_of_that_ref_alone(pair, depth):
    first = pair.head()
    pair.repo.create_branch("dev", source="main")
    lacking = [pair.commit(b="2"), pair.commit(b="3")][1 - depth]
    other = pair.arrived("dev", a="1")
    [row] = remove_commit(pair, lacking.id)
    with pytest.raises(RefNotFound, match=r"branch 'main' of the source.*lakeops fsck.*stays where it is"):
        pair.mirror.sync()
    assert pair.heads() == {"main": first, "dev": other.id}
    with pair.here.catalog.database.engine.begin() as conn:
        conn.execute(COMMIT.insert(), [row])
    assert pair.mirror.sync()["main"].promoted == pair.repo.ref("main").commit.id


def remove_commit(pair, commit_id):
    """Delete a commit's row from the source's catalog, as damage would; returns it."""
    with pair.here.catalog.database.engine.begin() as conn:
        found = [dict(row._mapping) for row in conn.execute(COMMIT.select().where(COMMIT.c.id == commit_id))]
        conn.execute(COMMIT.delete().where(COMMIT.c.id == commit_id))
    return found
