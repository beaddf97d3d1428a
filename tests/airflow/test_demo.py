"""The demo as a newcomer runs it: a real Airflow with its own processes, from start to stop."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, str(ROOT / "demo" / "airflow" / "demo.py"), "--home")


def _environment():
    ours = ("AIRFLOW_", "LAKEOPS_", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _sessions(demo):
    """Sessions of the processes below the demo that are not in its own."""
    return {os.getsid(child.pid) for child in demo.children(recursive=True)} - {os.getsid(demo.pid)}


def _members(sessions):
    found = []
    for pid in psutil.pids():
        try:
            found += [pid] if os.getsid(pid) in sessions else []
        except ProcessLookupError:
            continue
    return found


@contextmanager
def _running(home, **environment):
    """The demo once its runs are triggered, the sessions it has started, and the lines it prints from then on."""
    with subprocess.Popen(
        [*COMMAND, str(home)],
        stdout=subprocess.PIPE,
        text=True,
        env=_environment() | environment,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        lines = iter(demo.stdout)
        assert any("Triggered 7 runs" in line for line in lines)
        sessions = _sessions(psutil.Process(demo.pid))
        assert len(sessions) == 4
        yield demo, sessions, lines


def test_the_demo_publishes_six_days_of_seven_and_leaves_no_process(tmp_path):
    with _running(tmp_path / "home", LAKEOPS_DATABASE_URL="sqlite:////nowhere") as (demo, sessions, lines):
        shown = "".join(lines)
    assert demo.returncode == 0, shown
    assert shown.count(" success: ") == 6
    assert "2013-01-04 was rejected" in shown
    assert "every carrier is a known airline: 92 flights of ZZ" in shown
    assert shown.count("has audit: failed") == 2, "on the branch's row and on the merge form"
    assert "It refuses: checks that commits declare have not passed: 'audit' failed" in " ".join(shown.split())
    assert _members(sessions) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_no_process(tmp_path, number):
    with _running(tmp_path / "home") as (demo, sessions, lines):
        demo.send_signal(number)
        shown = "".join(lines)
    assert demo.returncode == 128 + number, shown
    assert _members(sessions) == []
