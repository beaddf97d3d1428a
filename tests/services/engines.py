#!/usr/bin/env python3
"""Spark with Delta Lake and S3A, and DuckDB with its extension httpfs, in build/ where they are missing.

The Spark that the project pins has no Delta yet, and its DuckDB no httpfs on the package index. So both live in
environments of their own. Everything is pinned by its SHA-256. ``engines.py COMMAND...`` runs a command with the place
in LAKEOPS_TEST_ENGINES.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

SPARK = {
    "pyspark==4.2.1": "d79b7c8ee41e66a9202fe6f600ca90b931ca571ae9dbdf31c58d2672e5102da0",
    "py4j==0.10.9.9": "c7c26e4158defb37b0bb124933163641a2ff6e3a3913f7811b0ddbe07ed61533",
}
JARS = {
    "io.delta:delta-spark_2.13:4.4.0": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "io.delta:delta-storage:4.4.0": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "org.apache.hadoop:hadoop-aws:3.5.0": "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
    "software.amazon.awssdk:bundle:2.35.4": "db4b55f24ad1b4e70f17eb1717a4de76a8dadc5a27d764be7c44ff67b2c1c677",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1": (
        "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e"
    ),
}
"""What ``spark.jars.packages`` brings for delta-spark and hadoop-aws, and Spark's own jars lack."""

DUCKDB = Path(__file__).with_name("httpfs.lock")
PLACE = Path(__file__).parents[2] / "build" / "engines-1"


def python(place: Path, name: str = "spark") -> Path:
    """The interpreter that has this Spark, or ``duckdb``."""
    return place / name / "bin" / "python"


def class_path(place: Path) -> str:
    """The jars, as the JVM takes them."""
    return str(place / "jars" / "*")


def install() -> Path:
    """Where it is. Maven and pip fetch what is missing: 1.3 GB, which takes some minutes."""
    pins = "".join(f"{pin} --hash=sha256:{digest}\n" for pin, digest in SPARK.items())
    _make_environment("spark", pins)
    _make_environment("duckdb", DUCKDB.read_text())
    (PLACE / "jars").mkdir(parents=True, exist_ok=True)
    for artifact, expected in JARS.items():
        _, name, version = artifact.split(":")
        jar = PLACE / "jars" / f"{name}-{version}.jar"
        if not jar.exists():
            _fetch(artifact, jar, expected)
    return PLACE


def _make_environment(name: str, pins: str) -> None:
    done = PLACE / name / "installed"
    if done.exists():
        return
    print(f"Installing {name} (some minutes) ...", file=sys.stderr, flush=True)
    venv.create(PLACE / name, with_pip=True, clear=True)
    wanted = PLACE / name / "requirements.txt"
    wanted.write_text(pins)
    pip = [str(python(PLACE, name)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--require-hashes", "--requirement", str(wanted)], check=True)
    done.touch()


def _fetch(artifact: str, jar: Path, expected: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        sys.exit("install Maven first")
    print(f"Fetching {jar.name} ...", file=sys.stderr, flush=True)
    new = jar.parent / "new"
    goal = ["dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={new}"]
    subprocess.run([maven, "--batch-mode", "--quiet", *goal], check=True, cwd=jar.parent)
    with (new / jar.name).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        sys.exit(f"{jar.name} has the SHA-256 {found}, and {expected} was expected")
    (new / jar.name).rename(jar)


if __name__ == "__main__":
    environment = {**os.environ, "LAKEOPS_TEST_ENGINES": str(install())}
    sys.exit(subprocess.run(sys.argv[1:], env=environment, check=False).returncode)
