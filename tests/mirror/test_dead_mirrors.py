"""Mirrors that report no more but still have commits kept for them are named by the report of a mark."""

from __future__ import annotations


def test_a_dead_mirror_is_named_with_its_age_and_what_only_it_keeps(pair, clock):
    pair.repo.gc.set_rules({"default_retention_days": 1, "branches": []})
    living = pair.there.create_mirror("living", source=pair.here, source_repository="flights")
    pair.commit(a="1")
    pair.catch_up()
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
