"""Spark's failures in lakeops' own errors: one line that says what to do, never a Java stack trace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lakeops.model import errors
from lakeops.model.errors import EngineUnavailable, LakeopsError, Unsupported

_MISSING = re.compile(r"No module named '([\w.]+)'")
_VERSIONS = re.compile(r"PYTHON_VERSION_MISMATCH\]\s*(.*)")
_OURS = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.+)$", re.MULTILINE)
_LOST = (OSError, EOFError)
"""What Py4J lets through when the JVM is gone."""


@contextmanager
def translated() -> Iterator[None]:
    """Errors of Spark, of its bridge and of its JVM inside this block come out as ``LakeopsError``."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except LakeopsError:
        raise
    except (Py4JError, PySparkException, *_LOST) as error:
        raise explained(_text(error)) from error


def explained(text: str) -> LakeopsError:
    """The error for what Spark said."""
    missing = _MISSING.search(text)
    if missing:
        return Unsupported(
            f"a Spark worker cannot import {missing[1]!r}: install lakeops and what it needs for the Python that runs "
            "on the executors, or set engine=local"
        )
    ours = _OURS.search(text)
    if ours:
        kind = getattr(errors, ours[1], None)
        if isinstance(kind, type) and issubclass(kind, errors.Transient | errors.NotTheOwner):
            return kind(ours[2])
    versions = _VERSIONS.search(text)
    if versions:
        return Unsupported(f"Spark: {versions[1].strip()} (set PYSPARK_PYTHON, or engine=local)")
    if "stopped SparkContext" in text:
        return EngineUnavailable(
            "Spark stopped: its master did not take this application, or somebody ended the session; see that the "
            "master is a Spark master of the same version, try again, or set engine=local"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    first = lines[-1] if "Traceback" in text and not text.startswith("Job aborted") else lines[0]
    return EngineUnavailable(f"Spark gave up: {first[:500]}; nothing was published, try again or set engine=local")


def _text(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    try:
        return str(java.getMessage()) if java is not None else str(error)
    except Exception:  # noqa: BLE001 - asking a JVM that is gone
        return f"{type(error).__name__}, and the JVM does not answer"
