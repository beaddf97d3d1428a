"""Uploads: files, folders, stdin, and what is no regular file."""

from __future__ import annotations

import mimetypes
import os
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

from lakeops.cli.fs import transfer
from lakeops.cli.output import Printer
from lakeops.model.errors import InvalidInput, StoreUnavailable
from lakeops.model.records import ByteCounter
from lakeops.ops.files import atomic_write

R = "lakefs://flights"


@pytest.fixture
def tree(flights):
    for name in ("a.txt", "sub/b.txt", "sub/deep/c.txt", ".hidden"):
        path = Path("tree", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return Path("tree")


def uncommitted(flights):
    return [change.path for change in flights.branch("dev").uncommitted()]


def test_a_file(run, flights):
    Path("day.csv").write_bytes(b"\x00\xff1,2")
    args = ("-s", "day.csv", f"{R}/dev/raw/day1.csv", "--content-type", "text/csv", "--meta", "a=1", "--meta", "b=2")
    record = run.json("fs", "upload", *args)
    assert (record["path"], record["size_bytes"], record["content_type"]) == ("raw/day1.csv", 5, "text/csv")
    assert record["metadata"] == {"a": "1", "b": "2"}
    assert flights.branch("dev").read("raw/day1.csv") == b"\x00\xff1,2"


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("page.html", "text/html"),
        ("day.CSV", "text/csv"),
        ("rows.json", "application/json"),
        ("part-0.parquet", "application/vnd.apache.parquet"),
        ("day.csv.gz", "application/gzip"),
        ("model.bin", "application/octet-stream"),
        ("_SUCCESS", "application/octet-stream"),
        (".csv", "application/octet-stream"),
        ("http:x.html", "text/html"),
        ("no.such-end", "application/octet-stream"),
    ],
)
def test_the_content_type_is_guessed_from_the_name(run, flights, name, content_type, tmp_path, monkeypatch):
    """The list of the machine does not count."""
    (tmp_path / "types").write_text("text/wrong html csv such-end\n")
    monkeypatch.setattr(mimetypes, "knownfiles", [str(tmp_path / "types")])
    monkeypatch.setattr(mimetypes, "inited", False)
    Path(name).write_text("<p>")
    assert run.json("fs", "upload", name, f"{R}/dev/a/")["content_type"] == content_type
    assert run.json("fs", "upload", "-r", ".", f"{R}/dev/b/")[0]["content_type"] == content_type
    assert flights.branch("dev").upload(name, "c/")[0].content_type == content_type
    run.ok("fs", "upload", "-s", "-", f"{R}/dev/d/{name}", stdin=b"<p>")
    assert flights.branch("dev").stat(f"d/{name}").content_type == content_type
    assert run.json("fs", "upload", name, f"{R}/dev/e", "--content-type", "text/mine")["content_type"] == "text/mine"
    assert flights.branch("dev").upload(name, "f", content_type="text/mine")[0].content_type == "text/mine"


@pytest.mark.parametrize("form", [["-s", "{}", "{to}"], ["{}", "{to}"], ["{to}", "-s", "{}"], ["{to}", "--source={}"]])
@pytest.mark.parametrize("source", ["day.csv", "tree", "-"])
def test_the_source_is_an_option_or_comes_first(run, flights, tree, form, source):
    Path("day.csv").write_text("1")
    words = [word.format(source, to=f"{R}/dev/up") for word in form]
    result = run("fs", "upload", *words, *(["-r"] if source == "tree" else []), "--json", stdin=b"1")
    assert result.exit_code == 0, result.output
    assert next(path for path in uncommitted(flights) if path.startswith("up")) in {"up", "up/.hidden"}


@pytest.mark.parametrize(
    "words",
    [
        [f"{R}/dev/x"],
        ["a", "b", f"{R}/dev/x"],
        [f"{R}/dev/x", "a"],
        ["-s", "a", "b", f"{R}/dev/x"],
        ["a", "b"],
        ["-s", "a", "b"],
    ],
)
def test_an_upload_takes_one_source_and_one_place(run, flights, words):
    error = run.error("fs", "upload", *words)
    assert (error["exit_code"], error["kind"]) == (2, "invalid_input")
    assert "lakeops fs upload FILE lakefs://REPO/BRANCH/PATH" in error["message"]


@pytest.mark.parametrize(("target", "path"), [("raw/", "raw/day.csv"), ("", "day.csv"), ("raw/x", "raw/x")])
def test_where_a_file_goes(run, flights, target, path):
    Path("day.csv").write_text("1")
    assert run.json("fs", "upload", "-s", "day.csv", f"{R}/dev/{target}")["path"] == path


def test_stdin(run, flights):
    run.ok("fs", "upload", "-s", "-", f"{R}/dev/piped", stdin=b"from \x00 a pipe")
    assert flights.branch("dev").read("piped") == b"from \x00 a pipe"


def test_an_empty_file(run, flights):
    Path("_SUCCESS").touch()
    assert run.json("fs", "upload", "-s", "_SUCCESS", f"{R}/dev/raw/")["size_bytes"] == 0


@pytest.mark.parametrize(("target", "folder"), [("copy", "copy/"), ("copy/", "copy/"), ("", "")])
def test_a_folder(run, flights, tree, target, folder):
    records = run.json("fs", "upload", "-s", "tree", f"{R}/dev/{target}", "--recursive", "--parallelism", "3")
    names = [".hidden", "a.txt", "sub/b.txt", "sub/deep/c.txt"]
    assert [record["path"] for record in records] == [folder + name for name in names]
    assert flights.branch("dev").read(f"{folder}sub/deep/c.txt") == b"sub/deep/c.txt"


