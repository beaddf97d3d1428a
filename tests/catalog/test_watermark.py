"""Tests of marks: an attempt cannot link or publish what a mark has looked at, whatever clocks say."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.at_once import at_once
from support.catalogs import REPO, a_commit, an_entry, create, create_mirror, draft, everything, put, seal, table_of

from lakeops.catalog.records import ExpectedState, from_epoch_micros
from lakeops.catalog.tables import REPOSITORY
from lakeops.model.clock import Grace, parse_grace
from lakeops.model.errors import AttemptExpired, InvalidInput, MarkRefused, RepositoryNotFound

TICK = timedelta(microseconds=1)
GRACE = timedelta(hours=24)


def mark(catalog, mark_id="m", cutoff=None):
    return catalog.marks.begin_mark(REPO, mark_id, cutoff=cutoff or catalog.now() - GRACE)[0]


def watermark(catalog):
    query = REPOSITORY.select().where(REPOSITORY.c.id == REPO)
    found = catalog.database.read(lambda conn: conn.execute(query).one()).fence
    return None if found is None else from_epoch_micros(found)


@pytest.fixture
def patient(catalog):
    """A repository whose deadline never is what refuses: only the watermark can be."""
    catalog.retention.set_grace(REPO, 100 * 86_400)
    return catalog


def link(catalog, started):
    put(catalog, an_entry("a"), started=started)


def link_many(catalog, started):
    catalog.staging.put_staged(REPO, "main", table_of([an_entry("a"), an_entry("b")]), started=started)


def link_looked_into_marks(catalog, started):
    put(
        catalog,
        an_entry("a"),
        started=started,
        expect=ExpectedState(marks=frozenset({mark.id for mark in catalog.marks.on_record(REPO)})),
    )


def end_upload(catalog, started):
    catalog.staging.begin_upload(REPO, "main", "data/x/", upload="u")
    put(catalog, an_entry("a"), started=started, upload="u")


def publish(catalog, started):
    state = seal(catalog)
    commit = a_commit("late", catalog.commits.get(REPO, state.commit_id))
    catalog.commits.publish(draft(catalog, state, commit, started=started))


WAYS = (link, link_many, link_looked_into_marks, end_upload, publish)


@pytest.mark.parametrize("way", WAYS)
def test_an_attempt_at_or_before_the_watermark_is_refused_and_a_later_one_is_not(patient, way):
    put(patient, an_entry("staged"))
    cutoff = patient.now() - timedelta(days=100)
    made = mark(patient, cutoff=cutoff)
    patient.marks.finish_mark(REPO, made.id, digest="d", rows=0, objects=0, size_bytes=0, listed=0)
    patient.retention.set_grace(REPO, 300 * 86_400)
    head = patient.refs.branch(REPO, "main").commit_id
    for started in (cutoff, cutoff - TICK):
        with pytest.raises(AttemptExpired, match="has checked all files begun until"):
            way(patient, started)
        assert patient.refs.branch(REPO, "main").commit_id == head
        assert [row.path for row in patient.staging.staged_page(REPO, "main")[1]] == ["staged"]
    way(patient, cutoff + TICK)


def test_the_watermark_never_goes_back(catalog):
    assert watermark(catalog) is None
    first = mark(catalog, "one").cutoff
    assert watermark(catalog) == first
    mark(catalog, "older", cutoff=first - timedelta(days=9))
    assert watermark(catalog) == first
    assert watermark(catalog) == max(found.cutoff for found in catalog.marks.on_record(REPO))


def test_a_mark_of_a_neighbour_is_no_watermark_here(catalog):
    create(catalog, "neighbour")
    catalog.marks.begin_mark("neighbour", "m", cutoff=catalog.now() - GRACE)
    assert watermark(catalog) is None


def test_a_mark_that_was_refused_raises_nothing(catalog):
    before = everything(catalog)
    with pytest.raises(MarkRefused, match="grace period or the clock was changed"):
        mark(catalog, cutoff=catalog.now() - GRACE + timedelta(minutes=1))
    assert everything(catalog) == before


def test_a_writer_whose_clock_is_behind_the_watermark_learns_it_before_it_writes(opened, sqlite_url, clock):
    catalog = opened(sqlite_url)
    create(catalog)
    mark(catalog)
    clock.jump(days=-2)
    with pytest.raises(AttemptExpired, match="correct this machine's clock"):
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


def test_a_link_that_races_with_a_mark_is_there_before_it_or_is_refused(catalog, opened, database_url):
    other = opened(database_url)
    for number in range(10):
        started = other.now()
        catalog.retention.set_grace(REPO, 1)  # the mark's cutoff may then be the attempt's beginning
        write = partial(put, other, an_entry(f"p{number}", f"x{number}"), started=started)
        written, roots = at_once(write, partial(roots_with_watermark, catalog, started))
        refused = isinstance(written, AttemptExpired)
        assert refused or written == other.refs.branch(REPO, "main")
        assert (f"data/2026010100/x{number}" in roots) is not refused


def roots_with_watermark(catalog, moment):
    """The roots after ``begin_mark``'s change of the repository's row, at a moment of the test's choice."""
    from lakeops.catalog.guards import lock_repository
    from lakeops.catalog.records import epoch_micros

    def work(conn):
        lock_repository(conn, REPO, exclusive=True)
        conn.execute(REPOSITORY.update().where(REPOSITORY.c.id == REPO).values(fence=epoch_micros(moment)))

    catalog.database.write(work)
    return catalog.retention.roots(REPO).staged["physical_address"].to_pylist()


