"""Stores for the tests of committed data: fixtures for a conftest to take over."""

from __future__ import annotations

import pytest
from support.rows import RecordingStore

from lakeops.ranges.read import RangeReader


@pytest.fixture
def store(tmp_path) -> RecordingStore:
    return RecordingStore(tmp_path / "namespace")


@pytest.fixture
def reader(store) -> RangeReader:
    return RangeReader(store)


@pytest.fixture(scope="session")
def fresh_store(tmp_path_factory):
    """A new store at every call, for properties."""
    return lambda: RecordingStore(tmp_path_factory.mktemp("namespace"))
