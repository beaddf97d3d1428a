"""Tests of the clock: verbs that expire or delete by age ask whether it can be believed."""

from datetime import timedelta

import pytest
from support.catalogs import REPO, an_entry, commit_all, create, everything, finish, put
from support.errors import raising

from lakeops.catalog.marks import BOUND
from lakeops.catalog.tables import CLOCK, REFLOG
from lakeops.model.clock import SystemClock, uptime_of
from lakeops.model.errors import MarkRefused

SECOND = timedelta(seconds=1)


def mark(catalog, mark_id="m"):
    cutoff = catalog.now() - catalog.retention.grace(REPO).at(catalog.now())
    return catalog.marks.begin_mark(REPO, mark_id, cutoff=cutoff)[0]


def sweep(catalog):
    made = mark(catalog, "swept")
    finish(catalog, made.id)
    return lambda: catalog.marks.begin_sweep(REPO, made.id)


ACTS = {
    "mark": lambda catalog: lambda: mark(catalog),
    "sweep": sweep,
    "what has several transactions": lambda catalog: catalog.marks.check_clock,
    "a dry run": lambda catalog: catalog.marks.read_clock,
}


@pytest.fixture
def held(opened, sqlite_url):
    """A catalog that goes by the held clock."""
    catalog = opened(sqlite_url)
    create(catalog)
    return catalog


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("jump", [BOUND + SECOND, timedelta(days=3), timedelta(days=366)])
def test_nothing_goes_by_age_after_a_jump_ahead_until_somebody_confirms(held, clock, act, jump):
    run = ACTS[act](held)
    seen = clock.now()
    clock.jump(seconds=jump.total_seconds())
    before = everything(held)
    with raising("clock_in_doubt", f"says {clock.now():%Y-%m-%d %H:%M}.*between {seen:%Y-%m-%d %H:%M}.*confirm-clock"):
        run()
    assert everything(held) == before
    assert held.marks.confirm_clock() == clock.now()
    if act != "sweep" or jump < timedelta(days=7):
        run()


@pytest.mark.parametrize("act", ACTS)
def test_writing_goes_on_after_a_jump_and_does_not_make_it_believed(held, clock, act):
    run = ACTS[act](held)
    clock.jump(days=30)
    for number in range(5):
        put(held, an_entry(f"p{number}"))
        commit_all(held, f"{number}")
        clock.advance(hours=1)
    with raising("clock_in_doubt"):
        run()


@pytest.mark.parametrize("act", ACTS)
def test_a_clock_that_was_set_back_is_not_believed(held, clock, act):
    run = ACTS[act](held)
    held.marks.check_clock()
    clock.jump(minutes=-2)
    with raising("clock_in_doubt", r"it was set back.*confirm-clock"):
        run()
    clock.jump(minutes=1, seconds=30)
    held.marks.check_clock()


def test_a_jump_that_only_writers_saw_is_noticed_when_it_is_over(held, clock):
    clock.jump(days=9)
    commit_all(held, "ahead")
    clock.jump(days=-9)
    with raising("clock_in_doubt", "set back"):
        mark(held)
    held.marks.confirm_clock()
    mark(held)


def test_a_catalog_in_use_or_idle_for_a_while_is_believed(held, clock):
    clock.boot = None
    for _ in range(40):
        clock.jump(hours=59)
        commit_all(held, f"{clock.now()}")
    clock.jump(hours=60)
    mark(held)
    clock.jump(hours=60)
    mark(held, "again")


def test_moves_of_any_repository_are_evidence(held, clock):
    for number in range(4):
        clock.jump(hours=50)
        create(held, f"other-{number}")
    mark(held)
    clock.jump(hours=50)
    create(held, "last")
    clock.jump(hours=50)
    mark(held, "again")


def test_one_long_wait_among_many_moves_is_found(held, clock):
    for hours in (10, 20, 61, 10):
        clock.jump(hours=hours)
        commit_all(held, f"{hours}")
    with raising("clock_in_doubt", "2 days: either nobody worked"):
        mark(held)


def test_a_machine_that_counted_the_time_proves_that_nothing_jumped(held, clock):
    clock.advance(days=400)
    mark(held)
    clock.advance(days=30)
    clock.jump(minutes=30)  # a thousandth
    mark(held, "drifted")
    clock.advance(days=30)
    clock.jump(hours=2)
    with raising("clock_in_doubt"):
        mark(held, "jumped")


def test_another_start_of_the_machine_proves_nothing(held, clock):
    clock.advance(days=4)
    clock.boot = "second"
    with raising("clock_in_doubt"):
        mark(held)


def test_a_clock_that_does_not_count_proves_nothing(held, clock, opened, sqlite_url):
    class Bare:
        now = staticmethod(clock.now)

    from lakeops.catalog.open import open_catalog

    catalog = open_catalog(sqlite_url, clock=Bare())
    clock.advance(days=2)
    mark(catalog)
    clock.advance(days=4)
    with raising("clock_in_doubt"):
        mark(catalog, "again")
    catalog.close()


def test_a_wrong_confirmation_can_be_taken_back(held, clock):
    """The clock is a year ahead and somebody confirms it; set right and confirmed, all goes on, and new writes link."""
    clock.jump(days=366)
    held.marks.confirm_clock()
    made = mark(held, "ahead")
    clock.jump(days=-366)
    with raising("clock_in_doubt"):
        mark(held)
    held.marks.confirm_clock()
    with pytest.raises(MarkRefused, match="stale"):
        finish(held, made.id)
    clock.advance(seconds=1)
    put(held, an_entry("a"))
    commit_all(held, "on")
    mark(held)


def test_on_a_database_of_its_own_clock(catalog):
    """The rows are aged where the clock cannot be moved; the same on both databases."""

    def ago(table, column, microseconds):
        change = table.update().values({column: table.c[column] - microseconds})
        catalog.database.write(lambda conn: conn.execute(change) and None)

    mark(catalog)
    ago(CLOCK, "seen", 61 * 3600 * 1_000_000)
    ago(REFLOG, "at", 61 * 3600)
    with raising("clock_in_doubt", "confirm-clock"):
        mark(catalog, "n")
    catalog.marks.confirm_clock()
    mark(catalog, "n")
    commit_all(catalog, "one")
    ago(REFLOG, "at", -200)
    with raising("clock_in_doubt", "set back"):
        catalog.marks.check_clock()
    catalog.marks.confirm_clock()
    catalog.marks.check_clock()


def test_marks_of_two_repositories_at_once_share_the_row(catalog, opened, database_url):
    from concurrent.futures import ThreadPoolExecutor

    create(catalog, "neighbour")
    catalogs = [catalog, opened(database_url), opened(database_url)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda one: [one.marks.check_clock() for _ in range(10)], catalogs))
    assert len(dict(everything(catalog).rows)["lakeops_clock"]) == 1


def test_a_real_machine_counts():
    first, second = uptime_of(SystemClock()), uptime_of(SystemClock())
    assert first is None or (first.boot == second.boot and first.microseconds <= second.microseconds)
