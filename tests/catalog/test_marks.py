from __future__ import annotations

from datetime import timedelta
from threading import Barrier, Thread

import pytest
from support.catalogs import FIRST, REPO, an_entry, commit_all, create, everything, put

from lakeops.catalog.tables import MARK
from lakeops.model.errors import BranchMoved, CollectionRunning, CommitExpired, MarkNotFound, MarkRefused
from lakeops.model.marks import MarkState


def begin(catalog, mark_id="m", expiring=()):
    return catalog.begin_mark(REPO, mark_id, cutoff=catalog.now(), expiring=lambda _history: expiring)[0]


def finish(catalog, mark_id="m"):
    return catalog.finish_mark(REPO, mark_id, digest="d", rows=3, objects=2, size_bytes=9, listed=5)


def age(catalog, mark_id, **by):
    """Let a mark have been made longer ago (or, with negative numbers, later)."""
    change = -int(timedelta(**by) / timedelta(microseconds=1))
    statement = MARK.update().where(MARK.c.id == mark_id).values(created=MARK.c.created + change)
    catalog.database.write(lambda conn: conn.execute(statement) and None)


def states(catalog):
    return {mark.id: mark.state.value for mark in catalog.marks(REPO)}


def test_a_mark_is_made_and_swept(catalog):
    cutoff = catalog.now() - timedelta(hours=24)
    mark, gone = catalog.begin_mark(REPO, "m", cutoff=cutoff, expiring=lambda _history: ())
    assert (mark.id, mark.state, mark.cutoff, gone) == ("m", MarkState.MARKING, cutoff, [])
    assert abs(mark.created - catalog.now()) < timedelta(minutes=1)
    made = finish(catalog)
    assert (made.state, made.digest, made.rows, made.objects, made.bytes, made.listed) == ("marked", "d", 3, 2, 9, 5)
    assert catalog.mark(REPO, "m") == made
    assert finish(catalog) == made
    assert catalog.begin_sweep(REPO, "m").state is MarkState.SWEEPING
    assert catalog.advance_sweep(REPO, "m", 2).swept == 2
    assert catalog.advance_sweep(REPO, "m", 1).swept == 2
    assert catalog.begin_sweep(REPO, "m").swept == 2
    assert catalog.advance_sweep(REPO, "m", 3).state is MarkState.SWEPT
    assert catalog.begin_sweep(REPO, "m").state is MarkState.SWEPT
    assert made.to_json() == {
        "id": "m", "state": "marked", "creation_date": int(made.created.timestamp()),
        "objects": 2, "bytes": 9, "files": 1, "listed": 5, "swept": 0,
    }  # fmt: skip


def test_beginning_expires_under_the_same_lock(catalog):
    one = commit_all(catalog, "one")
    catalog.set_rules(REPO, '{"default_retention_days": 1}')
    seen = []

    def expiring(history):
        seen.append(history)
        return history.commits

    _, gone = catalog.begin_mark(REPO, "m", cutoff=catalog.now(), expiring=expiring)
    assert gone == [FIRST.id]
    assert (seen[-1].branches, seen[-1].rules) == ({"main": one.id}, '{"default_retention_days": 1}')
    assert catalog.commit(REPO, FIRST.id).expired
    with pytest.raises(CommitExpired):
        catalog.create_tag(REPO, "v1", FIRST.id, actor="ada")


def test_a_newer_mark_makes_unswept_ones_stale_and_unfinished_ones_fail(catalog):
    begin(catalog, "swept")
    finish(catalog, "swept")
    catalog.begin_sweep(REPO, "swept")
    begin(catalog, "unfinished")
    begin(catalog, "marked")
    assert states(catalog) == {"swept": "sweeping", "unfinished": "failed", "marked": "marking"}
    finish(catalog, "marked")
    begin(catalog, "newest")
    assert states(catalog) == {"swept": "sweeping", "unfinished": "failed", "marked": "stale", "newest": "marking"}
    assert catalog.begin_sweep(REPO, "swept").state is MarkState.SWEEPING
    for mark_id, words in (("unfinished", "was never finished"), ("marked", "stale"), ("newest", "not finished")):
        before = everything(catalog)
        with pytest.raises(MarkRefused, match=words):
            catalog.begin_sweep(REPO, mark_id)
        assert everything(catalog) == before
    with pytest.raises(MarkRefused, match="is stale: another one began"):
        finish(catalog, "marked")


