"""Fixtures for pytest. A test suite opts in with ``pytest_plugins = ["lakeops.testing.fixtures"]`` in its conftest.

Each test gets a lake of its own in its ``tmp_path``: a SQLite catalog and local files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeops.lake import Lake
from lakeops.settings import Settings
from lakeops.testing.clock import ManualClock
from lakeops.testing.faults import Faults, open_faulty


@pytest.fixture
def lake_clock() -> ManualClock:
    """The clock of the test's lakes. It stands still until the test calls ``advance``."""
    return ManualClock()


@pytest.fixture
def lake_settings(tmp_path: Path) -> Settings:
    """Settings of a lake below ``tmp_path``, whatever the environment and settings files say."""
    # model_construct asks neither the environment nor files.
    return Settings.model_construct(home=tmp_path / "lakeops", fsync=False, committer="tester")


@pytest.fixture
def lake(lake_settings: Settings, lake_clock: ManualClock) -> Iterator[Lake]:
    """An empty lake below ``tmp_path``, with ``lake_clock``."""
    with Lake.open(settings=lake_settings, clock=lake_clock) as opened:
        yield opened


@pytest.fixture
def lake_faults() -> Faults:
    """The script of ``faulty_lake``: the faults of its stores, and the calls so far."""
    return Faults()


@pytest.fixture
def faulty_lake(lake_settings: Settings, lake_clock: ManualClock, lake_faults: Faults) -> Iterator[Lake]:
    """The lake of ``lake_settings`` with ``lake_faults`` around its stores. It shares its files with ``lake``."""
    with open_faulty(lake_settings, lake_faults, clock=lake_clock) as opened:
        yield opened
