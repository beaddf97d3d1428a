"""Repositories to damage: on either database, on local disks and on S3."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from services.postgres import fresh_database, truncate
from support.damage import populate

from lakeops import Lake, Repository, Settings
from lakeops.catalog.open import open_catalog
from lakeops.catalog.tables import METADATA
from lakeops.testing import ManualClock

Make = Callable[[str, str], Repository]


@pytest.fixture(scope="session")
def postgres(postgres_socket: str) -> Iterator[str]:
    with fresh_database(postgres_socket) as url:
        open_catalog(url, clock=ManualClock()).close()
        yield url


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes a repository with some history, given a database and a store."""
    lakes: list[Lake] = []

    def made(database: str, store: str) -> Repository:
        given = {}
        if database == "postgresql":
            given["database_url"] = request.getfixturevalue("postgres")
            truncate(given["database_url"], [table.name for table in METADATA.sorted_tables])
        if store == "moto":
            given["s3_endpoint_url"] = request.getfixturevalue("moto_endpoint")
        settings = Settings.load(home=tmp_path / "home", fsync=False, committer="tester", **given)
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
def repo(make: Make) -> Repository:
    return make("sqlite", "local")


@pytest.fixture(params=["sqlite", "postgresql"])
def in_database(request: pytest.FixtureRequest, make: Make) -> Repository:
    return make(request.param, "local")


@pytest.fixture(params=["local", "moto"])
def in_store(request: pytest.FixtureRequest, make: Make) -> Repository:
    return make("sqlite", request.param)
