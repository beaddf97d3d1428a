"""What a verb would change, seen before it is done; and a difference in short."""

from __future__ import annotations

from collections import Counter

# --- seen before it is done --------------------------------------------------------------------------------------


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
