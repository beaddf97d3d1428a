"""Lists of changes: with one, every answer is the answer that comparing the ranges gives."""

from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import (
    SMALL,
    THOROUGH,
    Pointer,
    applied,
    built,
    change_sets,
    contents,
    merged,
    numbered,
    repositories,
    reread,
    staged_table,
)
from support.rows import changed as in_memory

from lakeops.model.arrow import RANGE_SCHEMA
from lakeops.model.errors import Corrupted
from lakeops.model.records import ChangeType, Split, Strategy, Summary
from lakeops.ranges import range_file
from lakeops.ranges.diff import diff, diff_batches, diff_table, summary, written
from lakeops.ranges.digest import with_digests
from lakeops.ranges.merge import plan_merge, preview
from lakeops.ranges.metarange import Delta, Metarange
from lakeops.ranges.range_file import encode_metarange, encode_range
from lakeops.ranges.range_merge import sides_behind
from lakeops.ranges.read import RangeReader
from lakeops.ranges.validation import list_flaw
from lakeops.store.layout import metarange_key

STRATEGIES = (None, *Strategy)
SPLITS = [Split(1, 2, 4), SMALL, Split(16, 80, 400)]


def changed(store, base, edits, split=SMALL, *, listing=True):
    """A metarange after changes, read back from its file."""
    done = in_memory(store, base, edits, split, listing=listing)
    return base if done is base else reread(store, done)


def rows(reader, left, right, prefix=""):
    """All that differs, with both sides' rows."""
    whole = RANGE_SCHEMA.names, RANGE_SCHEMA.names
    batches = list(diff_batches(reader, left, right, columns=whole, prefix=prefix))
    sides = zip(*(batch.rows for batch in batches), strict=True)
    return as_told(map(diff_table, batches)), [pa.concat_tables(side).sort_by("path").to_pylist() for side in sides]


def as_told(tables):
    return [row for table in tables for row in table.to_pylist()]


@pytest.mark.usefixtures("leaves")
@given(st.data(), st.sampled_from(SPLITS))
@THOROUGH
def test_what_is_listed_is_what_differs(fresh_store, data, split):
    store = fresh_store()
    repository = data.draw(repositories())
    base = built(store, repository, split)
    edits = data.draw(change_sets(repository))
    after = changed(store, base, edits, split)
    reader = RangeReader(store)
    assert (after.delta is None) == (after is base)
    for left, right in ((base, after), (after, base)):
        plain = [Metarange(side.table) for side in (left, right)]
        for prefix in ("", "p/1", "d", "é"):
            assert rows(reader, left, right, prefix) == rows(reader, *plain, prefix)
        assert summary(reader, left, right) == summary(reader, *plain)
        assert paths_of(written(reader, left, right)) == paths_of(written(reader, *plain))
    assert list_flaw(reader, after, base) is None
    store.forget()
    list(diff_batches(RangeReader(store), base, after))
    assert store.read == []


def paths_of(arrays):
    return sorted(path for array in arrays for path in array.to_pylist())


@pytest.mark.usefixtures("leaves")
@given(st.data(), st.sampled_from(SPLITS))
@THOROUGH
def test_later_pages_of_a_list_are_those_of_the_ranges(fresh_store, data, split):
    store = fresh_store()
    repository = data.draw(repositories())
    base = built(store, repository, split)
    edits = data.draw(change_sets(repository))
    sides = base, changed(store, base, edits, split)
    path = data.draw(st.sampled_from(["", "p/05", *sorted(repository), *sorted(edits)]))
    pages = [
        [row for row in as_told(diff(RangeReader(store), *pair)) if row["path"].encode() > path.encode()]
        for pair in (sides_behind(*sides, path), [Metarange(side.table) for side in sides])
    ]
    assert pages[0] == pages[1]


