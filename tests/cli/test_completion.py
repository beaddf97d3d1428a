"""Tests of the completions that a shell offers while a URI is typed."""

from __future__ import annotations

import os
import subprocess
import sys
from threading import Event

import pytest

from lakeops.cli import options

R = "lakefs://flights"


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(options, "COMPLETION_SECONDS", 60)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("", [R]),
        ("lake", [R]),
        ("lakefs://fl", [R]),
        ("lakefs://x", []),
        (f"{R}/", [f"{R}/dev", f"{R}/main", f"{R}/v1"]),
        (f"{R}/ma", [f"{R}/main"]),
        (f"{R}/main/", [f"{R}/main/raw/", f"{R}/main/readme.md"]),
        (f"{R}/main/raw/a", [f"{R}/main/raw/a.csv"]),
        (f"{R}/main~1/raw/", [f"{R}/main~1/raw/a.csv"]),
        ("//flights/ma", ["//flights/main"]),
        ("other", []),
        (f"{R}/nosuch/", []),
        ("lakefs://nosuch/", []),
        ("lakefs://fl\0/", []),
        ("lakefs://" + "x" * 9000 + "/\ud800/", []),
    ],
)
def test_what_is_offered(flights, typed, offered):
    assert options.complete(typed) == offered


def test_a_path_with_a_line_break_is_not_offered(flights):
    flights.branch("dev").put("raw/x\ny", b"")
    flights.branch("dev").put("raw/x y%é", b"")
    assert options.complete(f"{R}/dev/raw/x") == [f"{R}/dev/raw/x y%é"]


def test_it_is_quiet_without_a_lake(home, monkeypatch, capfd):
    monkeypatch.setenv("LAKEOPS_DATABASE_URL", "nonsense")
    assert options.complete(f"{R}/") == []
    assert not home.exists()
    assert capfd.readouterr() == ("", "")


def test_it_does_not_keep_anybody_waiting(flights, monkeypatch):
    monkeypatch.setattr(options, "COMPLETION_SECONDS", 0)
    answered = Event()
    monkeypatch.setattr(options, "_offers", lambda _: [str(answered.wait())])
    assert options.complete(R) == []
    answered.set()


def test_a_shell_is_answered(flights):
    typed = {"_LAKEOPS_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"lakeops log {R}/ma"}
    code = "import lakeops.cli.options as c; c.COMPLETION_SECONDS = 60; from lakeops.cli import main; main()"
    command, environment = [sys.executable, "-c", code], {**os.environ, **typed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (f"{R}/main" in done.stdout.replace("\\", ""), done.stderr) == (True, "")
