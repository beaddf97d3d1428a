"""Cost of each verb in the catalog: statements and transactions. A catalog may be as far away as a bucket.

The first test holds the table of docs/catalog.md.
"""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from threading import Event
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from support.far import Requests, open_far
from support.scenes import open_faulty
from support.statements import ours, statements, transactions

from lakeops import Lake, Repository, Settings, Split
from lakeops.model.errors import PreconditionFailed
from lakeops.ops import merge as merging
from lakeops.ops.iceberg import rebase as rebasing
from lakeops.ops.tables import TableFiles
from lakeops.ranges.read import RangeReader
from lakeops.testing import Faults, ManualClock

PAGE = Path(__file__).parents[2] / "docs" / "catalog.md"
Verb = Callable[[Repository], object]

VERBS: dict[str, Verb] = {
    "put": lambda repo: repo.branch("main").put("new", b"1"),
    "delete": lambda repo: repo.branch("main").delete("new"),
    "reset": lambda repo: repo.branch("main").reset(),
    "commit": lambda repo: repo.branch("dirty").commit("changes"),
    "commit with a key": lambda repo: repo.branch("dirty-too").commit("changes", idempotency_key="key"),
    "the same commit again": lambda repo: repo.branch("dirty-too").commit("changes", idempotency_key="key"),
    "merge": lambda repo: repo.merge("ahead", "main"),
    "merge of what is merged": lambda repo: repo.merge("ahead", "main"),
    "revert": lambda repo: repo.branch("ahead").revert("ahead"),
    "cherry-pick": lambda repo: repo.cherry_pick("side", "main"),
    "branch create": lambda repo: repo.create_branch("made", "main"),
    "branch delete": lambda repo: repo.delete_branch("made"),
    "tag create": lambda repo: repo.create_tag("v1", "main"),
    "stat": lambda repo: repo.ref("main").stat("f1"),
    "stat of a commit": lambda repo: repo.ref("main~1").stat("f1"),
    "a page of a listing": lambda repo: list(islice(repo.ref("main").list(), 10)),
    "read": lambda repo: repo.ref("main").read("f1"),
    "diff": lambda repo: list(repo.diff("side", "main")),
    "compare": lambda repo: list(repo.compare("side", "main")),
    "uncommitted": lambda repo: list(repo.branch("main").uncommitted()),
    "log": lambda repo: list(repo.log("main", amount=3)),
    "merge-base": lambda repo: repo.merge_base("side", "main"),
}


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog_settings(request, tmp_path):
    url = None if request.param == "sqlite" else request.getfixturevalue("empty_postgres_url")
    return Settings.load(home=tmp_path / "home", database_url=url, fsync=False)


def prepare(settings):
    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("repo", split=Split(2, 4, 8))
        for number in range(4):
            repo.branch("main").put(f"f{number}", b"1")
            repo.branch("main").commit(f"{number}")
        for name in ("dirty", "dirty-too", "ahead", "side"):
            repo.create_branch(name, "main~1")
            repo.branch(name).put(name, b"2")
        for name in ("ahead", "side"):
            repo.branch(name).commit(name)


def documented(dialect):
    """The page's table: transactions and statements of a verb."""
    section = PAGE.read_text().partition("## What a verb asks")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) \| (\d+) \|$", section, re.MULTILINE)
    column = ("sqlite", "postgresql").index(dialect)
    return {name: (int(trips), int(counts[column])) for name, trips, *counts in rows}


def test_the_page_lists_what_each_verb_asks(catalog_settings):
    """In a process that has opened the lake; the handles of repository and branch look for them, too."""
    prepare(catalog_settings)
    found = {}
    clock = ManualClock(datetime.now(UTC))
    with Lake.open(settings=catalog_settings, clock=clock) as lake:
        for name, verb in VERBS.items():
            clock.advance(seconds=1)  # a put or a delete within a moment of another one asks less
            with statements(lake.catalog) as seen, transactions(lake.catalog) as trips:
                verb(lake.repository("repo"))
            found[name] = (len(trips), len(ours(seen)))
        assert found == documented(lake.catalog.database.dialect.name)


@pytest.fixture
def counted(lake):
    """Calls something twice, and returns how many statements the second call sent: the process has its caches then."""

    def counted(work):
        work()
        with statements(lake.catalog) as seen:
            work()
        return len(ours(seen))

    return counted


