"""What a page asks of the catalog and the store does not grow with the repository: counts, at two sizes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

pytest.importorskip("starlette")

from sqlalchemy import event
from support.statements import ours, statements

from lakeops import Lake, Settings, Split
from lakeops.testing import Faults, open_faulty
from lakeops.web import objects, pages, sums, upkeep
from lakeops.web.serve import application

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, about its client
    from starlette.testclient import TestClient

FOLDER = 50
PAGES = {
    "repositories": "/",
    "branches": "/large",
    "tags": "/large/tags",
    "history": "/large/ref/main",
    "history, further down": "/large/ref/main~15",
    "commit": "/large/commit/main~1",
    "objects": "/large/tree/main",
    "objects of a folder": "/large/tree/main?prefix=d0002/",
    "objects, a later page": "/large/tree/main?after=d0002/",
    "objects, staged ones too": "/large/tree/work?prefix=d0002/",
    "object": "/large/object/main?path=a.csv",
    "not committed": "/large/uncommitted/work",
    "not committed, a later page": "/large/uncommitted/work?after=d0003/",
    "who wrote it": "/large/blame/main?prefix=d0002/",
    "versions": "/large/versions/main?path=a.csv",
    "compare": "/large/diff?left=main&right=b0001",
    "compare, either way": "/large/diff?left=main~1&right=main&two_way=true",
    "change": "/large/change?before=main~1&after=main&path=a.csv",
    "garbage collection": "/large/gc",
    "mirrors": "/large/mirror",
    "checks": "/large/checks",
    "moves": "/large/moves",
    "audit": "/large/audit",
}


class Cost(NamedTuple):
    """What one page took."""

    statements: int
    steps: int
    requests: int


def rows(count: int, mark: str) -> pa.Table:
    """Objects that lie elsewhere."""
    numbers = range(count)
    return pa.table(
        {
            "path": [f"d{number // FOLDER:04}/{number % FOLDER:02}" for number in numbers],
            "physical_address": [f"s3://elsewhere/{mark}/{number}" for number in numbers],
            "checksum": [f"{mark}-{number}" for number in numbers],
            "size_bytes": [1] * count,
            "mtime": [1_700_000_000] * count,
        }
    )


def build(lake: Lake, size: int) -> None:
    """A repository of which everything grows with ``size``."""
    repo = lake.create_repository("large", split=Split(50, 100, 200))
    main = repo.branch("main")
    main.stage(rows(500 * size, "first"))
    main.put("a.csv", b"a\n1\n")
    main.commit("load all")
    for number in range(40 * size):
        repo.create_branch(f"b{number:04}", "main")
        repo.create_tag(f"v{number:04}", "main")
        if not number % 2:
            main.put("a.csv", f"a\n{number}\n".encode())
            main.commit(f"change {number}")
    repo.branch("b0001").put("b.csv", b"b")
    repo.branch("b0001").commit("of a branch")
    repo.create_branch("work").stage(rows(500 * size, "second"))
    repo.gc.mark()


@contextmanager
def steps(lake: Lake) -> Iterator[list[int]]:
    """Counts tens of steps of SQLite's machine: what it reads and sorts, whatever the statement."""
    seen = [0]

    def step() -> int:
        seen[0] += 1
        return 0

    def count(connection: Any, *_rest: Any) -> None:
        connection.set_progress_handler(step, 10)

    def stop(connection: Any, *_rest: Any) -> None:
        connection.set_progress_handler(None, 0)

    engine = lake.catalog.database.engine
    event.listen(engine, "checkout", count)
    event.listen(engine, "checkin", stop)
    try:
        yield seen
    finally:
        event.remove(engine, "checkout", count)
        event.remove(engine, "checkin", stop)


def costs(home: Path, size: int) -> dict[str, Cost]:
    """Of each page."""
    settings = Settings.load(home=home, fsync=False)
    with Lake.open(settings=settings) as lake:
        build(lake, size)
    found: dict[str, Cost] = {}
    for name, path in PAGES.items():
        for kept in (sums._known, sums._bases, sums._distances):
            kept.clear()
        faults = Faults()
        with open_faulty(settings, faults) as lake:  # nothing is remembered of the page before
            with TestClient(application(lake), base_url="http://127.0.0.1") as client:
                faults.revive()
                with statements(lake.catalog) as seen, steps(lake) as done:
                    answer = client.get(path)
                assert answer.status_code == 200, (name, answer.text)
            found[name] = Cost(len(ours(seen)), done[0], len(faults.calls))
    return found


FEW = {
    pages: ("REFS", "COMMITS"),
    objects: ("OBJECTS", "STAGED", "TRACED", "DEPTH"),
    upkeep: ("RECORDS",),
    sums: ("LISTED",),
}
"""How much a page shows is made small, so that both repositories fill one."""
DOWN = {"branches", "compare"}
"""Pages that read history down to where refs parted, in a few statements."""


def test_what_a_page_costs_does_not_grow_with_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in FEW.items():
        for name in names:
            monkeypatch.setattr(module, name, 5)
    monkeypatch.setattr(sums, "COUNTED", 100)
    small, large = (costs(tmp_path / str(size), size) for size in (1, 4))
    for name in PAGES:
        assert small[name].steps, "they are counted"
    grown = {
        name: (small[name], large[name])
        for name in PAGES
        if large[name].statements > small[name].statements + 4
        or (large[name].steps > 1.5 * small[name].steps + 700 and name not in DOWN)
        or large[name].requests > small[name].requests + 4
    }
    assert not grown
