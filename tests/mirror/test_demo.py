"""The mirror's demo as a newcomer runs it, only shorter: all its processes, from start to stop."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "demo" / "mirror" / "demo.py"


def start(place, *options):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LAKEOPS_")}
    return subprocess.Popen(
        [sys.executable, str(DEMO), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**kept, "PYTHONPATH": str(ROOT), "TMPDIR": str(place), "LAKEOPS_DATABASE_URL": "sqlite:////nowhere"},
    )


def test_the_mirror_keeps_up_and_its_reader_finds_every_table(tmp_path):
    with start(tmp_path, "--seconds", "3", "--seed", "3") as demo:
        shown, _ = demo.communicate(timeout=200)
    assert demo.returncode == 0, shown
    assert "Everything is as it should be" in shown
    commits, heads = (int(re.search(text, shown)[1]) for text in (r"committed +(\d+) times", r"checked +(\d+) heads"))
    assert commits >= 2
    assert 1 <= heads <= commits
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(tmp_path, number):
    with start(tmp_path, "--seconds", "300") as demo:
        assert demo.stdout is not None
        assert any(" s  the source is at" in line for line in demo.stdout)
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) == 3
        demo.send_signal(number)
        rest, _ = demo.communicate(timeout=100)
    assert demo.returncode == 128 + number, rest
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert [*tmp_path.iterdir()] == []
