"""Refs as a file system: the libraries that people use open, list and write them."""

from __future__ import annotations

import os
import pickle
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, product
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
from fsspec.tests.abstract.copy import AbstractCopyTests
from fsspec.tests.abstract.get import AbstractGetTests
from fsspec.tests.abstract.open import AbstractOpenTests
from fsspec.tests.abstract.pipe import AbstractPipeTests
from fsspec.tests.abstract.put import AbstractPutTests

from lakeops import Lake, Repository, Settings, Split
from lakeops.fs import LakeopsFileSystem
from lakeops.model.errors import Corrupted, FileMissing, InvalidInput, InvalidPath


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
    """Other programs put below a folder while it moves: some paths stay, and some move to where they are."""
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


LOOKS = {
    "exists": lambda fs, _: fs.exists("repo/main/t/z/9"),
    "isfile": lambda fs, _: fs.isfile("repo/main/t/z/9"),
    "isdir": lambda fs, _: fs.isdir("repo/main/t/z"),
    "ls": lambda fs, _: fs.ls("repo/main/t"),
    "find": lambda fs, _: fs.find("repo/main/t"),
    "find to a depth": lambda fs, _: fs.find("repo/main", maxdepth=2),
    "glob": lambda fs, _: fs.glob("repo/main/t/*"),
    "walk": lambda fs, _: [*fs.walk("repo/main")],
    "du": lambda fs, _: fs.du("repo/main"),
    "cat": lambda fs, _: fs.cat("repo/main/t", recursive=True),
    "get": lambda fs, place: fs.get("repo/main/t", f"{place}/got", recursive=True),
    "copy": lambda fs, _: fs.copy("repo/main/t", "repo/main/u", recursive=True),
    "move": lambda fs, _: fs.mv("repo/main/t", "repo/main/u", recursive=True),
    "remove": lambda fs, _: fs.rm("repo/main/t/z/9"),
    "open a new file": lambda fs, _: fs.open("repo/main/t/z/9", "xb"),
    "pyarrow": lambda fs, _: pa.dataset.dataset("repo/main/t", filesystem=fs, format="parquet").files,
    "pyarrow opens": lambda fs, _: pq.read_table("repo/main/t/z/9", filesystem=fs),
    "pandas": lambda _, place: pd.read_parquet("lakefs://repo/main/t", storage_options={"home": f"{place}/home"}),
}


@pytest.mark.parametrize(
    ("look", "lost"), [*((look, "ranges") for look in LOOKS), ("exists", "metarange"), ("find", "metarange")]
)
def test_a_lost_file_of_metadata_is_an_error_and_not_an_absent_path(
    repo: Repository, fs: LakeopsFileSystem, tmp_path: Path, look: str, lost: str
) -> None:
    """Programs write where they find nothing, and take the listing that they get for the whole."""
    written = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1]}), written)
    with repo.branch("main").batch() as batch:
        for name in ("1", "2", "3", "4", "5", "6", "7", "8", "z/9"):
            batch.put(f"t/{name}", written.getvalue().to_pybytes())
    commit = repo.branch("main").commit("table")
    ranges = [row.key for row in repo._ctx.metarange(commit).rows(0, 9)]
    assert len(ranges) > 1
    lose(repo, [f"_lakefs/metaranges/{commit.meta_range_file}"] if lost == "metarange" else ranges[1:])
    with pytest.raises(FileMissing, match="lakeops fsck"):
        LOOKS[look](fs, tmp_path)
    assert not (tmp_path / "got").exists()
    assert repo._ctx.catalog.staging.has_staged("repo", "main") is False


def test_a_lost_object_is_an_error_and_not_an_absent_path(repo: Repository, fs: LakeopsFileSystem) -> None:
    entry = repo.branch("main").put("a", b"1")
    Path(urlsplit(entry.physical_address).path).unlink()
    for mode in ("rb", "ab"):
        with pytest.raises(FileMissing, match="the contents of object 'a' are missing"):
            fs.open("repo/main/a", mode).close()


