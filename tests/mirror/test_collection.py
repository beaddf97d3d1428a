"""Garbage collection at a source and what its mirrors show: it stays whole, and no longer than was promised."""

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


def test_a_dead_mirror_is_named_with_its_age_and_what_only_it_keeps(pair, clock):
    pair.repo.gc.set_rules({"default_retention_days": 1, "branches": []})
    living = pair.there.create_mirror("living", source=pair.here, source_repository="flights")
    pair.mirrored(a="1")
    dead = pair.mirror.configuration.registration
    clock.advance(days=1)
    pair.commit(a="2")
    clock.advance(days=40)
    living.sync()
    report = pair.repo.gc.mark(dry_run=True).report
    first, second = report["mirrors"]
    assert (first["id"], first["silent_days"], first["only_for_it"]) == (dead, 41, 1)
    assert (second["silent_days"], second["only_for_it"]) == (0, 0)
    [note] = report["notes"]
    assert f"{dead} has not reported for 41 days" in note
    assert "mirror drop" in note
    mark = pair.repo.gc.mark()
    assert pair.repo.gc.report(mark.id)["mirrors"] == report["mirrors"]
    pair.mirror.sync()
    report = pair.repo.gc.mark(dry_run=True).report
    assert report["notes"] == []
    assert [row["silent_days"] for row in report["mirrors"]] == [0, 0]


def test_the_sources_garbage_goes_and_what_the_mirror_shows_stays(pair, clock):
    """The source's deletes are followed, and never take anything that the mirror shows."""
    pair.repo.gc.set_rules({"default_retention_days": 1})
    pair.commit("main", a="1", b="1", c="1")
    shown = pair.commit("main", a="2", b=None).id
    pair.mirror.replicate()
    pair.mirror.sync()
    assert pair.head() == shown
    clock.advance(days=700)  # files carry the machine's own time
    head = pair.commit("main", a="3", c=None).id
    pair.mirror.sync()  # the source learns what the mirror shows and waits for
    swept = [pair.repo.gc.sweep(pair.repo.gc.mark().id, force=True).deleted]
    assert pair.mirror.replicate(delete=True, force=True).deleted > 0
    assert pair.head() == shown
    check_whole(pair)
    pair.mirror.sync()
    assert pair.head() == head
    clock.advance(days=9)  # past the undo window
    pair.mirror.sync()
    swept.append(pair.repo.gc.sweep(pair.repo.gc.mark().id, force=True).deleted)
    assert min(swept) > 0
    pair.mirror.replicate(delete=True, force=True)
    check_whole(pair)
    source = pair.replicator.source
    for prefix in ("data/", "_lakefs/ranges/", "_lakefs/metaranges/"):
        assert [item.key for item in pair.store.list(prefix)] == [item.key for item in source.list(prefix)]