# --- the grace period is the repository's: every process goes by it, and a shorter one waits for the old one ---


HOUR = 3600
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def counts(catalog):
    return int(catalog.retention.grace(REPO).at(catalog.now()).total_seconds())


def mark_behind(catalog, hours, mark_id="m"):
    cutoff = catalog.now() - timedelta(hours=hours)
    return catalog.marks.begin_mark(REPO, mark_id, cutoff=cutoff)[0]


def test_a_new_repository_has_the_default_and_keeps_it(opened, database_url):
    create(opened(database_url, grace_seconds=2 * HOUR))
    other = opened(database_url, grace_seconds=9 * HOUR)
    create_mirror(other)
    assert (counts(other), other.retention.grace("mirror").seconds) == (2 * HOUR, 9 * HOUR)
    with pytest.raises(RepositoryNotFound):
        other.retention.grace("none")


def test_two_processes_with_different_settings_go_by_the_same_grace(opened, database_url):
    """The writer would allow itself 48 hours, the collector 24: what counts is in the catalog."""
    writer = opened(database_url, grace_seconds=48 * HOUR)
    create(writer)
    collector = opened(database_url, grace_seconds=24 * HOUR)
    with pytest.raises(MarkRefused, match="2 days, 0:00:00"):
        mark_behind(collector, 24)
    put(writer, an_entry("a"), started=writer.now() - timedelta(hours=23))
    put(collector, an_entry("b"), started=collector.now() - timedelta(hours=23))
    mark_behind(collector, 48)
    with pytest.raises(AttemptExpired):
        put(writer, an_entry("c"), started=writer.now() - timedelta(hours=25))


def test_a_longer_grace_counts_at_once(catalog):
    assert catalog.retention.set_grace(REPO, 48 * HOUR) == Grace(48 * HOUR)
    put(catalog, an_entry("a"), started=catalog.now() - timedelta(hours=23))
    with pytest.raises(MarkRefused):
        mark_behind(catalog, 24)
    mark_behind(catalog, 48)


def test_a_shorter_grace_waits_until_the_old_one_has_passed(sqlite_url, opened, clock):
    catalog = opened(sqlite_url)
    create(catalog)
    began = clock.now()
    grace = catalog.retention.set_grace(REPO, HOUR)
    assert grace.to_json(clock.now()) == {
        "grace_seconds": 24 * HOUR, "pending_seconds": HOUR, "pending_from": int(began.timestamp()) + 24 * HOUR,
    }  # fmt: skip
    clock.advance(hours=11)
    put(catalog, an_entry("a"), started=began)
    with pytest.raises(MarkRefused):
        mark_behind(catalog, 1)
    clock.advance(hours=13)
    assert catalog.retention.grace(REPO).to_json(clock.now()) == {
        "grace_seconds": HOUR, "pending_seconds": None, "pending_from": None,
    }  # fmt: skip
    mark_behind(catalog, 1)


def test_changes_of_mind_never_shorten_what_was_promised(sqlite_url, opened, clock):
    catalog = opened(sqlite_url)
    create(catalog)
    catalog.retention.set_grace(REPO, 48 * HOUR)
    clock.advance(hours=1)
    catalog.retention.set_grace(REPO, HOUR)
    clock.advance(hours=40)
    catalog.retention.set_grace(REPO, 2 * HOUR)
    clock.advance(hours=47)
    assert counts(catalog) == 48 * HOUR
    clock.advance(hours=1)
    assert counts(catalog) == 2 * HOUR
    catalog.retention.set_grace(REPO, HOUR)
    catalog.retention.set_grace(REPO, 3 * HOUR)
    assert counts(catalog) == 3 * HOUR
    catalog.retention.set_grace(REPO, HOUR)
    again = catalog.retention.grace(REPO)
    clock.advance(hours=2)
    assert catalog.retention.set_grace(REPO, HOUR) == again


@given(st.lists(st.tuples(st.sampled_from(["wait", "set", "begin"]), st.integers(1, 60)), max_size=30))
def test_no_attempt_loses_the_time_that_it_was_given(steps):
    """An attempt gets the value that was set last when it began. No mark looks at it before that has passed."""
    now, grace, given_until = EPOCH, Grace(20), {}
    for what, count in steps:
        if what == "wait":
            now += timedelta(seconds=count)
        elif what == "set":
            grace = grace.changed(count, now)
        else:
            given_until[now] = max(given_until.get(now, now), now + timedelta(seconds=grace.seconds))
        cutoff = now - grace.at(now)
        for started, until in given_until.items():
            assert now >= until or started > cutoff


@pytest.mark.parametrize(
    ("text", "seconds"), [(60, 60), ("60", 60), ("90m", 5400), ("24h", 86_400), ("1.5h", 5400), (" 7d ", 604_800)]
)
def test_how_a_grace_is_written(text, seconds):
    assert parse_grace(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1h", "h", "1w", "0.5s", "367d", "1e9", "24 h", "٣h", 0])
def test_what_is_no_grace(text):
    with pytest.raises(InvalidInput, match="no grace period"):
        parse_grace(text)
