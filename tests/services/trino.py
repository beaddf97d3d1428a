"""A Trino server of one node, with one connector. ``services/engines.py`` has put the program there."""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.process import die_with_parent
from services.radosgw import free_ports
from services.spark import until

OLDEST_JAVA = 24
STARTS_WITHIN = 120.0
SMALL = {
    "coordinator": "true",
    "node-scheduler.include-coordinator": "true",
    "query.max-memory-per-node": "256MB",
    "memory.heap-headroom-per-node": "128MB",
}

Query = Callable[[str], list[list[Any]]]


class TrinoError(Exception):
    """A statement failed. The message has the error's causes."""


@contextmanager
def running(place: Path, folder: Path, catalog: str, plugin: str = "trino-hive") -> Iterator[Query]:
    """A server whose catalog ``lake`` has these properties; gives what runs a statement and returns its rows."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    (folder / "etc" / "catalog").mkdir(parents=True)
    (folder / "etc" / "catalog" / "lake.properties").write_text(catalog)
    config = {**SMALL, "http-server.http.port": str(port), "discovery.uri": url, "plugin.dir": place / plugin}
    (folder / "etc" / "config.properties").write_text("".join(f"{name}={value}\n" for name, value in config.items()))
    (lib,) = place.glob("trino-server-core/*/lib")
    options = ["-Xmx1G", "-XX:TieredStopAtLevel=1", "-Djdk.attach.allowAttachSelf=true", "-Dnode.environment=test"]
    files = [f"-Dnode.data-dir={folder / 'data'}", "-Dconfig=etc/config.properties"]
    command = [str(java()), *options, *files, "-cp", str(lib / "*"), "io.trino.server.TrinoServer"]
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=folder, preexec_fn=die_with_parent)  # noqa: PLW1509

    def started() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"{url}/v1/info") as answer:
                return json.load(answer)["starting"] is False
        except OSError:
            return False

    try:
        until(started, "Trino", within=STARTS_WITHIN)
        yield lambda statement: _rows(url, statement)
    finally:
        process.kill()
        process.wait()


def java() -> Path:
    """A Java that this Trino runs on: of JAVA_HOME, of PATH, or where Debian's packages are."""
    homes = [Path(os.environ["JAVA_HOME"])] if "JAVA_HOME" in os.environ else []
    if found := shutil.which("java"):
        homes.append(Path(found).resolve().parents[1])
    for home in (*homes, *Path("/usr/lib/jvm").glob("*")):
        release = home / "release"
        version = re.search(r'^JAVA_VERSION="(\d+)', release.read_text(), re.MULTILINE) if release.exists() else None
        if version and int(version[1]) >= OLDEST_JAVA:
            return home / "bin" / "java"
    raise FileNotFoundError(f"Trino needs Java {OLDEST_JAVA} or newer; install one, and say JAVA_HOME=...")


def _rows(url: str, statement: str) -> list[list[Any]]:
    """The rows that a statement returns. Raises ``TrinoError``."""
    deadline = time.monotonic() + STARTS_WITHIN
    while True:
        rows, error = _run(url, statement)
        if error is None:
            return rows
        # For some seconds a server that has started does not know itself as a worker.
        if error["errorName"] != "NO_NODES_AVAILABLE" or time.monotonic() > deadline:
            raise TrinoError("\n".join(_messages(error["failureInfo"])))


def _run(url: str, statement: str) -> tuple[list[list[Any]], dict[str, Any] | None]:
    rows: list[list[Any]] = []
    asked: urllib.request.Request | str = urllib.request.Request(
        f"{url}/v1/statement", statement.encode(), {"X-Trino-User": "tester"}
    )
    while True:
        with urllib.request.urlopen(asked) as response:
            answer = json.load(response)
        rows += answer.get("data", [])
        if "nextUri" not in answer:
            return rows, answer.get("error")
        asked = answer["nextUri"]


def _messages(failure: dict[str, Any] | None) -> Iterator[str]:
    while failure is not None:
        yield failure.get("message", "")
        failure = failure.get("cause")