def test_an_unknown_or_foreign_mark_is_not_found(catalog):
    create(catalog, "neighbour")
    catalog.begin_mark("neighbour", "theirs", cutoff=catalog.now(), expiring=lambda _history: ())
    for mark_id in ("theirs", "none", ""):
        for act in (catalog.begin_sweep, catalog.mark):
            with pytest.raises(MarkNotFound, match=f"'repo' has no mark {mark_id!r}"):
                act(REPO, mark_id)
    assert catalog.marks(REPO) == []


def test_a_mark_that_took_too_long_is_not_finished(catalog):
    begin(catalog)
    age(catalog, "m", hours=13)
    with pytest.raises(MarkRefused, match="took longer than 12:00:00"):
        finish(catalog)


def test_an_old_mark_is_stale_but_a_sweep_that_began_goes_on(catalog):
    begin(catalog)
    finish(catalog)
    age(catalog, "m", days=8)
    with pytest.raises(MarkRefused, match="stale: it is older than 7 days"):
        catalog.begin_sweep(REPO, "m")
    age(catalog, "m", days=-8)
    catalog.begin_sweep(REPO, "m")
    age(catalog, "m", days=8)
    assert catalog.begin_sweep(REPO, "m").state is MarkState.SWEEPING


def test_a_clock_that_was_set_back_stops_everything(catalog):
    begin(catalog)
    finish(catalog)
    age(catalog, "m", days=-1)
    before = everything(catalog)
    with pytest.raises(MarkRefused, match="it was set back; nothing is deleted"):
        catalog.begin_sweep(REPO, "m")
    with pytest.raises(MarkRefused, match="it was set back"):
        begin(catalog, "n")
    assert everything(catalog) == before


def test_marks_that_are_done_with_are_forgotten_after_a_month(catalog):
    for number in range(3):
        begin(catalog, f"m{number}")
        finish(catalog, f"m{number}")
    age(catalog, "m0", days=31)
    age(catalog, "m1", days=29)
    begin(catalog, "m3")
    assert states(catalog) == {"m1": "stale", "m2": "stale", "m3": "marking"}


def test_old_objects_are_linked_only_past_marks_that_were_looked_into(catalog):
    put(catalog, an_entry("fresh"))
    put(catalog, an_entry("a"), cleared=frozenset())
    begin(catalog, "one")
    put(catalog, an_entry("fresh"))
    with pytest.raises(CollectionRunning, match="mark one"):
        put(catalog, an_entry("b"), cleared=frozenset({"one"}))
    finish(catalog, "one")
    with pytest.raises(BranchMoved, match="mark one"):
        put(catalog, an_entry("b"), cleared=frozenset())
    put(catalog, an_entry("b"), cleared=frozenset({"one"}))
    catalog.begin_sweep(REPO, "one")
    with pytest.raises(BranchMoved, match="mark one"):
        put(catalog, an_entry("c"), cleared=frozenset())
    catalog.advance_sweep(REPO, "one", 3)
    with pytest.raises(BranchMoved, match="mark one"):  # it may have been made and swept since the caller looked
        put(catalog, an_entry("c"), cleared=frozenset())
    put(catalog, an_entry("c"), cleared=frozenset({"one"}))
    create(catalog, "neighbour")
    catalog.begin_mark("neighbour", "theirs", cutoff=catalog.now(), expiring=lambda _history: ())
    put(catalog, an_entry("d"), cleared=frozenset({"one"}))


def test_a_mark_that_a_crash_left_open_keeps_links_waiting_until_the_deadline_only(catalog):
    begin(catalog)
    age(catalog, "m", hours=13)
    put(catalog, an_entry("a"), cleared=frozenset())


def test_a_link_that_races_with_a_mark_is_a_root_or_is_refused(catalog, opened, database_url):
    other = opened(database_url)
    for number in range(10):
        start = Barrier(2)
        refused = []

        def link(number=number, start=start, refused=refused):
            start.wait()
            try:
                other.put_staged(REPO, "main", [an_entry("a", f"x{number}")], started=other.now(), cleared=frozenset())
            except (CollectionRunning, BranchMoved):
                refused.append(number)

        thread = Thread(target=link)
        thread.start()
        start.wait()
        begin(catalog, f"m{number}")
        roots = catalog.roots(REPO).staged["physical_address"].to_pylist()
        thread.join()
        assert (f"data/2026010100/x{number}" in roots) is not bool(refused)
