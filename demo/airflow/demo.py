"""Seven days of flights, published by real Airflow runs; one of them is damaged and must not get through.

Starts Airflow on loopback in ``.airflow`` (fresh), creates the repository ``flights``, triggers a run a day over
Airflow's REST interface, shows what a newcomer wants to see, checks all of it, and stops everything again.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import show
from console import Board, console
from rest import Rest
from serve import HOME, ServeError, Server

from lakeops import Repository

DAG = "publish_flights"
DAYS = [f"2013-01-{number:02}" for number in range(1, 8)]
DAMAGED = {"2013-01-04": "unknown-carrier"}
TASKS = ("create_branch", "flights", "weather", "commit", "audit", "merge", "drop_branch")
RUN_SECONDS = 3600
DAG_SECONDS = 900


def main() -> int:
    """The demo: 0 when everything is as it should be."""
    parser = argparse.ArgumentParser(description="Publish seven days of flights with Airflow and lakeops.")
    parser.add_argument("--home", type=Path, default=HOME, help="where everything is kept; what is there goes")
    home = parser.parse_args().home.resolve()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    begun = time.monotonic()
    try:
        with running(home) as server, server.lake() as lake:
            lake.create_repository("flights")
            console.print(f"Created the repository lakefs://flights in {server.lake_home}")
            rest = Rest(server.url, server.password)
            publish(rest)
            reasons = rest.failed_checks(DAG, run_id(next(iter(DAMAGED))), "audit")
            wrong = show.everything(lake.repository("flights"), DAYS, DAMAGED, reasons)
            wrong += show.refused(rest, lake.repository("flights"), refusal(rest, lake.repository("flights")))
            wrong += [f"{address} is open to other machines" for address in server.exposed()]
        left = server.running()
        wrong += [f"process {process.pid} is left behind" for process in left]
    except (ServeError, httpx.HTTPError) as error:
        console.print(f"[red]The demo failed:[/] {error}")
        return 1
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    for line in wrong:
        console.print(f"[red]wrong:[/] {line}")
    if not wrong:
        console.print(f"\n[green]Everything is as it should be[/], after {time.monotonic() - begun:.0f} s.")
        command = Path(sys.executable).with_name("lakeops")
        console.print(f"Look at it yourself: LAKEOPS_HOME={server.lake_home} {command} log lakefs://flights/main")
        console.print(f"or in a browser: LAKEOPS_HOME={server.lake_home} {command} ui")
        console.print("or in Airflow: make up")
    return 1 if wrong else 0


@contextmanager
def running(home: Path) -> Iterator[Server]:
    """Airflow in a fresh home directory; stopped whatever happens."""
    server = Server(home)
    if server.running():
        raise ServeError(f"Airflow runs in {home}; stop it first: make down")
    shutil.rmtree(home, ignore_errors=True)
    begun = time.monotonic()
    server.start(patience=lambda what: console.print(f"Starting Airflow: {what} ..."))
    try:
        console.print(f"Airflow runs at {server.url}, after {time.monotonic() - begun:.0f} s")
        yield server
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave processes behind
        console.print("Stopping Airflow ...")
        server.stop()


def publish(rest: Rest) -> None:
    """Trigger a run for every day and wait until all have ended."""
    console.print(f"Waiting until Airflow has read {DAG} ...")
    rest.wait_for_dag(DAG, DAG_SECONDS)
    rest.unpause(DAG)
    for day in DAYS:
        rest.trigger(DAG, run_id(day), f"{day}T00:00:00Z", {"damage": DAMAGED.get(day, "none")})
    console.print(f"Triggered {len(DAYS)} runs of {DAG}; {', '.join(DAMAGED)} is damaged on purpose")
    deadline = time.monotonic() + RUN_SECONDS
    with Board(DAYS, TASKS) as board:
        while True:
            states = rest.run_states(DAG)
            for day in DAYS:
                board.update(day, states.get(run_id(day), "queued"), rest.task_states(DAG, run_id(day)))
            if all(states.get(run_id(day)) in {"success", "failed"} for day in DAYS):
                return
            if time.monotonic() > deadline:
                raise ServeError(f"the runs did not end within {RUN_SECONDS} s")
            time.sleep(1)


def refusal(rest: Rest, flights: Repository) -> str:
    """Why the merge form refuses the rejected day, as its run's log says."""
    form, look = "lakeops_merge", "look"
    rest.wait_for_dag(form, DAG_SECONDS)
    rest.unpause(form)
    rest.trigger(form, look, None, {"repository": "flights", "source": show.rejected(flights), "dry_run": True})
    deadline = time.monotonic() + RUN_SECONDS
    while rest.run_states(form).get(look) not in {"success", "failed"}:
        if time.monotonic() > deadline:
            raise ServeError(f"the form's run did not end within {RUN_SECONDS} s")
        time.sleep(1)
    said = (str(line.get("event", "")) for line in rest.log(form, look, "preview"))
    return next((line.partition("missing_check: ")[2] for line in said if "missing_check: " in line), "")


def run_id(day: str) -> str:
    """The id of the run that publishes a day."""
    return f"publish-{day}"


if __name__ == "__main__":
    sys.exit(main())
