"""Tests for every route of ``lakeops ui``: it reads, answers by one method, and tells browsers to run nothing."""

import warnings

import pytest

pytest.importorskip("starlette")

from support import damage
from support.page_addresses import ADDRESSES

from lakeops import Lake, Settings
from lakeops.testing import EFFECTS, Faults, open_faulty
from lakeops.web.app import application
from lakeops.web.page import HEADERS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, about its client
    from starlette.testclient import TestClient

METHODS = ("POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Settings of a lake with a history. No test changes it."""
    chosen = Settings.load(home=tmp_path_factory.mktemp("populated") / "lake", fsync=False)
    with Lake.open(settings=chosen) as lake:
        damage.populate(lake)
    return chosen


@pytest.fixture
def faults():
    return Faults()


@pytest.fixture
def lake(settings, faults):
    with open_faulty(settings, faults) as opened:
        faults.revive()
        yield opened


@pytest.fixture
def client(lake):
    with TestClient(application(lake), base_url="http://127.0.0.1", follow_redirects=False) as opened:
        yield opened


def headers_of(answer):
    return {name: answer.headers.get(name) for name in HEADERS}


@pytest.mark.parametrize("route", ADDRESSES)
def test_every_answer_of_a_route_has_the_headers_and_names_no_other_host(client, route):
    for method in ("GET", "HEAD", *METHODS):
        answer = client.request(method, ADDRESSES[route])
        assert answer.status_code in ({200, 303} if method in {"GET", "HEAD"} else {405}), method
        assert headers_of(answer) == HEADERS, method
    refused = client.get(ADDRESSES[route], headers={"host": "evil.example"})
    assert (refused.status_code, headers_of(refused)) == (400, HEADERS)


def test_no_page_writes_anything(client, lake, faults):
    repo = lake.repository("repo")
    seen = [repo.reflog(), list(lake.audit()), list(repo.branch("main").uncommitted()), repo.gc.marks()]
    changed = lake.catalog.database.write
    lake.catalog.database.write = None  # type: ignore[method-assign,assignment]
    try:
        for path in ADDRESSES.values():
            assert client.get(path).status_code in {200, 303}, path
    finally:
        lake.catalog.database.write = changed  # type: ignore[method-assign]
    assert faults.effects == sum(faults.counts[name] for name in EFFECTS) == 0
    assert [repo.reflog(), list(lake.audit()), list(repo.branch("main").uncommitted()), repo.gc.marks()] == seen
