"""Tests in a real terminal of a given width: colours, questions, progress."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path

import pytest
from support.warm import start_on_terminal

from lakeops import Repository
from lakeops.cli import session
from lakeops.model.errors import RepositoryNotFound

R = "lakefs://flights"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def terminal(home):
    """Runs a command in a terminal; returns what the terminal received and the exit code."""

    def start(*args, answer="", width=80, **environment):
        master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
        running = start_on_terminal(args, slave, {**os.environ, **environment})
        os.close(slave)
        if answer:
            os.write(master, answer.encode() + b"\n")
        received = b""
        while piece := _read(master):
            received += piece
        running.join(60)
        os.close(master)
        return received.decode(), running.exitcode

    return start


def _read(master):
    try:
        return os.read(master, 65536)
    except OSError:  # the other side is closed
        return b""


def test_a_table_fits_the_terminal(terminal, flights):
    for width in (80, 120):
        shown, code = terminal("repo", "list", width=width)
        lines = [COLOUR.sub("", line) for line in shown.splitlines()]
        assert code == 0
        assert max(map(len, lines)) <= width
        assert "Repository" in lines[1] or "Repository" in lines[0]
        assert any("flights" in line for line in lines)


@pytest.mark.parametrize("width", [10, 30, 50])
def test_a_narrow_terminal_loses_nothing(terminal, flights, width):
    flights.create_branch("a-branch-with-a-name-that-is-rather-long")
    shown = COLOUR.sub("", terminal("branch", "list", R, width=width)[0])
    for ref in flights.branches():
        assert ref.id in shown
        assert ref.commit_id[:16] in shown
    assert all(title in shown for title in ("Branch", "Commit", "Last commit", "By"))


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_switched_off(terminal, conflict, environment):
    for args in (["log", f"{R}/main"], ["log", f"{R}/nosuch"]):
        assert re.search(r"\x1b\[[0-9;]*3[0-9]m", terminal(*args)[0]), "there is colour otherwise"
        shown = terminal(*args, **environment)[0]
        assert not re.search(r"\x1b\[[0-9;]*[349][0-7]m", shown)


def test_nothing_hostile_reaches_a_terminal(terminal, flights):
    flights.branch("dev").put("a\x1b[2J\x1b]0;owned\x07", b"", metadata={"k": "\x1b[2J"})
    for args in (["fs", "ls", f"{R}/dev"], ["diff", f"{R}/dev"], ["branch", "reset", f"{R}/dev"]):
        shown, _ = terminal(*args, answer="n" if "reset" in args else "")
        assert "\\x1b[2J" in shown
        assert "\x1b[2J" not in shown
        assert "\x07" not in shown


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_a_question_before_a_loss(terminal, flights, answer, code):
    shown, exit_code = terminal("branch", "delete", f"{R}/dev", answer=answer or "\x04")
    plain = COLOUR.sub("", shown)
    assert exit_code == code, plain
    assert plain.index("+ added raw/c.csv") < plain.index("Delete branch 'dev'?")
    assert {branch.id for branch in flights.branches()} == ({"main"} if answer == "y" else {"main", "dev"})


def test_yes_asks_nothing(terminal, flights):
    shown, code = terminal("branch", "reset", f"{R}/dev", "--yes", "--no-progress")
    assert code == 0
    assert "?" not in shown


def test_tags_and_folders_ask_a_person_only(terminal, run, flights):
    assert terminal("tag", "delete", f"{R}/v1", answer="n")[1] == 1
    assert terminal("fs", "rm", "-r", f"{R}/dev/raw", answer="n")[1] == 1
    assert run("fs", "rm", "-r", f"{R}/dev/raw").exit_code == 0
    assert run("tag", "delete", f"{R}/v1").exit_code == 0


def test_progress_is_drawn_for_a_person_only(terminal, process, flights):
    for number in range(3):
        Path(f"f{number}").write_bytes(b"x" * 3_000_000)
    args = ("fs", "upload", "-r", "-s", ".", f"{R}/dev/up/")
    assert "Uploading" in terminal(*args)[0]
    assert "Uploading" not in terminal(*args, "--no-progress")[0]
    assert "Uploading" not in terminal(*args, "--json")[0]
    assert b"\r" not in process(*args).stderr
    assert b"Uploading" not in process(*args).stderr


def test_progress_is_printed_as_lines_where_it_is_asked_for(run, flights, monkeypatch):
    monkeypatch.setattr("lakeops.cli.session.LINE_SECONDS", 0)
    Path("f").write_bytes(b"x" * 3_000)
    for more in ([], ["--json"]):
        args = ("fs", "upload", "-s", "f", f"{R}/dev/up/f", *more)
        lines = run(*args, "--progress").stderr.splitlines()
        assert lines[0] == "Uploading"
        assert any(line.endswith(": 3.0 kB of 3.0 kB") for line in lines[1:])
        assert "Uploading" not in run(*args, "--no-progress").stderr
        assert "Uploading" not in run(*args).stderr


@pytest.mark.parametrize(
    ("args", "label"),
    [
        (["branch", "revert", f"{R}/main", "main"], "Reverting main"),
        (["branch", "reset", f"{R}/dev", "--yes"], "Resetting dev"),
        (["fs", "rm", "-r", f"{R}/main/raw", "--yes"], "Removing raw"),
        (["fs", "cp", "-r", f"{R}/main/raw/", f"{R}/dev/x/"], "Copying raw/"),
        (["fs", "mv", f"{R}/dev/raw/a.csv", f"{R}/dev/b"], "Moving raw/a.csv"),
        (["diff", f"{R}/main", f"{R}/dev"], "Comparing"),
        (["blame", f"{R}/main/"], "Looking for writers"),
        (["history", f"{R}/main/raw/a.csv"], "Looking for versions"),
        (["log", f"{R}/main/raw/a.csv"], "Looking for commits"),
    ],
)
def test_what_may_take_long_shows_a_line(terminal, flights, args, label):
    assert label in terminal(*args)[0]


@pytest.mark.parametrize("args", [["fsck", R], ["gc", "mark", R, "--dry-run"]])
def test_the_answer_goes_to_a_file_while_progress_is_on_the_terminal(flights, args):
    """``lakeops fsck lakefs://flights > report.txt``, typed by a person."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "lakeops", *args]
    with subprocess.Popen(command, stdin=slave, stdout=subprocess.PIPE, stderr=slave) as running:
        os.close(slave)
        received = b""
        while piece := _read(master):
            received += piece
        assert running.stdout is not None
        answer = running.stdout.read().decode()
        assert running.wait(60) == 0
    os.close(master)
    assert "commit" in answer.lower()
    assert answer.strip() not in received.decode()


