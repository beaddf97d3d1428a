"""What a merge is said to do is what it then does: the same rows, whichever way the merge goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import (
    SMALL,
    THOROUGH,
    Groups,
    applied,
    attempt,
    built,
    byte_order,
    change_sets,
    numbered,
    repositories,
)

from lakeops.model.records import Split, Strategy
from lakeops.ranges.apply import apply_plan
from lakeops.ranges.diff import DIFF_SCHEMA, changes, diff
from lakeops.ranges.merge import plan_merge, preview
from lakeops.ranges.read import RangeReader

STRATEGIES = (None, *Strategy)
SPLITS = [Split(1, 2, 4), SMALL, Split(16, 80, 400), Split(1000, 1000, 4000)]


def told(reader, sides, strategy, prefix=""):
    batches = list(preview(reader, *sides, strategy, prefix=prefix))
    assert all(batch.num_rows and batch.schema.equals(DIFF_SCHEMA) for batch in batches)
    listed = [change for batch in batches for change in changes(batch)]
    assert [change.path for change in listed] == byte_order({change.path for change in listed})
    return listed


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
            after = apply_plan(reader, plan, sides[1], engine=Groups(), split=split, attempt=attempt())
            assert ahead == [one for batch in diff(reader, sides[2], after.metarange) for one in changes(batch)]
        else:  # without its conflicts it is what a merge of the rest does
            kept = {path: value for path, value in source.items() if path not in plan.conflicts}
            kept |= {path: base[path] for path in plan.conflicts if path in base}
            rest = [sides[0], built(store, kept, split), sides[2]]
            assert told(reader, rest, None) == [one for one in ahead if one.type.value != "conflict"]


def test_moves_in_different_ranges_are_told(store, reader):
    base = numbered(range(500))
    source, dest = base | {"z/new": ("1", 1)}, base | {"a/00000": ("2", 2)}
    sides = [built(store, side) for side in (base, source, dest)]
    assert plan_merge(reader, *sides, None).changes.num_rows == 0, "the merge goes by reference"
    (change,) = told(reader, sides, None)
    assert (change.type.value, change.path) == ("added", "z/new")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_first_changes_are_told_before_the_last_are_read(store, strategy):
    base = numbered(range(1_500))
    source, dest = base | numbered(range(0, 1_500, 2), "1"), base | numbered(range(1, 1_500, 2), "2")
    sides = [built(store, side) for side in (base, source, dest)]
    store.forget()
    first = next(preview(RangeReader(store), *sides, strategy))
    assert first.num_rows
    assert len(store.read) < sum(map(len, sides)) / 4
