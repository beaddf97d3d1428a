"""Refs as a file system: the libraries that people use open, list and write them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from fsspec.tests.abstract import AbstractFixtures
from fsspec.tests.abstract.get import AbstractGetTests
from fsspec.tests.abstract.open import AbstractOpenTests
from fsspec.tests.abstract.pipe import AbstractPipeTests
from fsspec.tests.abstract.put import AbstractPutTests

from lakeops import Lake, Repository, Settings, Split
from lakeops.fs import LakeopsFileSystem


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Lake.open(settings=Settings.load(home=tmp_path / "home", fsync=False)) as lake:
        yield lake.create_repository("repo", split=Split(2, 4, 8))


@pytest.fixture
def fs(repo: Repository, tmp_path: Path) -> LakeopsFileSystem:
    return LakeopsFileSystem(home=str(tmp_path / "home"))


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
    pd.DataFrame({"n": range(1000)}).to_parquet(fs.open("repo/main/t.parquet", "wb"))
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
