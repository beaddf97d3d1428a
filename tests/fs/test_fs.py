"""Refs as a file system: the libraries that people use open, list and write them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from fsspec import AbstractFileSystem
from fsspec.tests.abstract import AbstractFixtures
from fsspec.tests.abstract.get import AbstractGetTests
from fsspec.tests.abstract.open import AbstractOpenTests
from fsspec.tests.abstract.pipe import AbstractPipeTests
from fsspec.tests.abstract.put import AbstractPutTests

from lakeops import Lake, Repository, Settings, Split
from lakeops.fs import LakeopsFileSystem
from lakeops.model.errors import Corrupted, InvalidInput


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Lake.open(settings=Settings.load(home=tmp_path / "home", fsync=False)) as lake:
        yield lake.create_repository("repo", split=Split(2, 4, 8))


@pytest.fixture
def fs(repo: Repository, tmp_path: Path) -> LakeopsFileSystem:
    return LakeopsFileSystem(home=str(tmp_path / "home"))


def test_the_other_scheme_opens_the_same(repo: Repository, fs: LakeopsFileSystem, tmp_path: Path) -> None:
    with fsspec.open("lakeops://repo/main/a", "wb", home=str(tmp_path / "home")) as file:
        file.write(b"1")
    assert repo.branch("main").read("a") == fs.cat("lakeops://repo/main/a") == fs.cat("lakefs://repo/main/a") == b"1"
    found, path = fsspec.url_to_fs("lakeops://team@repo/main/a")
    assert (found.conn_id, path) == ("team", "repo/main/a")


def test_an_option_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    """It would read another lake than the one that was meant."""
    with pytest.raises(InvalidInput, match="no option 'hme'; did you mean 'home'"):
        pd.read_csv("lakefs://repo/main/a.csv", storage_options={"hme": str(tmp_path)})
    with pytest.raises(InvalidInput, match="'s3_endpoint_url'; there are home, database_url"):
        fsspec.filesystem("lakefs", s3_endpoint_url="http://x")
    fsspec.filesystem("lakefs", home=str(tmp_path), use_listings_cache=False, skip_instance_cache=True)


def test_a_file_that_must_be_new_takes_no_other_one_s_place(repo: Repository, fs: LakeopsFileSystem) -> None:
    with pytest.raises(FileExistsError), fs.open("repo/main/a", "xb") as file:
        file.write(b"mine")
        repo.branch("main").put("a", b"theirs")
    assert repo.branch("main").read("a") == b"theirs"


# Each of the three leaves files to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_pandas_and_pyarrow_and_duckdb_read_a_ref(repo: Repository, fs: LakeopsFileSystem, tmp_path: Path) -> None:
    options = {"home": str(tmp_path / "home")}
    frame = pd.DataFrame({"day": [1, 2], "n": [10, 20]})
    frame.to_parquet("lakefs://repo/main/t/part.parquet", storage_options=options)
    repo.branch("main").commit("table")
    frame.iloc[:1].to_parquet("lakefs://repo/main/t/part.parquet", storage_options=options)
    assert len(pd.read_parquet("lakefs://repo/main/t/part.parquet", storage_options=options)) == 1
    assert len(pd.read_parquet("lakefs://repo/main@/t/part.parquet", storage_options=options)) == 2
    assert pq.read_table("repo/main~0/t/part.parquet", filesystem=fs)["n"].to_pylist() == [10, 20]
    dataset = pa.dataset.dataset("repo/main~0/t", filesystem=fs)
    assert dataset.to_table().num_rows == 2

    import duckdb

    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        rows = connection.sql("SELECT sum(n) FROM 'lakefs://repo/main~0/t/*.parquet'").fetchall()
        assert rows == [(30,)]


def _with_duckdb(fs: LakeopsFileSystem, path: str) -> object:
    import duckdb

    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        return connection.sql(f"SELECT sum(n) FROM 'lakefs://{path}'").fetchall()


READERS = {
    "pandas parquet": lambda fs, path: pd.read_parquet(path, filesystem=fs)["n"].sum(),
    "pandas csv": lambda fs, path: pd.read_csv(fs.open(path)),
    "pyarrow": lambda fs, path: pq.read_table(path, filesystem=fs),
    "pyarrow dataset": lambda fs, path: pa.dataset.dataset(path, filesystem=fs).to_table(),
    "duckdb": _with_duckdb,
    "fsspec": lambda fs, path: fs.cat_ranges([path], [0], [4], on_error="raise"),
}


# Each of them leaves files to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("cut", [0, 5, -1], ids=["empty", "short", "one byte short"])
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_no_library_reads_a_short_object(repo: Repository, fs: LakeopsFileSystem, read, cut: int) -> None:
    with fs.open("repo/main/t.parquet", "wb") as written:
        pd.DataFrame({"n": range(1000)}).to_parquet(written)
    file = Path(urlsplit(repo.ref("main").stat("t.parquet").physical_address).path)
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(Exception, match=r"t.parquet.* bytes, and .* were recorded"):
        read(fs, "repo/main/t.parquet")


def test_walking_a_repository(repo: Repository, fs: LakeopsFileSystem) -> None:
    fs.pipe_file("repo/main/a/b/c.txt", b"deep")
    fs.pipe_file("repo/main/top.txt", b"shallow")
    assert sorted(fs.ls("repo", detail=False)) == ["repo/main"]
    assert fs.ls("lakefs://repo/main", detail=False) == ["repo/main/a", "repo/main/top.txt"]
    assert fs.find("repo/main") == ["repo/main/a/b/c.txt", "repo/main/top.txt"]
    assert fs.glob("repo/main/a/**/*.txt") == ["repo/main/a/b/c.txt"]
    assert fs.isdir("repo/main/a")
    assert fs.isfile("repo/main/top.txt")
    assert fs.cat_file("repo/main/a/b/c.txt", start=1, end=3) == b"ee"
    assert fs.size("repo/main/top.txt") == 7
    assert fs.info("repo/main/top.txt")["checksum"] == fs.checksum("repo/main/top.txt") != ""
    assert fs.modified("repo/main/top.txt").tzinfo is not None
    fs.copy("repo/main/top.txt", "repo/main/copied.txt")
    fs.rm("repo/main/a", recursive=True)
    assert fs.find("repo/main") == ["repo/main/copied.txt", "repo/main/top.txt"]
    fs.mv("repo/main/copied.txt", "repo/main/moved.txt")
    assert fs.find("repo/main") == ["repo/main/moved.txt", "repo/main/top.txt"]


def test_a_move_loses_nothing(repo: Repository, fs: LakeopsFileSystem, monkeypatch) -> None:
    """What others put below a folder while it moves, what the move leaves out, and what moves to where it is."""
    main, copy = repo.branch("main"), LakeopsFileSystem.cp_file

    def cp_file(*args, **options) -> None:
        copy(*args, **options)
        main.put("a/late", b"late")
        main.put("a/1", b"later")

    for name in ("1", "2", "deep/er/3"):
        main.put(f"a/{name}", name.encode())
    fs.mv("lakefs://repo/main/a/2", "repo/main/a/2")
    assert main.read("a/2") == b"2"
    with monkeypatch.context() as patched:
        patched.setattr(LakeopsFileSystem, "cp_file", cp_file)
        fs.mv("repo/main/a", "repo/main/b", recursive=True, maxdepth=1)
    found = {item.path: main.read(item.path) for item in main.list()}
    assert found == {"a/1": b"later", "a/late": b"late", "a/deep/er/3": b"deep/er/3", "b/1": b"1", "b/2": b"2"}
    repo.create_branch("dev", source="main")
    fs.mv("repo/main/b", "repo/dev/b", recursive=True)
    fs.mv("repo/dev/b", "repo/dev/b/c", recursive=True)
    assert [item.path for item in main.list("b/")] == []
    assert [item.path for item in repo.ref("dev").list()] == ["b/c/1", "b/c/2"]
    with pytest.raises(FileNotFoundError):
        fs.mv("repo/main/a", "repo/main/z")


def test_errors_are_a_file_systems(repo: Repository, fs: LakeopsFileSystem) -> None:
    for path in ("repo/main/none", "repo/none/x", "none/main/x"):
        with pytest.raises(FileNotFoundError):
            fs.open(path)
        with pytest.raises(FileNotFoundError):
            fs.info(path)
        assert not fs.exists(path)
    repo.protect("main")
    with pytest.raises(PermissionError):
        fs.pipe_file("repo/main/x", b"")
    with pytest.raises(NotImplementedError):
        fs.open("repo/main/x", "ab")


def test_a_failed_write_is_dropped_and_a_transaction_is_all_or_nothing(repo: Repository, fs: LakeopsFileSystem) -> None:
    with pytest.raises(ZeroDivisionError), fs.open("repo/main/x", "wb") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert not fs.exists("repo/main/x")
    with fs.transaction:
        fs.pipe_file("repo/main/a", b"1")
        assert not fs.exists("repo/main/a")
    assert fs.exists("repo/main/a")
    with pytest.raises(ZeroDivisionError), fs.transaction:
        fs.pipe_file("repo/main/b", b"1")
        raise ZeroDivisionError
    assert not fs.exists("repo/main/b")


def test_the_protocol_is_registered(repo: Repository, tmp_path: Path) -> None:
    repo.branch("main").put("a.txt", b"found")
    with fsspec.open("lakefs://repo/main/a.txt", home=str(tmp_path / "home")) as file:
        assert file.read() == b"found"


class LakeopsFixtures(AbstractFixtures):
    """fsspec's own suite, on a branch."""

    @pytest.fixture
    def fs(self, fs: LakeopsFileSystem) -> LakeopsFileSystem:
        return fs

    @pytest.fixture
    def fs_path(self) -> str:
        return "repo/main"

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestOpen(AbstractOpenTests, LakeopsFixtures):
    pass


