"""Fixtures for conftests to take over: empty catalogs and filled ones, on SQLite and on PostgreSQL."""

import pytest
from services.postgres import fresh_database, truncate
from support.catalogs import create

from lakeops.catalog.open import Catalog, open_catalog
from lakeops.catalog.tables import METADATA
from lakeops.testing import ManualClock


@pytest.fixture(scope="session")
def shared_postgres_url(postgres_socket):
    with fresh_database(postgres_socket) as url:
        open_catalog(url, clock=ManualClock()).close()
        yield url


@pytest.fixture
def sqlite_url(tmp_path):
    return f"sqlite:///{tmp_path}/catalog.db"


@pytest.fixture
def postgres_url(shared_postgres_url):
    """A database with the schema and no rows; making a new one for each test would take most of the time."""
    truncate(shared_postgres_url, [table.name for table in METADATA.sorted_tables])
    return shared_postgres_url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request):
    return request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")


@pytest.fixture
def opened(clock):
    """Opens catalogs, and closes them in the end."""
    catalogs: list[Catalog] = []

    def open_one(url: str, **given) -> Catalog:
        catalogs.append(open_catalog(url, clock=clock, **given))
        return catalogs[-1]

    yield open_one
    for catalog in catalogs:
        catalog.close()


@pytest.fixture
def empty(opened, database_url):
    """A catalog without repositories."""
    return opened(database_url)


@pytest.fixture
def catalog(empty):
    """A catalog with one repository: its first commit on ``main``."""
    create(empty)
    return empty
