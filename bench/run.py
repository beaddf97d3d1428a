"""One run: lakeops and git in turn, row by row, on the same paths."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.dataset import DataSet
from bench.git_side import GitSide
from bench.rows import SECTIONS, Row, settle
from bench.sample import CODE, Sample, typical


class Worker:
    """The process that lakeops runs in."""

    def __init__(self, folder: Path, size: int) -> None:
        folder.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker", str(folder), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": CODE},
        )
        self._answer()

    def ask(self, row: str | None, again: int = 0) -> dict[str, Any]:
        """One run of a row; None makes what the later rows stand on."""
        self._process.stdin.write(json.dumps({"row": row, "again": again}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the lakeops process ended; its error is above")
        return json.loads(line)


def measure(size: int, repeats: int, heavy_repeats: int, on_row: Callable[[Row], None]) -> dict[str, Any]:
    """The medians of all rows at one size, as a JSON document."""
    data = DataSet(size)
    result: dict[str, Any] = {"size": size, "machine": machine(), "rows": {}}
    with tempfile.TemporaryDirectory(prefix="lakeops-bench-") as place:
        folder = Path(place)
        git = GitSide(folder / "git", data)
        worker = Worker(folder / "lakeops", size)
        try:
            for section in SECTIONS:
                for row in section.rows:
                    on_row(row)
                    result["rows"][row.name] = _row(row, git, worker, row.repeats(repeats, heavy_repeats))
                    if row.beside:
                        result["rows"][row.name]["git"] = result["rows"][row.beside]["git"]
                if section is SECTIONS[0]:
                    git.settle()
                    settle(git)
                    result["facts"] = worker.ask(None) | {"git_bytes_per_entry": git.pack_bytes() / size}
        finally:
            worker.close()
    return result


def machine() -> dict[str, Any]:
    """What it ran on, and how busy it was."""
    git = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    return {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "git": git,
        "system": platform.system(),
    }


def _row(row: Row, git: GitSide, worker: Worker, repeats: int) -> dict[str, Any]:
    ours, theirs = [], []
    for again in range(repeats):
        if row.git is not None:
            with suppress(subprocess.TimeoutExpired):
                theirs.append(row.git(git, again))
        ours.append(Sample(**worker.ask(row.name, again)))
    return {
        "repeats": repeats,
        "load": os.getloadavg()[0],
        "lakeops": typical(ours).plain(),
        "git": typical(theirs).plain() if theirs else None,
        "git_stopped": row.git is not None and not theirs,
    }
