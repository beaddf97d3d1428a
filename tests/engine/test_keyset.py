"""Keys in memory, beside Python's sets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import THOROUGH

from lakeops.engine import keyset
from lakeops.engine.keyset import KeySet

HIGHEST = 2**64 - 1
NUMBERS = (
    st.integers(0, HIGHEST)
    | st.integers(0, 9)
    | st.integers(HIGHEST - 9, HIGHEST)
    # Many beside each other, in the middle of the table.
    | st.integers(2**63 - 9, 2**63 + 9)
)
LISTS = st.lists(NUMBERS, max_size=60)


def keys(values):
    return np.array(values, np.uint64)


def half(value):
    """What the table keeps of a key beside its place."""
    return max(value % 2**32, 1)


@given(st.lists(LISTS, max_size=5), st.lists(LISTS, max_size=3), st.integers(0, 40), st.sampled_from([3, 1_000]))
@THOROUGH
def test_whatever_is_in_is_found(runs, asked, room, block):
    """And nothing else, but for keys whose lower halves are in: those count as the same when they are near."""
    inside = {value for run in runs for value in run}
    halves = {half(value) for value in inside}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyset, "_BLOCK", block)
        held = KeySet(len(inside) + room)
        for run in runs:
            held.add(keys(run))
    assert len(halves) <= len(held) <= len(inside)
    assert held.contains(keys([*inside])).all()
    assert held.met == 0
    seen = set()
    for some in asked:
        found = held.contains(keys(some)).tolist()
        assert held.meet(keys(some)).tolist() == found
        assert all(value not in inside or there for value, there in zip(some, found, strict=True))
        assert all(half(value) in halves or not there for value, there in zip(some, found, strict=True))
        seen |= {value for value, there in zip(some, found, strict=True) if there}
    assert len({half(value) for value in seen}) <= held.met <= len(seen)


@given(st.lists(st.lists(st.integers(1, 2**32 - 1), max_size=60), max_size=5), st.lists(NUMBERS, max_size=60))
@THOROUGH
def test_of_keys_whose_lower_halves_differ_it_is_a_set(runs, uppers):
    """As those of addresses do, but for one pair in 2**32."""
    lowers = sorted({lower for run in runs for lower in run})
    values = {lower: (number % 3 << 62) | lower for number, lower in enumerate(lowers)}
    held = KeySet(len(values))
    for run in runs:
        held.add(keys([values[lower] for lower in run]))
    assert len(held) == len(values)
    others = [value for value in uppers if half(value) not in values]
    assert held.meet(keys([*values.values(), *others])).tolist() == [True] * len(values) + [False] * len(others)
    assert held.met == len(values)


@pytest.mark.parametrize("start", [2, 2**63 + 2, 2**64 - 2_002])
def test_a_long_row_of_neighbours_is_found(start):
    """Keys that all belong at one place lie behind each other, over the end of the table if need be."""
    inside = keys(range(0, 2_000, 2)) + np.uint64(start)
    held = KeySet(1_000)
    held.add(inside[::-1])
    held.add(inside[::3])
    assert len(held) == 1_000
    assert held.contains(inside).all()
    assert not held.contains(inside + np.uint64(1)).any()


def test_one_key_again_and_again_needs_one_place():
    held = KeySet(1)
    held.add(np.full(100_000, HIGHEST, np.uint64))
    assert len(held) == 1
    assert held.contains(keys([HIGHEST, 5])).tolist() == [True, False]


def test_threads_ask_at_the_same_time():
    inside = np.random.default_rng(1).integers(0, HIGHEST, 200_000, dtype=np.uint64)
    held = KeySet(150_000)
    for run in np.array_split(inside[:150_000], 7):
        held.add(run)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(held.meet, np.array_split(inside[100_000:], 20)))
    assert np.concatenate(found).tolist() == [True] * 50_000 + [False] * 50_000
    assert held.met == 50_000
    assert len(held) == 150_000
