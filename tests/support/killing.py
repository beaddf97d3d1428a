"""Workers that are killed with SIGKILL again and again, and what must be true of their repository afterwards."""

import os
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from support.soundness import assert_sound
from support.steady import FILES

from lakeops import Lake, Repository, Settings, Split

TESTS = Path(__file__).parents[1]
GRACE_SECONDS = 60
"""Short, so that collection finds garbage while workers write; an attempt may still take half a minute."""


@dataclass
class Workers:
    """Workers of one repository, each with a log and a branch of its own."""

    home: Path
    url: str
    count: int

    def prepare(self) -> None:
        with self.open() as lake:
            repo = lake.create_repository("repo", split=Split(2, 4, 8))
            repo.gc.set_rules({"default_retention_days": 1, "branches": []})
            for number in range(self.count):
                repo.create_branch(f"w{number}")

    def open(self) -> Lake:
        settings = Settings.load(
            home=self.home, database_url=self.url or None, fsync=False, grace_hours=GRACE_SECONDS / 3600
        )
        return Lake.open(settings=settings)

    def log(self, number: int) -> Path:
        return self.home / f"w{number}.log"

    @property
    def stop(self) -> Path:
        return self.home / "stop"

    def rounds(self, number: int) -> int:
        """How many rounds a worker has finished."""
        return sum(line.startswith("round ") for line in self.log(number).read_text().splitlines())

    def start(self, number: int) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "LAKEOPS_GRACE_HOURS": str(GRACE_SECONDS / 3600)}
        arguments = [str(self.home), self.url, f"w{number}", str(self.log(number)), str(self.stop)]
        return subprocess.Popen(
            [sys.executable, "-m", "support.steady", *arguments],
            cwd=TESTS,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, random: Random, kills: int) -> None:
        """Kill workers at random moments, ``kills`` times in all; then let each end its round."""
        running = {number: self.start(number) for number in range(self.count)}
        killed = 0
        while killed < kills:
            number = random.choice(sorted(running))
            child = running[number]
            self._wait_for(child, number, more=random.randint(0, 12))
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=random.uniform(0, 0.2))  # so that it dies anywhere, not at an acknowledgement
            if child.poll() is not None:
                _check_ended(child)
                raise AssertionError(f"worker {number} ended before it was told to")
            child.kill()
            child.communicate()
            killed += 1
            running[number] = self.start(number)
        self.stop.touch()
        for number, child in running.items():
            self.end(child, number)

    def end(self, child: subprocess.Popen[str], number: int) -> None:
        """Wait until a worker has ended its round."""
        _check_ended(child)

    def _wait_for(self, child: subprocess.Popen[str], number: int, *, more: int) -> None:
        """Until a worker has written down so many more lines, or has ended."""
        log = self.log(number)
        before = _lines(log)
        while _lines(log) < before + more and child.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=0.02)

    def check(self) -> None:
        """Everything that was acknowledged is there, once, and readable."""
        with self.open() as lake:
            repo = lake.repository("repo")
            assert sum(self.rounds(worker) for worker in range(self.count))
            wanted = {
                f"w{worker}/{number:05}-{file}"
                for worker in range(self.count)
                for number in range(self.rounds(worker))
                for file in range(FILES)
            }
            _check_contents(repo, wanted)
            chain = Counter(commit.message for commit in repo.log("main"))
            keys = [f"w{worker}-{number}" for worker in range(self.count) for number in range(self.rounds(worker))]
            assert {key: chain[key] for key in keys} == dict.fromkeys(keys, 1)
            assert max(chain.values()) == 1
            assert_sound(repo, data=True)


def _lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def _check_ended(child: subprocess.Popen[str]) -> None:
    _, problems = child.communicate(timeout=600)
    assert child.returncode == 0, problems


def _check_contents(repo: Repository, wanted: set[str]) -> None:
    main = repo.ref("main@")
    found = {item.path for item in main.list()}
    assert sorted(wanted - found) == [], "acknowledged, and not there"
    assert sorted(found - wanted) == [], "there, though no round that ended wrote it"
    for path in wanted:
        assert main.read(path) == path.encode()
