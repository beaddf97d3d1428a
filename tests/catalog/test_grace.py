"""The grace period is the repository's: every process goes by it, and a shorter one waits for the old one to pass."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.catalogs import REPO, an_entry, create, create_mirror, put

from lakeops.model.errors import AttemptExpired, InvalidInput, MarkRefused, RepositoryNotFound
from lakeops.model.marks import Grace, parse_grace

HOUR = 3600
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def counts(catalog):
    return int(catalog.retention.grace(REPO).at(catalog.now()).total_seconds())


def mark(catalog, hours, mark_id="m"):
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
        mark(collector, 24)
    put(writer, an_entry("a"), started=writer.now() - timedelta(hours=23))
    put(collector, an_entry("b"), started=collector.now() - timedelta(hours=23))
    mark(collector, 48)
    with pytest.raises(AttemptExpired):
        put(writer, an_entry("c"), started=writer.now() - timedelta(hours=25))


def test_a_longer_grace_counts_at_once(catalog):
    assert catalog.retention.set_grace(REPO, 48 * HOUR) == Grace(48 * HOUR)
    put(catalog, an_entry("a"), started=catalog.now() - timedelta(hours=23))
    with pytest.raises(MarkRefused):
        mark(catalog, 24)
    mark(catalog, 48)


def test_a_mark_under_way_when_the_grace_grows_is_still_a_fence(catalog):
    cutoff = mark(catalog, 24).cutoff
    catalog.retention.set_grace(REPO, 96 * HOUR)
    with pytest.raises(AttemptExpired):
        put(catalog, an_entry("a"), started=cutoff)
    put(catalog, an_entry("a"), started=cutoff + timedelta(minutes=1))


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
        mark(catalog, 1)
    clock.advance(hours=13)
    assert catalog.retention.grace(REPO).to_json(clock.now()) == {
        "grace_seconds": HOUR, "pending_seconds": None, "pending_from": None,
    }  # fmt: skip
    mark(catalog, 1)


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


@given(
    st.lists(st.tuples(st.sampled_from(["wait", "set", "begin"]), st.integers(1, 60)), max_size=30),
)
def test_no_attempt_loses_the_time_that_it_was_given(steps):
    """What an attempt is given is what was set last when it began; no mark looks at it before that has passed."""
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