def lose(repo: Repository, keys: list[str]) -> None:
    for key in keys:
        Path(urlsplit(repo.storage_namespace).path, key).unlink()


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
        fs.open("repo/main/x", "r+b")


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
        return True  # those that this file system was asked to make


class TestFiles(AbstractOpenTests, AbstractPipeTests, AbstractGetTests, AbstractPutTests, LakeopsFixtures):
    pass


class TestCopy(AbstractCopyTests, LakeopsFixtures):  # apart, since puts have a test of the same name
    # It makes a directory in a place where it copies and deletes, and then looks for that.
    test_copy_directory_without_files_with_same_name_prefix = None


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
    """The entries that fsspec finds by a listing for each directory."""
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


_ROWS = "(select i % 3 as part, i as value from range(7) rows(i))"
_INTO_NEW_FOLDERS = {
    "parquet": f"copy {_ROWS} to '{{}}' (format parquet, partition_by (part))",
    "csv": f"copy {_ROWS} to '{{}}' (format csv, partition_by (part))",
    "threads": f"copy {_ROWS} to '{{}}' (format parquet, per_thread_output)",
    "sizes": f"copy {_ROWS} to '{{}}' (format csv, file_size_bytes 1)",
}


@pytest.mark.parametrize("statement", _INTO_NEW_FOLDERS.values(), ids=_INTO_NEW_FOLDERS)
def test_duckdb_writes_into_a_new_folder_as_on_plain_files(repo, fs, tmp_path: Path, statement: str) -> None:
    """It makes the folder, and then refuses one that is not empty."""
    import duckdb

    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        for place in (f"{tmp_path}/new", "lakefs://repo/main/deep/new"):
            connection.execute(statement.format(place))
            with pytest.raises(duckdb.Error, match=r"not empty|already exists"):
                connection.execute(statement.format(place))
    names = sorted(path.relative_to(tmp_path / "new").as_posix() for path in (tmp_path / "new").rglob("*.*"))
    assert names == [name.removeprefix("repo/main/deep/new/") for name in fs.find("repo/main/deep/new")]
    assert [fs.cat(f"repo/main/deep/new/{name}") for name in names if name.endswith("csv")] == [
        (tmp_path / "new" / name).read_bytes() for name in names if name.endswith("csv")
    ]


def test_a_folder_that_was_made_is_empty_until_it_is_removed(repo: Repository, fs: LakeopsFileSystem) -> None:
    for make, remove in ((fs.mkdir, fs.rmdir), (fs.makedirs, lambda path: fs.rm(path, recursive=True))):
        make("lakefs://repo/main/new/er")
        assert fs.isdir("repo/main/new/er")
        assert fs.ls("repo/main/new/er") == fs.find("repo/main/new/er") == []
        remove("repo/main/new/er")
        assert not fs.exists("repo/main/new/er")
    assert not [*repo.branch("main").uncommitted()]
    repo.branch("main").put("new/", b"")
    fs.rmdir("repo/main/new")
    assert not fs.exists("repo/main/new")


def test_folders_that_were_made_behave_as_on_plain_files(repo: Repository, fs: LakeopsFileSystem, tmp_path) -> None:
    """The plain files are those of fsspec."""
    for files, top in ((fsspec.filesystem("file"), str(tmp_path / "plain")), (fs, "repo/main")):
        files.makedirs(f"{top}/old")
        files.pipe(f"{top}/old/x", b"x")
        files.mv(files.unstrip_protocol(f"{top}/old"), f"{top}/old", recursive=True)
        with pytest.raises(OSError, match="not empty"):
            files.rmdir(f"{top}/old")
        files.mv(f"{top}/old", f"{top}/new", recursive=True)
        assert (files.exists(f"{top}/old"), files.cat(f"{top}/new/x")) == (False, b"x")


@pytest.mark.parametrize("source", ["v1", "main~0", "locked"])
def test_a_move_out_of_a_ref_that_takes_no_deletion_copies_nothing(repo, fs: LakeopsFileSystem, source: str) -> None:
    repo.branch("main").put("a/x", b"x")
    repo.branch("main").commit("a")
    repo.create_tag("v1", "main")
    repo.create_branch("locked")
    repo.protect("locked")
    for name in ("a/x", "a"):
        with pytest.raises((FileNotFoundError, PermissionError, InvalidInput)):
            fs.mv(f"repo/{source}/{name}", "repo/main/b", recursive=True)
    assert not [*repo.branch("main").uncommitted()]


