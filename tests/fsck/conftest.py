"""Repositories to damage: on either database, on local disks and on S3."""

import uuid
from collections.abc import Callable

import pytest
from services.postgres import fresh_database, truncate
from support.damage import populate
from support.rewinding import Rewinding

from lakeops import Lake, Repository, Settings
from lakeops.catalog.open import open_catalog
from lakeops.catalog.tables import METADATA
from lakeops.testing import ManualClock

Make = Callable[[str, str], Repository]


@pytest.fixture(scope="session")
def postgres(postgres_socket):
    with fresh_database(postgres_socket) as url:
        open_catalog(url, clock=ManualClock()).close()
        yield url


@pytest.fixture(scope="session")
def populated(tmp_path_factory):
    """Puts a home back to where its repository has its history."""
    home = tmp_path_factory.mktemp("populated") / "home"
    with Lake.open(settings=settings_at(home), clock=ManualClock()) as lake:
        populate(lake)
    return Rewinding(home)


def settings_at(home, **given):
    return Settings.load(home=home, fsync=False, committer="tester", **given)


@pytest.fixture
def make(request, tmp_path):
    """Makes a repository with some history, given a database and a store."""
    lakes: list[Lake] = []

    def made(database, store):
        if (database, store) == ("sqlite", "local"):
            home = request.getfixturevalue("populated")()
            lakes.append(Lake.open(settings=settings_at(home), clock=ManualClock()))
            return lakes[-1].repository("repo")
        given = {}
        if database == "postgresql":
            given["database_url"] = request.getfixturevalue("postgres")
            truncate(given["database_url"], [table.name for table in METADATA.sorted_tables])
        if store == "moto":
            given["s3_endpoint_url"] = request.getfixturevalue("moto_endpoint")
        settings = settings_at(tmp_path / "home", **given)
        clock = ManualClock() if database == "sqlite" else None
        lakes.append(Lake.open(settings=settings, clock=clock))
        namespace = None
        if store == "moto":
            bucket = request.getfixturevalue("buckets")(given["s3_endpoint_url"])
            namespace = f"s3://{bucket}/{uuid.uuid4().hex}"
        return populate(lakes[-1], namespace)

    yield made
    for lake in lakes:
        lake.close()


@pytest.fixture
def repo(make):
    return make("sqlite", "local")


@pytest.fixture(params=["sqlite", "postgresql"])
def in_database(request, make):
    return make(request.param, "local")


@pytest.fixture(params=["local", "moto"])
def in_store(request, make):
    return make("sqlite", request.param)
