"""A mirror that keeps up: a source that commits every second, unruly replication, and a reader who checks every head.

Two lakes and two storage namespaces in a temporary folder, and four processes: the source commits a day of flights
every second; the replicator copies its objects in any order, late, twice, metadata long before data; this process
syncs the mirror; the reader opens every table of every head that the mirror shows. All is checked, stopped, removed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lakeops import Lake, Mirror, Repository
from lakeops.model.mirrors import RefStatus

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PAUSE = 0.25
"""Seconds between two passes of the mirror; a schedule would leave a minute."""
CATCH_UP = 60
"""Seconds that the mirror may take, once the source has stopped, to show its last commit."""
MOST_LAG = 30
"""Seconds that the mirror may be behind while the source goes on."""

console = Console(highlight=False, soft_wrap=True)


@dataclass
class Tally:
    """What was seen."""

    seconds: float = 0.0
    caught_up: float = 0.0
    promotions: list[str] = field(default_factory=list)
    lag_commits: int = 0
    lag_seconds: int = 0
    missing: int = 0
    checked: list[dict[str, object]] = field(default_factory=list)

    def see(self, status: RefStatus) -> bool:
        """Take a pass into account; whether it moved the head."""
        moved = status.promoted is not None and status.promoted not in self.promotions[-1:]
        if moved:
            self.promotions.append(str(status.promoted))
        self.lag_commits = max(self.lag_commits, status.lag_commits or 0)
        self.lag_seconds = max(self.lag_seconds, status.lag_seconds)
        self.missing = max(self.missing, status.missing_objects)
        return moved


def main() -> int:
    """The demo: 0 when everything is as it should be."""
    parser = argparse.ArgumentParser(description="A source, an unruly replicator, a mirror and its reader.")
    parser.add_argument("--seconds", type=float, default=60, help="how long the source commits (60)")
    parser.add_argument("--seed", type=int, default=7, help="decides what the replicator does")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    for name in [name for name in os.environ if name.startswith("LAKEOPS_")]:
        del os.environ[name]
    os.environ["LAKEOPS_FSYNC"] = "false"
    with tempfile.TemporaryDirectory(prefix="lakeops-mirror-") as place:
        wrong = run(Path(place), given.seconds, given.seed)
    console.print(*(f"[red]wrong:[/] {line}" for line in wrong), sep="\n")
    if wrong:
        return 1
    console.print("[green]Everything is as it should be[/], and nothing is left behind.")
    return 0


def run(place: Path, seconds: float, seed: int) -> list[str]:
    """Let it go on for so long; what was wrong."""
    here, there, seen = place / "new-york", place / "frankfurt", place / "seen.jsonl"
    tally = Tally()
    with ExitStack() as stack:
        source = stack.enter_context(Lake.open(home=here))
        repo = source.create_repository("flights")
        mirror = stack.enter_context(Lake.open(home=there)).create_mirror("flights", source=source)
        console.print(f"The source keeps its objects in {repo.storage_namespace}")
        console.print(f"The mirror keeps its own in     {mirror.storage_namespace}\n")
        between = ("-m", "support.unruly", repo.storage_namespace, mirror.storage_namespace, str(seed))
        stack.enter_context(process(*between))
        with process(str(HERE / "reader.py"), str(there), out=seen) as reader:
            with process(str(HERE / "source.py"), str(here), str(seconds)) as writer:
                follow(tally, repo, mirror, writer)
            catch_up(tally, mirror)
        tally.checked = [json.loads(line) for line in seen.read_text().splitlines()]
        ended = {"source": writer.returncode, "reader": reader.returncode}
        summary(tally, repo, mirror)
        wrong = [*verdict(tally, repo, mirror)]
    return wrong + [f"the {name} ended with {code}" for name, code in ended.items() if code]


def follow(tally: Tally, repo: Repository, mirror: Mirror, writer: subprocess.Popen[str]) -> None:
    """Sync the mirror again and again while the source commits."""
    begun = time.monotonic()
    while writer.poll() is None:
        if not number_of(repo):
            begun = time.monotonic()
        status = mirror.sync()["main"]
        if tally.see(status) and len(tally.promotions) > 1:
            console.print(
                f"  {time.monotonic() - begun:4.0f} s  the source is at commit {number_of(repo)}, the mirror shows "
                f"{number_of(mirror)}: {status.lag_commits} behind, the oldest for {status.lag_seconds} s"
            )
        time.sleep(PAUSE)
    tally.seconds = time.monotonic() - begun


def catch_up(tally: Tally, mirror: Mirror) -> None:
    """Sync until the mirror shows the source's last commit, or it took too long."""
    stopped = time.monotonic()
    while not mirror.sync().caught_up and time.monotonic() < stopped + CATCH_UP:
        time.sleep(PAUSE)
    tally.see(mirror.status()["main"])
    tally.caught_up = time.monotonic() - stopped


@contextmanager
def process(*command: str, out: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process that ends when its input does: at the end of the ``with``, or when this one dies in whatever way."""
    path = os.pathsep.join(str(place) for place in (ROOT, ROOT / "tests", ROOT / "dags"))
    with ExitStack() as stack:
        started = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=stack.enter_context(out.open("w")) if out else subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for this process; the others end with their input
        )
        try:
            yield started
        finally:
            try:
                started.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


def number_of(repo: Repository) -> int:
    """How many commits the repository shows, its first, empty one left out."""
    return repo.ref("main").commit.generation - 1


def summary(tally: Tally, repo: Repository, mirror: Mirror) -> None:
    """Print what happened."""
    commits, shown = number_of(repo), len(tally.promotions) - 1
    table = Table(box=None, show_header=False, padding=(0, 3, 0, 0))
    rows = (
        ("the source committed", f"{commits} times in {tally.seconds:.0f} s"),
        ("the mirror's head moved", f"{shown} times; {commits - shown} commits were skipped on the way"),
        ("it was behind by at most", f"{tally.lag_commits} commits, {tally.lag_seconds} s"),
        ("it waited for at most", f"{tally.missing} objects at a time"),
        ("after the source stopped", f"it was up to date within {tally.caught_up:.1f} s"),
        (
            "the reader checked",
            f"{len(tally.checked)} heads: {total(tally, 'files'):,} files, {total(tally, 'rows'):,} rows",
        ),
        ("the mirror shows at last", f"{mirror.ref('main').commit.message!r}"),
    )
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(table)


def total(tally: Tally, what: str) -> int:
    """The sum of a number over all heads that the reader checked."""
    return sum(int(str(head[what])) for head in tally.checked)


def verdict(tally: Tally, repo: Repository, mirror: Mirror) -> Iterator[str]:
    """What is not as it should be."""
    for head in tally.checked:
        if head["wrong"]:
            yield f"the reader found in {str(head['head'])[:16]}: {head['wrong']}"
    if not tally.checked:
        yield "the reader saw no head"
    if mirror.ref("main").commit.id != repo.ref("main").commit.id:
        yield f"the mirror is not up to date {CATCH_UP} s after the source stopped"
    elif all(head["head"] != repo.ref("main").commit.id for head in tally.checked):
        yield "the reader did not see the last head"
    if tally.lag_seconds > MOST_LAG:
        yield f"the mirror was {tally.lag_seconds} s behind; {MOST_LAG} s is the most that this replicator explains"
    first_parents = {commit.id for commit in repo.log("main", first_parent=True)}
    if stray := [head for head in tally.promotions if head not in first_parents]:
        yield f"the mirror showed {stray[0][:16]}, which the source never did"


if __name__ == "__main__":
    sys.exit(main())
