"""Airflow on this machine alone: start and stop every part of it, and leave nothing behind.

It runs what ``airflow standalone`` runs, with one difference: ``standalone`` also starts two log servers that listen
on every network interface, and Airflow 3.3 has no setting to keep them on loopback. The parts started one by one take
``--skip-serve-logs``, and nothing needs those servers where tasks and web server share a disk.

    python demo/airflow/serve.py up [--home .airflow] [--port 8080]
    python demo/airflow/serve.py down [--home .airflow]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from lakeops import Lake
from lakeops.model.errors import AlreadyExists

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".airflow"
PARTS = {
    "api-server": ["api-server"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
HEALTH = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}
"""The parts' names in the web server's report on their health."""

LOG_LINES = 10
"""How many lines of the log of a part that ended an error shows."""

START_SECONDS = 900
"""How long one step of the start may take. A busy machine needs minutes for what takes seconds on an idle one."""

TELL_SECONDS = 15
GRACE_SECONDS = 10


class ServeError(Exception):
    """Airflow could not be started; the message says why and where to look."""


@dataclass(frozen=True)
class Server:
    """Airflow in one home directory. What is running is recorded there, so that any process can stop it.

    ``dags`` is the folder that it reads, ``settings`` are variables over those of ``environment``.
    """

    home: Path
    dags: Path = ROOT / "dags"
    settings: Mapping[str, str] = field(default_factory=dict)
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list, compare=False, repr=False)

    @property
    def record(self) -> Path:
        """The file that names the web server's port and the processes."""
        return self.home / "serving.json"

    @property
    def logs(self) -> Path:
        """Where each part's output goes."""
        return self.home / "parts"

    @property
    def lake_home(self) -> Path:
        """The home directory of the lake that the DAGs work on."""
        return self.home / "lakeops"

    @property
    def url(self) -> str:
        """The web server's address."""
        return f"http://127.0.0.1:{json.loads(self.record.read_text())['port']}"

    @property
    def password(self) -> str:
        """The password of the user ``admin``, which Airflow made up when it first started here."""
        return str(json.loads((self.home / "passwords.json").read_text())["admin"])

    def start(self, port: int | None = None, *, patience: Callable[[str], None] = lambda _: None) -> None:
        """Start Airflow and return when it takes requests and knows its DAGs.

        Args:
            port: the web server's port on loopback; any free one when left out.
            patience: called with what is being waited for.

        Raises:
            ServeError: it runs already, or a part of it ended, or a part is not ready in ``START_SECONDS``.
        """
        if self.running():
            raise ServeError(f"Airflow runs in {self.home} already; stop it first (make down)")
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.logs.mkdir(exist_ok=True)
        chosen = port or free_port()
        env = self._environment(chosen)
        started: dict[str, subprocess.Popen[bytes]] = {}
        try:
            patience("preparing Airflow's database")
            self._migrate(env)
            for name, command in PARTS.items():
                started[name] = self._launch(name, command, env)
                self._remember(chosen, {part: process.pid for part, process in started.items()})
                if name == "api-server":
                    # The others call it, and the workers would use up their tries before it listens.
                    self._wait(started, {"api-server"}, patience)
            self._wait(started, set(PARTS), patience)
        except BaseException:
            self.stop()
            raise

    def kill(self, part: str) -> None:
        """Let one part die with everything below it, as a machine that goes down would."""
        (leader, _) = json.loads(self.record.read_text())["parts"][part]
        for process in psutil.process_iter():
            if _session(process) == leader:
                _signal(process, signal.SIGKILL)
                process.wait(GRACE_SECONDS)
        self._reap()

    def revive(self, part: str) -> None:
        """Start a part again that has died."""
        known = json.loads(self.record.read_text())
        process = self._launch(part, PARTS[part], self._environment(known["port"]))
        pids = {name: pid for name, (pid, _) in known["parts"].items()}
        self._remember(known["port"], {**pids, part: process.pid})

    def lake(self) -> Lake:
        """The lake that the DAGs work on.

        Settings of whoever calls are left out: what is started here is a playground of its own.
        """
        for name in [name for name in os.environ if name.startswith("LAKEOPS_")]:
            del os.environ[name]
        os.chdir(self.home)  # away from a lakeops.toml in the working directory
        return Lake.open(home=self.lake_home)

    def stop(self) -> None:
        """Stop everything that was started here: ask first, and kill what stays."""
        leaders, members = self._sessions(), self.running()
        for process in members:
            if process.pid in leaders:
                _signal(process, signal.SIGINT)
        _, stubborn = psutil.wait_procs(members, timeout=GRACE_SECONDS)
        for process in {*stubborn, *self.running()}:
            _signal(process, signal.SIGKILL)
        psutil.wait_procs(self.running(), timeout=GRACE_SECONDS)
        self._reap()
        self.record.unlink(missing_ok=True)

    def running(self) -> list[psutil.Process]:
        """Every process of the sessions that were started here: the parts, their workers and the tasks.

        Each part leads a session, which all of its descendants stay in, also when the part itself is gone or a
        process has renamed itself.
        """
        sessions = self._sessions()
        return [process for process in psutil.process_iter() if sessions and _session(process) in sessions]

    def exposed(self) -> list[str]:
        """Addresses that anything started here listens on beyond loopback. There should be none."""
        found = []
        for process in self.running():
            with suppress(psutil.Error):
                found += [
                    f"{connection.laddr.ip}:{connection.laddr.port}"
                    for connection in process.net_connections()
                    if connection.status == psutil.CONN_LISTEN and connection.laddr.ip != "127.0.0.1"
                ]
        return found

    def _sessions(self) -> set[int]:
        """Session ids of the parts. One whose number belongs to a later process by now is left out."""
        if not self.record.exists():
            return set()
        found = set()
        for pid, born in json.loads(self.record.read_text())["parts"].values():
            try:
                if abs(psutil.Process(pid).create_time() - born) < 1:
                    found.add(pid)
            except psutil.NoSuchProcess:
                found.add(pid)
        return found

    def _environment(self, port: int) -> dict[str, str]:
        """The variables that the parts run with. A key that signs tokens stays the same while anything runs."""
        key = self.home / "jwt-secret"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_text(secrets.token_hex(64))
        return {
            **environment(self.home, port, self.dags),
            "AIRFLOW__API_AUTH__JWT_SECRET": key.read_text(),
            **self.settings,
        }

    def _launch(self, name: str, command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.logs / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                airflow(*command),
                env=env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children.append(child)
        return child

    def _reap(self) -> None:
        """Take note of children that have ended."""
        for child in self._children:
            child.poll()

    def _migrate(self, env: dict[str, str]) -> None:
        log = self.logs / "migrate.log"
        with log.open("wb") as output:
            done = subprocess.run(
                airflow("db", "migrate"), env=env, cwd=self.home, stdout=output, stderr=subprocess.STDOUT, check=False
            )
        if done.returncode:
            raise ServeError(f"Airflow could not prepare its database; see {log}")

    def _remember(self, port: int, started: dict[str, int]) -> None:
        parts = {name: (pid, _born(pid)) for name, pid in started.items()}
        self.record.write_text(json.dumps({"port": port, "parts": parts}))

    def _wait(
        self, started: Mapping[str, subprocess.Popen[bytes]], wanted: set[str], patience: Callable[[str], None]
    ) -> None:
        """Return when these parts are healthy; tell now and then which ones are not."""
        begun = told = time.monotonic()
        patience(f"waiting for {', '.join(sorted(wanted))}")
        while missing := wanted - self._healthy():
            for name, process in started.items():
                if process.poll() is not None:
                    raise ServeError(f"Airflow's {name} ended; see {self.logs / name}.log:\n{self._end_of_log(name)}")
            now = time.monotonic()
            if now - begun > START_SECONDS:
                names = ", ".join(sorted(missing))
                raise ServeError(f"Airflow's {names} is not ready after {START_SECONDS} s; see {self.logs}")
            if now - told > TELL_SECONDS:
                told = now
                patience(f"still waiting for {', '.join(sorted(missing))}, after {now - begun:.0f} s")
            time.sleep(0.2)

    def _end_of_log(self, name: str) -> str:
        lines = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])

    def _healthy(self) -> set[str]:
        """The parts that say they are healthy."""
        try:
            health = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=30).json()
        except (httpx.HTTPError, ValueError):
            return set()
        parts = {"api-server": "metadatabase", **HEALTH}
        return {name for name, key in parts.items() if (health.get(key) or {}).get("status") == "healthy"}


