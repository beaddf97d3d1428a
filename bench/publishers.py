"""Many publishers that merge into one branch without a pause: how long each waits, and whether one is left behind.

::

    PYTHONPATH=. python -m bench.publishers                                   32 processes, a minute, SQLite
    PYTHONPATH=. python -m bench.publishers --how threads --database-url postgresql+psycopg://user@host/name

``threads`` share a lake, as a program does; ``processes`` share nothing but the catalog and the store. The catalog must
have no repository ``publishers`` yet.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from lakeops import Lake, Repository, Settings

REPOSITORY = "publishers"


def merge_often(repo: Repository, name: str, until: float) -> list[float]:
    """How long each merge took, in seconds, of one publisher after the other until a time."""
    took: list[float] = []
    while not took or time.time() < until:
        branch = repo.branch(name)
        branch.put(f"{name}/{len(took)}", b"")
        branch.commit(f"{name} {len(took)}")
        begun = time.perf_counter()
        repo.merge(name, "main")
        took.append(time.perf_counter() - begun)
    return took


def _in_process(settings: Settings, until: float, name: str) -> list[float]:
    with Lake.open(settings=settings) as lake:
        return merge_often(lake.repository(REPOSITORY), name, until)


def processes(settings: Settings, names: list[str], seconds: float) -> list[list[float]]:
    """Each publisher is a process."""
    with multiprocessing.get_context("spawn").Pool(len(names)) as pool:
        pool.map(time.sleep, [0.0] * len(names))  # all have started
        return pool.map(partial(_in_process, settings, time.time() + seconds), names, chunksize=1)


def threads(settings: Settings, names: list[str], seconds: float) -> list[list[float]]:
    """Each publisher is a thread of one process."""
    with Lake.open(settings=settings) as lake, ThreadPoolExecutor(len(names)) as pool:
        repo, until = lake.repository(REPOSITORY), time.time() + seconds
        return list(pool.map(lambda name: merge_often(repo, name, until), names))


HOW: dict[str, Callable[[Settings, list[str], float], list[list[float]]]] = {
    "processes": processes,
    "threads": threads,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.publishers", description=__doc__.splitlines()[0])
    parser.add_argument("--how", choices=HOW, default="processes")
    parser.add_argument("--publishers", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--database-url", help="the catalog; SQLite when left out")
    arguments = parser.parse_args()
    names = [f"dev{number:02}" for number in range(arguments.publishers)]
    with tempfile.TemporaryDirectory(prefix="lakeops-publishers-") as place:
        settings = Settings.load(home=Path(place), committer="bench", database_url=arguments.database_url)
        with Lake.open(settings=settings) as lake:
            repo = lake.create_repository(REPOSITORY)
            for name in names:
                repo.create_branch(name)
        found = HOW[arguments.how](settings, names, arguments.seconds)
        with Lake.open(settings=settings) as lake:
            published = sum(1 for _ in lake.repository(REPOSITORY).log("main", first_parent=True)) - 1
    waits = sorted(wait for some in found for wait in some)
    counts = sorted(map(len, found))
    mean = sum(waits) / len(waits)
    print(
        f"{arguments.publishers} {arguments.how}: {len(waits):,} merges, {published:,} commits, {counts[0]} to "
        f"{counts[-1]} of each; a merge took {mean:.2f} s on average and {waits[-1]:.2f} s at most, "
        f"{waits[-1] / mean:.1f} times the mean"
    )


if __name__ == "__main__":
    main()