class TestPipe(AbstractPipeTests, LakeopsFixtures):
    pass


class TestGet(AbstractGetTests, LakeopsFixtures):
    pass


class TestPut(AbstractPutTests, LakeopsFixtures):
    pass


def test_a_remembered_object_that_is_gone_is_looked_up_anew(repo: Repository, fs: LakeopsFileSystem, monkeypatch):
    monkeypatch.setattr("lakeops.catalog.database.Database.writes", lambda _: 0)
    repo.branch("main").put("a", b"one")
    fs.info("repo/main/a")
    old = Path(urlsplit(repo.ref("main").stat("a").physical_address).path)
    repo.branch("main").put("a", b"another")
    old.unlink()
    assert fs.cat_file("repo/main/a") == b"another"


def test_small_objects_are_remembered_with_their_entries(repo: Repository, fs: LakeopsFileSystem, monkeypatch):
    monkeypatch.setattr("lakeops.fs.MOST_CONTENTS", 10)
    main = repo.branch("main")
    for name in "abc":
        main.put(name, name.encode() * 4)
    for path in [Path(urlsplit(entry.physical_address).path) for entry in main.list()]:
        fs.cat_file(f"repo/main/{path.read_text()[0]}")
        path.write_bytes(b"----")
    assert [fs.cat_file(f"repo/main/{name}") for name in "ab"] == [b"aaaa", b"bbbb"]
    with pytest.raises(Corrupted):
        fs.cat_file("repo/main/c")  # there was no room for it
    fs.invalidate_cache()
    with pytest.raises(Corrupted):
        fs.cat_file("repo/main/a")
    main.put("a", b"new")
    assert fs.cat_file("repo/main/a") == b"new"
    main.put("b", b"bbbb")
    with fs.open("repo/main/b", verify=False) as file:
        assert file.read() == b"bbbb"
    Path(urlsplit(main.stat("b").physical_address).path).write_bytes(b"****")
    with pytest.raises(Corrupted):
        fs.get(
            "repo/main/b", str(repo._ctx.settings.home / "b")
        )  # what nobody compared is not given to who asks for it


