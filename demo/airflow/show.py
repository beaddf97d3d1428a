"""What is in the lake after the runs: shown to a person, and checked."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from urllib.parse import unquote, urlsplit

import duckdb
from console import console
from rest import Rest
from rich.markup import escape
from rich.table import Table
from serve import ROOT

from lakeops.lake import Ref, Repository


def everything(
    flights: Repository, days: Sequence[str], damaged: Mapping[str, str], reasons: Sequence[str]
) -> list[str]:
    """Show the lake; returns what is wrong with it, in plain sentences."""
    good = [day for day in days if day not in damaged]
    merges = {
        commit.metadata["day"]: commit.id
        for commit in flights.log("main", first_parent=True)
        if len(commit.parents) == 2
    }
    _log(flights)
    wrong = list(_check_history(flights, good, merges))
    if wrong:
        return wrong
    order = [day for day in reversed(merges) if day in good]
    _diff(flights, merges[order[0]], merges[order[1]], (order[0], order[1]))
    wrong += _check_time_travel(flights, merges, order)
    wrong += _rejected(flights, damaged, reasons)
    return wrong


def rejected(flights: Repository) -> str:
    """The branch of the day that was rejected."""
    return next(branch.id for branch in flights.branches() if branch.id != "main")


def refused(rest: Rest, flights: Repository, refusal: str) -> Iterator[str]:
    """Show the verdict on the pages, and what the merge form said of it. Yields what is wrong."""
    branch = rejected(flights)
    (verdict,) = flights.ref(branch).verdicts()
    for page in ("flights", f"flights/act/merge?source={branch}&destination=main"):
        text = " ".join(re.sub(r"<[^>]+>", " ", rest.page(f"/lakeops/lakeops_default/{page}")).split())
        shown = f"{verdict.name}: {verdict.word}"
        _command(f"the page /lakeops/lakeops_default/{page}")
        console.print(f"{branch} has {escape(shown)}" if shown in text else "[red]no verdict[/]")
        if shown not in html.unescape(text):
            yield f"page {page} does not show that the check {verdict.name} has failed"
    _command(f"the form lakeops_merge, of {branch}")
    console.print(f"It refuses: {escape(refusal)}")
    if f"'{verdict.name}' failed" not in refusal:
        yield f"the merge form does not refuse the rejected day over its check: {refusal}"


def _log(flights: Repository) -> None:
    _command("lakeops log lakefs://flights/main --first-parent")
    table = Table("commit", "when (UTC)", "message", "by Airflow run", box=None)
    for commit in flights.log("main", first_parent=True):
        when = datetime.fromtimestamp(commit.creation_date, UTC).strftime("%H:%M:%S")
        table.add_row(commit.id[:12], when, escape(commit.message), commit.metadata.get("airflow_run_id", ""))
    console.print(table)


def _diff(flights: Repository, left: str, right: str, days: tuple[str, str]) -> None:
    _command(f"lakeops diff --two-way lakefs://flights/{left[:12]} lakefs://flights/{right[:12]}")
    console.print(f"[dim]from main when {days[0]} was published to main when {days[1]} was[/]")
    for change in flights.diff(left, right):
        console.print(f"{change.type.value:8} {change.path} ({change.size_bytes:,} bytes)")


def _check_history(flights: Repository, good: Sequence[str], merges: Mapping[str, str]) -> Iterator[str]:
    published = [commit.metadata.get("day") for commit in flights.log("main") if len(commit.parents) == 1]
    expected = sorted(good)
    if sorted(merges) != expected:
        yield f"main has merges of {sorted(merges)}, not of {expected}"
    if sorted(str(day) for day in published) != expected:
        yield f"main has commits of {published}, not one of each of {expected}"
    paths = [entry.path for entry in flights.ref("main").list()]
    due = sorted(f"{table}/day={day}/part-0.parquet" for table in ("flights", "weather") for day in good)
    if paths != due:
        yield f"main has the objects {paths}, not {due}"


def _check_time_travel(flights: Repository, merges: Mapping[str, str], order: Sequence[str]) -> Iterator[str]:
    """The same question at two commits must give each commit's own answer."""
    sys.path.append(str(ROOT / "dags"))  # where the DAG's own modules are
    from example_flights.source import read_day

    for published in (3, len(order)):
        commit = merges[order[published - 1]]
        _command(f"DuckDB, flights/ as of commit {commit[:12]} ({published} days published)")
        rows = _flights_by_day(flights.ref(commit))
        table = Table("day", "flights", "mean delay (min)", box=None)
        for day, count, delay in rows:
            table.add_row(day, str(count), f"{delay:.1f}")
        console.print(table)
        expected = {day: read_day(date.fromisoformat(day)).flights.num_rows for day in order[:published]}
        found = {day: count for day, count, _ in rows}
        if found != expected:
            yield f"commit {commit[:12]} has the flights {found}, not {expected}"


def _rejected(flights: Repository, damaged: Mapping[str, str], reasons: Sequence[str]) -> Iterator[str]:
    _command("lakeops branch list lakefs://flights")
    branches = [branch.id for branch in flights.branches()]
    console.print("\n".join(branches))
    kept = [name for name in branches if name != "main"]
    for day, damage in damaged.items():
        console.print(f"\n[bold]{day} was rejected[/] ({damage}), by this rule of its audit:")
        console.print("\n".join(f"  {escape(reason)}" for reason in reasons))
        for branch in (name for name in kept if day in name):
            console.print(f"It waits on branch {branch} for somebody to look at it:")
            for change in flights.compare("main", branch):
                console.print(f"  {change.type.value:8} {change.path}")
    if not reasons:
        yield "no audit said why a day was rejected"
    if len(kept) != len(damaged) or not all(any(day in name for name in kept) for day in damaged):
        yield f"the branches {kept} are left, not one for each of {sorted(damaged)}"


def _flights_by_day(ref: Ref) -> list[tuple[str, int, float]]:
    """Flights and mean departure delay by day, read with DuckDB from the files that make up a ref."""
    files = [
        unquote(urlsplit(entry.physical_address).path) for entry in ref.list("flights/") if entry.path_type == "object"
    ]
    return duckdb.execute(
        "SELECT strftime(make_date(year, month, day), '%Y-%m-%d') AS day, count(*), avg(dep_delay) "
        "FROM read_parquet($files) GROUP BY ALL ORDER BY day",
        {"files": files},
    ).fetchall()


def _command(line: str) -> None:
    console.print(f"\n[bold]> {escape(line)}[/]")
