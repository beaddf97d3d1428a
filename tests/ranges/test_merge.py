from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import (
    SMALL,
    THOROUGH,
    Elsewhere,
    applied,
    built,
    byte_order,
    change_sets,
    changed,
    contents,
    merged,
    numbered,
    repositories,
    same,
    summed,
)

from lakeops.model.records import Split, Strategy, Summary
from lakeops.ranges.diff import DIFF_SCHEMA, changes, diff
from lakeops.ranges.merge import plan_merge, preview
from lakeops.ranges.read import RangeReader

WIDE = Split(16, 80, 400)
"""Ranges of many row groups of some rows each."""

STRATEGIES = (None, Strategy.SOURCE_WINS, Strategy.DEST_WINS)


def model(base, source, dest, strategy):
    """The merge of three dictionaries: the result and the conflicting paths."""
    result, conflicts = dict(dest), []
    for path in byte_order(base.keys() | source.keys() | dest.keys()):
        before, theirs, ours = base.get(path), source.get(path), dest.get(path)
        if same(before, theirs) or same(theirs, ours):
            continue
        if not same(before, ours):
            conflicts.append(path)
        if same(before, ours) or strategy is Strategy.SOURCE_WINS:
            result.pop(path, None)
            if theirs is not None:
                result[path] = theirs
    return result, conflicts


TABLE = [
    # base, source, dest, result ("!" is a conflict, "." is absent)
    "AAAA",
    "ABBB",
    "ABC!",
    "AABB",
    "ABAB",
    "A.XX".replace("X", "."),
    ".A.A",
    "AB.!",
    "A.B!",
    "AA..",
    "A.A.",
    ".AAA",
    ".AB!",
    "..AA",
    "....",
]


def state(letter):
    return None if letter == "." else (letter, ord(letter))


def one_path(letter, path="dir/x"):
    """A repository of twenty paths beside the one in question."""
    return numbered(range(20)) | ({path: state(letter)} if letter != "." else {})


@pytest.mark.parametrize("row", TABLE)
@pytest.mark.parametrize("strategy", STRATEGIES)
# Rows alone, by the verb: tests/ops/test_merge.py::test_each_row_alone.
@pytest.mark.parametrize(
    "elsewhere", [pytest.param(False, id="alone", marks=pytest.mark.slow), pytest.param(True, id="dest-moved-on")]
)
def test_every_row_of_the_table(store, row, strategy, elsewhere):
    base, source, dest, result = row
    sides = [one_path(base), one_path(source), one_path(dest)]
    if elsewhere:  # the destination has its own change in the same range, so nothing goes by reference
        sides[2]["dir/y"] = ("own", 1)
    metaranges = [built(store, side) for side in sides]
    plan = plan_merge(RangeReader(store), *metaranges, strategy)
    if result == "!" and strategy is None:
        assert plan.conflicts == ["dir/x"]
        return
    assert plan.conflicts == []
    winner = {Strategy.SOURCE_WINS: source, Strategy.DEST_WINS: dest}.get(strategy) if result == "!" else result
    found = merged(store, plan, metaranges[1])
    after = contents(store, found.metarange)
    assert after.get("dir/x") == state(winner)
    assert {path: value for path, value in after.items() if path != "dir/x"} == {
        path: value for path, value in sides[2].items() if path != "dir/x"
    }
    assert found.summary == plan.summary == summed(sides[2], after)


def test_the_table_is_complete():
    """Every combination of states of a path is one of the rows, up to the letters' names."""
    shapes = set()
    for row in product(".ABC", repeat=3):
        names: dict[str, str] = {".": "."}
        shapes.add("".join(names.setdefault(letter, "ABC"[len(names) - 1]) for letter in row))
    assert {row[:3] for row in TABLE} == shapes


