"""Writers of every edge on one branch, killed at random, and the judge of what they leave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from support.mixed import REPOSITORY, Worker, play, working
from support.mixing import EACH, FEW, Mixed, judge

from lakeops import Lake


@pytest.mark.timeout(300)
def test_nothing_is_lost_on_sqlite(tmp_path: Path) -> None:
    killed_often(Mixed(tmp_path, "", groups=FEW), kills=3)


@pytest.mark.timeout(300)
def test_nothing_is_lost_on_postgresql(tmp_path: Path, empty_postgres_url: str) -> None:
    killed_often(Mixed(tmp_path, empty_postgres_url, groups=FEW), kills=3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("postgres", [False, True])
def test_nothing_is_lost_in_a_hundred_kills(tmp_path: Path, empty_postgres_url: str, postgres: bool) -> None:
    killed_often(Mixed(tmp_path, empty_postgres_url if postgres else "", groups=EACH), kills=100)


def killed_often(busy: Mixed, *, kills: int) -> None:
    busy.prepare()
    busy.run(Random(kills), kills)
    busy.check()
