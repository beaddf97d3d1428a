"""A mirror that only reads its source shows refs that the source deleted: they stay whole until its next pass."""

from __future__ import annotations

from random import Random

import pytest
from support.mirrors import check_whole, open_pair


def collected(pair) -> int:
    """The source collects, and its deletes are replicated; how many objects were deleted there."""
    deleted = pair.repo.gc.sweep(pair.repo.gc.mark().id, force=True).deleted
    pair.mirror.replicate(delete=True, force=True)
    return deleted


@pytest.mark.parametrize(("lag", "late"), [(20, 19), (8, 7.5), (0, 6.9)])
def test_old_heads_of_deleted_refs_stay_whole_until_the_lag_is_over(tmp_path, clock, lag, late):
    with open_pair(tmp_path, clock=clock, random=Random(1), reports=False) as pair:
        rules = {"default_retention_days": 1, "branches": [], "mirror_lag_days": lag}
        pair.repo.gc.set_rules(rules)
        pair.commit(a="garbage later")
        pair.commit(a="2")
        for name in ("dev", "old"):
            pair.repo.create_branch(name, source="main")
            pair.commit(name, **{name: f"only on {name}"})
        pair.repo.create_tag("v1", "old")
        pair.repo.delete_branch("old")
        pair.mirror.replicate()
        pair.mirror.sync()
        shown = pair.heads()
        assert {"dev", "tag:v1"} <= shown.keys()
        clock.advance(days=60)  # both heads are old, by any window
        pair.repo.delete_branch("dev")
        pair.repo.delete_tag("v1")
        clock.advance(days=late)
        assert collected(pair) > 0
        assert pair.heads() == shown
        check_whole(pair)
        clock.advance(days=2)
        assert collected(pair) > 0, "kept no longer than promised"
        pair.mirror.sync()
        assert set(pair.heads()) == {"main"}
        check_whole(pair)
