"""Stores for the tests of committed data: fixtures for a conftest to take over."""

import pytest
from support.rows import RecordingStore

from lakeops.ranges.read import RangeReader


@pytest.fixture
def store(tmp_path):
    return RecordingStore(tmp_path / "namespace")


@pytest.fixture
def reader(store):
    return RangeReader(store)


@pytest.fixture(scope="session")
def fresh_store(tmp_path_factory):
    """A new store at every call, for properties."""
    return lambda: RecordingStore(tmp_path_factory.mktemp("namespace"))
