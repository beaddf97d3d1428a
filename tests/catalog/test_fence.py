"""What a mark has looked at can no longer be linked or published by the attempt that wrote it, whatever clocks say."""

from __future__ import annotations

from datetime import timedelta
from threading import Barrier, Thread

import pytest
from support.catalogs import REPO, a_commit, an_entry, commit_all, create, draft, everything, put, seal, table_of

from lakeops.catalog.rows import from_ticks
from lakeops.catalog.tables import REPOSITORY
from lakeops.model.errors import AttemptExpired, MarkRefused

TICK = timedelta(microseconds=1)
GRACE = timedelta(hours=24)


def mark(catalog, mark_id="m", cutoff=None):
    return catalog.marks.begin_mark(REPO, mark_id, cutoff=cutoff or catalog.now() - GRACE)[0]


def fence(catalog):
    query = REPOSITORY.select().where(REPOSITORY.c.id == REPO)
    found = catalog.database.read(lambda conn: conn.execute(query).one()).fence
    return None if found is None else from_ticks(found)


@pytest.fixture
def patient(catalog):
    """A repository whose deadline never is what refuses: only the fence can be."""
    catalog.retention.set_grace(REPO, 100 * 86_400)
    return catalog


def link(catalog, started):
    put(catalog, an_entry("a"), started=started)


def link_many(catalog, started):
    catalog.staging.put_staged(REPO, "main", table_of([an_entry("a"), an_entry("b")]), started=started)


def link_looked_into_marks(catalog, started):
    put(catalog, an_entry("a"), started=started, cleared=frozenset({mark.id for mark in catalog.marks.on_record(REPO)}))


def end_upload(catalog, started):
    catalog.staging.begin_upload(REPO, "main", "data/x/", upload="u")
    put(catalog, an_entry("a"), started=started, upload="u")


def publish(catalog, started):
    state = seal(catalog)
    commit = a_commit("late", catalog.commits.get(REPO, state.commit_id))
    catalog.commits.publish(draft(catalog, state, commit, started=started))


WAYS = (link, link_many, link_looked_into_marks, end_upload, publish)


@pytest.mark.parametrize("way", WAYS)
def test_an_attempt_at_or_before_the_fence_is_refused_and_a_later_one_is_not(patient, way):
    put(patient, an_entry("staged"))
    cutoff = patient.now() - timedelta(days=100)
    made = mark(patient, cutoff=cutoff)
    patient.marks.finish_mark(REPO, made.id, digest="d", rows=0, objects=0, size_bytes=0, listed=0)
    patient.retention.set_grace(REPO, 300 * 86_400)
    head = patient.refs.branch(REPO, "main").commit_id
    for started in (cutoff, cutoff - TICK):
        with pytest.raises(AttemptExpired, match="has looked at everything begun until"):
            way(patient, started)
        assert patient.refs.branch(REPO, "main").commit_id == head
        assert [row.path for row in patient.staging.staged_page(REPO, "main").rows] == ["staged"]
    way(patient, cutoff + TICK)


def test_the_fence_never_goes_back(catalog):
    assert fence(catalog) is None
    first = mark(catalog, "one").cutoff
    assert fence(catalog) == first
    mark(catalog, "older", cutoff=first - timedelta(days=9))
    assert fence(catalog) == first
    assert fence(catalog) == max(found.cutoff for found in catalog.marks.on_record(REPO))


def test_a_mark_of_a_neighbour_is_no_fence_here(catalog):
    create(catalog, "neighbour")
    catalog.marks.begin_mark("neighbour", "m", cutoff=catalog.now() - GRACE)
    assert fence(catalog) is None


def test_a_mark_that_was_refused_raises_nothing(catalog):
    before = everything(catalog)
    with pytest.raises(MarkRefused, match="grace period or the clock was changed"):
        mark(catalog, cutoff=catalog.now() - GRACE + timedelta(minutes=1))
    assert everything(catalog) == before


def test_a_writer_whose_clock_is_behind_the_fence_learns_it_before_it_writes(opened, sqlite_url, clock):
    catalog = opened(sqlite_url)
    create(catalog)
    mark(catalog)
    clock.jump(days=-2)
    with pytest.raises(AttemptExpired, match="set this machine's clock right"):
        catalog.staging.begin_upload(REPO, "main", "data/x/", upload="u")
    with pytest.raises(AttemptExpired):
        put(catalog, an_entry("a"))


def test_an_attempt_that_began_while_the_clock_was_ahead_is_refused_once_it_is_right(opened, sqlite_url, clock):
    catalog = opened(sqlite_url)
    create(catalog)
    clock.jump(days=9)
    started = catalog.now()
    clock.jump(days=-9)
    with pytest.raises(AttemptExpired, match="set back meanwhile"):
        put(catalog, an_entry("a"), started=started)
    put(catalog, an_entry("a"), started=catalog.now() + timedelta(minutes=59))


def test_a_jump_ahead_and_back_between_looking_and_linking_loses_nothing(opened, sqlite_url, clock):
    """The mark is made while the clock is ahead; the upload that it took for old is refused once the clock is right."""
    catalog = opened(sqlite_url)
    create(catalog)
    started = catalog.now()
    clock.jump(hours=50)
    mark(catalog)
    clock.jump(hours=-50)
    with pytest.raises(AttemptExpired):
        put(catalog, an_entry("a"), started=started)
    assert catalog.staging.staged_page(REPO, "main").rows == []


def test_a_link_that_races_with_a_mark_is_there_before_it_or_is_refused(catalog, opened, database_url):
    other = opened(database_url)
    for number in range(10):
        started, refused, start = other.now(), [], Barrier(2)
        catalog.retention.set_grace(REPO, 1)  # the mark's cutoff may then be the attempt's beginning

        def write(started=started, refused=refused, start=start, number=number):
            start.wait()
            try:
                put(other, an_entry(f"p{number}", f"x{number}"), started=started)
            except AttemptExpired:
                refused.append(number)

        thread = Thread(target=write)
        thread.start()
        start.wait()
        with_fence(catalog, started)
        roots = catalog.retention.roots(REPO).staged["physical_address"].to_pylist()
        thread.join()
        assert (f"data/2026010100/x{number}" in roots) is not bool(refused)


def with_fence(catalog, moment):
    """What ``begin_mark`` does to the repository's row, at a moment of the test's choice."""
    from lakeops.catalog.guards import lock_repository
    from lakeops.catalog.rows import ticks

    def work(conn):
        lock_repository(conn, REPO, exclusive=True)
        conn.execute(REPOSITORY.update().where(REPOSITORY.c.id == REPO).values(fence=ticks(moment)))

    catalog.database.write(work)


def test_commits_go_on_after_a_mark(catalog):
    commit_all(catalog, "one")
    mark(catalog)
    put(catalog, an_entry("a"))
    commit_all(catalog, "two")