@pytest.mark.usefixtures("leaves")
@given(st.data(), st.sampled_from(SPLITS), st.sampled_from(STRATEGIES), st.booleans())
@THOROUGH
def test_a_merge_with_lists_is_the_merge_without(fresh_store, data, split, strategy, back):
    """Over one changed commit: a merge, and with the sides exchanged a revert."""
    store = fresh_store()
    repository = data.draw(repositories())
    edits = data.draw(change_sets(repository))
    base = built(store, repository, split)
    source = changed(store, base, edits, split)
    start, begun = (source, applied(repository, edits)) if back else (base, repository)
    dest = changed(store, start, data.draw(change_sets(begun)), split, listing=data.draw(st.booleans()))
    if back:
        base, source = source, base
    plain = [Metarange(side.table) for side in (base, source, dest)]
    reader = RangeReader(store)
    expected = plan_merge(reader, *plain, strategy)
    shown = as_told(preview(reader, *plain, strategy))
    assert as_told(preview(reader, base, source, dest, strategy)) == shown
    without = None if expected.conflicts else merged(store, expected, plain[1], split)
    plan = plan_merge(reader, base, source, dest, strategy)
    assert plan.changes.equals(expected.changes)
    assert (plan.conflicts, plan.summary) == (expected.conflicts, expected.summary)
    if without is not None:
        found = merged(store, plan, source, split)
        assert (found.metarange.id, found.summary) == (without.metarange.id, without.summary)
        assert list_flaw(reader, reread(store, found.metarange), dest) is None


BASE = numbered(range(600))


def scattered(base, contents, column="first_path", step=2):
    return dict.fromkeys(base.table.column(column).to_pylist()[::step], (contents, 1))


def test_a_merge_of_scattered_changes_opens_only_what_both_changed(store):
    base = built(store, BASE)
    source = changed(store, base, scattered(base, "1"))
    dest = changed(store, base, scattered(base, "2", "last_path", 6))
    store.forget()
    plan = plan_merge(RangeReader(store), base, source, dest.with_delta(None), None)
    both = {row.key for row in dest.at(dest.without(base))}
    assert set(store.read) <= both
    assert 0 < len(store.read) <= len(both)
    found = merged(store, plan, source)
    after = applied(applied(BASE, scattered(base, "1")), scattered(base, "2", "last_path", 6))
    assert contents(store, found.metarange) == after
    # The merge has a list as well, so the next diff opens nothing.
    whole = reread(store, found.metarange)
    store.forget()
    assert summary(RangeReader(store), dest, whole) == Summary(changed=len(scattered(base, "1")))
    assert store.read == []


def test_a_merge_of_two_sides_with_lists_opens_nothing(store):
    """Nor does its preview: conflicts with their sizes are told from the lists alone."""
    base = built(store, BASE)
    paths = base.table.column("last_path").to_pylist()[::6]
    source = changed(store, base, scattered(base, "1") | {paths[1]: ("2", 1), paths[2]: None, paths[3]: None})
    dest = changed(store, base, dict.fromkeys(paths[:3], ("2", 1)))
    plain = [Metarange(side.table) for side in (base, source, dest)]
    expected = plan_merge(RangeReader(store), *plain, Strategy.SOURCE_WINS)
    shown = as_told(preview(RangeReader(store), *plain, None))
    assert [row["path"] for row in shown if row["type"] == ChangeType.CONFLICT] == [paths[2]]
    store.forget()
    plan = plan_merge(RangeReader(store), base, source, dest, Strategy.SOURCE_WINS)
    assert as_told(preview(RangeReader(store), base, source, dest, None)) == shown
    assert plan_merge(RangeReader(store), base, source, dest, None).conflicts == [paths[2]]
    assert store.read == []
    assert (plan.changes, plan.summary) == (expected.changes, expected.summary)


