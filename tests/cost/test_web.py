"""Cost of a page in the catalog and the store: counts, at two sizes, do not grow with the repository."""

import warnings
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa
import pytest

pytest.importorskip("starlette")

from sqlalchemy import event
from support.statements import ours, statements

from lakeops import Lake, Settings, Split
from lakeops.ops import history
from lakeops.testing import Faults, open_faulty
from lakeops.web import objects, pages
from lakeops.web.app import application

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
    "checks": "/large/integrity",
    "moves": "/large/moves",
    "audit": "/large/audit",
    "search": "/large/search?q=nothing+has+this",
}


class Cost(NamedTuple):
    """The cost of one page."""

    statements: int
    steps: int
    requests: int


def rows(count, mark):
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


def build(lake, size):
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
def steps(lake):
    """Counts tens of steps of SQLite's machine: what it reads and sorts, whatever the statement."""
    seen = [0]

    def step():
        seen[0] += 1
        return 0

    def count(connection, *_rest):
        connection.set_progress_handler(step, 10)

    def stop(connection, *_rest):
        connection.set_progress_handler(None, 0)

    engine = lake.catalog.database.engine
    event.listen(engine, "checkout", count)
    event.listen(engine, "checkin", stop)
    try:
        yield seen
    finally:
        event.remove(engine, "checkout", count)
        event.remove(engine, "checkin", stop)


def forget():
    """As in a new process."""
    pages._cache.clear()
    history._far.clear()


def visitor(lake):
    """A client of a lake's pages."""
    return TestClient(application(lake), base_url="http://127.0.0.1")


@contextmanager
def visiting(settings):
    """A lake that remembers nothing, a client of its pages, and the requests that its stores get from now on."""
    faults = Faults()
    with open_faulty(settings, faults) as lake, visitor(lake) as client:
        faults.revive()
        yield lake, client, faults.calls


def costs(home, size):
    """Of each page."""
    settings = Settings.load(home=home, fsync=False)
    with Lake.open(settings=settings) as lake:
        build(lake, size)
    found: dict[str, Cost] = {}
    for name, path in PAGES.items():
        forget()
        with visiting(settings) as (lake, client, calls):  # nothing is remembered of the page before
            with statements(lake.catalog) as seen, steps(lake) as done:
                answer = client.get(path)
            assert answer.status_code == 200, (name, answer.text)
            found[name] = Cost(len(ours(seen)), done[0], len(calls))
    return found


FEW = {
    pages: ("REFS", "COMMITS", "LISTED", "MOST_BRANCHES", "SEARCHED", "FOUND", "NAMED", "RECORDS"),
    objects: ("OBJECTS", "STAGED", "TRACED", "DEPTH"),
}
"""How much a page shows is made small, so that both repositories fill one."""
DOWN = {"branches", "compare"}
"""Pages that read history down to where refs parted, in a few statements."""


def test_what_a_page_costs_does_not_grow_with_the_repository(tmp_path, monkeypatch):
    for module, names in FEW.items():
        for name in names:
            monkeypatch.setattr(module, name, 5)
    monkeypatch.setattr(pages, "COUNTED", 100)
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


def test_a_list_of_repositories_takes_the_same_statements_for_one_and_for_many(tmp_path):
    """Heads, branches and checks come for all of a page at once. Sizes are read once, with no statement."""
    settings, taken = Settings.load(home=tmp_path, fsync=False), []
    for number in (1, 12):
        with Lake.open(settings=settings) as lake:
            for made in range(number):
                main = lake.create_repository(f"repo-{number}-{made}").branch("main")
                main.put("a", b"1")
                main.commit("load")
        forget()
        with visiting(settings) as (lake, client, calls):
            for _ in range(2):
                calls.clear()
                with statements(lake.catalog) as seen:
                    assert client.get("/").status_code == 200
                taken.append((len(ours(seen)), len(calls)))
    (one, read_one), (again, none), (many, read_many), (many_again, still_none) = taken
    assert one == again == many == many_again <= 4
    assert (none, still_none) == (0, 0)
    assert 13 <= read_many <= 13 * read_one


def test_what_was_summed_up_is_not_read_again(tmp_path):
    """Sums stay with the ids of their commits, for every later request of the process."""
    settings = Settings.load(home=tmp_path, fsync=False)
    with Lake.open(settings=settings) as lake:
        build(lake, 1)
    forget()
    for path in (PAGES["commit"], PAGES["compare"], PAGES["compare, either way"]):
        reads = []
        for _ in range(2):  # each time another lake, as Airflow's web server opens one for each request
            with visiting(settings) as (_, client, calls):
                assert client.get(path).status_code == 200
            reads.append(len(calls))
        assert reads[0] > 0, path
        assert reads[1] == 0, path


def test_folders_of_staged_rows_take_a_statement_each(tmp_path, monkeypatch):
    """However many rows are staged in each folder: a folder is passed over, not read."""
    monkeypatch.setattr(objects, "OBJECTS", 6)
    settings, taken = Settings.load(home=tmp_path, fsync=False), []
    with Lake.open(settings=settings) as lake:
        for name, size in (("few", 2), ("many", 40)):
            lake.create_repository(name).branch("main").stage(rows(FOLDER * size, "staged"))
        with visitor(lake) as client:
            for name in ("few", "many"):
                with statements(lake.catalog) as seen, steps(lake) as done:
                    assert "d0000/" in client.get(f"/{name}/tree/main").text
                taken.append((len(ours(seen)), done[0]))
    (few, steps_few), (many, steps_many) = taken
    assert few <= 5 + 3 * 2
    assert many <= 5 + 3 * 7, "two statements for each folder of the page, one for the first of the next"
    assert steps_many <= 7 * steps_few


def test_refs_far_apart_are_met_in_stretches(tmp_path, monkeypatch):
    """Commits from one down to what it shares with another are read thousands at a time, each of them once."""
    monkeypatch.setattr(history, "WALKED", 50)
    settings = Settings.load(home=tmp_path, fsync=False)
    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("repo")
        main = repo.branch("main")
        main.put("a", b"0")
        main.commit("first")
        repo.create_branch("old", "main").put("b", b"1")
        repo.branch("old").commit("of the old one")
        for number in range(120):
            main.commit(f"change {number}", allow_empty=True)
        counts = []
        for right in ("main~60", "old"):
            forget()
            with visitor(lake) as client:
                for _ in range(2):
                    with statements(lake.catalog) as seen:
                        assert client.get(f"/repo/diff?left=main&right={right}").status_code == 200
                    counts.append(sum("generation <=" in text for text in seen))
    assert counts[0] <= 4  # the other side has nothing of its own, so it is looked at the other way round too
    assert counts[2] <= 3, "not one for each of the 120 generations"
    assert counts[1] == counts[3] == 0, "the merge base of two commits never changes"
