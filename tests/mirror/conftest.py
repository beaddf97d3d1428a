"""Two lakes: a source, and another one that mirrors it; what lies between them is up to the test."""

from random import Random

import pytest
from support.leaves import only_leaves
from support.mirrors import open_pair
from support.range_stores import fresh_store, store

__all__ = ["fresh_store", "only_leaves", "store"]


@pytest.fixture
def pair(tmp_path, clock):
    with open_pair(tmp_path, clock=clock, random=Random(1)) as opened:
        yield opened