@pytest.mark.parametrize("killed_at", range(1, 6))
def test_a_folder_s_move_that_is_killed_and_repeated_moves_each_object_once(repo, fs, monkeypatch, killed_at) -> None:
    for number in range(3):
        repo.branch("main").put(f"stage/p{number}", b"x")
    write, writes = fs.lake.catalog.database.write, count(1)

    def dying(*args, **options):
        if next(writes) == killed_at:
            raise SystemExit
        return write(*args, **options)

    monkeypatch.setattr(fs.lake.catalog.database, "write", dying)
    with suppress(SystemExit):
        fs.mv("repo/main/stage", "repo/main/final", recursive=True)
    with suppress(FileNotFoundError):
        fs.mv("repo/main/stage", "repo/main/final", recursive=True)
    assert [item.path for item in repo.branch("main").list()] == ["final/p0", "final/p1", "final/p2"]


@pytest.mark.parametrize("options", [{}, {"maxdepth": 2}, {"withdirs": True}])
@pytest.mark.parametrize("top", ["repo/dev", "repo/dev/t"])
def test_a_search_of_a_branch_that_is_deleted_meanwhile_fails(repo, fs, monkeypatch, top: str, options) -> None:
    with repo.create_branch("dev").batch() as batch:
        for number in range(9):
            batch.put(f"t/{number}", b"x")
    monkeypatch.setattr("lakeops.ops.read.PAGE", 4)
    page = fs.lake.catalog.staging.staged_page

    def staged_page(*args, after: str, **more):
        if after:
            repo.delete_branch("dev")
        return page(*args, after=after, **more)

    monkeypatch.setattr(fs.lake.catalog.staging, "staged_page", staged_page)
    with pytest.raises(FileNotFoundError, match="no branch 'dev'"):
        fs.find(top, **options)
    assert fs.find("repo/dev") == []


def test_a_repository_or_ref_that_is_not_there_does_not_exist(repo: Repository, fs: LakeopsFileSystem) -> None:
    repo.branch("main").put("x", b"1")
    for name in ("repo/ma*n/x", "repo/m?in/x"):
        assert fs.cat(name) == {"repo/main/x": b"1"}
    nobody_s = ("repo/my branch/x", "repo/ma?n/x", "repo/main/" + "x" * 1025, "repo/main/a\0")
    for name in ("none", "none/main", "repo/none", "repo/none/x", "repo/main/none", *nobody_s):
        assert not any((fs.exists(name), fs.isdir(name), fs.isfile(name))), name
    for name in ("", "repo", "repo/main"):
        assert fs.isdir(f"lakefs://{name}"), name
    assert fs.ls("lakefs://") == [{"name": "repo", "size": 0, "type": "directory"}]
    assert fs.ls("", detail=False) == ["repo"]


def test_metadata_and_content_type_are_kept(repo: Repository, fs: LakeopsFileSystem, tmp_path: Path) -> None:
    given = {"metadata": {"k": "v"}, "content_type": "text/plain"}
    (tmp_path / "f").write_bytes(b"1")
    fs.pipe_file("repo/main/a", b"1", **given)
    fs.put_file(str(tmp_path / "f"), "repo/main/b", **given)
    with fs.open("repo/main/c", "w", **given) as file:
        file.write("1")
    with fsspec.open("lakefs://repo/main/d", "wb", home=str(tmp_path / "home")) as file:
        file.write(b"1")
    with fs.open("repo/main/c", "a") as file:
        file.write("2")
    found = {item.path: (item.metadata, item.content_type) for item in repo.branch("main").list()}
    kept = ({"k": "v"}, "text/plain")
    assert found == {"a": kept, "b": kept, "c": kept, "d": ({}, "application/octet-stream")}


