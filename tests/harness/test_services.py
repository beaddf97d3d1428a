"""Servers end with the process that they serve, also when it is killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from services.postgres import postgres_server
from services.process import stopped_by

TESTS = Path(__file__).parents[1]
LONGEST = 30.0

HOLDER = """
from services.postgres import postgres_server
with postgres_server() as socket:
    print(socket, flush=True)
    input()
"""

WATCHED = """
import sys
from services.process import stopped_by
with stopped_by([sys.executable, "-c", "import pathlib; pathlib.Path('stopped').touch()"]):
    print("inside", flush=True)
    input()
"""

PARENT = """
import subprocess, sys
from services.process import die_with_parent
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, preexec_fn=die_with_parent)
print(child.pid, flush=True)
input()
"""


def holder(program, cwd):
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True, env=environment, cwd=cwd
    )


def until(holds):
    end = time.monotonic() + LONGEST
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def server_in(socket):
    return psutil.Process(int((socket / "postmaster.pid").read_text().splitlines()[0]))


def has_ended(process):
    """Whether a process runs no more, be it that nobody has asked for its exit code yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_postgresql_server_ends_with_a_killed_process(tmp_path):
    with holder(HOLDER, tmp_path) as held:
        socket = Path(held.stdout.readline().strip())
        server = server_in(socket)
        assert server.is_running()
        held.kill()
    server.wait(LONGEST)
    until(lambda: not socket.exists())


def test_a_postgresql_server_ends_with_its_block():
    with postgres_server() as socket:
        server = server_in(Path(socket))
    assert has_ended(server)
    assert not Path(socket).exists()


def test_a_command_runs_when_the_process_is_killed_inside_the_block_only(tmp_path):
    with holder(WATCHED, tmp_path) as held:
        assert held.stdout.readline()
        held.kill()
    until((tmp_path / "stopped").exists)
    other = tmp_path / "other"
    with stopped_by([sys.executable, "-c", f"import pathlib; pathlib.Path({str(other)!r}).touch()"]):
        pass
    assert not other.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent ended")
def test_a_child_dies_with_its_parent(tmp_path):
    with holder(PARENT, tmp_path) as held:
        child = psutil.Process(int(held.stdout.readline()))
        held.kill()
    child.wait(LONGEST)