@pytest.mark.usefixtures("leaves")
@given(st.data())
@THOROUGH
def test_a_merge_of_metaranges_is_the_merge_of_dictionaries(fresh_store, data):
    store = fresh_store()
    base = data.draw(repositories())
    source, dest = (applied(base, data.draw(change_sets(base))) for _ in range(2))
    split = data.draw(st.sampled_from([SMALL, WIDE]))
    metaranges = [built(store, side, split) for side in (base, source, dest)]
    for strategy in STRATEGIES:
        expected, conflicts = model(base, source, dest, strategy)
        plan = plan_merge(RangeReader(store), *metaranges, strategy)
        assert plan.conflicts == (conflicts if strategy is None else [])
        parts = Elsewhere(data.draw(st.integers(1, 4)))
        apart = plan_merge(RangeReader(store), *metaranges, strategy, engine=parts)
        assert (apart.conflicts, apart.summary, apart.onto.id) == (plan.conflicts, plan.summary, plan.onto.id)
        assert apart.changes.equals(plan.changes)
        assert apart.settled.to_pylist() == plan.settled.to_pylist()
        if plan.conflicts:
            continue
        found = merged(store, plan, metaranges[1], split)
        assert found.summary == plan.summary == summed(dest, expected)
        assert found.metarange.id == built(store, expected, split).id


def test_a_destination_that_stayed_takes_the_source_by_reference(store, reader):
    base, source = built(store, numbered(range(500))), built(store, numbered(range(1, 502)))
    plan = plan_merge(reader, base, source, base, None)
    store.forget()
    found = merged(store, plan, source)
    assert found.metarange is source
    assert found.summary == Summary(added=2, removed=1)
    assert store.read == store.written == []


def test_nothing_to_merge_reads_nothing(store, reader):
    base, dest = built(store, numbered(range(500))), built(store, numbered(range(400)))
    store.forget()
    assert plan_merge(reader, base, base, dest, None).onto is dest
    assert plan_merge(reader, base, dest, dest, None).onto is dest
    assert store.read == []


def test_only_what_the_source_changed_is_opened(store):
    base = built(store, numbered(range(4_000)))
    rows = base.rows(0, len(base))
    source = changed(store, base, {rows[10].first_path: ("1", 1), rows[200].first_path: ("1", 1)})
    dest = changed(store, base, {row.first_path: ("2", 2) for row in (*rows[11:40], *rows[201:240])})
    store.forget()
    by_list = plan_merge(RangeReader(store), base, source, dest, None)
    assert store.read == []
    source, dest = source.with_delta(None), dest.with_delta(None)
    plan = plan_merge(RangeReader(store), base, source, dest, None)
    assert plan.onto.id == by_list.onto.id
    assert (
        (plan.changes.num_rows, plan.summary) == (by_list.changes.num_rows, by_list.summary) == (0, Summary(changed=2))
    )
    # Two ranges of the base and the source's two in their place; the destination has the base's own.
    assert len(store.read) == 4

    mine = changed(store, base, {rows[10].last_path: ("2", 2)})
    store.forget()
    plan = plan_merge(RangeReader(store), base, source, mine.with_delta(None), None)
    assert len(store.read) == 5


def test_a_range_that_both_sides_changed_is_read_once(store):
    repository = numbered(range(3_000))
    wide = Split(80, 400, 4_000)
    base = built(store, repository, wide)
    paths = byte_order(repository)[base.row(0).count :]
    edits = {paths[3]: ("1", 1), paths[4]: None, paths[4] + "!": ("1", 1)}
    source = built(store, applied(repository, edits), wide)
    for mine in ({paths[40]: ("2", 2), paths[41]: None}, {paths[5]: ("2", 2)}):
        dest = built(store, applied(repository, mine), wide)
        store.forget()
        plan = plan_merge(RangeReader(store), base, source, dest, None)
        assert plan.changes.column("path").to_pylist() == byte_order(edits)
        assert plan.summary == Summary(1, 1, 1)
        assert {row.key for row in dest.rows(0, len(dest))} & set(store.read) == {dest.row(1).key}
        assert not store.twice