def environment(home: Path, port: int, dags: Path = ROOT / "dags") -> dict[str, str]:
    """The variables that Airflow runs with: everything in ``home``, loopback only, quick to react."""
    url = f"http://127.0.0.1:{port}"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW_", "LAKEOPS_", "PYTHONDONTWRITEBYTECODE"))
    }
    return {
        **inherited,
        "PATH": path,
        "AIRFLOW_HOME": str(home),
        "LAKEOPS_HOME": str(home / "lakeops"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
        # An executor that notices late that a process ended mistakes a resumed task for a failed one.
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    }


def airflow(*arguments: str) -> list[str]:
    """A command line of this very environment's Airflow."""
    return [sys.executable, "-m", "airflow", *arguments]


def free_port() -> int:
    """A port of loopback that nothing listens on.

    It lies below those that the system gives to connections and to port 0 (32,768 and more on Linux). One of these
    could be taken in the seconds that the web server needs until it listens.
    """
    for port in random.sample(range(20_000, 32_000), 1_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise ServeError("none of a thousand ports between 20000 and 32000 is free")


def _born(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        return None


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        if number is signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
    except (ProcessLookupError, psutil.NoSuchProcess):
        pass


def main() -> int:
    """The command line: ``up`` or ``down``."""
    parser = argparse.ArgumentParser(description="Run Airflow on loopback.")
    parser.add_argument("verb", choices=["up", "down"])
    parser.add_argument("--home", type=Path, default=HOME)
    parser.add_argument("--port", type=int, default=None)
    parser.add_argument("--wipe", action="store_true", help="down: remove the home directory too")
    given = parser.parse_args()
    server = Server(given.home.resolve())
    if given.verb == "down":
        server.stop()
        if given.wipe:
            shutil.rmtree(server.home, ignore_errors=True)
        print("Airflow is stopped.")
        return 0
    try:
        server.start(given.port, patience=lambda what: print(f"{what} ...", flush=True))
    except ServeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with server.lake() as lake, suppress(AlreadyExists):
        lake.create_repository("flights")
    print(f"Airflow runs at {server.url} (user admin, password {server.password}); stop it with: make down")
    return 0


if __name__ == "__main__":
    sys.exit(main())
