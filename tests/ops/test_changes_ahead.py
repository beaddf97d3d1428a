"""What a verb would change, seen before it is done; and a difference in short."""

from __future__ import annotations

from collections import Counter

import pytest
from support.errors import has_kind

from lakeops.model import errors

# --- seen before it is done --------------------------------------------------------------------------------------


def test_what_a_revert_would_change_is_what_it_changes(repo, fill):
    fill(repo, "main", a="1", b="1")
    undone = fill(repo, "main", a="2", b=None, c="1")
    fill(repo, "main", d="1")
    main = repo.branch("main")
    seen = list(main.revert_changes(undone))
    before = main.commit_id
    assert [(change.type.value, change.path) for change in seen] == [("changed", "a"), ("added", "b"), ("removed", "c")]
    main.revert(undone)
    assert list(repo.diff(before, "main")) == seen


def test_what_stands_against_a_revert_is_seen_as_a_conflict(repo, fill):
    fill(repo, "main", a="1")
    undone = fill(repo, "main", a="2", b="1")
    fill(repo, "main", a="3")
    main = repo.branch("main")
    assert {change.path: change.type.value for change in main.revert_changes(undone)} == {
        "a": "conflict",
        "b": "removed",
    }
    with pytest.raises(errors.MergeConflict) as raised:
        main.revert(undone)
    assert raised.value.conflicts == ["a"]


def test_a_revert_that_cannot_be_is_refused_before_it_is_tried(repo, fill):
    with pytest.raises(errors.InvalidInput, match="initial commit", check=has_kind("invalid_ref")):
        list(repo.branch("main").revert_changes("main"))


# --- a difference in short ---------------------------------------------------------------------------------------


def test_a_difference_in_short_counts_as_the_long_one_does(repo, fill):
    fill(repo, "main", **{f"t{table}/day={day}/part": "1" for table in range(3) for day in range(9)})
    left = repo.branch("main").commit_id
    fill(repo, "main", **{"t0/day=0/part": None, "t1/day=3/part": "2", "new": "1", "t2/day=x/deep/er": "1"})
    short = repo.changed(left, "main", partition_by="day")
    counted = Counter(change.type.value for change in repo.diff(left, "main"))
    assert short.summary.to_json() == {kind: counted[kind] for kind in ("added", "removed", "changed")}
    assert (short.prefixes, short.more_prefixes) == (("new", "t0/", "t1/", "t2/"), False)
    assert short.partitions == ("0", "3", "x")
    assert repo.changed("main", "main").summary.total == 0