def test_an_empty_folder(run, flights):
    Path("empty").mkdir()
    assert run.json("fs", "upload", "-s", "empty", f"{R}/dev/x", "-r") == []


@pytest.mark.parametrize("kind", ["link to a file", "link to a folder", "broken link", "pipe"])
def test_what_is_no_regular_file_is_refused_before_anything_is_sent(run, flights, tree, kind):
    if kind == "pipe":
        os.mkfifo(tree / "zz")
    else:
        target = {"link to a file": "a.txt", "link to a folder": "sub", "broken link": "nosuch"}[kind]
        (tree / "zz").symlink_to(target)
    error = run.error("fs", "upload", "-s", "tree", f"{R}/dev/x", "-r")
    assert error["exit_code"] == 2
    assert "zz" in error["message"]
    assert uncommitted(flights) == ["raw/c.csv"]
    records = run.json("fs", "upload", "-s", "tree", f"{R}/dev/x", "-r", "--skip-special")
    assert len(records) == 4


def test_what_a_killed_download_left_is_no_file_of_the_folder(run, flights, tree, monkeypatch):
    for name in ("a.txt", "sub/b.txt"):
        with suppress(KeyboardInterrupt), atomic_write(tree / name) as file:
            monkeypatch.setattr(Path, "unlink", lambda _: None)
            file.write(b"half")
            raise KeyboardInterrupt
    assert len([*tree.rglob(".lakeops-*")]) == 2
    assert len(run.json("fs", "upload", "-s", "tree", f"{R}/dev/x", "-r")) == 4


def test_a_file_that_the_disk_refuses_to_read_is_named(run, flights):
    error = run.error("fs", "upload", "-s", "/proc/self/mem", f"{R}/dev/x")
    assert error["message"].endswith("/proc/self/mem': input/output error")


def test_a_link_that_was_named_is_followed(run, flights, tree):
    Path("link").symlink_to("tree/a.txt")
    run.ok("fs", "upload", "-s", "link", f"{R}/dev/x")
    assert flights.branch("dev").read("x") == b"a.txt"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_an_unreadable_file(run, flights, tree):
    (tree / "sub/b.txt").chmod(0)
    error = run.error("fs", "upload", "-s", "tree", f"{R}/dev/x", "-r")
    assert "permission denied" in error["message"]
    assert uncommitted(flights) == ["raw/c.csv"]


def test_a_name_that_is_no_text(run, flights, tree):
    Path(os.fsdecode(b"tree/\xff.bin")).write_text("x")
    error = run.error("fs", "upload", "-s", "tree", f"{R}/dev/x", "-r")
    assert error["kind"] == "invalid_path"
    assert r"'\xff.bin' is not UTF-8" in error["message"]
    assert uncommitted(flights) == ["raw/c.csv"]
    assert len(run.json("fs", "upload", "-s", "tree", f"{R}/dev/x", "-r", "--skip-special")) == 4


def test_a_protected_branch_stops_a_folder_at_once(run, flights, tree):
    flights.protect("dev")
    error = run.error("fs", "upload", "-s", "tree", f"{R}/dev/x", "-r")
    assert (error["exit_code"], error["kind"]) == (5, "protected_branch")


def test_removing_a_folder_takes_no_neighbour(run, flights):
    dev = flights.branch("dev")
    for path in ("data/x", "data/y/z", "data2/x", "data"):
        dev.put(path, b"")
    assert run.json("fs", "rm", "-r", f"{R}/dev/data")["removed"] == 3
    assert uncommitted(flights) == ["data2/x", "raw/c.csv"]
    assert "nothing was removed" in str(run.error("fs", "rm", "-r", f"{R}/dev/data"))


# --- moving many files at a time: order, failures, and nothing that goes on after one ---


@pytest.fixture
def reports():
    return []


@pytest.fixture
def counter(reports):
    return ByteCounter(lambda *report: reports.append(report), "Moving", 100)


def test_results_come_in_order(counter):
    assert transfer(Printer(False), range(50), lambda item: item * 2, counter, 7) == [item * 2 for item in range(50)]
    assert transfer(Printer(False), [], lambda item: item, counter, 7) == []


def test_a_failure_stops_what_is_under_way(counter, capsys):
    begun = Event()

    def move(name):
        if name == "bad":
            begun.wait()
            raise InvalidInput("bad file")
        with Path("/dev/zero").open("rb") as endless:
            counted = counter.counting(endless)
            while counted.read(1):
                begun.set()

    with pytest.raises(InvalidInput, match="bad file"):
        transfer(Printer(False), ["endless", "bad", *["never begun"] * 100], move, counter, 2)
    assert capsys.readouterr().err == "Stopped after 0 files of 102.\n"


def test_what_passes_is_worth_another_run(counter, capsys):
    def move(_item):
        raise StoreUnavailable("no answer")

    with pytest.raises(StoreUnavailable):
        transfer(Printer(False), ["a", "b"], move, counter, 1)
    assert capsys.readouterr().err == "Stopped after 0 files of 2; run it again to go on.\n"


def test_progress_adds_up(counter, reports, tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 25)

    def move(_item):
        with (tmp_path / "file").open("rb") as file:
            counted = counter.counting(file)
            while counted.read(10):
                pass

    transfer(Printer(True), range(4), move, counter, 4)
    assert reports[-1] == ("Moving", 100, 100)
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)
