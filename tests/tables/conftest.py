"""A lake on this machine's clock, which signatures are compared with, and the gateway of ``serving``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.engines import place
from support.served import lake

from lakeops import Lake, Repository
from lakeops.gateway.app import serving

__all__ = ["lake", "place"]


@pytest.fixture
def shop(lake: Lake) -> Repository:
    return lake.create_repository("shop")


@pytest.fixture
def options(lake: Lake) -> Iterator[dict[str, str]]:
    with serving(lake, write=True) as options:
        yield options