@pytest.mark.parametrize("name", ["metdata", "Metadata", "meta_data", "ContentType", "content_typ"])
def test_a_misspelt_option_of_a_write_is_refused(repo: Repository, fs: LakeopsFileSystem, name: str) -> None:
    for write in (
        lambda: fs.pipe_file("repo/main/a", b"1", **{name: "x"}),
        lambda: fs.open("repo/main/a", "w", **{name: 1}),
    ):
        with pytest.raises(InvalidInput, match=f"no option {name!r}; did you mean"):
            write()
    assert not fs.exists("repo/main/a")
    fs.pipe_file("repo/main/a", b"1", acl="private", block_size=5)  # those of others


def test_appending(repo: Repository, fs: LakeopsFileSystem) -> None:
    main = repo.branch("main")
    with fs.open("repo/main/a", "ab") as file:
        file.write(b"1")
    with fs.open("repo/main/a", "a") as file:
        assert file.tell() == 1
        file.write("2")
    assert main.read("a") == b"12"
    with pytest.raises(ZeroDivisionError), fs.open("repo/main/a", "ab") as file:
        raise ZeroDivisionError
    for name, change in {"a": lambda: main.put("a", b"theirs"), "new": lambda: main.put("new", b"theirs")}.items():
        with pytest.raises(FileExistsError), fs.open(f"repo/main/{name}", "ab") as file:
            file.write(b"mine")
            change()
        assert main.read(name) == b"theirs"


MARKED = {"t/": b"", "t/a.csv": b"n\n1\n", "t/day=1/": b"", "t/day=1/b.csv": b"n\n2\n", "t/empty/": b""}


def _with_polars(fs: LakeopsFileSystem, path: str) -> int:
    import polars as pl

    return pl.scan_pyarrow_dataset(pa.dataset.dataset(path, filesystem=fs, format="csv")).collect()["n"].sum()


def _dask(fs: LakeopsFileSystem, path: str) -> int:
    import dask.dataframe as dd

    return int(
        dd.read_csv([f"lakefs://{name}" for name in fs.find(path)], storage_options=fs.storage_options)["n"]
        .sum()
        .compute()
    )


