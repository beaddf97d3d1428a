"""The listing that is looked up from disk, against a dictionary."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples

from lakeops.ops.fsck import inventory as module
from lakeops.ops.fsck.inventory import Inventory
from lakeops.store.base import Listing, StoredObject

keys = st.text(st.sampled_from("ab/é\U0001f600\uffff"), min_size=1, max_size=5)


def listed(items: Iterable[StoredObject], size: int = 1_000) -> Iterator[Listing]:
    """The objects as a scan lists them, some at a time."""
    remaining = iter(items)
    while some := list(islice(remaining, size)):
        yield Listing(*zip(*((item.key, item.size_bytes, item.mtime, item.etag) for item in some), strict=True))


@settings(max_examples=examples(50), deadline=None)
@given(st.sets(keys, max_size=40), st.lists(keys, max_size=40), st.integers(1, 9))
def test_lookups_are_those_of_a_dictionary(names: set[str], wanted: list[str], batch: int) -> None:
    items = [StoredObject(key, len(key), number) for number, key in enumerate(sorted(names, key=str.encode))]
    places = {item.key: number for number, item in enumerate(items)}
    progress: list[int] = []
    with (
        tempfile.TemporaryDirectory() as place,
        mock.patch.object(module, "_BATCH", batch),
        closing(Inventory(Path(place), listed(items, 2), progress.append)) as inventory,
    ):
        assert len(inventory) == len(items)
        found = inventory.find(pa.array(wanted, pa.string()))
        assert found.tolist() == [places.get(key, -1) for key in wanted]
        chunked = pa.chunked_array([wanted[:3], wanted[3:]], pa.string())
        assert inventory.find(chunked).tolist() == found.tolist()
        assert [inventory.stored(number) for number in range(len(items))] == items
        inventory.need(found)
        rest = [key for part in inventory.not_needed() for key in part["key"].to_pylist()]
        assert rest == [item.key for item in items if item.key not in {*wanted}]
    assert progress[-1:] == ([len(items)] if items else [])


def test_it_holds_little_of_a_long_listing_in_memory(tmp_path: Path) -> None:
    count = 200_000
    items = (StoredObject(f"data/2026010100/{number:020}", number, 7) for number in range(count))
    before = pa.total_allocated_bytes()
    with closing(Inventory(tmp_path, listed(items), lambda _: None)) as inventory:
        size = (tmp_path / "listing.arrow").stat().st_size
        assert size > 40 * count
        inventory.need(np.arange(0, count, 2))
        assert pa.total_allocated_bytes() - before < size / 4
        assert sum(part.num_rows for part in inventory.not_needed()) == count // 2