def test_reading_a_path_of_a_branch_is_one(repo, fill, counted):
    fill(repo, "main", a="1")
    main = repo.branch("main")
    main.put("b", b"2")
    for path in ("a", "b"):
        assert counted(lambda path=path: main.stat(path)) == 1
    assert counted(lambda: main.exists("none")) == 1
    at_commit = repo.ref(main.commit_id)
    assert counted(lambda: at_commit.stat("a")) == 1


def test_a_page_of_a_branch_is_two(repo, fill, counted):
    fill(repo, "main", **{f"f{number}": "" for number in range(20)})
    main = repo.branch("main")
    assert counted(lambda: list(islice(main.list(), 5))) == 2
    assert counted(lambda: list(main.list(delimiter="/"))) == 2


def test_a_log_of_known_length_is_two(repo, counted):
    main = repo.branch("main")
    for number in range(40):
        main.commit(str(number), allow_empty=True)
    assert counted(lambda: list(repo.log("main", amount=40))) == 2
    assert counted(lambda: list(repo.log("main", amount=1))) == 2
    assert 2 < counted(lambda: list(repo.log("main"))) < 10


def test_a_new_branch_is_five(repo, counted):
    """On a server it is four: there, a move and its record in the audit are one statement."""
    names = iter("abcdef")
    assert counted(lambda: repo.create_branch(next(names), "main")) == 5


@pytest.fixture
def trips(repo, lake):
    """Runs something once; returns how many transactions read and how many write."""

    def trips(work):
        with transactions(lake.catalog) as seen:
            work()
        return seen.count("read"), seen.count("write")

    return trips


def test_transactions_of_what_is_written(repo, trips):
    main = repo.branch("main")
    assert trips(lambda: main.put("a", b"1")) == (1, 1)
    assert trips(lambda: main.delete("a")) == (1, 1), "the look before the put was a moment ago"
    main.put("a", b"1")
    assert trips(main.reset) == (1, 1)
    main.put("a", b"1")
    # Seal, read the sealed rows, ask for the time, publish, remove the rows.
    assert trips(lambda: main.commit("one")) == (2, 3)
    main.put("a", b"2")
    assert trips(lambda: main.commit("two", idempotency_key="key")) == (2, 3)
    assert trips(lambda: main.commit("two", idempotency_key="key")) == (1, 1)
    assert trips(lambda: repo.create_branch("dev", "main")) == (1, 1)
    assert trips(lambda: repo.create_tag("v1", "main")) == (1, 1)
    repo.branch("dev").put("b", b"1")
    repo.branch("dev").commit("three")
    # The branches and the source, the destination's rows, the merge base, the time, publish.
    assert trips(lambda: repo.merge("dev", "main", idempotency_key="merge")) == (4, 1)
    assert trips(lambda: repo.merge("dev", "main", idempotency_key="merge")) == (2, 0)
    assert trips(lambda: repo.merge("dev", "main")) == (3, 0)
    assert trips(lambda: repo.delete_branch("dev")) == (0, 1)


def test_transactions_of_what_is_read(repo, trips, fill):
    for number in range(3):
        fill(repo, "main", a=str(number))
    main = repo.branch("main")
    repo.create_branch("dev", "main~1")
    assert trips(lambda: main.stat("a")) == (1, 0)
    assert trips(lambda: repo.ref("main~1").stat("a")) == (1, 0)
    assert trips(lambda: list(main.list())) == (1, 0)
    assert trips(lambda: list(main.uncommitted())) == (1, 0)
    assert trips(lambda: list(repo.log("main", amount=4))) == (1, 0)
    assert trips(lambda: list(repo.diff("main~1", "main"))) == (1, 0)
    assert trips(lambda: list(repo.compare("dev", "main"))) == (2, 0)
    assert trips(lambda: repo.merge_base("dev", "main")) == (1, 0)


@pytest.mark.parametrize("threads", [1, 8])
def test_puts_within_a_moment_check_once(lake, threads):
    main = lake.create_repository("other").branch("main")
    with transactions(lake.catalog) as seen, ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda number: main.put(f"p{number}", b"x"), range(40)))
    assert seen.count("read") == 1
    assert seen.count("write") <= 40
    assert {item.path for item in main.list()} == {f"p{number}" for number in range(40)}


