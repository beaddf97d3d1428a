"""Threads of one process that publish to one branch: they take turns, so none plans in vain."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import pytest
from support.at_once import result_of
from support.errors import raising
from support.scenes import SPLIT, open_faulty, tree

from lakeops import Settings
from lakeops.model.clock import pause
from lakeops.model.errors import CommitExpired, MergeConflict, StoreUnavailable
from lakeops.ops import publish as publishing
from lakeops.ops.fsck.findings import Severity
from lakeops.testing import Crash, Faults

THREADS = 6


@pytest.fixture
def faults():
    return Faults()


@pytest.fixture(params=["sqlite", "postgresql"])
def lake(request, tmp_path, faults):
    url = {} if request.param == "sqlite" else {"database_url": request.getfixturevalue("empty_postgres_url")}
    with open_faulty(Settings.load(home=tmp_path / "home", fsync=False, **url), faults) as lake:
        yield lake


@pytest.fixture
def repo(lake, faults):
    """A repository with a branch for each thread, each with a path of its own and one that all of them have."""
    repo = lake.create_repository("repo", split=SPLIT)
    repo.branch("main").put("base", b"base")
    repo.branch("main").commit("base")
    for number in range(THREADS):
        for name, path in ((f"dev{number}", f"own/{number}"), (f"clash{number}", "same")):
            branch = repo.create_branch(name, "main")
            branch.put(path, str(number).encode())
            branch.commit(name)
    faults.revive()
    return repo


def wait_until(holds):
    while not holds():
        pause(0.002)


def waiting():
    """How many threads take part in the turns of a branch, with the one whose turn it is."""
    return max(map(len, publishing._threads.values()), default=0)


def at_once(faults, acts):
    """The results or errors of the threads. The first one to publish waits until all others are in line."""
    faults.hook("publish", at=1, action=lambda _: wait_until(lambda: waiting() == len(acts)))
    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(result_of, acts))


def merges(repo, names):
    return [lambda name=name: repo.merge(name, "main").reference for name in names]


def check(repo):
    assert Severity.ERROR not in {finding.severity for finding in repo.fsck()}
    assert not publishing._threads, "nobody is left in line"


def test_none_plans_in_vain(repo, faults):
    commits = at_once(faults, merges(repo, [f"dev{number}" for number in range(THREADS)]))
    assert (faults.counts["publish"], faults.counts["enqueue"]) == (THREADS, 0)
    history = list(repo.log("main", first_parent=True))
    assert {commit.id for commit in history[:THREADS]} == set(commits)
    for number, commit in enumerate(reversed(history[:THREADS]), start=1):
        assert len(tree(repo, commit.id)) == number + 1, "each commit shows what was merged until then"
    check(repo)


def test_all_but_the_first_meet_a_conflict_with_what_is_published(repo, faults):
    fates = at_once(faults, merges(repo, [f"clash{number}" for number in range(THREADS)]))
    assert sorted(type(fate).__name__ for fate in fates) == [MergeConflict.__name__] * (THREADS - 1) + ["str"]
    assert repo.branch("main").head.id in fates
    check(repo)


@pytest.mark.parametrize("error", [CommitExpired("retention was quicker"), StoreUnavailable("gone")])
def test_an_error_is_one_thread_s_own(repo, faults, error):
    def refuse(_call):
        raise error

    faults.hook("publish", at=2, action=refuse)
    fates = at_once(faults, merges(repo, [f"dev{number}" for number in range(THREADS)]))
    assert [fate for fate in fates if not isinstance(fate, str)] == [error]
    assert len(tree(repo, "main")) == THREADS
    check(repo)


def test_who_is_interrupted_holds_up_nobody(repo, faults):
    faults.crash(at=1, operations=("publish",))
    with pytest.raises(Crash):
        repo.merge("dev0", "main")
    faults.revive()
    assert repo.merge("dev1", "main").reference
    check(repo)


def test_turns_come_in_order():
    order, place = list[int](), ("namespace", "main")

    def wait(number):
        with publishing._after_other_threads(place):
            order.append(number)

    threads = []
    with publishing._after_other_threads(place):
        for number in range(5):
            threads.append(Thread(target=wait, args=(number,)))
            threads[-1].start()
            wait_until(lambda count=number + 2: waiting() == count)
        with publishing._after_other_threads(("namespace", "dev")):
            assert not order, "another branch's turn comes at once"
    for thread in threads:
        thread.join()
    assert order == list(range(5))


def test_a_thread_that_its_own_callback_waits_for_is_not_locked_out(repo, monkeypatch):
    """The turns spare work. What waits for them in a circle goes on without."""
    monkeypatch.setattr(publishing, "LEAST_SECONDS", 0.2)
    merged = Event()

    def merge_beside(_head):
        if not merged.is_set():
            merged.set()
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(repo.merge, "dev1", "main").result().reference

    repo.merge("dev0", "main", on_head=merge_beside)
    assert len(tree(repo, "main")) == 3
    check(repo)


def test_two_calls_under_one_key_publish_one_commit_and_say_the_same(repo, faults):
    def merge():
        return repo.merge("dev0", "main", allow_empty=True, idempotency_key="the same")

    first, second = at_once(faults, [merge, merge])
    assert (first.reference, first.summary) == (second.reference, second.summary)
    assert first.summary.added == 1
    assert len(list(repo.log("main", first_parent=True))) == 3


def test_uncommitted_changes_are_refused_while_others_publish(repo, faults):
    """They come after the first one has planned, and before the second one's turn: who staged them saw the old head."""

    def stage(_call):
        wait_until(lambda: waiting() == 2)
        repo.branch("main").put("new", b"")

    faults.hook("publish", at=1, action=stage)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(repo.merge, "dev0", "main")
        wait_until(lambda: waiting() == 1)
        second = pool.submit(repo.merge, "dev1", "main")
        for merge in (first, second):
            with raising("dirty_branch"):
                merge.result()
    check(repo)
