"""A lake on this machine's clock, which signatures are compared with, and the gateway of ``serving``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engines import place

from lakeops import Lake, Repository, Settings
from lakeops.gateway.server import serving

__all__ = ["place"]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    settings = Settings.model_construct(home=tmp_path / "home", fsync=False, committer="tester")
    with Lake.open(settings=settings) as lake:
        yield lake


@pytest.fixture
def shop(lake: Lake) -> Repository:
    return lake.create_repository("shop")


@pytest.fixture
def options(lake: Lake) -> Iterator[dict[str, str]]:
    with serving(lake, write=True) as options:
        yield options
