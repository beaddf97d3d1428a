"""``lakeops ui``: one command serves the pages, and ends with Ctrl+C."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from lakeops import Lake

pytest.importorskip("uvicorn")


def environment(home):
    return {**os.environ, "LAKEOPS_HOME": str(home), "LAKEOPS_FSYNC": "false"}


def test_one_command_serves_the_pages_until_it_is_interrupted(tmp_path):
    home = tmp_path / "lake"
    with Lake.open(home=home) as lake:
        lake.create_repository("flights")
    command = [sys.executable, "-m", "lakeops", "ui", "--port", "0", "--no-browser", "--json"]
    with subprocess.Popen(command, env=environment(home), stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            address = json.loads(running.stdout.readline())["address"]
            with urllib.request.urlopen(f"{address}flights", timeout=60) as answer:
                assert "<strong>main</strong>" in answer.read().decode()
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
        assert running.stdout.read() == ""


def test_what_keeps_the_pages_from_being_served_is_said(tmp_path):
    home = tmp_path / "lake"

    def said(*arguments):
        command = [sys.executable, "-m", "lakeops", "ui", "--no-browser", *arguments]
        done = subprocess.run(command, env=environment(home), capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "catalog" in said("--port", "0")
    assert not home.exists(), "looking makes no lake"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "name another one with --port" in said("--port", str(taken.getsockname()[1]))
