"""Stores cross to other processes and threads; clients stay where they were made."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from lakeops.model.errors import LakeopsError
from lakeops.store.open import Stores, open_store
from lakeops.store.s3.client import client


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


def test_opening_a_bucket_does_not_import_boto3():
    """Commands that only look at refs should not wait for it."""
    script = """
import sys
from lakeops.store.open import Stores, StoreSettings
store = Stores(StoreSettings()).at("s3://bucket/prefix")
assert Stores().at("az://bucket/prefix").url == "az://bucket/prefix"
assert store.url == "s3://bucket/prefix"
print([name for name in ("boto3", "botocore.client", "obstore", "pyarrow") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_client_does_not_import_boto3():
    """boto3 adds nothing that a store uses, and takes a third of the time in which a client is made."""
    script = """
import sys
from lakeops.store.base import StoreSettings
from lakeops.store.s3.client import client
assert client(StoreSettings()).meta.service_model.service_name == "s3"
print([name for name in ("boto3", "s3transfer") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_opening_touches_nothing(tmp_path):
    open_store((tmp_path / "ns").as_uri())
    open_store("s3://no-such-bucket-at-all/prefix")
    assert list(tmp_path.iterdir()) == []
