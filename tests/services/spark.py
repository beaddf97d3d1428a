"""A standalone Spark cluster on loopback, from the pip package: a master and workers, each a process of its own."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil
import pyspark
from services.process import die_with_parent

SPARK = Path(pyspark.__file__).parent
TESTS = Path(__file__).parent.parent
CODE = os.pathsep.join([str(TESTS), str(TESTS.parent)])
"""These tests' modules, and the code that they test."""
LONGEST = 60.0

QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For JVMs that live for seconds."""

SPARK_CONF = {
    "spark.executorEnv.PYTHONPATH": CODE,
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "500m",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
}
"""Small JVMs, and this code on the executors' path."""

T = TypeVar("T")


def until(found: Callable[[], T | None], what: str, *, within: float = LONGEST) -> T:
    """The result of ``found`` once it gives one, within so many seconds."""
    end = time.monotonic() + within
    while not (value := found()):
        assert time.monotonic() < end, f"waited too long for {what}"
        time.sleep(0.05)
    return value


class Daemon:
    """A Spark daemon; it dies with this process, however this one ends."""

    def __init__(self, folder: Path, name: str, host: str, program: str, *arguments: str) -> None:
        self.log = folder / f"{name}.log"
        environment = os.environ | {
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "512m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JVM} -Dspark.master.rest.enabled=false",
            "SPARK_SUBMIT_OPTS": QUICK_JVM,
            "SPARK_LOCAL_DIRS": str(folder),
            "PYTHONPATH": CODE,
            "PYSPARK_PYTHON": sys.executable,
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(SPARK / "bin" / program), *arguments],
                env=environment,
                cwd=folder,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )

    def said(self, pattern: str) -> str:
        """A line of the log, once it is there."""

        def look() -> str | None:
            assert self.process.poll() is None, self.log.read_text()
            match = re.search(pattern, self.log.read_text(errors="replace"))
            return match[1] if match else None

        return until(look, f"{pattern!r} in {self.log.name}")

    def kill(self) -> None:
        """End it and what it started (a worker's executors) at once."""
        with_children = []
        if self.process.poll() is None:
            with_children = psutil.Process(self.process.pid).children(recursive=True)
        for process in (self.process, *with_children):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        self.process.wait()


class Cluster:
    """A master and its workers, of one core each.

    Args:
        folder: where logs and the executors' directories go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.workers: list[Daemon] = []
        self._started = 0
        self._master = self._daemon("master", "127.0.0.1", "master.Master")
        try:
            self.url = self._master.said(r"(spark://127\.0\.0\.1:\d+)")
            self._page = "http://127.0.0.1:" + self._master.said(r"'MasterUI' on port (\d+)")
        except BaseException:
            self.stop()
            raise

    def have(self, workers: int) -> None:
        """Start workers until so many are alive, and wait for all of them."""
        self.workers = [worker for worker in self.workers if worker.process.poll() is None]
        while len(self.workers) < workers:
            # A speculative twin never runs on the host of the first try, so each worker has an address of its own.
            self._started += 1
            host = f"127.0.0.{self._started}" if sys.platform == "linux" else "127.0.0.1"
            home = ("--cores", "1", "--memory", "700m", "--work-dir", str(self._folder / f"work-{self._started}"))
            self.workers.append(self._daemon(f"worker-{self._started}", host, "worker.Worker", self.url, *home))
        until(lambda: self._alive() == workers, f"{workers} workers")

    def stop(self) -> None:
        """End all of it."""
        for daemon in (*self.workers, self._master):
            daemon.kill()

    def state(self) -> dict:
        """The master's state, as it tells it."""
        with urllib.request.urlopen(f"{self._page}/json/", timeout=10) as answer:
            return json.load(answer)

    def _daemon(self, name: str, host: str, kind: str, *arguments: str) -> Daemon:
        ports = ("--host", host, "--port", "0", "--webui-port", "0")
        return Daemon(self._folder, name, host, "spark-class", f"org.apache.spark.deploy.{kind}", *arguments, *ports)

    def _alive(self) -> int:
        return sum(worker["state"] == "ALIVE" for worker in self.state()["workers"])


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster of two workers that lives as long as the block."""
    found = Cluster(folder)
    try:
        found.have(2)
        yield found
    finally:
        found.stop()


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """The address of a Spark Connect server that lives as long as the block."""
    options = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.enabled": "false",
    }
    settings = [part for name, value in options.items() for part in ("--conf", f"{name}={value}")]
    kind = "org.apache.spark.sql.connect.service.SparkConnectServer"
    server = Daemon(
        folder,
        "connect",
        "127.0.0.1",
        "spark-submit",
        "--class",
        kind,
        "--master",
        "local[2]",
        *settings,
        "spark-internal",
    )
    try:
        yield "sc://127.0.0.1:" + server.said(r"Spark Connect server started at:.*?:(\d+)")
    finally:
        server.kill()
