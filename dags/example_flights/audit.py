"""The audit: what must hold of a day before it is published.

The bounds hold for every day of the data set with room to spare, and the odd truths of the data are allowed: a
cancelled flight has no times and often no plane, American and Envoy report fleet numbers that no register knows, and
the weather has gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from example_flights.source import Known, Tables, of_day

MIN_FLIGHTS = 500
MIN_KNOWN_PLANES = 0.7
MIN_WEATHER_HOURS = 18
AIRPORTS = ("EWR", "JFK", "LGA")
FLIGHT_KEY = ("carrier", "flight", "origin", "sched_dep_time")
NEVER_NULL = ("year", "month", "day", *FLIGHT_KEY, "sched_arr_time", "dest", "distance", "time_hour")
CLOCK_TIMES = ("sched_dep_time", "sched_arr_time", "dep_time", "arr_time")


class Check(NamedTuple):
    """One rule, whether it holds, and what was found."""

    rule: str
    holds: bool
    found: str


def audit(day: date, tables: Tables, known: Known) -> list[Check]:
    """Every rule's verdict on a day, in a fixed order."""
    due = of_day(tables, day)
    return [
        _none("every flight is of the day", tables.flights.num_rows - due.flights.num_rows),
        *_flights(tables.flights),
        *_references(tables.flights, known),
        *_times(tables.flights),
        _none("all weather is of the day", tables.weather.num_rows - due.weather.num_rows),
        *_weather(tables.weather),
    ]


def _flights(flights: pa.Table) -> Iterator[Check]:
    rows = flights.num_rows
    yield Check(f"at least {MIN_FLIGHTS} flights", rows >= MIN_FLIGHTS, f"{rows}")
    nulls = {name: flights[name].null_count for name in NEVER_NULL if flights[name].null_count}
    yield Check("no nulls in what every flight has", not nulls, f"{nulls or 'none'}")
    yield _none("no flight comes twice", rows - flights.group_by(list(FLIGHT_KEY)).aggregate([]).num_rows)


def _references(flights: pa.Table, known: Known) -> Iterator[Check]:
    unknown = flights.filter(pc.invert(pc.is_in(flights["carrier"], known.airlines["carrier"].combine_chunks())))
    carriers = ", ".join(sorted({str(carrier) for carrier in unknown["carrier"].to_pylist()}))
    yield _none("every carrier is a known airline", unknown.num_rows, f" flights of {carriers}")
    flown = flights.filter(pc.is_valid(flights["dep_time"]))
    yield _none("every flight that left names its plane", flown["tailnum"].null_count)
    named = flights["tailnum"].drop_null()
    found = pc.sum(pc.is_in(named, known.planes["tailnum"].combine_chunks())).as_py() or 0
    share = found / max(1, len(named))
    yield Check(f"at least {MIN_KNOWN_PLANES:.0%} of named planes are known", share >= MIN_KNOWN_PLANES, f"{share:.0%}")


def _times(flights: pa.Table) -> Iterator[Check]:
    for name in CLOCK_TIMES:
        times = flights[name].drop_null()
        odd = times.filter(pc.or_(pc.less(times, 1), pc.or_(pc.greater(times, 2400), pc.greater(_minute(times), 59))))
        yield _none(f"{name} is a time of day", len(odd), f", {odd[0]} for one" if len(odd) else "")
    cancelled = flights.filter(pc.is_null(flights["dep_time"]))
    yield _none("no flight lands that never left", cancelled.num_rows - cancelled["arr_time"].null_count)


def _weather(weather: pa.Table) -> Iterator[Check]:
    hours = {airport: len(weather.filter(pc.field("origin") == airport)["time_hour"].unique()) for airport in AIRPORTS}
    enough = min(hours.values()) >= MIN_WEATHER_HOURS
    found = ", ".join(f"{airport} {count}" for airport, count in hours.items())
    yield Check(f"weather of at least {MIN_WEATHER_HOURS} hours an airport", enough, found)
    yield _none("no hour of weather comes twice", weather.num_rows - sum(hours.values()))


def _minute(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.subtract(times, pc.multiply(pc.divide(times, 100), 100))


def _none(rule: str, count: int, more: str = "") -> Check:
    return Check(rule, count == 0, f"{count}{more}" if count else "none")
