"""Measure many small writes at once on a local disk: a new process for each verb, with everything forced to the disk.

::

    PYTHONPATH=.:tests python -m bench.disk                    200,000 entries, SQLite
    PYTHONPATH=.:tests python -m bench.disk --place DIRECTORY --entries 20000
    PYTHONPATH=.:tests python -m bench.disk --lakefs PROGRAM   lakeFS on the same disk, in the same run

Times are without imports and without opening the lake. lakeFS's server runs the whole time, and its verbs are asked for
through its HTTP API.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from bench import far, lakefs_side
from bench.dataset import Changes, DataSet
from bench.far_verbs import BY_NAME, MERGERS, MERGES, PUTS, PUTTERS, Verb, branch_off
from bench.sample import CODE

if TYPE_CHECKING:
    from lakeops import Repository

LOAD = 20_000


def _load_before(repo: Repository, data: DataSet, name: str, run: int) -> None:
    branch_off(repo, name, data.load(LOAD, run + 1), commit=False)


def _their_load_before(lakefs: lakefs_side.LakeFs, name: str, run: int) -> None:
    lakefs.branch(name)
    lakefs.stage(name, lakefs.data.load(LOAD, run + 1))


VERBS = (
    BY_NAME[f"{PUTS} puts of 1 kB, {PUTTERS} threads"],
    BY_NAME[f"{MERGES} one-file merges, {MERGERS} at once"],
    replace(
        BY_NAME["commit 1,000 clustered"],
        name=f"commit of a load of {LOAD:,}",
        before=_load_before,
        before_theirs=_their_load_before,
    ),
)


def run_verb(name: str, run: str) -> None:
    """Run a verb in this process, and print what it took in seconds."""
    from lakeops import Lake

    gc.disable()  # as the command line does
    with tempfile.TemporaryDirectory() as home:
        far._everything_imported(far._settings(home=Path(home)))
    with Lake.open(settings=far._settings()) as lake:
        repo = lake.repository("bench")
        begun, cpu = time.perf_counter(), time.process_time()
        _named(name).run(repo, run)
        wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(json.dumps({"wall": wall, "cpu": cpu}))


def _named(name: str) -> Verb:
    return next(verb for verb in VERBS if verb.name == name)


def measure(entries: int, repeats: int, place: Path, lakefs: Path | None) -> Iterator[str]:
    """A line for each verb: medians, and what they come from."""
    from lakeops import Lake

    data = DataSet(entries)
    settings = far._settings(home=place / "home")
    found: dict[str, str] = {}
    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("bench")
        catalog: Any = lake.catalog
        for which in data.batches():
            catalog.staging.put_staged("bench", "main", far._staged(data, which), started=catalog.now())
        repo.branch("main").commit("base")
        for verb in VERBS:
            samples = [_sample(verb, repo, data, place, again) for again in range(repeats)]
            found[verb.name] = ", ".join(
                f"{median(one[kind] for one in samples) * 1000:,.0f} ms {kind}" for kind in ("wall", "cpu")
            )
    if lakefs is not None:
        with lakefs_side.server(lakefs, place / "lakefs") as api:
            # It takes addresses only below the directory of its objects, spelled as absolute paths.
            theirs = lakefs_side.LakeFs(api, f"local://{place}/lakefs/objects/bench", data)
            everything = far._staged(data, np.arange(entries, dtype=np.uint64))
            theirs.stage("main", Changes(everything, 0))
            theirs.commit("main")
            for verb in VERBS:
                walls = [far.their_run(verb, theirs, again) for again in range(repeats)]
                found[verb.name] += f"; lakeFS {median(walls) * 1000:,.0f} ms wall"
    for name, told in found.items():
        yield f"{name}: {told}"


def _sample(verb: Verb, repo: Repository, data: DataSet, place: Path, again: int) -> dict[str, float]:
    run = f"run-{uuid.uuid4().hex[:12]}"
    verb.before(repo, data, run, again)
    environment = os.environ | {"PYTHONPATH": CODE, "LAKEOPS_HOME": str(place / "home")}
    command = [sys.executable, "-m", "bench.disk", "--verb", verb.name, "--run", run]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    taken: dict[str, float] = json.loads(told)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.disk", description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=200_000)
    far.add_arguments(parser)
    parser.add_argument("--place", type=Path, metavar="DIRECTORY", help="where on a disk; the temporary directory")
    arguments = parser.parse_args()
    if arguments.verb:
        run_verb(arguments.verb, arguments.run)
        return
    with tempfile.TemporaryDirectory(prefix="lakeops-disk-", dir=arguments.place) as place:
        for line in measure(arguments.entries, arguments.repeats, Path(place), arguments.lakefs):
            print(line)
    print(f"{arguments.entries:,} entries, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
