"""Requests that travel together: puts in the background."""

from __future__ import annotations

import pickle
import threading

import pytest
from support.far import FarStore, Requests

from lakeops.model.errors import ObjectNotFound, StoreUnavailable
from lakeops.store import disk_cache
from lakeops.store.disk_cache import Pieces, pieces_of, together
from lakeops.testing import Faults


@pytest.fixture
def requests() -> Requests:
    return Requests(0.1)


@pytest.fixture
def far(tmp_path, requests) -> FarStore:
    return FarStore(tmp_path / "far", requests)


def test_puts_travel_together_and_are_there_at_the_end(far, requests):
    with together(far) as store:
        results = [store.put(f"k{number}", b"data") for number in range(10)]
    assert requests.made == 10
    assert len(requests.rounds) == 1
    assert [far.get(f"k{number}") for number in range(10)] == [b"data"] * 10
    assert results == [far.put("other", b"data")] * 10


def test_what_is_on_its_way_can_be_read(far):
    with together(far) as store:
        store.put("k", b"data")
        assert store.get("k") == b"data"
        store.put("l", b"0123456789")
        assert store.get_range("l", 2, 3) == b"234"
        store.put("m", b"0123456789")
        assert store.get_range("m", 8, 5) == b"89"
        with pytest.raises(ObjectNotFound):
            store.get("n")


def test_the_end_raises_what_a_put_raised(far):
    faults = Faults()
    faults.fail("put", at=2)
    with pytest.raises(StoreUnavailable), together(faults.around(far)) as store:
        for number in range(4):
            store.put(f"k{number}", b"data")


def test_an_error_waits_for_what_is_on_its_way(far):
    with pytest.raises(ZeroDivisionError), together(far) as store:
        store.put("k", b"data")
        raise ZeroDivisionError
    assert far.get("k") == b"data"


def test_only_so_many_bytes_are_on_their_way(far, monkeypatch):
    monkeypatch.setattr(disk_cache, "MOST_HELD", 10)
    faults, most, now = Faults(), [0], [0]
    lock = threading.Lock()

    def count(by: int):
        def counted(_: object) -> None:
            with lock:
                now[0] += by
                most[0] = max(most[0], now[0])

        return counted

    faults.hook("put", at=None, action=count(4))
    faults.hook("put", at=None, when="after", action=count(-4))
    with together(faults.around(far)) as store:
        for number in range(8):
            store.put(f"k{number}", b"data")
        store.put("large", b"x" * 100)  # more than may be held, so it travels alone
    assert most[0] == 8
    assert far.head("large").size_bytes == 100


def test_a_near_store_is_left_as_it_is(store_at_hand):
    with together(store_at_hand) as store:
        assert store is store_at_hand
    assert disk_cache.nearby(store_at_hand, Pieces(store_at_hand.root, 1 << 30)) is store_at_hand


@pytest.fixture
def store_at_hand(tmp_path):
    from lakeops.store.local import LocalStore

    return LocalStore(tmp_path)


def test_elsewhere_it_is_the_plain_store(tmp_path):
    from lakeops.store.s3 import S3Store

    inner = S3Store("bucket", "prefix")
    store = disk_cache.nearby(inner, Pieces(tmp_path, 1 << 30))
    assert pieces_of(store) is not None
    with together(store) as travelling:
        found = pickle.loads(pickle.dumps(travelling))
    assert isinstance(found, S3Store)
    assert found.url == inner.url
    assert pieces_of(found) is None
