"""Several processes and threads on one branch: nothing lost, nothing twice, a linear history."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from time import sleep

import pytest

from lakeops import Lake, Repository, Settings, Split
from lakeops.model.errors import BranchMoved, NoChanges

TESTS = Path(__file__).parents[1]


def run_committers(home: Path, url: str, processes: int, rounds: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "support.committer", str(home), url, f"w{number}", str(rounds)],
            cwd=TESTS,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    for child in running:
        _, problems = child.communicate(timeout=240)
        assert child.returncode == 0, problems


def check_history(repo: Repository, wanted: set[str]) -> None:
    leftover = [change.path for change in repo.branch("main").uncommitted()]
    assert leftover == [], "every put was followed by a commit"
    chain = list(repo.log("main", first_parent=True))
    assert [commit.parents for commit in chain] == [(older.id,) for older in chain[1:]] + [()]
    added = Counter(change.path for newer, older in pairwise(chain) for change in repo.diff(older.id, newer.id))
    assert added == Counter(wanted), "each path was added by exactly one commit"
    assert {item.path for item in repo.ref("main").list()} == wanted


@pytest.mark.parametrize(
    ("processes", "rounds", "postgres"),
    [(2, 8, False), (3, 4, True), pytest.param(8, 4, True, marks=pytest.mark.slow)],
)
def test_many_processes(request, tmp_path: Path, processes: int, rounds: int, postgres: bool) -> None:
    url = request.getfixturevalue("empty_postgres_url") if postgres else ""
    with Lake.open(settings=Settings.load(home=tmp_path, database_url=url or None, fsync=False)) as lake:
        repo = lake.create_repository("repo", split=Split(4, 8, 16))
        run_committers(tmp_path, url, processes, rounds)
        check_history(repo, {f"w{worker}/{number:03}" for worker in range(processes) for number in range(rounds)})


def test_a_put_during_a_commit_lands_in_it_or_stays_staged(lake: Lake, repo: Repository) -> None:
    """A thread puts without pause while another commits: each path ends in one commit, or staged at the end."""
    stop = threading.Event()
    done: list[str] = []
    problems: list[BaseException] = []

    def keep_putting() -> None:
        branch = repo.branch("main")
        try:
            while not stop.is_set():
                path = f"p{len(done):05}"
                branch.put(path, path.encode())
                done.append(path)
                assert branch.exists(path), "what was put is seen at once and from then on"
        except BaseException as error:
            problems.append(error)

    writer = threading.Thread(target=keep_putting)
    writer.start()
    try:
        commits = 0
        while commits < 15 and not problems:
            try:
                repo.branch("main").commit("meanwhile")
                commits += 1
            except NoChanges:
                continue
    finally:
        stop.set()
        writer.join()
    assert not problems
    assert [item.path for item in repo.ref("main").list()] == done
    try:
        repo.branch("main").commit("rest")
    except NoChanges:
        pass
    check_history(repo, set(done))


def test_a_branch_that_never_holds_still_is_reported(repo: Repository, monkeypatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("lakeops.ops.publish.pause", lambda seconds: waits.append(seconds) or sleep(0.01))
    settings = Settings.load(home=repo._ctx.settings.home, fsync=False, publish_minutes=0.005)
    with Lake.open(settings=settings) as lake:
        inner = lake.catalog.commits.publish

        def publish(request):
            if request.commit.message == "mine":
                raise BranchMoved("branch 'main' moved")
            return inner(request)

        lake.catalog.commits.publish = publish  # type: ignore[method-assign]
        main = lake.repository("repo").branch("main")
        main.put("a", b"")
        with pytest.raises(BranchMoved, match="publish_minutes"):
            main.commit("mine")
        assert [change.path for change in main.uncommitted()] == ["a"]
        assert len(waits) > 1
        assert max(waits) <= 1
        lake.catalog.commits.publish = inner  # type: ignore[method-assign]
        main.commit("its place is given up")