PATHS = ["a.txt", "a/b.txt", "a/c/d.txt", "a/c/e/f.txt", "a/g.txt", "b/c/d/e", "b/c/d/f", "c", "c/x", "\U0010ffff/é/z"]


def _walked(fs: LakeopsFileSystem, path: str, **options: object) -> dict[str, dict]:
    """What fsspec finds by a listing for each directory."""
    return AbstractFileSystem.find(fs, path, detail=True, **options)


@pytest.mark.parametrize("passed", [1, 1000])
def test_a_search_by_one_listing_finds_what_a_walk_finds(repo: Repository, fs: LakeopsFileSystem, monkeypatch, passed):
    monkeypatch.setattr("lakeops.fs._PASSED", passed)
    with repo.branch("main").batch() as batch:
        for path in PATHS:
            batch.put(path, path.encode())
    repo.branch("main").commit("c")
    repo.branch("main").put("a/c/staged.txt", b"")
    places = ["main", "main/a", "main/a/", "main/a.txt", "main/none", "main/c"]
    for where, depth, dirs in product(places, (None, 1, 2, 3, 4), (False, True)):
        path, options = f"lakefs://repo/{where}", {"maxdepth": depth, "withdirs": dirs}
        expected = _walked(fs, path, **options)
        if "repo/main/c" in expected:  # an object and a directory: info takes the object, as this does
            expected["repo/main/c"] = fs.info("repo/main/c")
        assert fs.find(path, detail=True, **options) == expected, (where, options)
        assert fs.find(path, **options) == sorted(expected)
    assert fs.find("repo/none") == []
    assert fs.find("repo", maxdepth=2) == sorted(f"repo/main/{path}" for path in PATHS if "/" not in path)
    with pytest.raises(ValueError, match="maxdepth"):
        fs.find("repo/main", maxdepth=0)
