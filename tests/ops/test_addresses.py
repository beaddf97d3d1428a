"""Addresses by the column are what the rules for one address make of each."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeops.ops.read import full, joined, relative
from lakeops.store import layout

keys = st.text(alphabet="az09/._~=-% +é😀?#\x00", max_size=8)
addresses = st.one_of(
    keys.map(lambda key: f"data/{key}"), keys, keys.map(lambda key: f"s3://bucket/{key}"), st.just("file:///x/y")
)
namespaces = pytest.mark.parametrize("namespace", ["file:///lake/a%20b", "s3://bucket/prefix"])


def chunks(parts: list[list[str]]) -> pa.ChunkedArray:
    """A column of several chunks, each of them a slice of something longer."""
    return pa.chunked_array([pa.array(["é", *part, "%"], pa.string()).slice(1, len(part)) for part in parts])


@namespaces
@given(parts=st.lists(st.lists(addresses, max_size=6), min_size=1, max_size=3))
def test_stored_addresses_become_urls(namespace, parts):
    whole = [address for part in parts for address in part]
    assert full(namespace, chunks(parts)).to_pylist() == [layout.absolute(namespace, one) for one in whole]


@namespaces
@given(part=st.lists(keys.map(lambda key: f"data/x{key}"), min_size=1, max_size=6))
def test_keys_of_a_location_are_quoted_where_they_must_be(namespace, part):
    column = pa.array(["é", *part]).slice(1)
    assert joined(namespace, column).to_pylist() == [layout.absolute(namespace, key) for key in part]


@namespaces
def test_what_is_shown_is_stored_again_as_it_was(namespace):
    column = chunks([["data/a", "data/b c", "data/é"], ["data/%41", "file:///imported/x", "s3://other/y"]])
    assert relative(namespace, full(namespace, column)).equals(column)