def test_what_a_batch_holds_is_linked_with_the_next_put(repo, trips):
    main = repo.branch("main")
    with main.batch() as batch:
        for number in range(30):
            batch.put(f"b{number}", b"x")
        main.put("first", b"x")
        assert trips(lambda: main.put("a", b"x")) == (0, 1), "the check was a moment ago"
        assert len(list(main.list())) == 32


def test_a_first_attempt_costs_no_transaction_more(catalog_settings):
    """The queue is for those who lost a race."""
    faults = Faults()
    with open_faulty(catalog_settings, faults) as lake:
        repo = lake.create_repository("repo")
        repo.create_branch("dev")
        repo.branch("dev").put("a", b"")
        faults.revive()
        repo.branch("dev").commit("one")
        repo.merge("dev", "main")
        counted = {name: faults.counts[name] for name in ("seal", "publish", "enqueue", "dequeue")}
        assert counted == {"seal": 1, "publish": 2, "enqueue": 0, "dequeue": 0}


def test_a_page_costs_the_same_after_many_refusals(repo, fill, counted):
    fill(repo, "main", same="0")
    repo.create_branch("dev")
    fill(repo, "dev", more="1")
    main = repo.branch("main")
    main.put("same", b"changed")
    before = counted(lambda: next(main.list()))
    for number in range(30):
        main.put("same", f"changed {number}".encode())
        with pytest.raises(PreconditionFailed, match="uncommitted"):
            repo.merge("dev", "main")
    assert counted(lambda: next(main.list())) == before


def test_folders_of_a_branch_take_one_look_at_the_staging_area(repo, fill, counted):
    main = repo.branch("main")
    fill(repo, "main", **{f"{folder:02}/{name}": "" for folder in range(30) for name in "ab"})
    main.put("05/c", b"")
    assert counted(lambda: list(main.list(delimiter="/"))) == 2, "the branch, and its rows"


@pytest.mark.parametrize(
    ("limit", "most", "puts", "size", "links"),
    [("MOST_OBJECTS", 20, 50, 1, 3), ("MOST_BYTES", 100, 3, 60, 2), ("MOST_OBJECTS", 20, 0, 1, 0)],
)
def test_a_batch_links_in_few_transactions(settings, monkeypatch, limit, most, puts, size, links):
    monkeypatch.setattr(f"lakeops.ops.batcher.{limit}", most)
    faults = Faults()
    with open_faulty(settings, faults) as lake:
        with lake.create_repository("repo").branch("main").batch() as batch:
            for number in range(puts):
                batch.put(f"f{number:03}", b"x" * size)
        assert (faults.counts["put_staged"], faults.counts["put"] >= puts) == (links, True)


class Opened:
    """Counts the ranges that readers open."""

    def __init__(self, monkeypatch):
        self.files: list[str] = []
        method = RangeReader.open

        def call(reader, row):
            self.files.append(row.file)
            return method(reader, row)

        monkeypatch.setattr(RangeReader, "open", call)


def test_ranges_that_commits_share_are_not_opened(repo, monkeypatch):
    main = repo.branch("main")
    for number in range(200):
        main.put(f"o{number:03}", b"1")
    main.commit("all")
    for number in range(20):
        main.put(f"o{number * 10:03}", b"2")
        main.commit(f"change {number}")
    ranges = len(repo._ctx.metarange(main.head))
    assert ranges > 20
    opened = Opened(monkeypatch)
    found = list(main.blame())
    assert len({one.commit.id for one in found}) == 21
    # Each range once for its rows, and one of either side for each commit that changed one.
    assert len(opened.files) <= ranges + 2 * 20
    opened.files.clear()
    assert [one.commit.message for one in main.history("o100")] == ["change 10", "all"]
    assert len(opened.files) <= 2, "one range as it is, and as it was before"
    opened.files.clear()
    part = list(main.blame("o10"))
    assert [one.path for one in part] == [f"o10{number}" for number in range(10)]
    assert len(opened.files) <= 16, "only the ranges of the prefix, before and after the one change there"


