"""The replicator that other tests rest on: as unruly as it claims, never wrong in the end, and repeatable."""

import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.unruly import Unruly

from lakeops.store.local import LocalStore

KEYS = [f"data/2026010{n % 3}/{n}" for n in range(9)] + [
    *(f"_lakefs/ranges/r{n}.parquet" for n in range(4)),
    *(f"_lakefs/metaranges/m{n}.parquet" for n in range(4)),
]


def stores(root):
    return LocalStore(root / "source", fsync=False), LocalStore(root / "destination", fsync=False)


def contents(store):
    return {item.key: store.get(item.key) for item in store.list()}


@pytest.fixture
def pair(tmp_path):
    return stores(tmp_path)


def fill(source):
    for key in KEYS:
        source.put(key, key.encode())


def trace(pair, seed):
    source, _ = pair
    replicator = Unruly(*pair, Random(seed))
    fill(source)
    replicator.run(200)
    source.delete(KEYS[:5])
    replicator.run(200)
    return [*replicator.delivered]


def test_it_is_repeatable_and_differs_by_seed(tmp_path):
    runs = [trace(stores(tmp_path / str(at)), seed) for at, seed in enumerate((1, 1, 2))]
    assert runs[0] == runs[1] != runs[2]


def test_it_is_unruly(tmp_path):
    """Over some seeds everything that it threatens with happens."""
    seen, orders = set(), set()
    for seed in range(20):
        done = trace(stores(tmp_path / str(seed)), seed)
        first = [one.key for one in done if one.action == "put"]
        seen |= {one.action for one in done}
        orders.add(tuple(first))
        seen.add("metadata first" if first and first[0].startswith("_lakefs/") else "data first")
    assert seen == {"put", "delete", "duplicate", "metadata first", "data first"}
    assert len(orders) > 10


@given(random=st.randoms(use_true_random=False), script=st.lists(st.integers(0, 8), max_size=12))
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_it_settles_to_what_the_source_has(random, script):
    with tempfile.TemporaryDirectory() as root:
        source, destination = pair = stores(Path(root))
        replicator = Unruly(*pair, random)
        for at, number in enumerate(script):
            if number > 5:
                source.delete([KEYS[number % 3]])
            else:
                source.put(KEYS[number % 3], b"x" * at)
            replicator.run(number)
        replicator.settle()
        assert contents(destination) == contents(source)
        assert replicator.pending == []
