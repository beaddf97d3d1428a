"""Many writers, readers and deleters at once."""

import multiprocessing
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support.at_once import many_at_once

from lakeops.model.errors import AlreadyExists, LakeopsError, ObjectNotFound
from lakeops.store.open import Stores
from lakeops.store.s3.client import client


def test_one_of_many_writers_of_a_new_key_wins(store):
    for round_ in range(5):
        key = f"claims/{round_}"
        results = many_at_once(8, lambda n, key=key: store.put(key, b"writer %d" % n, if_absent=True))
        winners = [n for n, result in enumerate(results) if not isinstance(result, LakeopsError)]
        assert len(winners) == 1
        assert all(isinstance(result, AlreadyExists) for n, result in enumerate(results) if n not in winners)
        assert store.get(key) == b"writer %d" % winners[0]


def test_one_of_many_swaps_wins(store):
    held = None
    for round_ in range(5):
        wanted = [b"%d by %d" % (round_, n) for n in range(8)]
        results = many_at_once(8, lambda n, held=held, wanted=wanted: store.swap("k", wanted[n], expected=held))
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


def test_a_put_meets_deletes_that_remove_its_directory(local):
    """Emptied directories are removed; a put into one at that moment must still arrive."""

    def churn(number):
        for turn in range(150):
            key = f"data/hour/{number}-{turn}"
            local.put(key, b"x")
            assert local.get(key) == b"x"
            assert local.delete([key]) == []
        return

    assert many_at_once(4, churn) == [None] * 4
    assert list(local.list()) == []
    assert not (local.root / "data").exists()


def test_a_directory_is_made_beside_deletes_that_remove_the_one_above(local):
    def churn(number):
        for turn in range(300):
            key = f"data/hour/{number}-{turn}"
            if number % 2:
                local.put(key, b"x")
                assert local.delete([key]) == []
            else:
                local.make_directory(key)
                (local.root / key).rmdir()

    assert many_at_once(4, churn) == [None] * 4


def test_listing_beside_writers_shows_everything_that_stays(local):
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
    assert many_at_once(4, lambda _: store.delete(keys)) == [[]] * 4
    assert list(store.list()) == []


def test_many_writers_of_one_key_leave_one_whole_object(store):
    bodies = [bytes([n]) * (50_000 + n) for n in range(6)]
    many_at_once(6, lambda n: store.put("k", bodies[n]))
    assert store.get("k") in bodies
    store.delete(["k"])
    try:
        store.get("k")
    except ObjectNotFound:
        return
    raise AssertionError("still there")


# --- stores cross to other processes and threads; clients stay where they were made ---
def test_stores_pickle(store):
    store.put("k", b"x")
    twin = pickle.loads(pickle.dumps(store))
    assert twin.url == store.url
    assert repr(twin) == repr(store)
    assert twin.get("k") == b"x"


def test_a_resolver_pickles(store):
    if "in-memory" in store.url:
        pytest.skip("no other store can open what is in memory")
    store.put("k", b"x")
    stores = Stores(getattr(store, "settings", None))
    stores.at(store.url)
    assert pickle.loads(pickle.dumps(stores)).at(store.url).get("k") == b"x"


def _work(store, number, results):
    made = client(store.settings) if hasattr(store, "settings") else None
    store.put(f"child/{number}", b"from the child")
    results.put((number, store.get("parent"), id(made)))


def test_a_store_in_use_crosses_a_fork(store):
    if store.url.startswith(("az", "gs")):
        pytest.skip("obstore's threads do not: see the next test")
    store.put("parent", b"from the parent")
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    children = [context.Process(target=_work, args=(store, number, results)) for number in range(2)]
    for child in children:
        child.start()
    for turn in range(10):
        store.put(f"meanwhile/{turn}", b"x")
        assert store.get("parent") == b"from the parent"
    seen = [results.get(timeout=60) for _ in children]
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert {body for _, body, _ in seen} == {b"from the parent"}
    if hasattr(store, "settings"):
        assert id(client(store.settings)) not in {made for _, _, made in seen}
    assert [item.key for item in store.list("child/")] == ["child/0", "child/1"]


def _ask(store, results):
    try:
        results.put(store.head("parent").size_bytes)
    except LakeopsError as error:
        results.put(error.message)


@pytest.mark.azure
def test_a_forked_process_is_told_that_obstore_cannot_go_on(make_cloud):
    store = make_cloud("azure")
    store.put("parent", b"12345")
    for method, expected in (("fork", "was forked from one that had loaded obstore"), ("spawn", "5")):
        context = multiprocessing.get_context(method)
        results = context.Queue()
        child = context.Process(target=_ask, args=(store, results))
        child.start()
        assert expected in str(results.get(timeout=60))
        child.join()


def test_equal_settings_share_a_client_and_others_do_not(make_s3):
    one, two = make_s3("moto"), make_s3("moto")
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda store: client(store.settings), [one, two] * 4))
    assert len({id(each) for each in made}) == 1
    assert client(replace(one.settings, max_attempts=3)) is not made[0]


OPENED = """
from lakeops.store.open import Stores, StoreSettings
store = Stores(StoreSettings()).at("s3://bucket/prefix")
assert Stores().at("az://bucket/prefix").url == "az://bucket/prefix"
assert store.url == "s3://bucket/prefix"
"""
CLIENT = """
from lakeops.store.base import StoreSettings
from lakeops.store.s3.client import client
assert client(StoreSettings()).meta.service_model.service_name == "s3"
"""


@pytest.mark.parametrize(
    ("script", "names"),
    [(OPENED, ["boto3", "botocore.client", "obstore", "pyarrow"]), (CLIENT, ["boto3", "s3transfer"])],
    ids=["a bucket is opened", "a client is made"],
)
def test_what_takes_longest_to_import_is_not(script, names):
    """Commands that only look at refs wait for no client, and no client for boto3, which adds nothing to it."""
    script += f"import sys; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_opening_touches_nothing(tmp_path):
    Stores().at((tmp_path / "ns").as_uri())
    Stores().at("s3://no-such-bucket-at-all/prefix")
    assert list(tmp_path.iterdir()) == []
