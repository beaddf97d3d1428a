"""A worker that is killed again and again: puts, commits and merges under keys, and writes down what was acknowledged.

Usage: python -m support.steady HOME DATABASE_URL NAME LOG STOP  (DATABASE_URL empty: SQLite under HOME)

It begins no further round once there is a file STOP. A round that was begun is finished.

The log is the worker's only memory, as a scheduler's is. A line is written once the call has returned. A worker that
starts reads its log and goes on with the first call that is not in it, under the same key.
"""

import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from lakeops import Lake, Repository, Settings
from lakeops.model.errors import AttemptExpired, MarkRefused, NoChanges, Transient

FILES = 3
"""Puts of one round."""

COLLECT_EVERY = 3
"""Rounds after which the worker collects garbage."""


class Log:
    """The acknowledged objects, one line each."""

    def __init__(self, file: Path) -> None:
        self.file = file
        text = file.read_text() if file.exists() else ""
        self.lines = set(text[: text.rfind("\n") + 1].splitlines())
        self._out = file.open("a")
        if text and not text.endswith("\n"):
            self._out.write("\n")  # a line that was cut off was never acknowledged

    def begun(self, name: str, number: int) -> bool:
        """Whether anything of a round was acknowledged."""
        return f"put {name}/{number:05}-0" in self.lines

    def add(self, line: str) -> None:
        self.lines.add(line)
        self._out.write(line + "\n")
        self._out.flush()
        os.fsync(self._out.fileno())

    def close(self) -> None:
        self._out.close()


def again(act: Callable[[], object]) -> None:
    """Do it until it is done; others are in the way for a moment."""
    while True:
        try:
            act()
        except (Transient, AttemptExpired):
            continue
        return


def play(repo: Repository, name: str, log: Log, stop: Path) -> None:
    """One round after the other, from the first that the log does not have whole."""
    for number in count():
        if f"round {number}" in log.lines:
            continue
        if stop.exists() and not log.begun(name, number):
            return
        for file in range(FILES):
            path = f"{name}/{number:05}-{file}"
            if f"put {path}" not in log.lines:
                again(lambda path=path: repo.branch(name).put(path, path.encode()))
                log.add(f"put {path}")
        key = f"{name}-{number}"
        if f"commit {key}" not in log.lines:
            again(lambda key=key: repo.branch(name).commit(key, idempotency_key=f"c-{key}"))
            log.add(f"commit {key}")
        if f"merge {key}" not in log.lines:
            again(
                lambda key=key: repo.merge(
                    name, "main", message=f"merge {key}", strategy="source-wins", idempotency_key=f"m-{key}"
                )
            )
            log.add(f"merge {key}")
        if number % COLLECT_EVERY == COLLECT_EVERY - 1 and f"collect {key}" not in log.lines:
            again(lambda: collect(repo))
            log.add(f"collect {key}")
        log.add(f"round {number}")


def collect(repo: Repository) -> None:
    """Mark and sweep; another worker's newer mark is as good as ours."""
    try:
        repo.gc.sweep(repo.gc.mark().id, force=True)
    except (MarkRefused, NoChanges):
        return


def main() -> None:
    home, url, name, log, stop = sys.argv[1:]
    settings = Settings.load(home=home, database_url=url or None, fsync=False, committer=name)
    with Lake.open(settings=settings) as lake:
        play(lake.repository("repo"), name, Log(Path(log)), Path(stop))


if __name__ == "__main__":
    main()
