"""Heavy verbs on a standalone Spark cluster with two workers, beside the same verbs in one process.

::

    PYTHONPATH=.:tests python -m bench.cluster                    1M entries on local files; writes docs/spark.md
    PYTHONPATH=.:tests python -m bench.cluster --size 5M --s3     in a bucket of radosgw, or of LAKEOPS_TEST_S3_ENDPOINT

Each verb runs in a process and a session of its own. What the session took is counted apart. The objects of the large
listings are made up: a scan of the store says that they are there. All else is real. Both engines have to give the same
ids, marks, findings and counts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyspark
from services.spark import SPARK_CONF, cluster
from support.references import spark_addresses as addresses

from bench.dataset import DataSet
from bench.far import server
from bench.lake_side import _forget_peak
from bench.made_up import TOGETHER, pretend, write
from bench.page import BEGIN, DOCS, END, put
from bench.run import machine
from bench.sample import CODE
from lakeops import Lake, Settings
from lakeops.engine.spark.engine import SparkEngine
from lakeops.model.arrow import ENTRY_SCHEMA
from lakeops.model.clock import Ids
from lakeops.model.records import IdempotentRequest, Split
from lakeops.ops.gc.unreferenced import SLICE
from lakeops.ops.mirror.copying import MOST_OBJECTS
from lakeops.ops.publish import CommitPlan, publish, snapshot
from lakeops.ranges.build import build
from lakeops.ranges.range_file import write_metarange
from lakeops.store.base import StoreSettings
from lakeops.store.s3.client import client
from lakeops.testing import ManualClock

SIZES = {"100k": 100_000, "1M": 1_000_000, "5M": 5_000_000}
ROLES = ("driver", "jvm", "executors", "workers")  # driver and workers are Python, the others JVMs
CLUSTERS, START = (8, 32, 100), 7.0  # cores, and the seconds of a start as the choice of the engine counts them
FORMULA = "start + driver + JVM + (executors + workers) / min(cores, pieces)"
COSTS = ("local", "driver", "JVM", "executors", "workers", "driver's share", "Spark / local", "start")
HEADINGS = ("verb", *COSTS, "jobs", "tasks", "MB")
PEAKS = "peaks: local, driver, JVM, executor, worker"
VERBS = ("import", "commit", "merge", "gc mark", "fsck", "mirror replicate")


class Side:
    """One engine's lake: a repository of ``size`` entries, a source to import, and a repository with real objects."""

    def __init__(self, lake: Lake, root: str, size: int) -> None:
        self.lake, self.root, self.size, self.data = lake, root, size, DataSet(size)
        self.namespace, self.source = f"{root}/namespace", f"{root.rpartition('/')[0]}/source"
        # Paths of a source, and addresses of which every sixth is nobody's.
        self.names = [f"{lake.settings.home}/{name}.arrow" for name in ("addresses", "paths")]
        shown = dict(zip((self.namespace, self.source), self.names, strict=True))
        pretend(type(lake.stores().at(self.namespace)), shown, [self.source])

    def make(self) -> None:
        """The repositories, in process, and the names of the listings."""
        for source, count, names in ((True, self.size, self.data.paths), (False, self.size * 6 // 5, addresses)):
            pages = (np.arange(at, at + TOGETHER, dtype=np.uint64) for at in range(0, count, TOGETHER))
            write(self.names[source], map(names, pages))
        repo = self.lake.create_repository("bench", storage_namespace=self.namespace)
        ctx = repo._ctx
        every, field = self.data.batches(), ENTRY_SCHEMA.field(1)
        tables = (self.data.entries(which).set_column(1, field, addresses(which)) for which in every)
        base = build(ctx.store, tables, Split(), "base")
        head, file = snapshot(ctx, "main"), write_metarange(ctx.store, base, "base")
        publish(ctx, IdempotentRequest("import", "main"), head, CommitPlan(file, (head.head,), "base", {}), None)
        for name in ("dev", "imported"):
            repo.create_branch(name, "main")
        for name, share, version in (("dev", 20, 5), ("main", 10, 1)):
            rows = self.data.random(self.size // share, version).staged
            self.lake.catalog.staging.put_staged("bench", name, rows, started=self.lake.catalog.now())
        repo.branch("dev").commit("changes")
        self.lake.create_repository("objects", storage_namespace=f"{self.root}/objects")
        store = self.lake.stores().at(f"{self.root}/objects")
        for number in range(self.size // 250):
            store.put(f"data/2026010100/{number:024}", b"%1000d" % number)

    def verbs(self) -> dict[str, tuple[int, Callable[[], Any]]]:
        """For each verb the number of pieces that it can be divided into, and what it does."""
        repo, ranges = self.lake.repository("bench"), self.size // 2_800

        there = (f"{self.root}/objects", f"{self.root}/mirror")
        return {
            "import": (ranges, lambda: repo.branch("imported").import_objects(self.source, "in/", "import").id),
            "commit": (ranges, lambda: repo.branch("main").commit("changes").id),
            "merge": (ranges, lambda: repo.merge("dev", "main").reference),
            "gc mark": (self.size * 6 // 5 // SLICE + 1, lambda: repo.gc.mark().digest),
            # Files of ranges that the borders of tasks left over are other ones on another engine.
            "fsck": (ranges, lambda: sorted(str(one) for one in repo.fsck() if one.kind != "unreferenced_ranges")),
            "mirror replicate": (self.size // 250 // MOST_OBJECTS + 1, lambda: self.lake.replicate(*there).to_json()),
        }


class Usage:
    """CPU seconds and peaks (MB) of all processes by role. The driver's peak is that since its mark was set back."""

    def __init__(self, workers: list[int]) -> None:
        mine, (self.cpu, self.peak) = psutil.Process(), (dict.fromkeys(ROLES, 0) for _ in range(2))
        parts = [("driver", mine), *(("jvm", one) for one in mine.children(recursive=True) if "java" in one.name())]
        for one in (one for pid in workers for one in psutil.Process(pid).children(recursive=True)):
            parts.append(("executors" if "java" in one.name() else "workers", one))
        for role, one in parts:  # of a worker's processes those that have ended count, too
            self.cpu[role] += sum(one.cpu_times()[: 4 if role == "workers" else 2])
            status = Path(f"/proc/{one.pid}/status").read_text()
            self.peak[role] = max(self.peak[role], int(re.search(r"VmHWM:\s+(\d+)|$", status)[1] or 0) // 1024)

    def since(self, before: Usage) -> dict[str, float]:
        """CPU seconds by role since another moment."""
        return {role: self.cpu[role] - before.cpu[role] for role in ROLES}


def run_verb(name: str, root: str, home: str, size: str, master: str = "", *pids: str) -> None:
    """Run a verb in this process, and print what it took. Without a master it runs in process."""
    workers = [int(pid) for pid in pids]
    settings = Settings.load(home=home, engine="spark" if master else "local", fsync=False, committer="bench")
    with Lake.open(settings=settings, clock=ManualClock(), ids=Ids(random.Random(name))) as lake:
        side = Side(lake, root, int(size))
        if name == "make":
            sys.exit(side.make())
        pieces, act = side.verbs()[name]
        before = Usage(workers)
        if master:
            lake._engine = SparkEngine(master, conf=SPARK_CONF)
            assert lake._engine.cores == len(workers)
        _forget_peak()
        started, answer, after = Usage(workers), act(), Usage(workers)
        counts = _counts(lake._engine) if master else {}
    cpu = {"start": started.since(before), "cpu": after.since(started), "peak": after.peak}
    print(json.dumps({"answer": answer, "pieces": pieces} | cpu | counts))


def _counts(engine: Any) -> dict[str, int]:
    """Jobs and tasks of the session, without its first, and the bytes that the tasks' results had."""
    context = engine._connected()._context
    context._jsc.sc().listenerBus().waitUntilEmpty()
    told = context._jsc.sc().statusStore()
    none = context._gateway.new_array(context._jvm.double, 0)
    listed = told.jobsList(None), told.stageList(None, False, False, none, None)
    jobs, stages = ([some.apply(number) for number in range(some.size())] for some in listed)
    tasks, size = sum(job.numTasks() for job in jobs), sum(stage.resultSize() for stage in stages)
    return {"jobs": len(jobs) - 1, "tasks": tasks - 1, "result_bytes": size}


def measure(size: int, *, s3: bool, only: Container[str] = VERBS) -> dict[str, Any]:
    """What each verb took on both engines, as a JSON document."""
    rows: dict[str, Any] = {}
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakeops-bench-")))
        what, above = "local files", place.as_uri()
        if s3:
            what, endpoint = stack.enter_context(server())
            os.environ["LAKEOPS_S3_ENDPOINT_URL"], bucket = endpoint, f"bench-{uuid.uuid4().hex[:12]}"
            client(StoreSettings(endpoint)).create_bucket(Bucket=bucket)
            above = f"s3://{bucket}/root"
        roots = {side: f"{above}/{side}" for side in ("local", "spark")}
        running = stack.enter_context(cluster(place))
        workers = [worker.process.pid for worker in running.workers]

        def run(verb: str, side: str) -> dict[str, Any]:
            print(f"{verb}, {side} ...", file=sys.stderr, flush=True)
            arguments = [verb, roots[side], str(place / f"home-{side}"), str(size)]
            arguments += [running.url, *map(str, workers)] if side == "spark" and verb != "make" else []
            command, env = [sys.executable, "-m", "bench.cluster", "run", *arguments], os.environ | {"PYTHONPATH": CODE}
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
            return json.loads(done.stdout) if done.stdout else {}

        for side in roots:
            run("make", side)
        offered = VERBS if s3 else VERBS[1:]  # an import of files runs in process
        for verb in (verb for verb in offered if verb in only):
            rows[verb] = {side: run(verb, side) for side in roots} | {"load": os.getloadavg()[0]}
            same = [rows[verb][side].pop("answer") for side in roots]
            assert same[0] == same[1], f"{verb}: {same}"
    return {"size": size, "what": what, "machine": machine(), "rows": rows}


def table(result: dict[str, Any]) -> Iterator[str]:
    """The lines of the page."""
    rows, here, loads = result["rows"], result["machine"], [row["load"] for row in result["rows"].values()]
    yield (
        f"{result['size']:,} entries on {result['what']}, {here['cores']} cores, load {min(loads):.1f} to "
        f"{max(loads):.1f}, Python {here['python']}, Spark {pyspark.__version__}. CPU seconds:\n"
    )
    yield f"| {' | '.join((*HEADINGS, PEAKS))} |\n|---{'|--:' * len(HEADINGS)}|"
    for verb, row in rows.items():
        local, spark = row["local"]["cpu"]["driver"], row["spark"]
        cpu, start = list(spark["cpu"].values()), sum(spark["start"].values())
        cells = [*(f"{one:.1f}" for one in (local, *cpu)), f"{cpu[0] / sum(cpu):.0%}"]
        cells += [f"{one:.1f}" for one in (sum(cpu) / local, start)]
        cells += [str(spark["jobs"]), str(spark["tasks"]), f"{spark['result_bytes'] / 1e6:.1f}"]
        peaks = map(str, (row["local"]["peak"]["driver"], *spark["peak"].values()))
        yield f"| {' | '.join([verb, *cells, ', '.join(peaks)])} |"
    yield f"\nSeconds, by `{FORMULA}`, with {START:.0f} s for the start; *here* is `local / 2`:\n"
    yield f"| verb | pieces | here | {' | '.join(f'{one} cores' for one in CLUSTERS)} |\n|---|--:|--:|--:|--:|--:|"
    for verb, row in rows.items():
        (driver, jvm, executors, python), pieces = row["spark"]["cpu"].values(), row["spark"]["pieces"]
        there = (START + driver + jvm + (executors + python) / min(cores, pieces) for cores in CLUSTERS)
        seconds = (f"{one:.1f}" for one in (row["local"]["cpu"]["driver"] / 2, *there))
        yield f"| {' | '.join([verb, str(pieces), *seconds])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="1M")
    parser.add_argument("--s3", action="store_true", help="in a bucket")
    parser.add_argument("--no-page", action="store_true", help="leave docs/ as it is")
    parser.add_argument("--only", choices=VERBS, nargs="+", help="these verbs, without the page")
    given = parser.parse_args()
    lines = [*table(measure(SIZES[given.size], s3=given.s3, only=given.only or VERBS))]
    print("\n".join(lines))
    if not (given.no_page or given.only):
        command = f"`make bench-spark SIZE={given.size}{' S3=1' if given.s3 else ''}`"
        put(DOCS / "spark.md", BEGIN, END, [f"{command}: {lines[0]}", *lines[1:]])


if __name__ == "__main__":
    run_verb(*sys.argv[2:]) if sys.argv[1:2] == ["run"] else main()
