"""The flights pipeline: what its audit lets through, and real runs of its DAG for good and damaged days."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from example_flights import source
from example_flights.audit import audit
from support.dags import known_file, states

from lakeops.model.errors import InvalidInput

DAG_FILE = Path(__file__).resolve().parents[2] / "dags" / "publish_flights.py"
DAY = date(2013, 1, 4)


# --- the data and the audit --------------------------------------------------------------------------------------
@pytest.mark.parametrize("step", [14, pytest.param(1, marks=pytest.mark.slow)])
def test_every_day_of_the_year_passes_but_the_last(step):
    """The data set has no weather for the last day. That day is rejected, and rightly.

    The default run takes every second week's last day.
    """
    known = source.read_known()
    year = source.read_year()
    rejected = {}
    for number in range(364, -1, -step):
        day = date(2013, 1, 1) + timedelta(days=number)
        broken = [check.rule for check in audit(day, source.of_day(year, day), known) if not check.holds]
        if broken:
            rejected[day] = broken
    assert rejected == {date(2013, 12, 31): ["weather of at least 18 hours an airport"]}


@pytest.mark.parametrize(
    ("damage", "broken"),
    [
        ("none", []),
        ("unknown-carrier", ["every carrier is a known airline"]),
        ("impossible-times", ["dep_time is a time of day"]),
        ("lost-rows", ["at least 500 flights"]),
    ],
)
def test_each_damage_breaks_its_rule(damage, broken):
    checks = audit(DAY, source.read_day(DAY, damage), source.read_known())
    assert [check.rule for check in checks if not check.holds] == broken


def test_days_and_damages_that_do_not_exist_are_refused():
    with pytest.raises(InvalidInput, match="the data set covers 2013"):
        source.read_day(date(2026, 1, 1))
    with pytest.raises(InvalidInput, match="unknown damage"):
        source.read_day(DAY, "all")  # type: ignore[arg-type]


def test_the_form_offers_every_damage(publish_flights):
    assert publish_flights.params.get_param("damage").schema["enum"] == list(source.DAMAGES)


# --- runs of the DAG ---------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def publish_flights(airflow_database):
    return known_file(DAG_FILE)["publish_flights"]


def test_a_good_day_is_published_and_its_branch_dropped(flights, publish_flights):
    run = publish_flights.test(logical_date=datetime(2013, 1, 4, tzinfo=UTC))
    assert str(run.state) == "success"
    assert set(states(run).values()) == {"success"}
    assert [entry.path for entry in flights.ref("main").list()] == [
        "flights/day=2013-01-04/part-0.parquet",
        "weather/day=2013-01-04/part-0.parquet",
    ]
    assert [branch.id for branch in flights.branches()] == ["main"]
    merged, loaded = list(flights.log("main"))[:2]
    assert merged.message == "Publish 2013-01-04"
    assert loaded.message == "Flights and weather of 2013-01-04"
    assert {name: loaded.metadata[name] for name in ("day", "flights", "weather")} == {
        "day": "2013-01-04",
        "flights": "915",
        "weather": str(source.read_day(DAY).weather.num_rows),
    }
    assert loaded.metadata["airflow_run_id"] == run.run_id


def test_a_day_that_is_there_already_is_published_again_without_a_commit(flights, publish_flights):
    assert str(publish_flights.test(run_conf={"day": "2013-01-04"}).state) == "success"
    log = list(flights.log("main"))
    assert str(publish_flights.test(run_conf={"day": "2013-01-04"}).state) == "success"
    assert list(flights.log("main")) == log
    assert [branch.id for branch in flights.branches()] == ["main"]


def test_a_damaged_day_never_reaches_main_and_stays_to_be_looked_at(flights, publish_flights):
    head = flights.ref("main").commit_id
    run = publish_flights.test(run_conf={"day": "2013-01-05", "damage": "unknown-carrier"})
    assert str(run.state) == "failed"
    assert states(run) == {
        "create_branch": "success",
        "flights": "success",
        "weather": "success",
        "commit": "success",
        "audit": "failed",
        "merge": "upstream_failed",
        "drop_branch": "success",
    }
    assert flights.ref("main").commit_id == head
    (kept,) = [branch.id for branch in flights.branches() if branch.id != "main"]
    assert kept.startswith("day-2013-01-05-")
    assert {change.path for change in flights.compare("main", kept)} == {
        "flights/day=2013-01-05/part-0.parquet",
        "weather/day=2013-01-05/part-0.parquet",
    }


def test_a_day_that_does_not_exist_fails_without_retry(flights, publish_flights):
    run = publish_flights.test(run_conf={"day": "2014-01-01"})
    assert states(run)["flights"] == "failed"
    assert [branch.id for branch in flights.branches()] == ["main"], "nothing was written, so nothing is kept"
