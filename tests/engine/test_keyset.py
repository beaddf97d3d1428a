"""Keys in memory, beside Python's sets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import THOROUGH

from lakeops.engine.keyset import KeySet

HIGHEST = 2**64 - 1
NUMBERS = (
    st.integers(0, HIGHEST)
    | st.integers(0, 9)
    | st.integers(HIGHEST - 9, HIGHEST)
    # Many beside each other, on both sides of where a bucket begins.
    | st.integers(2**62 - 9, 2**62 + 9)
)
LISTS = st.lists(NUMBERS, max_size=60)


def keys(values):
    return np.array(values, np.uint64)


@given(st.lists(LISTS, max_size=5), st.lists(LISTS, max_size=3))
@THOROUGH
def test_it_is_a_set(runs, asked):
    held = KeySet(keys(run) for run in runs)
    inside = {value for run in runs for value in run}
    assert len(held) == len(inside)
    assert held.contains(keys([*inside])).all()
    assert held.met == 0
    for some in asked:
        assert held.contains(keys(some)).tolist() == [value in inside for value in some]
        assert held.meet(keys(some)).tolist() == [value in inside for value in some]
    assert held.met == len({value for some in asked for value in some} & inside)


@pytest.mark.parametrize("shift", [0, 20, 63])
def test_a_long_row_of_neighbours_is_found(shift):
    """Keys that all belong at one place lie behind each other, over the end of the table if need be."""
    inside = keys(range(0, 2_000, 2)) + np.uint64((1 << shift) - 1)
    held = KeySet([inside[::-1], inside[::3]])
    assert len(held) == 1_000
    assert held.contains(inside).all()
    assert not held.contains(inside + np.uint64(1)).any()


def test_threads_ask_at_the_same_time():
    inside = np.random.default_rng(1).integers(0, HIGHEST, 200_000, dtype=np.uint64)
    held = KeySet(np.array_split(inside[:150_000], 7))
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(held.meet, np.array_split(inside[100_000:], 20)))
    assert np.concatenate(found).tolist() == [True] * 50_000 + [False] * 50_000
    assert held.met == 50_000
