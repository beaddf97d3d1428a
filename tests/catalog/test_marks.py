from datetime import timedelta
from functools import partial

import pytest
from support.at_once import at_once
from support.catalogs import GRACE, REPO, an_entry, begin, create, everything, finish, put
from support.errors import raising

from lakeops.catalog.records import BranchState, ExpectedState
from lakeops.catalog.tables import MARK
from lakeops.model.errors import BranchMoved, MarkRefused, Transient
from lakeops.model.marks import SWEEPABLE, MarkState


def age(catalog, mark_id, **by):
    """Let a mark have been made longer ago (or, with negative numbers, later)."""
    change = -int(timedelta(**by) / timedelta(microseconds=1))
    statement = MARK.update().where(MARK.c.id == mark_id).values(created=MARK.c.created + change)
    catalog.database.write(lambda conn: conn.execute(statement) and None)


def states(catalog):
    return {mark.id: mark.state.value for mark in catalog.marks.on_record(REPO)}


def test_a_mark_is_made_and_swept(catalog):
    cutoff = catalog.now() - GRACE
    mark, since = catalog.marks.begin_mark(REPO, "m", cutoff=cutoff)
    assert (mark.id, mark.state, mark.cutoff) == ("m", MarkState.MARKING, cutoff)
    assert since == catalog.refs.reflog(REPO)[0].sequence
    assert abs(mark.created - catalog.now()) < timedelta(minutes=1)
    made = finish(catalog)
    assert (made.state, made.digest, made.rows, made.objects, made.bytes, made.listed) == ("marked", "d", 3, 2, 9, 5)
    assert catalog.marks.get(REPO, "m") == made
    assert finish(catalog) == made
    assert catalog.marks.begin_sweep(REPO, "m").state is MarkState.SWEEPING
    assert catalog.marks.advance_sweep(REPO, "m", 2).swept == 2
    assert catalog.marks.advance_sweep(REPO, "m", 1).swept == 2
    assert catalog.marks.begin_sweep(REPO, "m").swept == 2
    assert catalog.marks.end_sweep(REPO, "m").state is MarkState.SWEPT
    assert catalog.marks.get(REPO, "m").swept == 3
    assert catalog.marks.begin_sweep(REPO, "m").state is MarkState.SWEPT
    assert made.to_json() == {
        "id": "m", "state": "marked", "creation_date": int(made.created.timestamp()),
        "objects": 2, "bytes": 9, "files": 1, "listed": 5, "swept": 0, "refused": 0, "failures": [],
    }  # fmt: skip


def test_a_newer_mark_makes_unswept_ones_stale_and_unfinished_ones_fail(catalog):
    begin(catalog, "swept")
    finish(catalog, "swept")
    catalog.marks.begin_sweep(REPO, "swept")
    begin(catalog, "unfinished")
    begin(catalog, "marked")
    assert states(catalog) == {"swept": "sweeping", "unfinished": "failed", "marked": "marking"}
    finish(catalog, "marked")
    begin(catalog, "newest")
    assert states(catalog) == {"swept": "sweeping", "unfinished": "failed", "marked": "stale", "newest": "marking"}
    assert catalog.marks.begin_sweep(REPO, "swept").state is MarkState.SWEEPING
    for mark_id, words in (("unfinished", "was never finished"), ("marked", "stale"), ("newest", "not finished")):
        before = everything(catalog)
        with pytest.raises(MarkRefused, match=words):
            catalog.marks.begin_sweep(REPO, mark_id)
        assert everything(catalog) == before
    with pytest.raises(MarkRefused, match="is stale: it was restored, another one began"):
        finish(catalog, "marked")


def test_an_unknown_or_foreign_mark_is_not_found(catalog):
    create(catalog, "neighbour")
    catalog.marks.begin_mark("neighbour", "theirs", cutoff=catalog.now() - GRACE)
    for mark_id in ("theirs", "none", ""):
        for act in (catalog.marks.begin_sweep, catalog.marks.get):
            with raising("mark_not_found", f"'repo' has no mark {mark_id!r}"):
                act(REPO, mark_id)
    assert catalog.marks.on_record(REPO) == []


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
        catalog.marks.begin_sweep(REPO, "m")
    age(catalog, "m", days=-8)
    catalog.marks.begin_sweep(REPO, "m")
    age(catalog, "m", days=8)
    assert catalog.marks.begin_sweep(REPO, "m").state is MarkState.SWEEPING


