import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import (
    SMALL,
    THOROUGH,
    applied,
    attempt,
    built,
    byte_order,
    change_sets,
    changed,
    contents,
    entry_table,
    numbered,
    repositories,
    same,
    staged_table,
    summed,
)

from lakeops.model.arrow import RANGE_SCHEMA
from lakeops.model.errors import Corrupted
from lakeops.model.records import Change, Split, Summary
from lakeops.ranges.build import build
from lakeops.ranges.diff import (
    DIFF_SCHEMA,
    MOST_TOGETHER,
    NEEDED_SCHEMA,
    changes,
    diff,
    diff_batches,
    needed,
    staged_changes,
    summary,
)
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader

SPLITS = st.sampled_from([SMALL, Split(16, 80, 400), Split(7, 1, 7)])


def expected(left, right, prefix=""):
    """The diff of two dictionaries."""
    found = []
    for path in byte_order(left.keys() | right.keys()):
        if path.startswith(prefix) and not same(left.get(path), right.get(path)):
            kind = "added" if path not in left else "changed" if path in right else "removed"
            found.append(Change(kind, path, len((right.get(path) or left[path])[0])))
    return found


def listed(reader, left, right, **options):
    tables = list(diff(reader, left, right, **options))
    assert all(table.num_rows for table in tables)
    return [change for table in tables for change in changes(table)]


@pytest.mark.usefixtures("leaves")
@given(st.data())
@THOROUGH
def test_a_diff_of_metaranges_is_the_diff_of_dictionaries(fresh_store, data):
    store = fresh_store()
    left = data.draw(repositories())
    right = data.draw(repositories() | change_sets(left).map(lambda edits: with_edits(left, edits)))
    # Ranges and row groups of all sizes, on either side their own: whether they line up must not matter.
    pair = built(store, left, data.draw(SPLITS)), built(store, right, data.draw(SPLITS))
    prefix = data.draw(st.sampled_from(["", "p/", "p/1", "d", "é", "none"]))
    assert listed(RangeReader(store), *pair, prefix=prefix) == expected(left, right, prefix)
    assert summary(RangeReader(store), *pair) == summed(left, right)


def with_edits(repository, edits):
    """The repository with every edit taken literally: writing the same contents again moves their address."""
    return {path: value for path, value in {**repository, **edits}.items() if value is not None}


@pytest.mark.usefixtures("leaves")
@given(repositories(), repositories())
@THOROUGH
def test_whole_rows_of_both_sides(fresh_store, left, right):
    store = fresh_store()
    columns = RANGE_SCHEMA.names, RANGE_SCHEMA.names
    batches = list(diff_batches(RangeReader(store), built(store, left), built(store, right), columns=columns))
    for side, repository in enumerate((left, right)):
        rows = [row for batch in batches for row in batch.rows[side].to_pylist()]
        found = {row["path"]: (row["checksum"], row["mtime"]) for row in rows}
        differ = {change.path for change in expected(left, right)}
        assert found == {path: value for path, value in repository.items() if path in differ}
        assert len(rows) == len(found)
        assert all(len(row["digest"]) == 16 for row in rows)


def test_the_columns_of_a_diff(store, reader):
    tables = diff(reader, built(store, {"b": ("0", 0)}), built(store, {"a": ("12", 0)}))
    table = pa.concat_tables(tables)
    assert table.schema.equals(DIFF_SCHEMA)
    assert table.to_pylist() == [
        {"type": "added", "path": "a", "size_bytes": 2},
        {"type": "removed", "path": "b", "size_bytes": 1},
    ]


@pytest.mark.parametrize("column", ["content_type", "metadata"])
def test_what_is_in_the_identity_beside_contents_is_a_difference(store, reader, column):
    table = entry_table(numbered(range(50)))
    other = table.to_pylist()
    other[7][column] = "x/y" if column == "content_type" else [("k", "v")]
    pair = [build(store, [rows], SMALL, attempt()) for rows in (table, pa.Table.from_pylist(other, table.schema))]
    assert listed(reader, *pair) == [Change("changed", other[7]["path"], 1)]


def test_equal_metaranges_are_not_opened(store, reader):
    pair = built(store, numbered(range(300))), built(store, numbered(range(300)))
    store.forget()
    assert listed(reader, *pair) == []
    assert store.read == []


