"""Which objects are there: the answer is right however it is found, and costs no more than asking one by one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeops.store import listing
from lakeops.store.base import StoredObject
from lakeops.store.listing import present
from lakeops.store.local import LocalStore
from lakeops.testing import Faults, FaultyStore


class Named:
    """A store of names alone; counts names listed and objects asked for."""

    url = "s3://bucket"

    def __init__(self, keys) -> None:
        self.keys = sorted(keys)
        self.counts: Counter[str] = Counter()

    def head(self, key):
        from lakeops.model.errors import ObjectNotFound

        self.counts["head"] += 1
        if key not in set(self.keys):
            raise ObjectNotFound(key)
        return StoredObject(key, len(key), 0)

    def list(self, prefix="", after=""):
        for key in self.keys:
            if key.startswith(prefix) and key > after:
                self.counts["listed"] += 1
                yield StoredObject(key, len(key), 0)


names = st.text(st.sampled_from("ab/é\U0001f600z"), min_size=1, max_size=4)
keys = st.builds("{}{}".format, st.sampled_from(["data/1/", "data/2/", "data/", ""]), names)


@given(st.sets(keys, max_size=60), st.sets(keys, max_size=60), st.integers(1, 12), st.integers(0, 5))
def test_the_answer_is_what_asking_for_each_gives(there, asked, list_from, shown):
    store = Named(there)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "LIST_FROM", list_from)
        patch.setattr(listing, "SHOWN_FOR_ASKED", shown)
        found = present(store, [*asked, *asked], at_once=2)  # type: ignore[arg-type]
    assert found.keys() == there & asked
    assert all(item.key == key and item.size_bytes == len(key) for key, item in found.items())


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
