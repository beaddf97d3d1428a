"""The command line as a process: what it imports and costs, streams that break off, signals, tracebacks."""

from __future__ import annotations

import json
import os
import pty
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from lakeops.machine import cores

R = "lakefs://flights"
HEAVY = {"pyarrow", "numpy", "pandas", "boto3", "botocore", "alembic", "airflow", "pyspark", "rich", "fsspec"}
HEAVY |= {"pydantic_settings", "sqlmodel"}
QUICK = {
    "branch list": [R],
    "branch show": [f"{R}/main"],
    "branch create": [f"{R}/new", "--source", f"{R}/main"],
    "log": [f"{R}/main"],
    "show commit": [f"{R}/main"],
    "tag create": [f"{R}/v2", f"{R}/main"],
    "tag list": [R],
    "tag show": [f"{R}/v1"],
    "tag delete": [f"{R}/v1"],
    "merge-base": [f"{R}/main", f"{R}/dev"],
    "repo list": [],
    "reflog": [R],
    "audit": [R],
}
"""Commands that read or move refs alone."""

SPY = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from lakeops.cli import main
main()
"""
MAX_CPU_SECONDS = 1.5
"""Three times the budget: a busy machine must not fail the test. What is imported is what counts exactly."""


def loaded_by(*words):
    """The modules that a command loads."""
    command = [sys.executable, "-c", SPY, *words]
    return set(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr.split())


@pytest.mark.parametrize("name", QUICK)
def test_ref_commands_import_nothing_heavy(flights, name):
    loaded = {module.partition(".")[0] for module in loaded_by(*name.split(), *QUICK[name])}
    assert "sqlalchemy" in loaded, "the spy sees imports"
    assert loaded & HEAVY == set()


@pytest.mark.parametrize(("name", "most"), [("branch list", 50), ("fs stat", 60)])
def test_a_command_loads_the_parts_of_the_catalog_that_it_uses(flights, name, most):
    at = {"branch list": R, "fs stat": f"{R}/main/raw/a.csv"}[name]
    ours = {module for module in loaded_by(*name.split(), at) if module.partition(".")[0] == "lakeops"}
    assert "lakeops.catalog.commits" in ours
    assert ours & {f"lakeops.catalog.{part}" for part in ("audit", "backups", "mirrors", "retention", "roles")} == set()
    assert ours & {"lakeops.model.mirrors", "lakeops.ranges.diff", "lakeops.ranges.rewrite"} == set()
    assert len(ours) <= most


def test_a_store_on_s3_loads_what_obstore_needs_alone():
    spied = "import sys, lakeops.store.s3; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", spied], capture_output=True, text=True, check=True, timeout=60)
    assert "botocore.exceptions" in done.stdout.split()
    assert not {"boto3", "botocore.session", "botocore.utils", "dateutil"} & set(done.stdout.split())


def test_help_and_version_do_not_open_the_core(home):
    for option in ("--version", "--help"):
        loaded = loaded_by(option)
        assert "typer" in loaded
        assert "sqlalchemy" not in loaded


def test_a_ref_command_maps_no_classes(flights):
    assert not {"sqlmodel", "sqlalchemy.orm", "sqlalchemy.dialects.postgresql"} & loaded_by("branch", "list", R)


def test_a_ref_command_takes_little_time(process, flights):
    def spent():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    took = []
    for _ in range(3):
        before = spent()
        assert process("branch", "list", R).returncode == 0
        took.append(spent() - before)
    assert min(took) < MAX_CPU_SECONDS


COUNT = """
import atexit, os, sys
atexit.register(lambda: print("THREADS", len(os.listdir("/proc/self/task")), file=sys.stderr))
from lakeops.cli import main
main()
"""


@pytest.mark.skipif(cores() < 2 or not Path("/proc/self/task").exists(), reason="one core has one thread anyway")
def test_no_threads_for_linear_algebra(flights, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def threads(asked: str) -> int:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", asked)
        if not asked:
            monkeypatch.delenv("OPENBLAS_NUM_THREADS")
        args = [sys.executable, "-c", COUNT, "diff", f"{R}/main", f"{R}/dev"]
        done = subprocess.run(args, capture_output=True, text=True, check=True, timeout=60)
        return int(done.stderr.split("THREADS")[1])

    alone = threads("1")
    assert threads("2") == alone + 1, "who asks for them has them"
    assert threads("") == alone


def test_streams_and_exit_codes(process, flights):
    done = process("log", f"{R}/main", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert [json.loads(line)["message"] for line in done.stdout.splitlines()][:2] == ["load day 2", "load day 1"]
    failed = process("log", f"{R}/nosuch")
    assert (failed.returncode, failed.stdout) == (4, b"")
    assert failed.stderr.startswith(b"Error: ")
    failed = process("log", f"{R}/nosuch", "--json")
    assert (failed.returncode, failed.stderr) == (4, b"")
    assert json.loads(failed.stdout)["error"]["kind"] == "ref_not_found"


def test_bytes_that_are_no_text(process, flights):
    done = process("fs", "stat", b"lakefs://flights/main/\xff")
    assert done.returncode == 2
    assert done.stderr.startswith(b"Error: ")
    assert b"Traceback" not in done.stderr


def test_an_ascii_terminal(process, flights):
    flights.branch("dev").put("é/日本.csv", b"")
    done = process("fs", "ls", "-r", f"{R}/dev/", env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 0, done.stderr
    assert rb"\xe9/\u65e5\u672c.csv" in done.stdout


def test_a_reader_that_has_seen_enough(flights):
    """``lakeops fs cat ... | head -c 1``: silent, and not a success."""
    flights.branch("dev").put("big", b"x" * 5_000_000)
    for args in (["fs", "cat", f"{R}/dev/big"], ["log", f"{R}/main"], ["branch", "list", R, "--json"]):
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "lakeops", *args]
        with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as running:
            os.close(writer)
            os.close(reader)
            assert running.stderr is not None
            assert running.stderr.read() == b""
            assert running.wait(60) == 141


def test_no_stdout_at_all(home):
    done = subprocess.run(
        ["/bin/sh", "-c", f"'{sys.executable}' -m lakeops --version >&-"], capture_output=True, check=False, timeout=60
    )
    assert done.stderr == b""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk(process, flights, monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with Path("/dev/full").open("wb") as full:
        done = process("log", f"{R}/main", stdout=full)
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stderr.count(b"\n") <= 2


@pytest.mark.parametrize(
    ("args", "unbuffered"),
    [
        *((args, "") for args in (["--help"], ["commit", "--help"], ["--version"])),
        *((["log", f"{R}/nosuch", "--json"], unbuffered) for unbuffered in ("", "1")),
    ],
)
def test_nobody_reads_the_help_or_an_error(process, flights, monkeypatch, args, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as broken:
        done = process(*args, stdout=broken)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_does_not_undo_a_commit(process, flights, monkeypatch, unbuffered, options):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with Path("/dev/full").open("wb") as full:
        done = process("commit", f"{R}/dev", "-m", "kept", *options, stdout=full)
        failed = process("log", f"{R}/nosuch", *options, stdout=full)
        shown = process("--help", stdout=full)
        read = process("fs", "cat", f"{R}/main/raw/a.csv", stdout=full)
    assert flights.ref("dev").head.message == "kept"
    said = b"Error: stdout cannot be written: No space left on device; what the command has done is done\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert (read.returncode, read.stderr) == (1, said)
    assert unbuffered or (shown.returncode, shown.stderr) == (1, said)
    assert (failed.returncode, failed.stderr.count(b"\n")) == (4, 1), "what went wrong is said on stderr"
    assert b"nosuch" in failed.stderr


def test_an_error_that_nobody_can_read_has_its_exit_code(process, flights):
    with Path("/dev/full").open("wb") as full:
        assert process("log", f"{R}/nosuch", stderr=full).returncode == 4
        assert process("merge", f"{R}/dev", f"{R}/main", stderr=full).returncode == 0, "there is a note to be read"


@pytest.mark.parametrize(
    "args",
    [
        ("log", f"{R}/main"),
        ("diff", f"{R}/dev"),
        ("fs", "rm", "-r", f"{R}/dev/raw/", "--yes"),
        ("repo", "delete", R),
        ("fs", "upload", "-s", "-", f"{R}/dev/empty"),
        ("gc", "rules", "set", R),
    ],
    ids=lambda args: args[0],
)
def test_no_stdin_at_all(flights, args):
    command = ["/bin/sh", "-c", '"$@" <&-', "sh", sys.executable, "-m", "lakeops", *args]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert b"unexpected" not in done.stderr
    assert done.returncode == (2 if args[0] == "repo" or "upload" in args or "rules" in args else 0), done.stderr
    assert not flights.branch("dev").exists("empty")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_ctrl_c(flights, options):
    """An upload that waits for its stdin is interrupted as a person would do it."""
    command = [sys.executable, "-m", "lakeops", "fs", "upload", "-s", "-", f"{R}/dev/x", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin is not None
        running.stdin.write(b"x" * 1_000_000)
        running.stdin.flush()  # returns once most of it was read: the upload is under way
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert b"Traceback" not in err
    if options:
        assert json.loads(out)["error"]["kind"] == "interrupted"
    else:
        assert err == b"Error: interrupted\n"


def test_ctrl_c_is_no_answer_to_a_question(flights):
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "lakeops", "branch", "delete", f"{R}/dev"]
    with subprocess.Popen(command, stdin=slave, stdout=subprocess.PIPE, stderr=slave) as running:
        os.close(slave)
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(master, 65536)
        while running.poll() is None:  # a signal just before the process waits for the answer is not seen by it
            running.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                running.wait(5)
    assert running.returncode == 130
    assert b"interrupted" in os.read(master, 65536)
    os.close(master)
    assert flights.ref("dev").exists("raw/c.csv")


def test_the_console_script_and_the_module_are_the_same(process, home):
    script = subprocess.run(
        [sys.executable, "-c", "from lakeops.cli import main; main()", "brnch"], capture_output=True, check=False
    )
    assert script.stderr == process("brnch").stderr
    assert b"'lakeops --help'" in script.stderr
