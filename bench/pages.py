"""What each page takes on a large repository: time, memory, statements, rows and requests.

::

    PYTHONPATH=.:tests python -m bench.pages                    1M objects, 10,000 branches, 50,000 commits, 1M staged
    PYTHONPATH=.:tests python -m bench.pages --home DIRECTORY   build there once, and measure again later
    PYTHONPATH=.:tests python -m bench.pages --scale 100        a hundredth of all of it

Objects, what two commits differ in, and what is staged are written by lakeops. Branches and the rest of history are
written in bulk through the catalog's own tables, as ``bench.year`` does it. Each page is made in a process of its own:
once where nothing of the repository is remembered, then five times more. Memory is what the first time adds at most.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import pyarrow as pa
from sqlalchemy import update
from support.statements import ours, statements

from bench.year import MINUTE, store
from lakeops import Commit, Lake, Repository, Settings
from lakeops.catalog.records import commit_values
from lakeops.catalog.tables import BRANCH, COMMIT, REFLOG, TAG
from lakeops.model.clock import Ids, SystemClock, unix_seconds
from lakeops.model.ids import make_commit

NAME = "large"
CHANGED = 1_000
FOLDER = 1_000
REPEATS = 5
BATCH = 5_000


class Size(NamedTuple):
    """How much there is."""

    objects: int
    branches: int
    commits: int
    staged: int


FULL = Size(1_000_000, 10_000, 50_000, 1_000_000)


def rows(numbers: range, mark: str) -> pa.Table:
    """Objects elsewhere, a thousand a folder."""
    count = len(numbers)
    return pa.table(
        {
            "path": [f"events/day={number // FOLDER:05}/part-{number % FOLDER:04}.parquet" for number in numbers],
            "physical_address": [f"s3://elsewhere/{mark}/{number}" for number in numbers],
            "checksum": [f"{mark}-{number}" for number in numbers],
            "size_bytes": [4096] * count,
            "mtime": [1_700_000_000] * count,
        }
    )


def build(lake: Lake, size: Size) -> None:
    """The repository."""
    repo = lake.create_repository(NAME)
    main = repo.branch("main")
    for start in range(0, size.objects, 250_000):
        main.stage(rows(range(start, min(start + 250_000, size.objects)), "first"))
    main.put(FIRST, b"origin,delay\nEWR,5\n", content_type="text/csv")
    loaded = main.commit("load all")
    step = max(1, size.objects // 10)
    for start in range(0, size.objects, step):  # changes in ten places
        main.stage(rows(range(start, min(start + CHANGED // 10, size.objects)), "second"))
    main.put(FIRST, b"origin,delay\nEWR,5\nJFK,-2\n", content_type="text/csv")
    changed = main.commit("load more")
    fill(repo, loaded, changed, size)
    repo.create_tag("loaded", loaded.id)
    work = repo.create_branch("work")
    for start in range(0, size.staged, 250_000):
        work.stage(rows(range(start, min(start + 250_000, size.staged)), "third"))
    repo.gc.set_rules({"default_retention_days": 30, "branches": [{"branch_id": "main", "retention_days": 90}]})
    repo.gc.mark()
    small = lake.create_repository("small").branch("main")
    for contents in (b"a,b\n1,2\n", b"a,b\n1,3\n"):
        small.put("a.csv", contents)
        small.commit("one of the two")
    small.put("b.csv", contents)


def fill(repo: Repository, loaded: Commit, head: Commit, size: Size) -> None:
    """A history of merges, and branches with one commit of their own all over it."""
    catalog: Any = repo._ctx.catalog
    draw, ids, now = random.Random(1), Ids(), unix_seconds(catalog.now())
    line = [head]
    left = size.commits - size.branches
    pending: dict[Any, list[dict[str, Any]]] = {COMMIT: [], REFLOG: [], BRANCH: [], TAG: []}

    def flush() -> None:
        catalog.database.write(lambda conn: store(conn, {table: some for table, some in pending.items() if some}))
        for some in pending.values():
            some.clear()

    def commit(parents: list[Commit], message: str, at: int, like: Commit) -> Commit:
        made = make_commit(
            parents=parents, committer="ada", message=message, metadata={"airflow_dag_id": "ingest"}, creation_date=at,
            meta_range_id=like.meta_range_id, meta_range_file=like.meta_range_file,
            meta_range_digest=like.meta_range_digest,
        )  # fmt: skip
        pending[COMMIT].append(commit_values(repo.id, made))
        return made

    def moved(ref: str, old: str | None, new: str, at: int) -> None:
        pending[REFLOG].append(
            {"repository_id": repo.id, "kind": "branch", "ref": ref, "old": old, "new": new, "action": "commit",
             "actor": "ada", "at": at}
        )  # fmt: skip

    for number in range(0, left, 2):  # a side branch, merged at once
        at = now - (left - number) * MINUTE
        tip = line[-1]
        side = commit([tip], f"load {number}", at, loaded)
        line.append(commit([tip, side], f"publish {number}", at + 1, head))
        moved("main", tip.id, line[-1].id, at)
        if number % BATCH == 0:
            flush()
    for number in range(size.branches):
        name = f"dag-{number:05}"
        own = commit([draw.choice(line)], f"work {number}", now - draw.randrange(left) * MINUTE, loaded)
        pending[BRANCH].append(
            {"repository_id": repo.id, "name": name, "commit_id": own.id, "staging_token": ids.new(),
             "sealed_tokens": [], "resets": 0, "sealed_resets": 0, "intents": []}
        )  # fmt: skip
        moved(name, None, own.id, now)
        pending[TAG].append({"repository_id": repo.id, "name": f"v{number:05}", "commit_id": draw.choice(line).id})
        if number % BATCH == 0:
            flush()
    flush()
    move = update(BRANCH).where(BRANCH.c.repository_id == repo.id, BRANCH.c.name == "main")
    catalog.database.write(lambda conn: store(conn, {}, move.values(commit_id=line[-1].id)))


FIRST = "events/day=00500/part-0500.csv"
PAGES: dict[str, str] = {
    "repositories": "/",
    "audit of the lake": "/_audit",
    "branches": "/large",
    "branches, a later page": "/large?after=dag-07000",
    "tags, a later page": "/large/tags?after=v07000",
    "search, found": "/large/search?q=publish",
    "search, nothing found": "/large/search?q=nothing+has+this",
    "history": "/large/ref/main",
    "history, a later page": "/large/ref/main?from=@old",
    "commit, 1,000 changes": "/large/commit/main",
    "commit, everything new": "/large/commit/loaded",
    "objects, root": "/large/tree/main",
    "objects of a folder": "/large/tree/main?prefix=events/",
    "objects, a later page": "/large/tree/main?prefix=events/day%3D00500/&after=events/day%3D00500/part-0500.csv",
    "object": f"/large/object/main?path={FIRST}",
    "objects of a branch, 1M staged": "/large/tree/work?prefix=events/",
    "not committed, 1M rows": "/large/uncommitted/work",
    "not committed, a later page": f"/large/uncommitted/work?after={FIRST}",
    "who wrote a folder": "/large/blame/main?prefix=events/day%3D00500/",
    "versions of an object": f"/large/versions/main?path={FIRST}",
    "compare, since the merge base": "/large/diff?left=main&right=dag-00001",
    "compare, either way": "/large/diff?left=main&right=dag-00001&two_way=true",
    "compare, everything differs": "/large/diff?left=loaded~1&right=main&two_way=true",
    "compare, a later page": "/large/diff?left=loaded~1&right=main&two_way=true&prefix=events/&after=" + FIRST,
    "change of an object": f"/large/change?before=loaded&after=main&path={FIRST}",
    "garbage collection": "/large/gc",
    "mirrors": "/large/mirror",
    "checks": "/large/integrity",
    "audit": "/large/audit",
}


WARM = (
    "/",
    "/small",
    "/small/ref/main",
    "/small/commit/main",
    "/small/tree/main",
    "/small/object/main?path=a.csv",
    "/small/uncommitted/main",
    "/small/blame/main",
    "/small/versions/main?path=a.csv",
    "/small/diff?left=main~1&right=main",
    "/small/change?before=main~1&after=main&path=a.csv",
    "/small/gc",
)
"""Pages of another repository, which load the program."""


def measure(home: str, path: str) -> dict[str, float]:
    """One page, in this process."""
    from starlette.testclient import TestClient

    from lakeops.web.app import application

    with Lake.open(home=home) as lake, TestClient(application(lake), base_url="http://127.0.0.1") as client:
        large = lake.repository(NAME)
        path = path.replace("@old", large.ref("main~100").commit_id)
        for page in WARM:
            client.get(page).raise_for_status()
        gc.collect()  # what loading the program left is no work of the page
        Path("/proc/self/clear_refs").write_text("5")
        before = _memory("VmRSS")
        with statements(lake.catalog) as seen:
            begun, cpu = perf_counter(), process_time()
            answer = client.get(path)
            cold, cpu = perf_counter() - begun, process_time() - cpu
        memory = _memory("VmHWM") - before
        if answer.status_code != 200:
            raise SystemExit(f"{path}: {answer.status_code} {answer.text[-2000:]}")
        times = []
        for _ in range(REPEATS):
            begun = perf_counter()
            client.get(path)
            times.append(perf_counter() - begun)
    return {
        "cold": cold * 1000, "cpu": cpu * 1000, "again": min(times) * 1000, "memory": memory / 1024,
        "statements": len(ours(seen)), "bytes": len(answer.content),
    }  # fmt: skip


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    """Build, and measure each page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", help="where the repository is, or shall be built")
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--only", default="", help="pages whose names hold this")
    parser.add_argument("--page", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.page:
        print(json.dumps(measure(given.home, PAGES[given.page])))
        return
    with ExitStack() as stack:
        home = given.home or stack.enter_context(tempfile.TemporaryDirectory())
        if not (Path(home) / "catalog.db").exists():
            begun = perf_counter()
            with Lake.open(settings=Settings.load(home=home, fsync=False), clock=SystemClock()) as lake:
                build(lake, Size(*(number // given.scale for number in FULL)))
            print(f"built in {perf_counter() - begun:.0f} s")
        print(f"{'':34}{'cold ms':>9}{'CPU ms':>9}{'again ms':>9}{'MB':>7}{'statements':>12}{'kB':>6}")
        for name in PAGES:
            if given.only not in name:
                continue
            command = [sys.executable, "-m", "bench.pages", "--home", home, "--page", name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{name:34}{done.stderr.strip().splitlines()[-1][:300]}")
                continue
            one = json.loads(done.stdout)
            numbers = (
                f"{one['cold']:9.0f}{one['cpu']:9.0f}{one['again']:9.0f}{one['memory']:7.0f}{one['statements']:12.0f}"
            )
            print(f"{name:34}{numbers}{one['bytes'] / 1000:6.0f}", flush=True)


if __name__ == "__main__":
    main()
