"""The lake of the pictures: two weeks of flights, what somebody tries on branches, and what collection freed."""

from __future__ import annotations

from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

from lakeops import Lake, Repository
from lakeops.model.ids import Origin
from lakeops.testing import ManualClock

DAYS = 14
PEOPLE = ("ada", "grace")
AIRPORTS, CARRIERS = ("EWR", "JFK", "LGA"), ("UA", "AA", "B6", "DL")
PARQUET = "application/vnd.apache.parquet"
TRIED = f"flights/day={DAYS - 1:02}/part-0.parquet"
"""What somebody has changed on branches."""


def fill(lake: Lake, clock: ManualClock) -> None:
    """Make the repositories, in two weeks of the clock."""
    repo = lake.create_repository("flights")
    repo.gc.set_rules({"default_retention_days": 7, "branches": [{"branch_id": "main", "retention_days": 60}]})
    for day in range(1, DAYS + 1):
        _publish(repo, day)
        clock.advance(hours=22 + day % 3)
        if day > 2:
            mark = repo.gc.mark()
            if day < DAYS:
                repo.gc.sweep(mark.id, force=True)
    for number, name in enumerate(("dev", "staging")):
        branch = repo.create_branch(name, "main~1")
        branch.put(TRIED, flights(DAYS - 1, gate=True), content_type=PARQUET)
        branch.put(f"weather/day={DAYS:02}.parquet", weather(DAYS), content_type=PARQUET)
        branch.commit(f"try the new schema on {name}", {"ticket": f"DATA-{41 + number}"})
        clock.advance(minutes=50)
    repo.branch("dev").put("weather/notes.csv", b"day,note\n14,fog\n", content_type="text/csv")
    for name, message in (("bookings", "load bookings"), ("weather", "load stations")):
        main = lake.create_repository(name).branch("main")
        main.put("part-0.parquet", weather(len(name)), content_type=PARQUET)
        main.commit(message)
    for one in lake.repositories():
        check = one.fsck()
        list(check)
        check.note()
    clock.advance(hours=2)


def _publish(repo: Repository, day: int) -> None:
    """A day, on a branch of its own, as the ready-made block of tasks does it."""
    run = {"airflow_dag_id": "publish_flights", "airflow_run_id": f"scheduled__2013-01-{day:02}"}
    load = repo.create_branch(f"load-{day}")
    for part in range(3):
        path = f"flights/day={day:02}/part-{part}.parquet"
        for _ in range(1 + day * 5 % 7):  # tries that were overwritten before anybody committed them
            load.put(path, bytes(30_000))
        load.put(path, flights(day, part), content_type=PARQUET)
    load.commit(f"load day {day}", Origin({**run, "airflow_task_id": "publish.commit"}))
    merged = Origin({**run, "airflow_task_id": "publish.merge", "approved_by": PEOPLE[day % 2]})
    repo.merge(load.id, "main", message=f"publish day {day}", metadata=merged)
    repo.delete_branch(load.id)


def flights(day: int, part: int = 0, *, gate: bool = False, rows: int = 400) -> bytes:
    """A day's flights as Parquet. With ``gate`` they have another schema."""
    numbers = range(part, part + rows)
    delays = [number * 37 % 95 - 10 for number in numbers]
    columns = {
        "day": pa.array([day] * rows, pa.int16()),
        "carrier": [CARRIERS[number * day % len(CARRIERS)] for number in numbers],
        "origin": [AIRPORTS[number % len(AIRPORTS)] for number in numbers],
        "dep_delay": pa.array(delays, pa.float64() if gate else pa.int32()),
    }
    if gate:
        columns["gate"] = [f"{'ABC'[number % 3]}{number * 7 % 40 + 1}" for number in numbers]
    return _parquet(columns)


def weather(day: int) -> bytes:
    """A day's weather as Parquet."""
    return _parquet({"hour": list(range(24)), "wind": [hour * day % 21 / 2 for hour in range(24)]})


def _parquet(columns: dict[str, object]) -> bytes:
    file = BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()