def test_a_clock_that_was_set_back_stops_everything(catalog):
    begin(catalog)
    finish(catalog)
    age(catalog, "m", days=-1)
    before = everything(catalog)
    with pytest.raises(MarkRefused, match="it was set back; nothing is deleted"):
        catalog.marks.begin_sweep(REPO, "m")
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
    put(catalog, an_entry("a"), expect=ExpectedState(marks=frozenset()))
    begin(catalog, "one")
    put(catalog, an_entry("fresh"))
    with pytest.raises(BranchMoved, match="mark one"):  # it began since the caller looked
        put(catalog, an_entry("b"), expect=ExpectedState(marks=frozenset()))
    with raising("collection_running", "mark one"):
        put(catalog, an_entry("b"), expect=ExpectedState(marks=frozenset(), unclear=frozenset({"one"})))
    put(catalog, an_entry("too young for it"), expect=ExpectedState(marks=frozenset({"one"})))
    finish(catalog, "one")
    with pytest.raises(BranchMoved, match="mark one"):
        put(catalog, an_entry("b"), expect=ExpectedState(marks=frozenset()))
    put(catalog, an_entry("b"), expect=ExpectedState(marks=frozenset({"one"})))
    catalog.marks.begin_sweep(REPO, "one")
    with pytest.raises(BranchMoved, match="mark one"):
        put(catalog, an_entry("c"), expect=ExpectedState(marks=frozenset()))
    catalog.marks.end_sweep(REPO, "one")
    with pytest.raises(BranchMoved, match="mark one"):  # it may have been made and swept since the caller looked
        put(catalog, an_entry("c"), expect=ExpectedState(marks=frozenset()))
    put(catalog, an_entry("c"), expect=ExpectedState(marks=frozenset({"one"})))
    create(catalog, "neighbour")
    catalog.marks.begin_mark("neighbour", "theirs", cutoff=catalog.now() - GRACE)
    put(catalog, an_entry("d"), expect=ExpectedState(marks=frozenset({"one"})))


def test_a_mark_that_a_crash_left_open_keeps_links_waiting_until_the_deadline_only(catalog):
    begin(catalog)
    age(catalog, "m", hours=13)
    put(catalog, an_entry("a"), expect=ExpectedState(marks=frozenset()))
    age(catalog, "m", hours=-13)
    with pytest.raises(MarkRefused, match="mark m is failed"):  # whatever clocks say now, the link stands
        finish(catalog)


def test_a_link_that_races_with_a_mark_is_a_root_or_is_refused(catalog, opened, database_url):
    other = opened(database_url)
    for number in range(10):

        def mark(name=f"m{number}"):
            begin(catalog, name)
            return catalog.retention.roots(REPO).staged["physical_address"].to_pylist()

        link = partial(put, other, an_entry("a", f"x{number}"), expect=ExpectedState(marks=frozenset()))
        linked, roots = at_once(link, mark)
        refused = isinstance(linked, Transient)
        assert linked.kind in {"collection_running", "branch_moved"} if refused else isinstance(linked, BranchState)
        assert (f"data/2026010100/x{number}" in roots) is not refused


def test_what_the_store_refused_is_on_record_and_a_sweep_goes_on(catalog):
    begin(catalog)
    finish(catalog)
    catalog.marks.begin_sweep(REPO, "m")
    catalog.marks.advance_sweep(REPO, "m", 1)
    mark = catalog.marks.end_sweep(REPO, "m", refused=2, failures=[("data/x", "AccessDenied")])
    assert (mark.state, mark.swept, mark.refused, mark.failures) == (
        MarkState.INCOMPLETE, 1, 2, (("data/x", "AccessDenied"),),
    )  # fmt: skip
    assert mark.to_json()["failures"] == [{"key": "data/x", "reason": "AccessDenied"}]
    assert catalog.marks.begin_sweep(REPO, "m").state is MarkState.INCOMPLETE
    with pytest.raises(BranchMoved, match="mark m"):
        put(catalog, an_entry("c"), expect=ExpectedState(marks=frozenset()))
    mark = catalog.marks.end_sweep(REPO, "m")
    assert (mark.state, mark.swept, mark.refused, mark.failures) == (MarkState.SWEPT, 3, 0, ())


@pytest.mark.parametrize("left", ["killed", "refused"])
def test_a_sweep_takes_over_what_earlier_ones_left_so_the_lists_stay_few(catalog, left):
    for number in range(44):
        begin(catalog, f"m{number}")
        finish(catalog, f"m{number}")
        catalog.marks.begin_sweep(REPO, f"m{number}")
        if left == "refused":
            catalog.marks.end_sweep(REPO, f"m{number}", refused=1, failures=[("data/x", "locked")])
        holding = [mark for mark in catalog.marks.on_record(REPO) if mark.state in SWEEPABLE]
        assert len(holding) == 1
    assert catalog.marks.get(REPO, "m42").state is MarkState.CARRIED
    assert catalog.marks.begin_sweep(REPO, "m42").state is MarkState.CARRIED
    assert catalog.marks.advance_sweep(REPO, "m42", 3).swept == 0
    assert catalog.marks.end_sweep(REPO, "m42").state is MarkState.CARRIED


def test_a_list_that_looked_at_less_takes_nothing_over(catalog):
    """With a longer grace period, it lacks what the earlier one holds."""
    begin(catalog, "one")
    finish(catalog, "one")
    catalog.marks.begin_sweep(REPO, "one")
    begin(catalog, "two", grace=timedelta(days=2))
    finish(catalog, "two")
    catalog.marks.begin_sweep(REPO, "two")
    assert states(catalog) == {"one": "sweeping", "two": "sweeping"}