def test_an_import_again_writes_no_range_that_stands(repo, tmp_path):
    (tmp_path / "source").mkdir()
    for number in range(30):
        (tmp_path / "source" / f"{number:02}").write_text("old")
    main, ranges = repo.branch("main"), Path(repo.storage_namespace.removeprefix("file://"), "_lakefs/ranges")
    main.import_objects((tmp_path / "source").as_uri(), "raw", "first")
    before = {*ranges.iterdir()}
    (tmp_path / "source" / "29").write_text("changed")
    main.import_objects((tmp_path / "source").as_uri(), "raw", "second")
    assert 1 <= len({*ranges.iterdir()} - before) <= 6
    assert len(before) > 6


@pytest.mark.parametrize("remote", [False, True])
def test_a_read_makes_no_more_requests_than_the_store_needs(endpoint_of, buckets, tmp_path, remote):
    data, endpoint = bytes(range(256)) * 1200, endpoint_of("moto")
    namespace = f"s3://{buckets(endpoint)}/{uuid4().hex}" if remote else None
    faults, chosen = Faults(), Settings.load(home=tmp_path / "home", s3_endpoint_url=endpoint, fsync=False)
    with open_faulty(chosen, faults) as lake:
        ref = lake.create_repository("repo", storage_namespace=namespace).branch("main")
        ref.put("f", data)
        ref.stat("f")
        faults.revive()
        assert ref.read("f") == data
        assert faults.counts == {"get": 1}
        faults.revive()
        with ref.open("f") as file:
            assert file.read() == data
        assert faults.counts == {"get_range" if remote else "open": 1}


def test_a_merge_reads_nothing_far_in_its_turn(tmp_path, monkeypatch):
    """It reads its source while another thread has the turn. What others wrote lies on this machine."""
    settings = Settings.load(home=tmp_path / "home", fsync=False, disk_cache=tmp_path / "kept", disk_cache_mb=64)
    requests, is_ready, read_ahead = Requests(), Event(), merging._read_ahead
    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("repo", split=Split(2, 4, 8))
        for number in range(30):
            repo.branch("main").put(f"f{number:02}", b"1")
        repo.branch("main").commit("base")
        for name in ("one", "two"):
            repo.create_branch(name, "main").put(f"f{name}", b"2")
            repo.branch(name).commit(name)

    def read(*args):
        read_ahead(*args)
        is_ready.set()

    monkeypatch.setattr(merging, "_read_ahead", read)
    with open_far(settings, requests) as lake, ThreadPoolExecutor(1) as pool:
        repo = lake.repository("repo")
        assert len([*repo.ref("one").list()]) == 31
        waiting = []

        def let_another_wait(_):
            waiting.append(pool.submit(repo.merge, "two", "main", on_head=lambda _: requests.rounds.clear()))
            assert is_ready.wait(60), "the other merge reads while it waits"

        repo.merge("one", "main", on_head=let_another_wait)
        assert waiting[0].result().reference
    assert {request.partition(" ")[0] for asked in requests.rounds for request in asked} == {"put"}


@pytest.mark.parametrize("tables", [1, 3])
def test_a_merge_reads_seven_files_of_each_table_and_one_diff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: int
) -> None:
    """Manifest lists and manifests: those that a table shares with the merge base are read once."""
    rows = pa.table({"amount": pa.array([1], pa.int64())})
    with Lake.open(settings=Settings.load(home=tmp_path, fsync=False)) as lake:
        repo = lake.create_repository("repo")

        def catalog(ref: str) -> Catalog:
            properties = {"py-catalog-impl": "lakeops.iceberg.RefCatalog", "lakeops.home": str(tmp_path)}
            return load_catalog("repo", **properties, warehouse=f"lakefs://repo/{ref}")

        catalog("main").create_namespace("web")
        for number in range(tables):
            catalog("main").create_table(f"web.t{number}", rows.schema).append(rows)
        repo.branch("main").commit("Tables")
        repo.create_branch("dev")
        for ref in ("dev", "main"):
            for number in range(tables):
                catalog(ref).load_table(f"web.t{number}").append(rows)
            repo.branch(ref).commit("Append")
        read, diffs, files = TableFiles.read, rebasing.diff_batches, list[str]()
        found = []
        monkeypatch.setattr(TableFiles, "read", lambda self, url, most: (files.append(url), read(self, url, most))[1])
        monkeypatch.setattr(
            rebasing, "diff_batches", lambda *args, **more: (found.append(more), diffs(*args, **more))[1]
        )
        repo.preview_merge("dev", "main", tables="rebase")
        assert (len(files), len(found)) == (7 * tables, 1)
