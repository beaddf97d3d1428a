"""How long it takes to find out who wrote what: ``python -m bench.blame OBJECTS COMMITS``.

Commits all objects at once, then a hundred neighbours of them at a random place in each of the other commits. Each verb
then runs on a lake that was just opened.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterable

import pyarrow as pa

from lakeops import Branch, Lake, Settings

CHANGED = 100


def _stage(branch: Branch, numbers: range, mark: int) -> None:
    branch.stage(
        pa.table(
            {
                "path": [f"d/{number:08}" for number in numbers],
                "physical_address": [f"s3://elsewhere/x/{number}" for number in numbers],
                "checksum": [f"{mark}-{number}" for number in numbers],
                "size_bytes": [1] * len(numbers),
                "mtime": [1_700_000_000] * len(numbers),
            }
        )
    )


def _build(settings: Settings, objects: int, commits: int) -> None:
    draw = random.Random(1)
    with Lake.open(settings=settings) as lake:
        main = lake.create_repository("measured").branch("main")
        _stage(main, range(objects), 0)
        main.commit("all")
        for number in range(1, commits):
            start = draw.randrange(objects - CHANGED)
            _stage(main, range(start, start + CHANGED), number)
            main.commit(f"change {number}")


def _measure(settings: Settings, name: str) -> None:
    with Lake.open(settings=settings) as lake:
        main = lake.repository("measured").branch("main")
        run: dict[str, Iterable[object]] = {
            "blame": main.blame(),
            "blame of 100 objects": main.blame("d/000012"),
            "history of one": main.history("d/00001234"),
        }
        begun, cpu = time.perf_counter(), time.process_time()
        found = sum(1 for _ in run[name])
        took, cpu = time.perf_counter() - begun, time.process_time() - cpu
        sys.stdout.write(f"{name}: {found:,} records, {took:.2f} s, {cpu:.2f} s of CPU\n")


def main() -> None:
    """Build, and measure each verb."""
    objects, commits = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as home:
        settings = Settings.load(home=home, fsync=False)
        _build(settings, objects, commits)
        for name in ("blame", "blame of 100 objects", "history of one"):
            _measure(settings, name)


if __name__ == "__main__":
    main()
