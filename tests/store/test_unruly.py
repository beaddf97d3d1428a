"""The replicator that other tests rest on: as unruly as it claims, never wrong in the end, and repeatable."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.unruly import Unruly

from lakeops.model.errors import ObjectNotFound
from lakeops.store.local import LocalStore

KEYS = [f"data/2026010{n % 3}/{n}" for n in range(9)] + [
    *(f"_lakefs/ranges/r{n}.parquet" for n in range(4)),
    *(f"_lakefs/metaranges/m{n}.parquet" for n in range(4)),
]


def stores(root: Path) -> tuple[LocalStore, LocalStore]:
    return LocalStore(root / "source", fsync=False), LocalStore(root / "destination", fsync=False)


def contents(store: LocalStore) -> dict[str, bytes]:
    return {item.key: store.get(item.key) for item in store.list()}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[LocalStore, LocalStore]:
    return stores(tmp_path)


def fill(source: LocalStore) -> None:
    for key in KEYS:
        source.put(key, key.encode())


def trace(pair: tuple[LocalStore, LocalStore], seed: int) -> list[object]:
    source, _ = pair
    replicator = Unruly(*pair, Random(seed))
    fill(source)
    replicator.run(200)
    source.delete(KEYS[:5])
    replicator.run(200)
    return [*replicator.delivered]


def test_it_is_repeatable_and_differs_by_seed(tmp_path: Path) -> None:
    runs = [trace(stores(tmp_path / str(at)), seed) for at, seed in enumerate((1, 1, 2))]
    assert runs[0] == runs[1] != runs[2]


def test_it_is_unruly(tmp_path: Path) -> None:
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
def test_it_settles_to_what_the_source_has(random: Random, script: list[int]) -> None:
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


def test_what_is_held_arrives_when_it_is_released(pair) -> None:
    source, destination = pair
    fill(source)
    replicator = Unruly(*pair, Random(3))
    replicator.hold("data/")
    replicator.run(300)
    replicator.settle()
    assert all(key.startswith("_lakefs/") for key in contents(destination))
    assert replicator.pending == sorted(key for key in KEYS if key.startswith("data/"))
    replicator.deliver(KEYS[0])
    assert destination.get(KEYS[0]) == KEYS[0].encode()
    replicator.release()
    replicator.settle()
    assert contents(destination) == contents(source)


def test_deletes_stay_at_the_source_when_they_are_not_replicated(pair) -> None:
    source, destination = pair
    fill(source)
    replicator = Unruly(*pair, Random(3), deletes=False)
    replicator.settle()
    source.delete(KEYS)
    replicator.settle()
    assert len(contents(destination)) == len(KEYS)


def test_keys_beside_the_managed_ones_are_left_alone(pair) -> None:
    source, destination = pair
    source.put("_lakefs/repository.json", b"{}")
    source.put("data/one", b"1")
    Unruly(*pair, Random(3)).settle()
    assert contents(destination) == {"data/one": b"1"}


def test_an_object_that_goes_before_it_was_copied_never_arrives(pair) -> None:
    source, destination = pair
    source.put("data/one", b"1")
    replicator = Unruly(*pair, Random(3))
    replicator.look()
    source.delete(["data/one"])
    replicator.settle()
    with pytest.raises(ObjectNotFound):
        destination.head("data/one")


def test_as_a_process_it_goes_on_until_its_input_ends(pair) -> None:
    source, destination = pair
    fill(source)
    command = [sys.executable, "-m", "support.unruly", source.url, destination.url, "7"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[1]) as process:
        try:
            while not any(destination.list()):
                assert process.poll() is None
        finally:
            process.communicate(timeout=200)
    assert process.returncode == 0
    assert contents(destination)
