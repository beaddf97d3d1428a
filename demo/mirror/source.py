"""The source of the demo: a day of flights and its weather, committed every second until the input ends.

Each commit says in its metadata how many rows every table has, so that whoever reads it anywhere can tell whether it
is whole. Every seventh commit also packs the week's files of flights into one, so that files go as well as come.

Usage: python source.py HOME SECONDS
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from datetime import date, timedelta
from select import select

import pyarrow as pa
import pyarrow.parquet as pq
from example_flights.source import Tables, of_day, read_year

from lakeops import Lake

WEEK = 7
FIRST = date(2013, 1, 1)


def main() -> None:
    """Commit, once a second, for so many seconds or until the input ends."""
    home, seconds = sys.argv[1], float(sys.argv[2])
    year = read_year()
    with Lake.open(home=home) as lake:
        branch = lake.repository("flights").branch("main")
        rows = {"flights": 0, "weather": 0, "days": 0}
        week: dict[str, pa.Table] = {}
        begun = time.monotonic()
        for number, (day, tables) in enumerate(_days(year)):
            left = begun + number - time.monotonic()
            if begun + seconds <= time.monotonic() or select([sys.stdin], [], [], max(0.0, left))[0]:
                break
            for name, table in tables._asdict().items():
                branch.put(f"{name}/{day}.parquet", _parquet(table))
                rows[name] += table.num_rows
            rows["days"] += 1
            branch.put(
                "days/all.parquet", _parquet(pa.table({"day": [str(FIRST + timedelta(n)) for n in range(number + 1)]}))
            )
            week[f"flights/{day}.parquet"] = tables.flights
            message = f"Flights of {day}"
            if len(week) == WEEK:
                branch.put(f"flights/week-{number // WEEK + 1:02}.parquet", _parquet(pa.concat_tables(week.values())))
                for path in week:
                    branch.delete(path)
                week.clear()
                message += ", and its week in one file"
            commit = branch.commit(message, metadata={f"rows.{name}": str(count) for name, count in rows.items()})
            print(commit.id, flush=True)


def _days(year: Tables) -> Iterator[tuple[date, Tables]]:
    for number in range(365):
        day = FIRST + timedelta(number)
        yield day, of_day(year, day)


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


if __name__ == "__main__":
    main()
