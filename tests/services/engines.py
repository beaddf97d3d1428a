#!/usr/bin/env python3
"""Spark with Delta Lake and S3A, Spark with Iceberg, DuckDB with extensions, and Trino, in build/ where missing.

The Spark that the project pins has no Delta and no Iceberg yet, and its DuckDB no extensions on the package index. So
they live in environments of their own. Trino is its small server, with the plugins of two connectors. Everything is
pinned by its SHA-256. ``engines.py COMMAND...`` runs a command with the place in LAKEOPS_TEST_ENGINES.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

SPARK = {
    "pyspark==4.2.1": "d79b7c8ee41e66a9202fe6f600ca90b931ca571ae9dbdf31c58d2672e5102da0",
    "py4j==0.10.9.9": "c7c26e4158defb37b0bb124933163641a2ff6e3a3913f7811b0ddbe07ed61533",
}
SPARK_OF_ICEBERG = {
    "pyspark==4.1.4": "bcbd5e18690cf79d438e97210ad06fb8d451a251bb77becc2b0418868d2acd73",
    "py4j==0.10.9.9": SPARK["py4j==0.10.9.9"],
}
"""The newest Spark that the newest Iceberg is made for."""
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
ICEBERG_JARS = {
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0": (
        "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82"
    ),
    "org.apache.iceberg:iceberg-aws-bundle:1.12.0": "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
}

TRINO = {
    "io.trino:trino-server-core:476:tar.gz": "0f388f9967c177ae70a47c099082fc95387f0c3cb96d8000d1d41fc3a5223158",
    "io.trino:trino-hive:476:zip": "611bacdb07d9f3cf7b9d47f97ecc76fa2e7ff8bfe8a9728c3d06adc1bfb8662e",
    "io.trino:trino-iceberg:476:zip": "99edba5b491ed94d599aeb61e0794272d3569d8b563f3bb8569e8a49daa87b6c",
}
"""The server, and the plugins of its Hive and Iceberg connectors. No later release is among Maven's packages."""

DUCKDB = Path(__file__).with_name("duckdb.lock")
PLACE = Path(__file__).parents[2] / "build" / "engines-1"


def python(place: Path, name: str = "spark") -> Path:
    """The interpreter that has this Spark, or that of Iceberg (``iceberg``), or ``duckdb``."""
    return place / name / "bin" / "python"


def class_path(place: Path, folder: str = "jars") -> str:
    """The jars, or those of Iceberg (``iceberg-jars``), as the JVM takes them."""
    return str(place / folder / "*")


def install() -> Path:
    """Where it is. Maven and pip fetch what is missing: 2.6 GB, which takes some minutes."""
    for environment, packages in (("spark", SPARK), ("iceberg", SPARK_OF_ICEBERG)):
        pins = "".join(f"{pin} --hash=sha256:{digest}\n" for pin, digest in packages.items())
        _make_environment(environment, pins)
    _make_environment("duckdb", DUCKDB.read_text())
    for folder, jars in ((PLACE / "jars", JARS), (PLACE / "iceberg-jars", ICEBERG_JARS)):
        for artifact, expected in jars.items():
            _, name, version = artifact.split(":")
            if not (folder / f"{name}-{version}.jar").exists():
                _fetch(artifact, folder, expected)
    for artifact, expected in TRINO.items():
        _, name, version, _ = artifact.split(":")
        if not (PLACE / name / f"{name}-{version}").exists():
            _unpack(_fetch(artifact, PLACE / name, expected))
    return PLACE


def _make_environment(name: str, pins: str) -> None:
    done, wanted = PLACE / name / "installed", PLACE / name / "requirements.txt"
    if done.exists() and wanted.read_text() == pins:
        return
    print(f"Installing {name} (some minutes) ...", file=sys.stderr, flush=True)
    venv.create(PLACE / name, with_pip=True, clear=True)
    wanted.write_text(pins)
    pip = [str(python(PLACE, name)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--require-hashes", "--requirement", str(wanted)], check=True)
    done.touch()


def _fetch(artifact: str, folder: Path, expected: str) -> Path:
    """Let Maven copy an artifact into a folder. Ends the program when it is another one than expected."""
    maven = shutil.which("mvn")
    if maven is None:
        sys.exit("install Maven first")
    _, name, version, kind = [*artifact.split(":"), "jar"][:4]
    file = folder / f"{name}-{version}.{kind}"
    print(f"Fetching {file.name} ...", file=sys.stderr, flush=True)
    new = folder / "new"
    new.mkdir(parents=True, exist_ok=True)
    goal = ["dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={new}"]
    subprocess.run([maven, "--batch-mode", "--quiet", *goal], check=True, cwd=folder)
    with (new / file.name).open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != expected:
        sys.exit(f"{file.name} has the SHA-256 {found}, and {expected} was expected")
    (new / file.name).rename(file)
    new.rmdir()
    return file


def _unpack(archive: Path) -> None:
    """Put the folder that an archive holds beside it, and remove the archive."""
    new = archive.parent / "new"
    # `shutil.unpack_archive` leaves out what has two dots in its name, as some of Trino's jars do.
    with zipfile.ZipFile(archive) if archive.suffix == ".zip" else tarfile.open(archive) as opened:
        opened.extractall(new)
    (folder,) = new.iterdir()
    folder.rename(archive.parent / folder.name)
    new.rmdir()
    archive.unlink()


if __name__ == "__main__":
    environment = {**os.environ, "LAKEOPS_TEST_ENGINES": str(install())}
    sys.exit(subprocess.run(sys.argv[1:], env=environment, check=False).returncode)
