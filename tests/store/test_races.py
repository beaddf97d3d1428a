"""Many writers, readers and deleters at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from lakeops.model.errors import AlreadyExists, LakeopsError, ObjectNotFound
from lakeops.store.local import LocalStore


def at_once(count: int, act):
    """What ``act(n)`` gave or raised for n below ``count``, all started at the same moment."""
    barrier = threading.Barrier(count)

    def one(number: int):
        barrier.wait()
        try:
            return act(number)
        except LakeopsError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_one_of_many_writers_of_a_new_key_wins(store):
    for round_ in range(5):
        key = f"claims/{round_}"
        results = at_once(8, lambda n, key=key: store.put(key, b"writer %d" % n, if_absent=True))
        winners = [n for n, result in enumerate(results) if not isinstance(result, LakeopsError)]
        assert len(winners) == 1
        assert all(isinstance(result, AlreadyExists) for n, result in enumerate(results) if n not in winners)
        assert store.get(key) == b"writer %d" % winners[0]


def test_one_of_many_swaps_wins(store):
    held = None
    for round_ in range(5):
        wanted = [b"%d by %d" % (round_, n) for n in range(8)]
        results = at_once(8, lambda n, held=held, wanted=wanted: store.swap("k", wanted[n], expected=held))
        winners = [n for n, result in enumerate(results) if result is True]
        assert len(winners) == 1
        assert all(results[n] is False for n in range(8) if n not in winners)
        held = store.get("k")
        assert held == wanted[winners[0]]


def test_readers_see_one_whole_write(store):
    sizes = [200_000 + n for n in range(6)]
    store.put("k", bytes([0]) * sizes[0])
    done = threading.Event()
    torn = []

    def read():
        while not done.is_set():
            data = store.get("k")
            if set(data) != {data[0]} or len(data) != sizes[data[0]]:
                torn.append(data[:10])

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for n in [1, 2, 3, 4, 5, 0] * 4:
        store.put("k", bytes([n]) * sizes[n])
    done.set()
    for reader in readers:
        reader.join()
    assert torn == []


def test_a_put_meets_deletes_that_remove_its_directory(local: LocalStore):
    """Emptied directories are removed; a put into one at that moment must still arrive."""

    def churn(number: int):
        for turn in range(150):
            key = f"data/hour/{number}-{turn}"
            local.put(key, b"x")
            assert local.get(key) == b"x"
            assert local.delete([key]) == []
        return

    assert at_once(4, churn) == [None] * 4
    assert list(local.list()) == []
    assert not (local.root / "data").exists()


def test_listing_beside_writers_shows_everything_that_stays(local: LocalStore):
    fixed = [f"d/{n:02d}/fixed" for n in range(20)]
    for key in fixed:
        local.put(key, b"")
    done = threading.Event()

    def come_and_go():
        turn = 0
        while not done.is_set():
            turn += 1
            key = f"d/{turn % 25:02d}/passing-{turn}"
            local.put(key, b"")
            local.delete([key])

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(30):
            listed = [item.key for item in local.list("d/")]
            assert listed == sorted(listed)
            assert [key for key in listed if key.endswith("fixed")] == fixed
    finally:
        done.set()
        other.join()


def test_deleting_the_same_keys_at_once(store):
    keys = [f"d/{n}" for n in range(10)]
    for key in keys:
        store.put(key, b"")
    assert at_once(4, lambda _: store.delete(keys)) == [[]] * 4
    assert list(store.list()) == []


def test_many_writers_of_one_key_leave_one_whole_object(store):
    bodies = [bytes([n]) * (50_000 + n) for n in range(6)]
    at_once(6, lambda n: store.put("k", bodies[n]))
    assert store.get("k") in bodies
    store.delete(["k"])
    try:
        store.get("k")
    except ObjectNotFound:
        return
    raise AssertionError("still there")