def test_json_is_the_same_on_a_terminal(terminal, run, flights):
    shown, _ = terminal("branch", "list", R, "--json")
    assert shown.replace("\r\n", "\n") == run("branch", "list", R, "--json").stdout


def test_a_person_gets_a_pager(terminal, flights, tmp_path):
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho PAGED; cat\n")
    pager.chmod(0o755)
    for command in (["log", f"{R}/main"], ["diff", f"{R}/dev"], ["reflog", R]):
        shown, code = terminal(*command, PAGER=str(pager))
        assert code == 0
        assert "PAGED" in shown
    assert "\x1b[" in terminal("log", f"{R}/main", PAGER=str(pager))[0], "colours go through"
    assert not terminal("log", f"{R}/main", PAGER="cat")[0].startswith("PAGED")
    assert "load day 2" in terminal("log", f"{R}/main", PAGER="/no/such/pager")[0]
    assert terminal("log", f"{R}/nosuch", PAGER=str(pager))[1] == 4


def test_leaving_the_pager_early_is_no_error(terminal, flights, tmp_path):
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\nhead -1\n")
    pager.chmod(0o755)
    main = flights.branch("main")
    for number in range(30):
        main.commit(f"{number} " + "x" * 9000, allow_empty=True)
    shown, code = terminal("log", f"{R}/main", PAGER=str(pager))
    assert (code, shown.count("commit ")) == (0, 1)


# --- commands that show what they are about to do, and ask: what changes until the answer comes is left alone ---


CASES: dict[str, tuple[tuple[str, ...], Callable[[Repository], object]]] = {
    "reset": (("branch", "reset", f"{R}/dev"), lambda repo: repo.branch("dev").put("late", b"1")),
    "reset of a folder": (
        ("branch", "reset", f"{R}/dev", "--prefix", "raw/"),
        lambda repo: repo.branch("dev").put("raw/c.csv", b"7\n"),
    ),
    "delete": (("branch", "delete", f"{R}/dev"), lambda repo: repo.branch("dev").commit("late")),
    "remove": (("fs", "rm", f"{R}/dev/raw/", "--recursive"), lambda repo: repo.branch("dev").put("raw/c.csv", b"7\n")),
    "remove with the object of the name": (
        ("fs", "rm", f"{R}/dev/raw", "--recursive"),
        lambda repo: repo.branch("dev").put("raw", b"late"),
    ),
    "delete a repository": (
        ("repo", "delete", R),
        lambda repo: repo.branch("main").commit("late", allow_empty=True),
    ),
    "tag move": (("tag", "move", f"{R}/v1", f"{R}/main~1"), lambda repo: repo.move_tag("v1", "main~2")),
    "tag delete": (("tag", "delete", f"{R}/v1"), lambda repo: repo.move_tag("v1", "main~1")),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("changes", [True, False])
def test_only_what_was_shown_is_done(
    run, flights: Repository, monkeypatch: pytest.MonkeyPatch, case: str, changes: bool
) -> None:
    command, meanwhile = CASES[case]
    after: dict[str, object] = {}

    def confirm(*_: object, **__: object) -> bool:
        if changes:
            meanwhile(flights)
        after.update(_everything(flights))
        return True

    monkeypatch.setattr(session.Session, "can_ask", True)
    monkeypatch.setattr(session.typer, "confirm", confirm)
    result = run(*command)
    assert result.exit_code == (5 if changes else 0), result.output
    assert (_everything(flights) == after) is changes
    if changes:
        assert "nothing was done" in result.stderr
        assert run(*command, "--yes").exit_code == 0


def test_a_removal_shows_the_object_of_the_folder_s_name(run, flights, monkeypatch):
    flights.branch("dev").put("raw", b"")
    monkeypatch.setattr(session.Session, "can_ask", True)
    monkeypatch.setattr(session.typer, "confirm", lambda *_, **__: True)
    result = run("fs", "rm", "-r", f"{R}/dev/raw")
    assert ("This removes 4 objects" in result.stderr, "- raw\n" in result.stderr) == (True, True)
    assert result.stdout == "Removed 4 objects from dev\n"


def _everything(repo: Repository) -> dict[str, object]:
    try:
        refs = {ref.id: ref.commit_id for ref in (*repo.branches(), *repo.tags())}
    except RepositoryNotFound:
        return {}
    shown = {ref.id: {one.path: one.checksum for one in repo.branch(ref.id).list()} for ref in repo.branches()}
    return {**refs, "shown": shown}
