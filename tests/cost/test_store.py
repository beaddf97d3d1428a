"""Requests of the store: how many travel together, and how few are made."""

from random import Random

import pytest
from support.far import FarStore, Requests
from support.listed import Bucket, Named, scanned

from lakeops.store import listing
from lakeops.store.disk_cache import background_writes
from lakeops.store.listing import present
from lakeops.store.local import LocalStore
from lakeops.testing import Faults, FaultyStore

NUMBERED = {
    "numbers": lambda number, _: f"part-{number:05}.parquet",
    "numbers without zeros": lambda number, _: f"f{number}.csv",
    "random hex": lambda _, random: f"{random.getrandbits(128):032x}",
    "stamps": lambda number, _: f"2026-{number // 600 + 1:02}-{number // 20 % 30 + 1:02}T{number % 20:02}:00.json",
    "UUIDs behind numbers": lambda number, random: f"part-{number:05}-{random.getrandbits(64):016x}-c000.parquet",
}


@pytest.mark.parametrize("root", ["", "table/"])
@pytest.mark.parametrize("name", NUMBERED.values(), ids=NUMBERED)
def test_a_flat_folder_of_many_pages_takes_few_rounds(name, root):
    """One page after another would be 40 rounds. What is asked for in vain is bounded, too."""
    random, requests = Random(1), Requests(0.1)
    names = [root + name(number, random) for number in range(2_000)]
    bucket = Bucket(names, 50, asking=lambda: requests.one("list", ""))
    assert scanned(bucket) == sorted(names)
    assert len(requests.rounds) <= 12
    assert bucket.requests <= 110


def test_a_folder_of_a_page_is_a_request():
    bucket = Bucket([f"{number}" for number in range(50)], 50)
    scanned(bucket)
    assert bucket.requests == 1


def test_a_few_are_asked_for_one_by_one():
    store = Named([f"data/1/{number:05}" for number in range(5000)])
    assert len(present(store, [f"data/1/{number * 100:05}" for number in range(31)])) == 31  # type: ignore[arg-type]
    assert store.counts == {"head": 31}


def test_many_of_one_directory_are_listed():
    store = Named([f"data/1/{number:05}" for number in range(5000)])
    assert len(present(store, [f"data/1/{number:05}" for number in range(100, 1100)])) == 1000  # type: ignore[arg-type]
    assert store.counts["head"] == 0
    assert store.counts["listed"] < 1100


def test_a_listing_that_shows_far_too_much_is_given_up():
    store = Named([f"data/1/{number:06}" for number in range(50_000)])
    asked = [f"data/1/{number * 1000:06}" for number in range(40)]
    assert len(present(store, asked)) == 40  # type: ignore[arg-type]
    assert store.counts["listed"] <= listing.SHOWN_FOR_ASKED * 40 + 1
    assert 0 < store.counts["head"] <= 40


def test_a_real_directory_answers_alike(tmp_path):
    faults = Faults()
    store = FaultyStore(LocalStore(tmp_path, fsync=False), faults)
    for number in range(80):
        store.put(f"data/1/{number:03}", b"x" * number)
    asked = [f"data/1/{number:03}" for number in range(0, 160, 2)] + ["data/2/x", "y"]
    found = present(store, asked)
    assert {key: item.size_bytes for key, item in found.items()} == {f"data/1/{n:03}": n for n in range(0, 80, 2)}
    assert (faults.counts["list"], faults.counts["head"]) == (1, 2)


def test_puts_travel_together_and_are_there_at_the_end(tmp_path):
    requests = Requests(0.1)
    far = FarStore(tmp_path / "far", requests)
    with background_writes(far) as store:
        results = [store.put(f"k{number}", b"data") for number in range(10)]
    assert requests.made == 10
    assert len(requests.rounds) == 1
    assert [far.get(f"k{number}") for number in range(10)] == [b"data"] * 10
    assert results == [far.put("other", b"data")] * 10
