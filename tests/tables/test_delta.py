"""Delta Lake's own writers and readers (delta-rs) on branches: no row is lost, and conflicts are the format's own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from lakeops import Branch, Lake, Repository
from lakeops.gateway.app import serving
from lakeops.model.errors import MergeConflict
from lakeops.model.records import StrategyName

Options = dict[str, str]


def sales(*amounts: int, day: int = 1) -> pa.Table:
    return pa.table({"day": pa.array([day] * len(amounts), pa.int32()), "amount": pa.array(amounts, pa.int64())})


def at(ref: str, options: Options, table: str = "sales") -> DeltaTable:
    return DeltaTable(f"s3://shop/{ref}/{table}", storage_options=options)


def amounts(ref: str, options: Options, table: str = "sales") -> list[int]:
    return sorted(at(ref, options, table).to_pyarrow_table()["amount"].to_pylist())


def append(ref: str, rows: pa.Table, options: Options, table: str = "sales") -> None:
    write_deltalake(f"s3://shop/{ref}/{table}", rows, mode="append", partition_by=["day"], storage_options=options)


@pytest.fixture
def published(shop: Repository, options: Options) -> Repository:
    append("main", sales(1, 2), options)
    shop.branch("main").commit("Create the table")
    return shop


def test_a_table_is_read_at_any_ref(published: Repository, options: Options) -> None:
    published.create_tag("v1", "main")
    append("main", sales(3, day=2), options)
    assert amounts("main", options) == [1, 2, 3]
    assert amounts("main@", options) == [1, 2]
    commit = published.branch("main").commit("Append").id
    assert amounts(commit, options) == amounts("main", options) == [1, 2, 3]
    assert amounts("main~1", options) == amounts("v1", options) == [1, 2]
    with pytest.raises(Exception, match="is no branch"):
        append("v1", sales(4), options)


def test_writers_at_once_lose_no_row(published: Repository, options: Options) -> None:
    threads = 4
    meet = threading.Barrier(threads)

    def write(number: int) -> None:
        meet.wait()
        append("main", sales(100 + number, day=number), options)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(threads)))
    assert amounts("main", options) == [1, 2, 100, 101, 102, 103]
    log = [entry.path for entry in published.branch("main").list("sales/_delta_log/")]
    assert [path[-6:] for path in log] == [f"{version}.json" for version in range(threads + 1)]


def test_writers_who_contradict_get_delta_s_own_conflict(published: Repository, options: Options) -> None:
    first, second = at("main", options), at("main", options)
    first.delete("amount = 1")
    with pytest.raises(CommitFailedError, match="concurrent transaction deleted data"):
        second.delete("amount = 1")
    assert amounts("main", options) == [2]


def test_appends_on_two_branches_conflict_in_the_merge(published: Repository, options: Options) -> None:
    published.create_branch("dev")
    append("dev", sales(10, day=2), options)
    published.branch("dev").commit("dev")
    append("main", sales(20, day=3), options)
    published.branch("main").commit("main")
    with pytest.raises(MergeConflict) as conflict:
        published.merge("dev", "main")
    assert conflict.value.conflicts == ["sales/_delta_log/00000000000000000001.json"]
    assert amounts("main", options) == [1, 2, 20]
    assert amounts("dev", options) == [1, 2, 10]
    # Once more on what main is now: nothing is lost.
    published.create_branch("again")
    new = at("dev", options).to_pyarrow_table(filters=[("day", "=", 2)])
    append("again", new, options)
    published.branch("again").commit("again")
    published.merge("again", "main")
    assert amounts("main", options) == [1, 2, 10, 20]


def clean(branch: Branch, options: Options) -> None:
    """Let a checkpoint take the place of all files of the log before it."""
    at(branch.id, options).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    for amount in (21, 22):
        append(branch.id, sales(amount), options)
    table = at(branch.id, options)
    table.create_checkpoint()
    table.cleanup_metadata()


def write_anew(branch: Branch, options: Options) -> None:
    branch.delete_prefix("sales/")
    append(branch.id, sales(77), options)


Write = Callable[[Branch, Options], object]
CHANGES: dict[str, Write] = {
    "append": lambda branch, options: append(branch.id, sales(10), options),
    "clean": clean,
    "drop": lambda branch, _: branch.delete_prefix("sales/"),
    "write anew": write_anew,
}


@pytest.mark.parametrize("strategy", [None, "source-wins", "dest-wins"])
@pytest.mark.parametrize(
    "pair", ["append, clean", "clean, append", "append, drop", "drop, append", "append, write anew"]
)
def test_no_merge_makes_a_log_of_two(
    published: Repository, options: Options, pair: str, strategy: StrategyName
) -> None:
    """Both sides changed the table, at different files of the log, or at more of them than a strategy settles."""
    published.create_branch("dev")
    for branch, change in zip(("dev", "main"), pair.split(", "), strict=True):
        CHANGES[change](published.branch(branch), options)
        published.branch(branch).commit(change)
    head = published.branch("main").commit_id
    for ask in (published.preview_merge, published.merge):
        with pytest.raises(MergeConflict, match="table sales: both sides changed its Delta log") as conflict:
            ask("dev", "main", strategy=strategy)
        assert {path.rpartition("/")[0] for path in conflict.value.conflicts} == {"sales/_delta_log"}
    assert published.branch("main").commit_id == head


def test_picks_and_reverts_leave_no_gap_in_a_log(published: Repository, options: Options) -> None:
    published.create_branch("dev")
    for amount in (10, 11):
        append("dev", sales(amount), options)
        published.branch("dev").commit("Append")
    with pytest.raises(MergeConflict):
        published.cherry_pick("dev", "main")
    with pytest.raises(MergeConflict):
        published.branch("dev").revert("dev~1")
    published.cherry_pick("dev~1", "main")
    published.merge("dev", "main")
    assert amounts("main", options) == [1, 2, 10, 11]
    published.branch("dev").revert("dev")
    assert amounts("dev", options) == [1, 2, 10]


def test_a_merge_brings_tables_whole(published: Repository, options: Options) -> None:
    published.create_branch("dev")
    append("dev", sales(10, day=2), options)
    at("dev", options).delete("amount = 1")
    append("dev", sales(30), options, "refunds")
    published.branch("dev").commit("dev")
    append("main", sales(5), options, "visits")  # another table does not touch these
    published.branch("main").commit("main")
    published.merge("dev", "main")
    assert amounts("main", options) == [2, 10]
    assert amounts("main", options, "refunds") == [30]
    assert amounts("main", options, "visits") == [5]


def test_maintenance_keeps_what_other_refs_need(published: Repository, options: Options) -> None:
    for day in range(2, 5):
        append("main", sales(day, day=day), options)
    table = at("main", options)
    table.optimize.compact()
    table.create_checkpoint()
    gone = table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    published.branch("main").commit("Compact")
    assert amounts("main", options) == [1, 2, 2, 3, 4]
    assert amounts("main~1", options) == [1, 2]
    assert isinstance(gone, list)


HELD = """
import sys
from deltalake import DeltaTable, write_deltalake
from lakeops import Lake
from lakeops.gateway.app import serving
import pyarrow as pa

