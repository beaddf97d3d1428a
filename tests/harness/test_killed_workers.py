"""Real processes, killed with SIGKILL while they write, commit, merge and collect."""

from random import Random

import pytest
from support.killing import Workers


def test_nothing_is_lost_on_sqlite(tmp_path):
    killed_often(tmp_path, "", kills=2, workers=2)


def test_nothing_is_lost_on_postgresql(tmp_path, empty_postgres_url):
    killed_often(tmp_path, empty_postgres_url, kills=2, workers=2)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_in_forty_kills_on_sqlite(tmp_path):
    killed_often(tmp_path, "", kills=40)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_is_lost_in_four_hundred_kills(tmp_path, empty_postgres_url):
    killed_often(tmp_path, empty_postgres_url, kills=400)


def killed_often(home, url, *, kills, workers=3):
    busy = Workers(home, url, count=workers)
    busy.prepare()
    busy.run(Random(kills), kills)
    busy.check()
