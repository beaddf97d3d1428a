"""What a metarange needs beyond another: nothing is left out, and only what differs is opened."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import (
    SMALL,
    THOROUGH,
    Groups,
    attempt,
    built,
    byte_order,
    change_sets,
    entry_table,
    numbered,
    repositories,
    staged_table,
)

from lakeops.model.errors import Corrupted
from lakeops.ranges.apply import apply
from lakeops.ranges.build import build
from lakeops.ranges.diff import NEEDED_SCHEMA, needed
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader


def address(value) -> str:
    return f"data/2026010100/{value[0]}-{value[1]}"


def with_edits(repository, edits):
    """The repository with every edit taken literally: writing the same contents again moves their address."""
    return {path: value for path, value in {**repository, **edits}.items() if value is not None}


def of_range(repository, row) -> dict:
    return {path: repository[path] for path in byte_order(repository) if row.first_path <= path <= row.last_path}


@pytest.mark.usefixtures("leaves")
@given(st.data())
@THOROUGH
def test_nothing_is_left_out_and_little_is_too_much(fresh_store, data):
    store = fresh_store()
    before = data.draw(repositories())
    after = data.draw(repositories() | change_sets(before).map(lambda edits: with_edits(before, edits)))
    known, wanted = built(store, before), built(store, after)
    fresh = wanted.at(wanted.without(known))
    store.forget()

    found = list(needed(RangeReader(store), wanted, known))

    assert [item.row for item in found] == fresh
    there = {address(value) for value in before.values()}
    for item in found:
        assert item.objects.schema.equals(NEEDED_SCHEMA)
        mine = of_range(after, item.row)
        rows = item.objects.to_pylist()
        given_addresses = [row["physical_address"] for row in rows]
        assert len(set(given_addresses)) == len(given_addresses)
        assert {address(value) for value in mine.values()} - there <= set(given_addresses)
        first = {address(value): path for path, value in reversed(mine.items()) if before.get(path) != value}
        for row in rows:
            value = mine[row["path"]]
            assert (row["physical_address"], row["checksum"], row["size_bytes"]) == (address(value), value[0], 1)
            assert before.get(row["path"]) != value
            # An object that was there at another path may have lost its first path to that one.
            assert row["path"] == first[row["physical_address"]] or row["physical_address"] in there
    assert len(store.read) == len(set(store.read))
    ours = {item.row.key for item in found}
    others = {
        row.key
        for row in known.at(known.without(wanted))
        if any(row.first_path <= item.row.last_path and item.row.first_path <= row.last_path for item in found)
    }
    assert set(store.read) == ours | others


def test_the_first_head_needs_everything_each_object_once_a_range(store, reader):
    repository = numbered(range(300))
    metarange = built(store, repository)
    store.forget()
    found = list(needed(reader, metarange, Metarange.empty()))
    assert [item.objects.to_pylist() for item in found] == [
        [{"physical_address": "data/2026010100/0-0", "checksum": "0", "size_bytes": 1, "path": row.first_path}]
        for row in metarange.rows(0, len(metarange))
    ]
    assert len(store.read) == len(metarange)


def test_equal_metaranges_need_nothing_unread(store, reader):
    pair = built(store, numbered(range(300))), built(store, numbered(range(300)))
    store.forget()
    assert list(needed(reader, *pair)) == []
    assert store.read == []


def test_a_copy_of_the_same_contents_is_needed(store, reader):
    known, wanted = built(store, {"a": ("1", 1), "b": ("1", 1)}), built(store, {"a": ("1", 1), "b": ("1", 2)})
    [item] = needed(reader, wanted, known)
    assert item.objects["physical_address"].to_pylist() == ["data/2026010100/1-2"]


def test_a_path_that_keeps_its_object_needs_nothing(store, reader):
    table = entry_table(numbered(range(50)))
    other = table.to_pylist()
    other[7]["content_type"] = "x/y"
    known, wanted = (
        build(store, [rows], SMALL, attempt()) for rows in (table, pa.Table.from_pylist(other, table.schema))
    )
    [item] = needed(reader, wanted, known)
    assert item.row.first_path <= other[7]["path"] <= item.row.last_path
    assert item.objects.num_rows == 0


@pytest.mark.parametrize("size", [1_000, 5_000])
def test_cost_follows_what_differs(store, size):
    """One new object in each of ten ranges: twenty files, whatever the size of the repository."""
    known = built(store, numbered(range(size)))
    rows = known.rows(0, len(known))
    touched = rows[5 : len(rows) - 5 : len(rows) // 10][:10]
    edits = {row.first_path: ("9", 9 + number) for number, row in enumerate(touched)}
    wanted = apply(
        RangeReader(store), known, staged_table(edits), engine=Groups(), split=SMALL, attempt=attempt()
    ).metarange
    store.forget()
    found = list(needed(RangeReader(store), wanted, known))
    assert sum(item.objects.num_rows for item in found) == 10
    assert len(store.read) == 20


def test_deleted_ranges_are_not_opened(store, reader):
    repository = numbered(range(900))
    known = built(store, repository)
    wanted = built(store, {path: value for path, value in repository.items() if path.startswith("b/")})
    store.forget()
    found = list(needed(reader, wanted, known))
    assert len(found) <= 2
    assert len(store.read) <= 2 * len(found) + 1


def test_a_damaged_range_stops_it(store, reader):
    metarange = built(store, numbered(range(300)))
    row = metarange.row(3)
    (store.root / row.key).write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(Corrupted, match=row.file):
        list(needed(reader, metarange, Metarange.empty()))