def test_a_merge_by_reference_has_a_list_where_the_source_has_one(store):
    base = built(store, BASE)
    rows_ = base.rows(0, len(base))
    source = changed(store, base, scattered(base, "1"))
    dest = changed(store, base, {rows_[1].last_path: ("2", 2)}, listing=False)
    plan = plan_merge(RangeReader(store), base, source, dest, None)
    assert (plan.changes.num_rows, plan.conflicts) == (0, [])
    assert list_flaw(RangeReader(store), plan.onto, dest) is None
    assert plan.onto.delta_since(dest) is not None
    plain = plan_merge(RangeReader(store), base, source.with_delta(None), dest, None)
    assert plain.onto.id == plan.onto.id
    assert plain.onto.delta is None


def test_a_merge_that_takes_all_ranges_of_the_source_takes_its_list_as_it_is(store, monkeypatch):
    base = built(store, BASE)
    first, *_, last = base.table.column("first_path").to_pylist()
    source, dest = (changed(store, base, {path: ("1", 1)}) for path in (first, last))
    monkeypatch.setattr(range_file, "encode_range", None)
    store.forget()
    plan = plan_merge(RangeReader(store), base, source, dest, None)
    assert (store.read, plan.summary) == ([], Summary(changed=1))
    merged = reread(store, plan.onto)
    assert contents(store, merged) == applied(BASE, {first: ("1", 1), last: ("1", 1)})
    assert merged.delta is not None
    assert list_flaw(RangeReader(store), merged, dest) is None
    assert list_flaw(RangeReader(store), merged, base) is None  # it is about the destination alone


