"""Threads of one process that publish to one branch: in one transaction, each its own commit, and all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock, Thread

import pytest
from support.scenes import SPLIT, open_faulty, tree

from lakeops import Lake, Repository, Settings
from lakeops.model.clock import pause
from lakeops.model.errors import CatalogUnavailable, CommitExpired, LakeopsError, MergeConflict, StoreUnavailable
from lakeops.model.findings import Severity
from lakeops.ops import companions
from lakeops.testing import Crash, Faults

THREADS = 6


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture(params=["sqlite", "postgresql"])
def lake(request, tmp_path: Path, faults: Faults) -> Iterator[Lake]:
    url = {} if request.param == "sqlite" else {"database_url": request.getfixturevalue("empty_postgres_url")}
    with open_faulty(Settings.load(home=tmp_path / "home", fsync=False, **url), faults) as lake:
        yield lake


@pytest.fixture
def repo(lake: Lake) -> Repository:
    """A repository with a branch for each thread, each with a path of its own and one that all of them have."""
    repo = lake.create_repository("repo", split=SPLIT)
    repo.branch("main").put("base", b"base")
    repo.branch("main").commit("base")
    for number in range(THREADS):
        branch = repo.create_branch(f"dev{number}", "main")
        branch.put(f"own/{number}", b"own")
        branch.commit(f"dev{number}")
        branch = repo.create_branch(f"clash{number}", "main")
        branch.put("same", f"{number}".encode())
        branch.commit(f"clash{number}")
    return repo


@pytest.fixture
def planned(monkeypatch) -> list[object]:
    """What has been planned and waits to be published, or is published."""
    found, lock, inner = list[object](), Lock(), companions._Chain.publish

    def publish(self, catalog, mine):
        with lock:
            found.append(mine)
        return inner(self, catalog, mine)

    monkeypatch.setattr(companions._Chain, "publish", publish)
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    """Return as soon as something holds that another thread is going to do."""
    while not holds():
        pause(0.002)


def at_once(acts: list[Callable[[], object]]) -> list[object]:
    """What each gave or raised; each begins once the one before has planned or ended."""

    def fate(act: Callable[[], object]) -> object:
        try:
            return act()
        except LakeopsError as error:
            return error

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(fate, acts))


def merges(repo: Repository, names: list[str]) -> list[Callable[[], object]]:
    return [lambda name=name: repo.merge(name, "main").reference for name in names]


def held_back(faults: Faults, planned: list[object], count: int) -> None:
    """The first transaction waits until so many have planned."""
    faults.revive()
    faults.hook("publish", at=1, action=lambda _: wait_until(lambda: len(planned) == count))


def test_one_transaction_takes_all_that_have_planned(repo: Repository, faults: Faults, planned) -> None:
    held_back(faults, planned, THREADS)
    commits = at_once(merges(repo, [f"dev{number}" for number in range(THREADS)]))
    assert (faults.counts["publish"], faults.counts["publish_together"]) == (1, 1)
    history = list(repo.log("main", first_parent=True))
    assert {commit.id for commit in history[:THREADS]} == set(commits)
    assert [len(commit.parents) for commit in history[:THREADS]] == [2] * THREADS
    for number, commit in enumerate(reversed(history[:THREADS]), start=1):
        assert len(tree(repo, commit.id)) == number + 1, "each commit shows what was merged until then"
    assert Severity.ERROR not in {finding.severity for finding in repo.fsck()}


def test_a_conflict_is_one_with_what_is_published(repo: Repository, faults: Faults, planned) -> None:
    """The second plans on a commit that nobody sees yet. It is told of the conflict once everybody sees it."""
    held_back(faults, planned, 1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(repo.merge, "clash0", "main")
        wait_until(lambda: len(planned) == 1)
        with pytest.raises(MergeConflict):
            repo.merge("clash1", "main")
        assert repo.branch("main").head.id == first.result().reference


def test_what_rests_on_a_commit_that_was_refused_is_published_without_it(repo, faults, planned) -> None:
    def refuse(_call) -> None:
        wait_until(lambda: len(planned) == THREADS)
        raise CommitExpired("retention was quicker")

    faults.revive()
    faults.hook("publish", at=1, action=refuse)
    fates = at_once(merges(repo, [f"dev{number}" for number in range(THREADS)]))
    assert [type(fate) for fate in fates if not isinstance(fate, str)] == [CommitExpired]
    assert len(tree(repo, "main")) == THREADS
    assert Severity.ERROR not in {finding.severity for finding in repo.fsck()}


def test_a_file_that_cannot_be_written_stops_its_own_commit_alone(repo, faults, planned) -> None:
    faults.revive()
    faults.fail("put", at=1)
    fates = at_once(merges(repo, [f"dev{number}" for number in range(THREADS)]))
    failed = [fate for fate in fates if not isinstance(fate, str)]
    assert [type(fate) for fate in failed] in ([], [StoreUnavailable])  # it is written anew where others wait for it
    assert len(tree(repo, "main")) == 1 + THREADS - len(failed)


def test_who_is_interrupted_says_that_the_others_do_not_know(repo, faults, planned) -> None:
    held_back(faults, planned, 3)
    faults.crash(at=1, operations=("publish_together",))
    ended = list[BaseException]()

    def act(name: str) -> None:
        try:
            repo.merge(name, "main")
        except BaseException as error:
            ended.append(error)

    threads = [Thread(target=act, args=(f"dev{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {type(error) for error in ended} == {Crash, CatalogUnavailable}
    faults.revive()
    assert repo.merge("dev3", "main").reference
    assert Severity.ERROR not in {finding.severity for finding in repo.fsck()}


def test_uncommitted_changes_are_refused_while_others_publish(repo, faults, planned) -> None:
    """They came after the first one began."""
    held_back(faults, planned, 1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(repo.merge, "dev0", "main")
        wait_until(lambda: len(planned) == 1)
        first.result()
        repo.branch("main").put("new", b"")
        with pytest.raises(LakeopsError, match="uncommitted"):
            repo.merge("dev1", "main")


def test_turns_come_in_order() -> None:
    turn, order = companions._Turn(), list[int]()
    turn.__enter__()

    def wait(number: int) -> None:
        with turn:
            order.append(number)

    threads = []
    for number in range(5):
        threads.append(Thread(target=wait, args=(number,)))
        threads[-1].start()
        wait_until(lambda count=number + 1: len(turn._waiting) == count)
    assert not order
    turn.__exit__()
    for thread in threads:
        thread.join()
    assert order == list(range(5))
    assert not turn.taken


def test_two_calls_under_one_key_publish_one_commit_and_say_the_same(repo, faults, planned) -> None:
    """The second plans on the first one's commit, which nobody can look up yet."""
    held_back(faults, planned, 2)

    def merge() -> object:
        return repo.merge("dev0", "main", allow_empty=True, idempotency_key="the same")

    first, second = at_once([merge, merge])
    assert first == second
    assert first.summary.added == 1
    assert len(list(repo.log("main", first_parent=True))) == 3


def test_who_is_interrupted_before_a_transaction_holds_up_nobody(repo, faults, planned, monkeypatch) -> None:
    """Another thread waits for the outcome of what the interrupted one has planned."""
    chain, inner = companions._Chain, companions._Chain.publish

    def publish(self, catalog, mine):
        if len(planned) == 1:
            wait_until(lambda: any(waits))
            planned.append(mine)
            raise Crash
        return inner(self, catalog, mine)

    waits = list[object]()
    plan = chain.plan

    def looks(self, asked):
        try:
            return plan(self, asked)
        except companions.GoAlone as error:
            waits.append(error.after)
            raise

    monkeypatch.setattr(chain, "publish", publish)
    monkeypatch.setattr(chain, "plan", looks)
    planned.append(None)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(repo.merge, "clash0", "main")
        wait_until(lambda: repo._ctx.companions.busy((repo.storage_namespace, "main")) or first.done())
        second = pool.submit(repo.merge, "clash1", "main")
        with pytest.raises(Crash):
            first.result()
        assert second.result(timeout=100).reference
