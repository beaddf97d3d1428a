"""Merging by reference: only where it gives what merging path by path gives, and then without opening a range."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import SMALL, THOROUGH, applied, built, merged, numbered

from lakeops.model.records import Split, Summary
from lakeops.ranges.merge import plan_merge
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.range_merge import merge_ranges
from lakeops.ranges.read import RangeReader

BASE = numbered(range(480))
SPLITS = [Split(1, 2, 4), SMALL, Split(16, 40, 100)]
PATHS = sorted(BASE)


def edits(span, contents):
    """Writes, new neighbours and deletions among some of the paths."""
    chosen = st.sampled_from(PATHS[span])
    fresh = chosen.map("{}+".format)
    return st.dictionaries(chosen | fresh, st.sampled_from([(contents, 0), None]), min_size=1, max_size=60)


@pytest.mark.usefixtures("leaves")
@given(st.data(), st.sampled_from(SPLITS))
@THOROUGH
def test_what_is_exchanged_is_what_building_gives(fresh_store, data, split):
    """Ranges that were not exchanged are merged path by path."""
    store = fresh_store()
    mine = data.draw(edits(slice(0, 160), "1"))
    yours = data.draw(edits(slice(data.draw(st.sampled_from([100, 165, 290])), None), "2"))
    if data.draw(st.booleans()):
        mine, yours = yours, mine
    source, dest = applied(BASE, mine), applied(BASE, yours)
    base, ours, theirs = (built(store, each, split) for each in (BASE, source, dest))
    found = merge_ranges(base, ours, theirs)
    taken, rest = (
        {
            path: mine[path]
            for path in mine
            if any(row.first_path <= path <= row.last_path for side in sides for row in side.rows(0, len(side)))
        }
        for sides in (found.taken, found.rest)
    )
    assert found.dest.id == built(store, applied(dest, taken), split).id
    assert applied(applied(BASE, taken), rest) == source


@pytest.mark.parametrize(
    ("mine", "yours"),
    [
        ({PATHS[220]: ("1", 0)}, {PATHS[60]: ("2", 0)}),
        ({PATHS[0]: None}, {PATHS[-1]: None}),
        ({PATHS[-1] + "+": ("1", 0)}, {PATHS[0]: ("2", 0)}),
        (dict.fromkeys(PATHS[100:200]), dict.fromkeys(PATHS[290:390])),
        ({PATHS[30]: ("1", 0), PATHS[320]: None}, {PATHS[160]: ("2", 0)}),
    ],
    ids=["one each", "the ends", "past the end", "whole ranges gone", "two places"],
)
def test_changes_apart_are_merged_without_opening_the_destination(store, mine, yours):
    base, source = built(store, BASE), built(store, applied(BASE, mine))
    dest = built(store, applied(BASE, yours))
    plan = plan_merge(RangeReader(store), base, source, dest, None)
    assert (plan.changes.num_rows, plan.conflicts) == (0, [])
    store.forget()
    plan = plan_merge(RangeReader(store), base, source, dest, None)
    found = merged(store, plan, source, None)
    assert not {row.key for row in dest.rows(0, len(dest))} & set(store.read)
    assert store.written == []
    expected = applied(applied(BASE, yours), mine)
    assert found.metarange.id == built(store, expected).id
    assert found.summary == plan.summary
    assert found.summary.total == len(mine)


@pytest.mark.parametrize("beside", [-1, 1])
def test_a_range_is_exchanged_beside_one_that_the_destination_changed(store, beside):
    base = built(store, BASE)
    rows = base.rows(0, len(base))
    mine, yours = {rows[20].first_path: ("1", 0)}, {rows[20 + beside].last_path: ("2", 0)}
    source, dest = (built(store, applied(BASE, each)) for each in (mine, yours))
    assert merge_ranges(base, source, dest).complete
    plan = plan_merge(RangeReader(store), base, source, dest, None)
    assert plan.onto.id == built(store, applied(BASE, mine | yours)).id
    assert plan.summary == Summary(changed=1)


def test_only_the_range_that_both_changed_is_looked_into(store):
    base = built(store, BASE)
    rows = base.rows(0, len(base))
    mine = {rows[number].first_path: ("1", 0) for number in (10, 20, 21, 30)}
    yours = {rows[20].last_path: ("2", 0)}
    source, dest = (built(store, applied(BASE, each)) for each in (mine, yours))
    found = merge_ranges(base, source, dest)
    assert [[row.first_path for row in side.rows(0, len(side))] for side in found.rest] == [[rows[20].first_path]] * 2
    store.forget()
    plan = plan_merge(RangeReader(store), base, source, dest, None)
    assert plan.summary == Summary(changed=4)
    assert len({row.key for row in dest.rows(0, len(dest))} & set(store.read)) == 1
    assert plan.changes.column("path").to_pylist() == [rows[20].first_path]
    store.forget()
    whole = merged(store, plan, source)
    assert len(store.written) == 1
    assert whole.metarange.id == built(store, applied(BASE, mine | yours)).id
    assert whole.summary == plan.summary


def test_what_destination_and_source_put_between_two_ranges_is_looked_at(store):
    """The base's range stands in the destination as it was, but what the source put before it is not in order there."""
    base = built(store, BASE)
    rows = base.rows(0, len(base))
    between = [rows[20].last_path + "+", rows[20].last_path + "++"]
    source = built(store, applied(BASE, {between[0]: ("1", 0)}))
    for mine in (between[0], between[1]):
        dest = built(store, applied(BASE, {mine: ("1", 0)}))
        plan = plan_merge(RangeReader(store), base, source, dest, None)
        found = merged(store, plan, source)
        assert found.metarange.id == built(store, applied(BASE, dict.fromkeys((between[0], mine), ("1", 0)))).id