def test_only_commits_of_few_changes_have_a_list(store, monkeypatch):
    base = built(store, BASE)
    firsts = base.table.column("first_path").to_pylist()

    def lists(paths, before=base):
        return changed(store, before, dict.fromkeys(paths, ("1", 1)), listing=False).delta is not None

    assert lists(firsts[:1])
    assert lists(firsts[:10])
    assert not lists(firsts[:1], Metarange.empty())
    count = base.row(0).count
    assert lists([f"{firsts[0]}+{number}" for number in range(count // 2)])
    assert not lists([f"{firsts[0]}+{number}" for number in range(count)])
    limits = {(9, 1, 20): True, (10, 0, 20): True, (9, 0, 20): False, (9, 1, 9): False}
    for (few, of_range, most), listed in limits.items():
        monkeypatch.setattr("lakeops.ranges.apply.FEW_CHANGES", few)
        monkeypatch.setattr("lakeops.ranges.apply.MOST_OF_RANGE", of_range)
        monkeypatch.setattr("lakeops.ranges.apply.MOST_CHANGES", most)
        assert lists(firsts[:10]) == listed, (few, of_range, most)


def test_a_list_that_takes_too_much_room_is_left_out(store, monkeypatch):
    base = built(store, BASE)
    monkeypatch.setattr(range_file, "_FREE", 0)
    monkeypatch.setattr(range_file, "_FREE_OF_RANGE", 0)
    after = changed(store, base, scattered(base, "1"))
    assert after.delta is None
    assert summary(RangeReader(store), base, after) == Summary(changed=len(scattered(base, "1")))


def test_a_thousand_changes_take_less_than_a_quarter_of_a_megabyte(store):
    """Each with texts that nothing compresses."""
    rng = np.random.default_rng(1)

    def some(count):
        texts = [bytes(one).hex() for one in rng.integers(0, 256, (count, 16), np.uint8)]
        table = pa.table(
            {
                "path": sorted(f"table/day={number % 30:02}/part-{text}.parquet" for number, text in enumerate(texts)),
                "physical_address": [f"data/2026010100/{text}" for text in texts[::-1]],
                "checksum": texts,
                "size_bytes": rng.integers(0, 10**9, count),
                "mtime": rng.integers(1_700_000_000, 1_800_000_000, count),
                "content_type": ["application/octet-stream"] * count,
                "metadata": [[]] * count,
            },
            schema=pa.schema(list(RANGE_SCHEMA)[:-1]),
        )
        return with_digests(table)

    found = range_file.encode_delta(Delta("0" * 64, lambda: (some(800), some(800))), 0)
    assert found is not None
    assert len(found[1]) < 1600 * 150


# --- lists that were made on purpose, in files whose digests are right ---
def forged(store, metarange, attachment):
    data = encode_metarange(metarange.table, attachment)
    store.put(metarange_key("forged"), data)
    return RangeReader(store).metarange(Pointer(metarange.id, "forged", sha256(data).hexdigest()))


def told(store):
    base = built(store, BASE)
    after = changed(store, base, scattered(base, "1"))
    return base, after, range_file.encode_delta(after.delta, len(after))


BROKEN = {
    "no Parquet": lambda found: replace_data(found, b"no parquet"),
    "cut short": lambda found: replace_data(found, found[1][:-9]),
    "nothing": lambda found: replace_data(found, b""),
    "out of order": lambda found: (found[0].rpartition(" ")[0] + " 1", found[1]),
    "no number": lambda found: ("0" * 64 + " x", found[1]),
    "no note": lambda found: ("", found[1]),
    "other columns": lambda found: replace_data(found, encode_metarange(Metarange.empty().table)),
}


def replace_data(found, data):
    return found[0], data


@pytest.mark.parametrize("how", BROKEN)
def test_a_list_that_is_none_is_found_out(store, how):
    base, after, attachment = told(store)
    with pytest.raises(Corrupted, match="_lakefs/metaranges/forged cannot be decoded"):
        list(diff_batches(RangeReader(store), base, forged(store, after, BROKEN[how](attachment))))


@pytest.mark.parametrize("where", ["0 5", "5 4", "99999999 99999999", "x y", "5"])
def test_a_list_that_is_nowhere_is_found_out(store, where):
    base, after, _ = told(store)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, after.table.schema, store_schema=False) as writer:
        writer.write_table(after.table)
        writer.add_key_value_metadata({"lakeops.changes": f"{where} {base.id} 1"})
    data = sink.getvalue().to_pybytes()
    store.put(metarange_key("forged"), data)
    with pytest.raises(Corrupted, match="forged cannot be decoded"):
        RangeReader(store).metarange(Pointer(after.id, "forged", sha256(data).hexdigest()))


def without_first(side):
    return side.slice(1)


def other_size(side):
    column = pa.array(np.full(side.num_rows, 7), pa.int64())
    return side.set_column(side.schema.get_field_index("size_bytes"), RANGE_SCHEMA.field("size_bytes"), column)


@pytest.mark.parametrize("how", [without_first, other_size])
@pytest.mark.parametrize("side", ["before", "after"])
def test_fsck_finds_a_list_that_says_something_else(store, how, side):
    base, after, attachment = told(store)
    sides = dict(zip(("before", "after"), after.delta.rows, strict=True))
    sides[side] = how(sides[side])
    data = encode_range(pa.concat_tables(sides.values()))
    lying = forged(store, after, (f"{base.id} {sides['before'].num_rows}", data))
    flaw = list_flaw(RangeReader(store), lying, base)
    assert flaw is not None
    assert flaw.kind == "changes_mismatch"
    unreadable = list_flaw(RangeReader(store), forged(store, after, replace_data(attachment, b"x")), base)
    assert unreadable is not None
    assert unreadable.kind == "changes_mismatch"
    assert list_flaw(RangeReader(store), forged(store, after, attachment), base) is None
    assert list_flaw(RangeReader(store), after, after) is None


def test_fsck_finds_a_list_with_more_in_it(store):
    base, after, _ = told(store)
    more = with_digests(
        staged_table({"zzz": ("1", 1)}).drop_columns("tombstone").cast(pa.schema(list(RANGE_SCHEMA)[:-1]))
    )
    removed, added = after.delta.rows
    longer = Delta(base.id, lambda: (removed, pa.concat_tables([added, more])))
    flaw = list_flaw(RangeReader(store), after.with_delta(longer), base)
    assert flaw is not None
    assert "more" in flaw.message