rows = pa.table({"value": [1, 2]})
with Lake.open() as lake, serving(lake, write=True) as options:
    lake.create_repository("shop")
    place = "s3://shop/main/t"
    told = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(place, rows, storage_options=options, configuration=told)
    write_deltalake(place, rows, mode="append", storage_options=options)
    table = DeltaTable(place, storage_options=options)
    print(WORK)
"""


@pytest.mark.parametrize(
    ("work", "wanted"),
    [
        ("len(table.history())", "2"),
        ("DeltaTable.is_deltatable(place, options), DeltaTable.is_deltatable(place + '2', options)", "True False"),
        ("table.restore(0) and table.version()", "2"),
        ("table.repair()['files_removed']", "[]"),
        ("table.generate()", "None"),
        ("table.load_cdf(0).read_all().num_rows", "4"),
    ],
)
def test_verbs_that_hold_python_s_lock_finish(tmp_path: Path, work: str, wanted: str) -> None:
    """delta-rs waits in them for the gateway without letting another thread of the process run."""
    environment = {**os.environ, "LAKEOPS_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", HELD.replace("WORK", work)]
    # The wait that this must not end in is three minutes long.
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert (done.stdout.strip(), done.returncode) == (wanted, 0), done.stderr


@pytest.mark.parametrize("way", ["end", "kill"])
def test_the_gateway_of_serving_ends_with_its_parent(tmp_path: Path, way: str) -> None:
    program = """
import os, signal, sys
from lakeops import Lake
from lakeops.gateway.app import serving
with Lake.open() as lake, serving(lake) as options:
    print(options["aws_endpoint_url"].rpartition(":")[2], flush=True)
    if sys.stdin.readline() == "kill\\n":
        os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "LAKEOPS_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=pipe, stdout=pipe, text=True) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        port = int(one.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            one.stdin.write(way + "\n")
            one.stdin.flush()
            with suppress(ConnectionResetError):  # it may end before it has taken the connection
                assert client.recv(1) == b""
        assert one.wait(60) == (0 if way == "end" else -9)
    with pytest.raises(ConnectionRefusedError):
        for _ in range(10_000):
            socket.create_connection(("127.0.0.1", port), timeout=60).close()


def test_the_gateway_of_serving_is_of_this_package(tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark puts a part of lakeops, which its workers need, on the path of a driver."""
    part = tmp_path / "part" / "lakeops"
    part.mkdir(parents=True)
    (part / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(part.parent), *sys.path])
    with serving(lake) as options:
        assert options["aws_endpoint_url"]