def test_only_differing_ranges_are_opened_each_once(store):
    base = built(store, numbered(range(1_000)))
    rows = base.rows(0, len(base))
    touched = rows[5 : len(rows) - 5 : len(rows) // 10][:10]
    edits = {path: ("x", 1) for row in touched for path in (row.first_path,)}
    after = changed(store, base, edits)
    expected = [Change("changed", path, 1) for path in byte_order(edits)]
    store.forget()
    assert listed(RangeReader(store), base, after) == expected
    assert store.read == []
    assert listed(RangeReader(store), base, after.with_delta(None)) == expected
    assert len(store.read) == len(set(store.read)) == 20


def test_memory_is_bounded_when_no_two_ranges_line_up(store):
    repository = numbered(range(2_000))
    left, right = built(store, repository, Split(40, 1, 40)), built(store, repository, Split(30, 1, 30))
    assert listed(RangeReader(store), left, right) == []
    other = numbered(range(2_000), contents="1")
    tables = list(diff(RangeReader(store), left, built(store, other, Split(30, 1, 30))))
    assert max(table.num_rows for table in tables) <= MOST_TOGETHER * 30
    assert sum(table.num_rows for table in tables) == 2_000


def test_a_diff_streams(store):
    left, right = built(store, numbered(range(1_000))), built(store, numbered(range(1_000), contents="1"))
    store.forget()
    tables = diff(RangeReader(store), left, right)
    next(tables)
    tables.close()
    assert len(store.read) < 12


@pytest.mark.usefixtures("leaves")
@given(st.data())
@THOROUGH
def test_staged_rows_change_what_committing_them_would(fresh_store, data):
    store = fresh_store()
    repository = data.draw(repositories())
    edits = data.draw(change_sets(repository))
    base, after = built(store, repository), built(store, applied(repository, edits))
    tables = list(staged_changes(RangeReader(store), base, staged_table(edits)))
    assert all(table.num_rows and table.schema.equals(DIFF_SCHEMA) for table in tables)
    expected = [change for table in diff(RangeReader(store), base, after) for change in changes(table)]
    assert [change for table in tables for change in changes(table)] == expected


def test_only_touched_ranges_are_opened(store, reader):
    base = built(store, numbered(range(1_000)))
    store.forget()
    list(staged_changes(reader, base, staged_table({"a/00000": None, "b/00999": ("1", 0)})))
    assert len(store.read) == 2


def test_uploading_the_same_contents_again_is_no_difference(store, reader):
    left, right = built(store, numbered(range(200))), built(store, numbered(range(200), address=9))
    assert left.id != right.id
    assert listed(reader, left, right) == []
    assert contents(store, right)["a/00000"] == ("0", 9)


def test_a_diff_with_nothing_is_everything(store, reader):
    whole, empty = built(store, numbered(range(100))), Metarange.empty()
    assert summary(reader, empty, whole) == Summary(added=100)
    assert summary(reader, whole, empty) == Summary(removed=100)
    assert listed(reader, empty, empty) == []


# --- what a metarange needs beyond another: nothing is left out, and only what differs is opened ---
def address(value):
    return f"data/2026010100/{value[0]}-{value[1]}"


@pytest.mark.usefixtures("leaves")
@given(st.data())
@THOROUGH
def test_nothing_is_left_out_and_little_is_too_much(fresh_store, data):
    store = fresh_store()
    before = data.draw(repositories())
    after = data.draw(repositories() | change_sets(before).map(lambda edits: with_edits(before, edits)))
    known, wanted = built(store, before), built(store, after)
    fresh, old = wanted.at(wanted.without(known)), known.at(known.without(wanted))  # which reads the leaves
    store.forget()

    found = list(needed(RangeReader(store), wanted, known))

    assert [row for row, _ in found] == fresh
    there = {address(value) for value in before.values()}
    for file, objects in found:
        assert objects.schema.equals(NEEDED_SCHEMA)
        mine = {path: after[path] for path in byte_order(after) if file.first_path <= path <= file.last_path}
        rows = objects.to_pylist()
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
    ours = {file.key for file, _ in found}
    others = {
        row.key
        for row in old
        if any(row.first_path <= file.last_path and file.first_path <= row.last_path for file, _ in found)
    }
    assert set(store.read) == ours | others


def test_a_path_that_keeps_its_object_needs_nothing(store, reader):
    table = entry_table(numbered(range(50)))
    other = table.to_pylist()
    other[7]["content_type"] = "x/y"
    known, wanted = (
        build(store, [rows], SMALL, attempt()) for rows in (table, pa.Table.from_pylist(other, table.schema))
    )
    [(file, objects)] = needed(reader, wanted, known)
    assert file.first_path <= other[7]["path"] <= file.last_path
    assert objects.num_rows == 0


@pytest.mark.parametrize("size", [1_000, 5_000])
def test_cost_follows_what_differs(store, size):
    """One new object in each of ten ranges: twenty files, whatever the size of the repository."""
    known = built(store, numbered(range(size)))
    rows = known.rows(0, len(known))
    touched = rows[5 : len(rows) - 5 : len(rows) // 10][:10]
    edits = {row.first_path: ("9", 9 + number) for number, row in enumerate(touched)}
    wanted = changed(store, known, edits)
    store.forget()
    found = list(needed(RangeReader(store), wanted, known))
    assert sum(objects.num_rows for _, objects in found) == 10
    assert len(store.read) == 20


def test_a_damaged_range_stops_it(store, reader):
    metarange = built(store, numbered(range(300)))
    row = metarange.row(3)
    (store.root / row.key).write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(Corrupted, match=row.file):
        list(needed(reader, metarange, Metarange.empty()))