FOLDER_READERS = {
    "pyarrow": lambda fs, path: sum(pa.dataset.dataset(path, filesystem=fs, format="csv").to_table()["n"].to_pylist()),
    "polars": _with_polars,
    "duckdb": lambda fs, path: int(_with_duckdb(fs, f"{path}/**/*.csv")[0][0]),
    "dask": _dask,
    "walk": lambda fs, path: sum(
        int(fs.cat(f"{at}/{name}").split()[1]) for at, _, names in fs.walk(path) for name in names
    ),
    "glob": lambda fs, path: sum(int(data.split()[1]) for data in fs.cat(f"{path}/**/*.csv").values()),
    "get": lambda fs, path: (
        fs.get(path, fs.target, recursive=True)
        or sum(int(file.read_text().split()[1]) for file in Path(fs.target).rglob("*") if file.is_file())
    ),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("reader", FOLDER_READERS)
def test_programs_read_a_folder_with_markers(repo: Repository, fs: LakeopsFileSystem, tmp_path: Path, reader: str):
    """The S3 console makes such objects for folders."""
    for path, data in MARKED.items():
        repo.branch("main").put(path, data)
    fs.target = str(tmp_path / "got")
    assert FOLDER_READERS[reader](fs, "repo/main/t") == 3


def test_markers_are_folders_and_go_along(repo: Repository, fs: LakeopsFileSystem) -> None:
    main = repo.branch("main")
    for path, data in MARKED.items():
        main.put(path, data)
    assert fs.ls("repo/main/t", detail=False) == ["repo/main/t/a.csv", "repo/main/t/day=1", "repo/main/t/empty"]
    assert [info["type"] for info in fs.ls("repo/main/t")] == ["file", "directory", "directory"]
    assert fs.ls("repo/main/t/empty") == []
    assert fs.isdir("repo/main/t/empty")
    places = ["repo/main/t", "repo/main/t/day=1", "repo/main/t/empty"]
    assert [at for at, _, _ in fs.walk("repo/main/t")] == places
    for depth in (None, 1, 2, 3):
        for dirs in (False, True):
            options = {"maxdepth": depth, "withdirs": dirs}
            assert fs.find("repo/main/t", detail=True, **options) == _walked(fs, "repo/main/t", **options)
    fs.copy("repo/main/t", "repo/main/u", recursive=True)
    assert [item.path for item in main.list("u/")] == [path.replace("t/", "u/", 1) for path in sorted(MARKED)]
    fs.mv("repo/main/t", "repo/main/v", recursive=True)
    assert [item.path for item in main.list("v/")] == [path.replace("t/", "v/", 1) for path in sorted(MARKED)]
    assert not fs.exists("repo/main/t")
    fs.rm("repo/main/v", recursive=True)
    assert not fs.exists("repo/main/v")


def test_a_whole_ref_is_copied_and_moved(repo: Repository, fs: LakeopsFileSystem) -> None:
    main = repo.branch("main")
    main.put("a/b", b"1")
    main.put("c", b"2")
    repo.create_branch("there")
    fs.copy("repo/main", "repo/there/copy", recursive=True)
    fs.mv("repo/main", "repo/there/moved", recursive=True)
    paths = ["copy/a/b", "copy/c", "moved/a/b", "moved/c"]
    assert [item.path for item in repo.branch("there").list()] == paths
    assert list(main.list()) == []


@pytest.mark.parametrize(
    "path", ["l2//a", "l2//a/b", "l2///", "l2//", "l2/x/", "/l2", "l2/.lakeops-local/x", "l2/../x"]
)
@pytest.mark.parametrize("use", ["ls", "walk", "find", "get"])
def test_a_path_that_is_no_file_s_is_listed_whole_or_refused(repo, fs, tmp_path: Path, path: str, use: str) -> None:
    repo.branch("main").put("l2/a", b"one")
    kept = repo.branch("main").put("kept", b"another")
    names = ("physical_address", "checksum", "size_bytes", "mtime")
    repo.branch("main").stage(pa.table({"path": [path], **{name: [getattr(kept, name)] for name in names}}))
    top = "repo/main" if path.startswith("/") else "repo/main/l2"
    calls = {
        "ls": lambda: fs.ls(top, detail=False),
        "walk": lambda: [f"{at}/{name}" for at, _, names in fs.walk(top, on_error="raise") for name in names],
        "find": lambda: fs.find(top),
        "get": lambda: fs.get(top, str(tmp_path / "got"), recursive=True),
    }
    if (use != "get" and "." in path) or (use, path) == ("ls", "l2/x/"):
        assert set(calls[use]()) & {f"repo/main/{path}", f"repo/main/{path.rpartition('/')[0]}"}
    else:
        with pytest.raises(InvalidPath, match=r"empty part|clones keep|outside the destination"):
            calls[use]()
    assert not (tmp_path / "got").exists()
    if not path.endswith("/"):
        assert fs.cat(f"repo/main/{path}") == b"another"


def _removed(repo: Repository, fs: LakeopsFileSystem, path: object, **options: object) -> set[str]:
    main = repo.branch("main")
    names = ["a", "a*", "a?", "a[b]", "ab", "b/c", "b/d/e", "b/d/f/g", "both", "both/x", "both/y/z", "[x]/y", "x/y"]
    with main.batch() as batch:
        for name in names:
            batch.put(name, name.encode())
    fs.rm(path, **options)
    return {*names} - {item.path for item in main.list()}


@pytest.mark.parametrize(
    ("path", "options", "gone"),
    [
        ("a?", {}, {"a?"}),
        ("a*", {}, {"a*"}),
        ("a[b]", {}, {"a[b]"}),
        ("[x]", {"recursive": True}, {"[x]/y"}),
        ("?b", {}, {"ab"}),
        ("b", {"recursive": True}, {"b/c", "b/d/e", "b/d/f/g"}),
        ("b", {"recursive": True, "maxdepth": 1}, {"b/c"}),
        ("b", {"recursive": True, "maxdepth": 2}, {"b/c", "b/d/e"}),
        ("both", {}, {"both"}),
        ("both", {"recursive": True}, {"both", "both/x", "both/y/z"}),
        ("both", {"recursive": True, "maxdepth": 1}, {"both", "both/x"}),
        (["a", "b/c"], {}, {"a", "b/c"}),
        (["a", "b/d"], {"recursive": True}, {"a", "b/d/e", "b/d/f/g"}),
        ("b", {}, IsADirectoryError),
        ("b*", {}, IsADirectoryError),
        (["a", "b"], {}, IsADirectoryError),
        (["a", "none"], {}, FileNotFoundError),
        ("none", {"recursive": True}, FileNotFoundError),
        ("none*", {"recursive": True}, FileNotFoundError),
    ],
)
def test_deleting_takes_what_was_named(repo: Repository, fs: LakeopsFileSystem, path, options, gone) -> None:
    where = [f"repo/main/{one}" for one in path] if isinstance(path, list) else f"lakefs://repo/main/{path}"
    if isinstance(gone, set):
        assert _removed(repo, fs, where, **options) == gone
    else:
        with pytest.raises(gone):
            _removed(repo, fs, where, **options)
        assert len([*repo.branch("main").list()]) == 13


@pytest.mark.parametrize("name", ["a?", "a*", "a[b]"])
def test_a_name_that_exists_is_no_pattern(repo: Repository, fs: LakeopsFileSystem, tmp_path: Path, name: str) -> None:
    main = repo.branch("main")
    for path in (name, "ab", "ax", "dir/x"):
        main.put(path, path.encode())
    assert fs.cat(f"repo/main/{name}") == name.encode()
    fs.get(f"repo/main/{name}", str(tmp_path / "got"))
    assert (tmp_path / "got").read_bytes() == name.encode()
    fs.copy(f"repo/main/{name}", "repo/main/copied")
    fs.mv(f"repo/main/{name}", "repo/main/dir")
    found = {item.path: main.read(item.path) for item in main.list()}
    kept = {path: path.encode() for path in ("ab", "ax", "dir/x")}
    assert found == {**kept, "copied": name.encode(), f"dir/{name}": name.encode()}


SIZES = {"small": 100, "large": 3 << 20}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the block cache
@pytest.mark.parametrize("size", SIZES)
def test_an_open_file_is_one_of_fsspec_s(repo: Repository, fs, tmp_path: Path, size: str) -> None:
    """Programs ask for what fsspec's own files have, and read in other processes."""
    data = bytes(range(256)) * (SIZES[size] // 256 + 1)
    repo.branch("main").put("a", data)
    with fs.open("lakefs://repo/main/a") as file:
        assert (file.mode, file.path, file.fs, file.size) == ("rb", "repo/main/a", fs, len(data))
        assert file.details == fs.info("repo/main/a")
        file.seek(10)
        twin = pickle.loads(pickle.dumps(file))
        assert (file.loc, twin.loc) == (10, 10)
        assert file.read() == twin.read() == data[10:]
        file.seek(10)
        pickled = pickle.dumps(file)
    for cache in ("blockcache", "filecache", "simplecache"):
        options = {"lakefs": fs.storage_options, cache: {"cache_storage": str(tmp_path / cache)}}
        with fsspec.open(f"{cache}::lakefs://repo/main/a", **options) as file:
            assert file.read() == data
    repo.branch("main").put("a", b"other")
    with pytest.raises(OSError, match="other contents by now"):
        pickle.loads(pickled)
    with repo.ref("main").open("a") as file, pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(file)


@pytest.mark.parametrize("child", ["reads on", "reads all", "seeks"])
@pytest.mark.parametrize("size", SIZES)
def test_a_forked_process_reads_in_its_parent_s_file(repo: Repository, fs, size: str, child: str) -> None:
    data = bytes(range(251)) * (SIZES[size] // 251 + 1)
    repo.branch("main").put("a", data)
    with fs.open("repo/main/a") as file:
        assert file.read(10) == data[:10]
        forked = os.fork()
        if not forked:
            code = 1
            with suppress(Exception):
                start = file.seek(50 if child == "seeks" else 10)
                most = 1 << 20 if child == "reads on" else -1
                code = 0 if file.read(most) == data[start:][: most if most > 0 else None] else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
        assert file.read() == data[10:]


@pytest.mark.parametrize("name", ["t.tar", "t.tar.gz", "t.tar.bz2", "t.tar.xz"])
def test_an_archive_is_opened_by_the_name_of_its_object(repo: Repository, fs, tmp_path: Path, name: str) -> None:
    (tmp_path / "in").write_bytes(b"contents")
    mode = f"w:{name.rpartition('.')[2].replace('tar', '')}"
    with fs.open(f"repo/main/{name}", "wb") as file, tarfile.open(fileobj=file, mode=mode) as archive:
        archive.add(tmp_path / "in", "in")
    with fsspec.open(f"tar://in::lakefs://repo/main/{name}", lakefs=fs.storage_options) as file:
        assert file.read() == b"contents"


MERGING = {
    "files of one name": (["a/x/f", "a/y/f"], "new/", FileExistsError),
    "folders with files of one name": (["a"], "new/", FileExistsError),
    "one target twice": (["a/x/f", "a/z"], ["new", "new"], FileExistsError),
    "an empty part": (["a/z", "a//z"], "new/", FileExistsError),
    "too few targets": (["a/x/f", "a/z"], ["new"], ValueError),
}


@pytest.mark.parametrize("form", MERGING)
@pytest.mark.parametrize("verb", ["copy", "mv", "get"])
def test_several_objects_never_become_one(repo: Repository, fs, tmp_path: Path, verb: str, form: str) -> None:
    sources, targets, error = MERGING[form]
    main = repo.branch("main")
    for path in ("a/x/f", "a/y/f", "a/z", *(path for path in sources if "//" in path)):
        main.put(path, path.encode())
    before = {item.path: main.read(item.path) for item in main.list()}
    top = f"{tmp_path}/" if verb == "get" else "repo/main/"
    there = [top + path for path in targets] if isinstance(targets, list) else top + targets
    with pytest.raises(error, match=r"nothing was written|name a target for each"):
        getattr(fs, verb)([f"repo/main/{path}" for path in sources], there, recursive="folders" in form)
    assert {item.path: main.read(item.path) for item in main.list()} == before
    assert not list(tmp_path.glob("new*"))


SHIFTED = {"a": b"a", "b": b"b", "d/1": b"d/1", "d/d/1": b"d/d/1", "x*": b"x*", "x*/1": b"x*/1"}


@pytest.mark.parametrize(
    ("sources", "targets", "moved"),
    [
        (["a", "b"], ["b", "a"], {"a": "b", "b": "a"}),
        (["a", "b"], ["b", "c"], {"a": "b", "b": "c"}),
        (["a", "d/1"], ["a", "d/1"], {"a": "a", "d/1": "d/1"}),
        ("d", "d/d", {"d/1": "d/d/d/1", "d/d/1": "d/d/d/d/1"}),
        ("d/", "d/d/", {"d/1": "d/d/1", "d/d/1": "d/d/d/1"}),
        ("x*", "d", {"x*": "d/x*", "x*/1": "d/x*/1"}),
        ("x*", "new", {"x*": "new", "x*/1": "new/1"}),
    ],
)
@pytest.mark.parametrize("verb", ["copy", "mv"])
def test_objects_go_where_others_are(repo: Repository, fs: LakeopsFileSystem, verb, sources, targets, moved) -> None:
    """Each is taken as it was before the first one was written, also where file and folder have one name."""
    main = repo.branch("main")
    for path, data in SHIFTED.items():
        main.put(path, data)
    named = [
        [f"repo/main/{path}" for path in paths] if isinstance(paths, list) else f"repo/main/{paths}"
        for paths in (sources, targets)
    ]
    getattr(fs, verb)(*named, recursive=isinstance(sources, str))
    stay = {path: data for path, data in SHIFTED.items() if verb == "copy" or path not in moved}
    expected = stay | {new: SHIFTED[old] for old, new in moved.items()}
    assert {item.path: main.read(item.path) for item in main.list()} == expected
