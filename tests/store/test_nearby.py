"""Requests that travel together: puts in the background, threads that leave their slot while they wait."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.far import FarStore, Requests

from lakeops.model.errors import ObjectNotFound, StoreUnavailable
from lakeops.store import disk_cache
from lakeops.store.disk_cache import Pieces, giving_way, pieces_of, together
from lakeops.store.slots import Crew, Slots
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


def test_a_thread_that_waits_leaves_its_slot(far):
    far.put("k", b"data")
    slots, entered = Slots(1), threading.Event()
    faults = Faults()

    def other() -> None:
        with slots:
            entered.set()

    def look(_: object) -> None:
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(60)
        thread.join()

    faults.hook("get", action=look)
    with slots:
        assert giving_way(faults.around(far), slots).get("k") == b"data"
        assert not takes(slots)
    assert takes(slots)


def takes(slots: Slots) -> bool:
    """Whether another thread finds a free slot."""
    return bool(slots._room.acquire(blocking=False)) and (slots._room.release() or True)


def test_threads_of_the_work_itself_hold_no_slot(far):
    far.put("k", b"data")
    slots = Slots(1)
    store = giving_way(far, slots)
    with slots, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(store.get, ["k"] * 8)) == [b"data"] * 8
        assert not takes(slots)
    assert takes(slots)


def threads_of(crew, work, count):
    """The threads that did some pieces of work. None begins before all wait, or threads would end in between."""
    all_wait = threading.Event()

    def done(number):
        assert all_wait.wait(60)
        work(number)
        return threading.current_thread()

    futures = [crew.submit(done, number) for number in range(count)]
    all_wait.set()
    return {future.result() for future in futures}


def test_work_that_waits_for_nobody_stays_in_as_many_threads_as_there_are_slots():
    slots, together = Slots(2), threading.Barrier(2)
    with Crew(slots, 16, "crew") as crew:
        used = threads_of(crew, lambda _: together.wait(60), 100)
        assert len(used) == 2
    assert not any(thread.is_alive() for thread in used)


def test_each_thread_that_waits_lets_another_one_in():
    """All four are under way at once, though one alone may work."""
    slots, all_there = Slots(1), threading.Barrier(4)

    class Waiting:
        def get(self, _key: str) -> int:
            return all_there.wait(60)

    store = giving_way(Waiting(), slots)
    with Crew(slots, 4, "crew") as crew:
        assert sorted(crew.map(store.get, ["k"] * 8)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_put_that_travels_in_the_background_is_not_waited_for(far):
    slots = Slots(1)
    with together(far) as travelling, Crew(slots, 16, "crew") as crew:
        store = giving_way(travelling, slots)
        assert len(threads_of(crew, lambda number: store.put(f"k{number}", b"data"), 50)) == 1
    assert far.get("k49") == b"data"


def test_a_crew_tells_what_failed_and_drops_what_was_not_begun():
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go_on.wait(60)
        raise KeyError("k")

    crew = Crew(Slots(1), 4, "crew")
    first, second = crew.submit(hold), crew.submit(hold)
    assert begun.wait(60)
    crew.shutdown(wait=False, cancel_futures=True)
    assert second.cancelled()
    go_on.set()
    with pytest.raises(KeyError):
        first.result(60)
    crew.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("crew")]
    with pytest.raises(RuntimeError):
        crew.submit(hold)