def test_ranges_that_source_and_destination_both_have_are_not_opened(store):
    repository = numbered(range(2_000))
    base = built(store, repository)
    rows = base.rows(0, len(base))
    edits = {rows[10].first_path: ("1", 1)}
    source = changed(store, base, edits | {rows[50].first_path: ("1", 1)})
    dest = changed(store, base, edits | {rows[90].first_path: ("1", 1)})
    store.forget()
    plan = plan_merge(RangeReader(store), base, source, dest, None)
    assert not {row.key for row in dest.at(dest.without(base))} & set(store.read)
    store.forget()
    found = merged(store, plan, source)
    # The source's range is exactly what comes out, and its commit is live: nothing is written.
    assert store.written == []
    assert (
        found.metarange.id
        == built(store, numbered(range(2_000)) | dict.fromkeys((rows[i].first_path for i in (10, 50, 90)), ("1", 1))).id
    )


# --- what a merge is said to do is what it then does: the same rows, whichever way the merge goes ---


SPLITS = [Split(1, 2, 4), SMALL, Split(16, 80, 400), Split(1000, 1000, 4000)]


def told(reader, sides, strategy, prefix=""):
    batches = list(preview(reader, *sides, strategy, prefix=prefix))
    assert all(batch.num_rows and batch.schema.equals(DIFF_SCHEMA) for batch in batches)
    listed = [change for batch in batches for change in changes(batch)]
    assert [change.path for change in listed] == byte_order({change.path for change in listed})
    return listed


@pytest.mark.usefixtures("leaves")
@given(st.data(), st.sampled_from(SPLITS), st.sampled_from(["", "p/", "p/1", "d", "z"]))
@THOROUGH
def test_what_is_foretold_is_what_is_done(fresh_store, data, split, prefix):
    store = fresh_store()
    base = data.draw(repositories())
    source, dest = (applied(base, data.draw(change_sets(base))) for _ in range(2))
    sides = [built(store, side, split) for side in (base, source, dest)]
    reader = RangeReader(store)
    for strategy in STRATEGIES:
        ahead = told(reader, sides, strategy)
        plan = plan_merge(reader, *sides, strategy)
        assert [change.path for change in ahead if change.type.value == "conflict"] == plan.conflicts
        assert told(reader, sides, strategy, prefix) == [one for one in ahead if one.path.startswith(prefix)]
        for change in ahead:
            if change.type.value == "conflict":
                assert change.size_bytes == len(source.get(change.path, dest.get(change.path, ("",)))[0])
        if not plan.conflicts:
            after = merged(store, plan, sides[1], split)
            assert ahead == [one for batch in diff(reader, sides[2], after.metarange) for one in changes(batch)]
        else:  # without its conflicts it is what a merge of the rest does
            kept = {path: value for path, value in source.items() if path not in plan.conflicts}
            kept |= {path: base[path] for path in plan.conflicts if path in base}
            rest = [sides[0], built(store, kept, split), sides[2]]
            assert told(reader, rest, None) == [one for one in ahead if one.type.value != "conflict"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_first_changes_are_told_before_the_last_are_read(store, strategy):
    base = numbered(range(1_500))
    source, dest = base | numbered(range(0, 1_500, 2), "1"), base | numbered(range(1, 1_500, 2), "2")
    sides = [built(store, side) for side in (base, source, dest)]
    store.forget()
    first = next(preview(RangeReader(store), *sides, strategy))
    assert first.num_rows
    assert len(store.read) < sum(map(len, sides)) / 4


def test_the_same_upload_on_both_sides_is_no_conflict(store, reader):
    base = numbered(range(50))
    source, dest = base | {"new": ("1", 1)}, base | {"new": ("1", 2)}
    metaranges = [built(store, side) for side in (base, source, dest)]
    plan = plan_merge(reader, *metaranges, None)
    assert merged(store, plan, metaranges[1]).metarange.id == metaranges[2].id
