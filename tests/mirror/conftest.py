"""Two lakes: a source, and another one that mirrors it; what lies between them is up to the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from support.mirrors import Pair, open_pair
from support.quick_joins import one_database

from lakeops.testing import ManualClock


@pytest.fixture(scope="package", autouse=True)
def quick_joins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Joins of this process share a database; see ``support.quick_joins``."""
    with one_database(tmp_path_factory.mktemp("joins")):
        yield


@pytest.fixture
def pair(tmp_path: Path, clock: ManualClock) -> Iterator[Pair]:
    with open_pair(tmp_path, clock=clock, random=Random(1)) as opened:
        yield opened