def test_a_change_between_ranges_that_the_source_joined_is_kept(store):
    base = built(store, BASE)
    rows = base.rows(0, len(base))
    mine, yours = dict.fromkeys([rows[20].last_path, rows[21].last_path]), {rows[21].first_path: ("2", 0)}
    source, dest = (built(store, applied(BASE, each)) for each in (mine, yours))
    plan = plan_merge(RangeReader(store), base, source, dest, None)
    assert merged(store, plan, source).metarange.id == built(store, applied(BASE, mine | yours)).id


def test_what_the_source_appends_does_not_go_before_what_the_destination_appends(store):
    source, dest = BASE | {"z/1": ("1", 0)}, BASE | {"z/2": ("2", 0)}
    assert not merge_ranges(*(built(store, each) for each in (BASE, source, dest))).complete


@pytest.mark.parametrize("kept", [0, 21])
def test_whole_ranges_are_appended_to_what_the_destination_left_or_appended(store, kept):
    rows = built(store, BASE).rows(0, 21)
    start = {path: BASE[path] for path in PATHS if path <= rows[-1].last_path}
    mine = {rows[-1].last_path + "+": ("2", 0)} | start if kept else {}
    plan = plan_merge(RangeReader(store), *(built(store, each) for each in (start, BASE, mine)), None)
    expected = applied(BASE, dict.fromkeys(start)) | mine
    assert merged(store, plan, built(store, BASE)).metarange.id == built(store, expected).id


def test_an_empty_base_has_no_place_to_exchange_at(store):
    found = merge_ranges(Metarange.empty(), built(store, BASE), built(store, {"z": ("1", 0)}))
    assert (len(found.dest), found.complete) == (1, False)


def test_planning_never_opens_a_destination_range_that_is_the_bases(store):
    """Not even where the destination changed ranges right beside, so that paths have to be looked at."""
    base = built(store, BASE)
    rows = base.rows(0, len(base))
    mine = {rows[number].first_path: ("1", 0) for number in (10, 20, 30)}
    yours = {rows[number].last_path: ("2", 0) for number in (9, 20, 31)}
    source, dest = (built(store, applied(BASE, each)) for each in (mine, yours))
    store.forget()
    plan = plan_merge(RangeReader(store), base, source, dest, None)
    own = {row.key for row in dest.rows(0, len(dest)) if row.id not in {each.id for each in rows}}
    opened = {row.key for row in dest.rows(0, len(dest))} & set(store.read)
    assert opened <= own
    assert len(opened) == 1
    assert plan.changes.num_rows == 1
