"""Two lakes: a source, and another one that mirrors it; what lies between them is up to the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from support.leaves import only_leaves
from support.mirrors import Pair, open_pair
from support.range_stores import fresh_store, store

from lakeops.testing import ManualClock

__all__ = ["fresh_store", "only_leaves", "store"]


@pytest.fixture
def pair(tmp_path: Path, clock: ManualClock) -> Iterator[Pair]:
    with open_pair(tmp_path, clock=clock, random=Random(1)) as opened:
        yield opened
