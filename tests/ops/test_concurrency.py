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


@pytest.mark.parametrize("processes", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_many_processes_on_postgresql(tmp_path: Path, empty_postgres_url: str, processes: int) -> None:
    settings = Settings.load(home=tmp_path, database_url=empty_postgres_url, fsync=False)
    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("repo", split=Split(4, 8, 16))
        run_committers(tmp_path, empty_postgres_url, processes, 4)
        check_history(repo, {f"w{worker}/{number:03}" for worker in range(processes) for number in range(4)})


def test_two_processes_on_sqlite(tmp_path: Path) -> None:
    settings = Settings.load(home=tmp_path, fsync=False)
    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("repo", split=Split(4, 8, 16))
        run_committers(tmp_path, "", 2, 8)
        check_history(repo, {f"w{worker}/{number:03}" for worker in range(2) for number in range(8)})


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


def test_a_commit_whose_changes_another_took_along_is_that_commit(lake: Lake, repo: Repository) -> None:
    """Both began; the slower one finds its changes published, and says where."""
    main = repo.branch("main")
    main.put("a", b"1")
    inner = lake.catalog.commits.publish
    faster: list[str] = []

    def publish(request):
        if not faster:
            faster.append("")
            faster[0] = repo.branch("main").commit("faster").id
        return inner(request)

    lake.catalog.commits.publish = publish  # type: ignore[method-assign]
    slower = main.commit("slower", idempotency_key="k")
    assert slower.id == faster[0]
    assert main.commit("slower", idempotency_key="k").id == faster[0]
    assert [commit.message for commit in repo.log("main")] == ["faster", "Repository created"]


def test_merges_into_a_moving_branch_lose_nothing(lake: Lake, repo: Repository) -> None:
    repo.branch("main").put("base", b"")
    repo.branch("main").commit("base")
    repo.create_branch("dev")
    repo.branch("dev").put("dev", b"")
    repo.branch("dev").commit("dev")
    inner, moves = lake.catalog.commits.publish, iter(range(3))

    def publish(request):
        number = next(moves, None)
        if number is not None and request.action == "merge":
            repo.branch("main").put(f"m{number}", b"")
            lake.catalog.commits.publish = inner  # type: ignore[method-assign]
            repo.branch("main").commit(f"move {number}")
            lake.catalog.commits.publish = publish  # type: ignore[method-assign]
        return inner(request)

    lake.catalog.commits.publish = publish  # type: ignore[method-assign]
    result = repo.merge("dev", "main")
    assert {item.path for item in repo.ref("main").list()} == {"base", "dev", "m0", "m1", "m2"}
    assert repo.ref("main").commit.id == result.reference
    assert len(list(repo.log("main", first_parent=True))) == 6


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
