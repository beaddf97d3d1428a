"""``lakeops local``: what a person and a program see."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

R = "lakefs://flights"


@pytest.fixture
def cloned(run, flights):
    run.ok("local", "clone", f"{R}/main/raw/", "raw")
    return flights


def test_a_session(run, flights):
    assert run.ok("local", "clone", f"{R}/main/raw/", "raw") == f"Cloned {R}/main/raw/ to raw: 2 files (10 B)\n"
    assert run.ok("local", "status", "raw").splitlines()[1:] == ["Nothing changed."]
    Path("raw/a.csv").write_text("9,9,9,9\n")
    Path("raw/new.csv").write_text("1\n")
    main = flights.branch("main")
    main.put("raw/b.csv", b"theirs")
    main.commit("theirs")
    assert run.ok("local", "status", "raw").splitlines()[1:] == [
        "",
        "Changed here:",
        "  ~ changed a.csv",
        "  + added new.csv",
        "",
        "Changed at the ref; lakeops local pull takes it:",
        "  ~ changed b.csv",
    ]
    assert run.ok("local", "commit", "raw", "-m", "mine").startswith("Committed raw: commit ")
    assert run.ok("local", "pull", "raw") == f"Took 1 file (6 B) from {R}/main/raw/\n~ changed b.csv\n"
    assert run.ok("local", "pull", "raw") == f"Already up to date with {R}/main/raw/\n"
    assert "took 3 files" in run.ok("local", "checkout", "raw", "--ref", "v1")
    assert run.error("local", "commit", "raw", "-m", "x")["exit_code"] == 2
    assert run.ok("local", "list").split()[2] == f"{R}/v1/raw/"


def test_json(run, cloned):
    Path("raw/a.csv").unlink()
    status = run.json("local", "status", "raw")
    assert status["local"] == [{"type": "removed", "path": "a.csv", "size_bytes": 6}]
    assert {*status} == {
        "directory", "uri", "commit_id", "head_id", "interrupted", "local", "remote", "taken", "conflicts", "special"
    }  # fmt: skip
    made = run.json("local", "commit", "raw", "-m", "mine", "--meta", "k=v")
    assert (made["message"], made["metadata"]) == ("mine", {"k": "v"})
    assert run.json("local", "pull", "raw")["taken"] == []
    assert run.json("local", "checkout", "raw", "-r", f"{R}/dev")["uri"] == f"{R}/dev/raw/"
    assert run.json("local", "list", ".")[0]["uri"] == f"{R}/dev/raw/"
    Path("mine").mkdir()
    assert run.json("local", "init", f"{R}/main", "mine")["commit_id"] == ""


def test_conflicts_are_listed_and_given_up_when_asked(run, cloned):
    main = cloned.branch("main")
    main.put("raw/a.csv", b"theirs")
    main.commit("theirs")
    Path("raw/a.csv").write_text("mine")
    error = run.error("local", "pull", "raw")
    assert (error["kind"], error["exit_code"], error["conflicts"]) == ("clone_conflict", 3, ["a.csv"])
    assert "! conflict a.csv" in run("local", "pull", "raw").stderr
    assert run.ok("local", "status", "raw").splitlines()[-2:] == ["Changed on both sides:", "  ! conflict a.csv"]
    run.ok("local", "pull", "raw", "--force")
    assert Path("raw/a.csv").read_text() == "theirs"


def test_a_directory_that_follows_nothing(run, home):
    error = run.error("local", "status")
    assert (error["kind"], error["exit_code"]) == ("invalid_input", 2)
    assert "lakeops local clone" in error["message"]
    assert run.ok("local", "list") == ""


def test_names_cannot_draw_on_a_terminal(run, cloned):
    Path("raw/\x1b[2J").write_text("x")
    Path("raw/link\x07").symlink_to("a.csv")
    shown = run.ok("local", "status", "raw")
    assert "\\x1b[2J" in shown
    assert "\x1b[2J" not in shown
    assert "link\\x07" in shown


@pytest.mark.parametrize("words", ["status", "pull --force", "checkout --ref v1", "commit -m x", "list"])
@pytest.mark.parametrize("directory", ["", "nosuch", "a.csv"])
def test_a_directory_that_is_none_is_refused(run, cloned, monkeypatch, words, directory):
    monkeypatch.chdir("raw")
    Path("a.csv").write_text("mine")
    assert run.error("local", *words.split(), directory)["exit_code"] == 2
    assert run.error("local", "clone", f"{R}/main/raw/", "")["exit_code"] == 2
    assert Path("a.csv").read_text() == "mine"
    assert cloned.ref("main").commit.message == "load day 2"


def test_a_damaged_clone_is_listed(run, cloned):
    run.ok("local", "clone", f"{R}/main/raw/", "other")
    Path("raw/.lakeops-local/index.json").write_text("{")
    other, damaged = run.ok("local", "list").splitlines()
    assert other.endswith(f"{R}/main/raw/")
    assert "damaged" in damaged
    assert run.json("local", "list")[1]["commit_id"] == ""


def test_a_clone_that_is_there_is_not_empty(run, cloned):
    assert "nothing under" not in run("local", "clone", f"{R}/main/raw/", "raw").stderr
    assert "nothing under 'new/'" in run("local", "clone", f"{R}/main/new/", "new").stderr


def test_what_is_no_regular_file_is_counted(run, cloned):
    Path(os.fsdecode(b"raw/\xfe")).write_text("x")
    Path("raw/z").symlink_to("a.csv")
    message = run.error("local", "commit", "raw", "-m", "x")["message"]
    assert message.startswith(r"2 files are not regular or not UTF-8, such as '\xfe'; remove them, or leave them out")
    Path("raw/z").unlink()
    assert run.error("local", "commit", "raw", "-m", "x")["message"].startswith(r"'\xfe' is not a regular file, or not")
