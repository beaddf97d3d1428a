"""Downloads: contents, places, and paths that try to leave the destination."""

from __future__ import annotations

import base64
import io
import os
import socket
from pathlib import Path

import pytest

from lakeops.cli.fs import write_below
from lakeops.fs import LakeopsFileSystem
from lakeops.model.errors import InvalidInput

R = "lakefs://flights"

HOSTILE = ["../x", "a/../../b", "/etc/x", "//x", "..", "a/..", "a//b", "./x", "a/./b", "a/", "../../../../etc/cron.d/x"]


@pytest.fixture
def outside(tmp_path):
    """Everything beside the destination, to be compared afterwards."""

    def snapshot():
        return sorted(path for path in tmp_path.rglob("*") if "home" not in path.parts)

    return snapshot


def test_one_object(run, flights):
    record = run.json("fs", "download", f"{R}/main/raw/a.csv")
    assert record["file"] == "a.csv"
    assert Path("a.csv").read_bytes() == b"1,2,3\n"
    run.ok("fs", "download", f"{R}/main/raw/a.csv", "new/deep/other.csv")
    assert Path("new/deep/other.csv").read_bytes() == b"1,2,3\n"
    run.ok("fs", "download", f"{R}/main/raw/a.csv", "folder/")
    assert Path("folder/a.csv").read_bytes() == b"1,2,3\n"


def test_uncommitted_objects_and_old_commits(run, flights):
    run.ok("fs", "download", f"{R}/dev/raw/c.csv")
    assert Path("c.csv").read_bytes() == b"6\n"
    assert run("fs", "download", f"{R}/main~1/raw/b.csv").exit_code == 4


@pytest.mark.parametrize("prefix", ["raw/", "raw"])
def test_a_folder(run, flights, prefix):
    records = run.json("fs", "download", f"{R}/dev/{prefix}", "out", "--recursive")
    assert [record["path"] for record in records] == ["raw/a.csv", "raw/b.csv", "raw/c.csv"]
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == {
        "a.csv": b"1,2,3\n",
        "b.csv": b"4,5\n",
        "c.csv": b"6\n",
    }


def test_everything(run, flights):
    run.ok("fs", "download", f"{R}/main/", "out", "-r")
    assert sorted(str(path) for path in Path("out").rglob("*")) == [
        "out/raw",
        "out/raw/a.csv",
        "out/raw/b.csv",
        "out/readme.md",
    ]


def test_files_are_replaced_whole(run, flights):
    Path("a.csv").write_text("a much longer text that was here before")
    Path("a.csv").chmod(0o400)
    run.ok("fs", "download", f"{R}/main/raw/a.csv")
    assert Path("a.csv").read_bytes() == b"1,2,3\n"
    assert [path.name for path in Path().iterdir()] == ["a.csv"], "no temporary file is left"


@pytest.mark.parametrize("way", ["fs download", "local pull", "fsspec"])
def test_a_file_s_permissions_stay_when_it_is_replaced(run, flights, way):
    run.ok("local", "clone", f"{R}/main/raw/", "raw")
    Path("raw/a.csv").chmod(0o700)
    flights.branch("main").put("raw/a.csv", b"new")
    flights.branch("main").commit("new")
    if way == "fsspec":
        LakeopsFileSystem().get_file("flights/main/raw/a.csv", "raw/a.csv")
    else:
        run.ok(*way.split(), *([f"{R}/main/raw/a.csv"] if way == "fs download" else []), "raw")
    assert Path("raw/a.csv").read_bytes() == b"new"
    assert Path("raw/a.csv").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("target", ["pipe", "link", "socket", "/dev/stdout"])
