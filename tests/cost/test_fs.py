"""Cost of reads over fsspec: statements and requests do not grow with how often a program asks for a file."""

import io
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.far import Requests, open_far
from support.statements import ours, statements

from lakeops import Settings
from lakeops.fs import LakeopsFileSystem


@pytest.fixture
def fs(repo):
    return LakeopsFileSystem(home=str(repo._ctx.settings.home))


def _days(repo, files):
    with repo.branch("main").batch() as batch:
        for day in range(files):
            sink = io.BytesIO()
            pq.write_table(pa.table({"n": [day, 1]}), sink)
            batch.put(f"t/day={day:03}/part.parquet", sink.getvalue())


def _sum(fs, glob):
    import duckdb

    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        return connection.sql(f"SELECT sum(n) FROM 'lakefs://{glob}'").fetchall()[0][0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_statements_do_not_grow_with_the_files_that_duckdb_reads(repo, fs, monkeypatch):
    """DuckDB lists twice, and asks for each file six times."""
    monkeypatch.setattr("lakeops.fs.MOVING_SECONDS", 3600)
    _days(repo, 60)
    commit = repo.branch("main").commit("days").id
    asked = {}
    for ref in ("main", commit, "main@"):
        for glob in ("t/day=00*/*.parquet", "t/*/*.parquet"):
            fs.invalidate_cache()
            fs.info(f"repo/{ref}")
            with statements(fs.lake.catalog) as seen:
                _sum(fs, f"repo/{ref}/{glob}")
            asked[ref, glob] = len(ours(seen))
    for ref in ("main", commit, "main@"):
        assert asked[ref, "t/*/*.parquet"] == asked[ref, "t/day=00*/*.parquet"] <= 22


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_small_file_far_away_is_one_request_however_often_it_is_opened(tmp_path):
    settings = Settings.load(home=tmp_path / "home", fsync=False)
    requests = Requests()
    with open_far(settings, requests) as lake:
        repo = lake.create_repository("repo")
        _days(repo, 20)
        commit = repo.branch("main").commit("days").id
        fs = LakeopsFileSystem(lake=lake)
        requests.rounds.clear()
        assert _sum(fs, f"repo/{commit}/t/*/*.parquet") == sum(range(20)) + 20
        asked = Counter(request for round_ in requests.rounds for request in round_ if "_lakefs" not in request)
        # DuckDB opens each file to plan, and again to read it; the first one also between its two listings.
        assert {request.split()[0] for request in asked} == {"get"}
        assert len(asked) == 20
        assert asked.total() <= 20 + 1


def test_what_was_told_is_told_again_until_something_is_written_or_time_passes(repo, fs, monkeypatch):
    passed = [0.0]
    monkeypatch.setattr("lakeops.fs.stopwatch", lambda: lambda begun=passed[0]: passed[0] - begun)
    main = repo.branch("main")
    main.put("a/x", b"one")
    commit = main.commit("one").id
    for ref in ("main", commit):
        fs.ls(f"repo/{ref}/a")
        with statements(fs.lake.catalog) as seen:
            assert fs.info(f"repo/{ref}/a/x")["size"] == 3
            assert fs.cat_file(f"repo/{ref}/a/x") == b"one"
        assert not ours(seen)
    # A write of this process, through any lake.
    main.put("a/x", b"other")
    assert fs.info("repo/main/a/x")["size"] == 5
    assert fs.cat_file("repo/main/a/x") == b"other"
    main.delete("a/x")
    assert not fs.exists("repo/main/a/x")
    # Another process's write, of which this one knows nothing.
    main.put("a/x", b"1")
    assert fs.info("repo/main/a/x")["size"] == 1
    monkeypatch.setattr("lakeops.catalog.database.Database.writes", lambda _: 0)
    fs.invalidate_cache()
    fs.ls("repo/main/a")
    main.put("a/x", b"12")
    assert fs.info("repo/main/a/x")["size"] == 1
    passed[0] += 1.1
    assert fs.info("repo/main/a/x")["size"] == 2
    assert fs.info(f"repo/{commit}/a/x")["size"] == 3
    with statements(fs.lake.catalog) as seen:
        passed[0] += 30
        assert fs.info(f"repo/{commit}/a/x")["size"] == 3
        assert not ours(seen)
        passed[0] += 31
        assert fs.info(f"repo/{commit}/a/x")["size"] == 3
        assert ours(seen)


def test_reading_leaves_pandas_alone(repo):
    """Its import would be a quarter of the CPU of a program that reads a few files."""
    _days(repo, 60)
    commit = repo.branch("main").commit("days").id
    _days(repo, 2)
    code = f"""
import sys, fsspec
fs = fsspec.filesystem("lakefs", home={str(repo._ctx.settings.home)!r})
for ref in ("main", "{commit}"):
    names = fs.glob(f"repo/{{ref}}/t/*/*.parquet")
    assert len(names) == len(fs.ls(f"repo/{{ref}}/t")) == 60
    fs.invalidate_cache()
    assert fs.info(names[7])["size"] == len(fs.cat_file(names[7]))
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