def test_what_is_no_regular_file_is_not_replaced(run, flights, monkeypatch, target):
    if target.startswith("/dev"):
        monkeypatch.setattr("lakeops.ops.files.Ids", None)  # nothing is ever written there
    os.mkfifo("pipe")
    Path("link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    before = Path(target).lstat()
    error = run.error("fs", "download", f"{R}/main/raw/a.csv", target)
    assert error["exit_code"] == 2
    assert "lakeops fs cat" in error["message"]
    with pytest.raises(InvalidInput):
        LakeopsFileSystem().get_file("flights/main/raw/a.csv", target)
    assert (Path(target).lstat().st_mode, Path(target).lstat().st_ino) == (before.st_mode, before.st_ino)


def test_an_error_names_the_destination(run, flights):
    error = run.error("fs", "download", f"{R}/main/raw/a.csv", "/proc/nosuch")
    assert error["message"].startswith("'/proc/nosuch':")


def test_a_file_in_the_place_of_a_folder(run, flights):
    Path("out").mkdir()
    Path("out/raw").write_text("x")
    assert run.error("fs", "download", f"{R}/main/", "out", "-r")["exit_code"] == 2
    assert Path("out/raw").read_text() == "x"


def test_a_folder_in_the_place_of_a_file(run, flights):
    Path("out/readme.md/x").mkdir(parents=True)
    error = run.error("fs", "download", f"{R}/main/", "out", "-r")
    assert error["exit_code"] == 2
    assert "readme.md" in error["message"]
    assert [path.name for path in Path("out").iterdir() if path.name.startswith(".lakeops")] == []


@pytest.mark.parametrize("path", HOSTILE)
def test_hostile_paths_in_a_folder(run, flights, outside, path):
    flights.branch("dev").put("evil/" + path, b"owned")
    flights.branch("dev").put("evil/good.txt", b"fine")
    before = outside()
    error = run.error("fs", "download", f"{R}/dev/evil/", "out", "--recursive")
    assert (error["exit_code"], error["kind"]) == (2, "invalid_path")
    assert outside() == before, "nothing is written at all"


def test_an_object_and_its_folder_cannot_both_be_files(run, flights, outside):
    for path in ("q", "q/r", "s"):
        flights.branch("dev").put("both/" + path, b"x")
    before = outside()
    result = run("fs", "download", f"{R}/dev/both/", "out", "--recursive")
    assert result.exit_code == 2
    assert "'q' cannot be a file and the folder of 'q/r'" in result.stderr
    assert "again" not in result.stderr
    assert outside() == before


def test_objects_that_stand_for_folders_are_left_out(run, flights):
    """Consoles of stores and Hadoop make them."""
    for path in ("raw/", "raw/empty/"):
        flights.branch("dev").put(path, b"")
    assert len(run.json("fs", "download", f"{R}/dev/raw/", "out", "-r")) == 3
    assert sorted(path.name for path in Path("out").iterdir()) == ["a.csv", "b.csv", "c.csv"]


@pytest.mark.parametrize("path", HOSTILE)
def test_hostile_paths_one_by_one(run, flights, outside, path):
    flights.branch("dev").put(path, b"owned")
    before = outside()
    result = run("fs", "download", f"{R}/dev/{path}", "out/")
    name = path.rpartition("/")[2]
    if name in {"", ".", ".."}:
        assert result.exit_code == 2
        assert outside() == before
    else:
        assert Path("out", name).read_bytes() == b"owned"
        assert len(outside()) == len(before) + 2


def test_a_link_inside_the_destination_is_not_followed(run, flights, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Path("out").mkdir()
    Path("out/raw").symlink_to(elsewhere)
    error = run.error("fs", "download", f"{R}/main/", "out", "-r")
    assert error["kind"] == "invalid_path"
    assert list(elsewhere.iterdir()) == []


def test_a_link_in_the_place_of_a_file_is_replaced(run, flights, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    Path("a.csv").symlink_to(precious)
    run.ok("fs", "download", f"{R}/main/raw/a.csv", ".")
    assert precious.read_text() == "mine"
    assert not Path("a.csv").is_symlink()


def test_cat_is_byte_exact(run, process, flights):
    data = bytes(range(256)) * 5000
    flights.branch("dev").put("blob", data)
    assert process("fs", "cat", f"{R}/dev/blob").stdout == data


def test_cat_gives_the_record_of_the_contents(run, flights, monkeypatch):
    def encoded(data):
        flights.branch("dev").put("raw/c.csv", b"a later version")
        return base64.b64encode(data)

    monkeypatch.setattr("lakeops.cli.fs.b64encode", encoded)
    record = run.json("fs", "cat", f"{R}/dev/raw/c.csv")
    assert len(base64.b64decode(record["content"])) == record["size_bytes"]


@pytest.mark.parametrize("data", [b"", b"1,2,3", b"1,2,3\n\n", b"9,9,9\n"], ids=["empty", "short", "long", "other"])
def test_an_object_that_is_not_what_was_recorded(run, flights, monkeypatch, data):
    monkeypatch.setenv("LAKEOPS_VERIFY_CHECKSUMS", "false")
    object_file = Path(run.json("fs", "stat", f"{R}/main/raw/a.csv")["physical_address"].removeprefix("file://"))
    object_file.write_bytes(data)
    Path("a.csv").write_text("before")
    error = run.error("fs", "download", f"{R}/main/raw/a.csv")
    assert (error["exit_code"], error["kind"]) == (1, "corrupted")
    assert "raw/a.csv" in error["message"]
    assert run("fs", "download", f"{R}/main/raw/", "out", "--recursive").exit_code == 1
    assert [path.name for path in Path().rglob("*") if path.is_file() and "out" not in path.parts] == ["a.csv"]
    assert not Path("out/a.csv").exists()
    assert Path("a.csv").read_text() == "before"
    monkeypatch.setenv("LAKEOPS_VERIFY_CHECKSUMS", "true")
    assert run.error("fs", "cat", f"{R}/main/raw/a.csv")["kind"] == "corrupted"


# --- files of this machine: downloads that break off ---


class Broken(io.BytesIO):
    """A file that fails after its first piece."""

    def read(self, size=-1):
        piece = super().read(4)
        if not piece:
            raise RuntimeError("the connection is gone")
        return piece


def test_a_download_that_breaks_off_leaves_what_was_there(tmp_path):
    target = tmp_path / "file"
    target.write_text("before")
    with pytest.raises(RuntimeError):
        write_below(tmp_path, target, Broken(b"12345678"))
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
