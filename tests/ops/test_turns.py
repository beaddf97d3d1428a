"""Publishers that meet at one branch: everybody's turn comes, and nobody is overtaken by those who came later."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count, takewhile

import pytest
from support.forked import CONTEXT, run_forked
from support.scenes import open_faulty, tree

from lakeops import Lake, Settings, Split
from lakeops.model.clock import stopwatch
from lakeops.model.errors import BranchMoved
from lakeops.ops import publish as publishing
from lakeops.testing import Faults

MOST_TRIES = 2
"""Of one merge: the first one, and one when its turn has come."""

MOST_OVERTAKEN = 4
"""Merges of one other thread of the same process while a merge waits: its first look, its turn, its transaction."""


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request, tmp_path):
    if request.param == "sqlite":
        yield Settings.load(home=tmp_path / "home", fsync=False)
    else:
        url = request.getfixturevalue("empty_postgres_url")
        yield Settings.load(home=tmp_path / "home", database_url=url, fsync=False)


@dataclass
class Fate:
    """How a merge fared: its commit, how often it was tried, how long it took.

    ``head`` is that of the branch when it took a place, and ``ahead`` how many had one already.
    """

    commit: str = ""
    tries: int = 0
    head: str | None = None
    ahead: int = 0
    seconds: float = 0.0


class Watched:
    """A catalog that notes how its thread's publisher fares."""

    def __init__(self, inner, fate):
        self._inner = inner
        self.commits = WatchedCommits(inner, fate)

    def __getattr__(self, name):
        return getattr(self._inner, name)


class WatchedCommits:
    def __init__(self, catalog, fate):
        self._catalog = catalog
        self._inner = catalog.commits
        self._fate = fate

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def publish(self, request):
        self._fate.tries += 1
        return self._inner.publish(request)

    def enqueue(self, repository_id, branch, publisher, *, lasts):
        ahead = self._inner.enqueue(repository_id, branch, publisher, lasts=lasts)
        if self._fate.head is None:
            self._fate.ahead = ahead
            self._fate.head = self._catalog.refs.branch(repository_id, branch).commit_id
        return ahead


def merge_often(settings, name, rounds):
    fates = []
    with Lake.open(settings=settings) as lake:
        inner = lake.catalog
        for number in rounds:
            lake.catalog = inner
            dev = lake.repository("repo").branch(name)
            dev.put(f"{name}/{number}", b"")
            dev.commit(f"{name} {number}")
            fates.append(Fate())
            lake.catalog = Watched(inner, fates[-1])
            passed = stopwatch()
            fates[-1].commit = lake.repository("repo").merge(name, "main").reference or ""
            fates[-1].seconds = passed()
        lake.catalog = inner
    return fates


def check_fates(settings, fates, *, publishers=1):
    """Every merge is in the history once, was tried twice at most, and was overtaken by none that came after it.

    On a busy machine a place may lapse for a moment. It is not counted then, and keeps its number. So with that many
    ``publishers`` the others may also be before it once each.
    """
    with Lake.open(settings=settings) as lake:
        repo = lake.repository("repo")
        chain = [commit.id for commit in repo.log("main", first_parent=True)][::-1]
        assert sorted(chain[1:]) == sorted(fate.commit for fate in fates)
        for fate in fates:
            assert fate.tries <= MOST_TRIES
            if fate.head is not None:
                between = chain.index(fate.commit) - chain.index(fate.head) - 1
                assert between <= max(fate.ahead, publishers - 1)
        assert len(tree(repo, "main")) == len(fates)


def prepare(settings, names):
    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("repo", split=Split(4, 8, 16))
        for name in names:
            repo.create_branch(name)


def test_eight_processes_that_merge_into_one_branch(settings):
    names = [f"dev{number}" for number in range(8)]
    prepare(settings, names)
    fates = run_forked(lambda name: merge_often(settings, name, range(2)), names, seconds=300)
    check_fates(settings, [fate for some in fates for fate in some])


@pytest.mark.parametrize("settings", [pytest.param("sqlite", marks=pytest.mark.slow), "postgresql"], indirect=True)
def test_thirty_two_threads_that_merge_into_one_branch(settings):
    """In the default run on PostgreSQL, where they meet in the most places; the processes below meet on both."""
    merge_at_once(settings, seconds=0.2)


@pytest.mark.slow
def test_thirty_two_threads_that_merge_into_one_branch_for_a_minute(settings):
    merge_at_once(settings, seconds=60)


@pytest.mark.slow
def test_thirty_two_processes_that_merge_into_one_branch_for_a_minute(settings):
    names = [f"dev{number:02}" for number in range(32)]
    prepare(settings, names)
    passed = stopwatch()

    def publisher(name):
        return merge_often(settings, name, takewhile(lambda number: not number or passed() < 60, count()))

    check_and_tell(settings, run_forked(publisher, names, seconds=600))


@pytest.mark.slow
def test_thirty_two_threads_of_one_lake_for_a_minute(settings):
    """They take turns. None gives up, and none is left behind: while one merges, another one merges twice."""
    names = [f"dev{number:02}" for number in range(32)]
    prepare(settings, names)
    passed = stopwatch()
    with Lake.open(settings=settings) as lake:
        repo = lake.repository("repo")
        order: list[str] = []

        def publisher(name):
            done = 0
            while not done or passed() < 60:
                repo.branch(name).put(f"{name}/{done}", b"")
                repo.branch(name).commit(f"{name} {done}")
                before = len(order)
                repo.merge(name, "main")
                assert order[before:].count(max(order[before:], key=order.count, default="")) <= MOST_OVERTAKEN
                order.append(name)
                done += 1
            return done

        with ThreadPoolExecutor(len(names)) as pool:
            assert sum(pool.map(publisher, names)) == len(order)
        assert len(tree(repo, "main")) == len(order)


def merge_at_once(settings, seconds):
    """Thirty-two publishers, each with a lake of its own: none gives up, and none is overtaken by latecomers."""
    names = [f"dev{number:02}" for number in range(32)]
    prepare(settings, names)
    passed = stopwatch()
    with ThreadPoolExecutor(len(names)) as pool:
        rounds = [takewhile(lambda number: not number or passed() < seconds, count()) for _ in names]
        fates = list(pool.map(partial(merge_often, settings), names, rounds))
    check_and_tell(settings, fates)


def check_and_tell(settings, fates):
    """Nobody was overtaken by latecomers. Prints how long merges took."""
    everything = [fate for some in fates for fate in some]
    check_fates(settings, everything, publishers=len(fates))
    waits = sorted(fate.seconds for fate in everything)
    print(
        f"{len(waits)} merges, {min(map(len, fates))} to {max(map(len, fates))} of each; "
        f"a merge took {sum(waits) / len(waits):.2f} s on average and {waits[-1]:.2f} s at most"
    )


def test_a_publisher_that_was_killed_holds_others_up_for_a_moment_only(settings, monkeypatch):
    """It dies when its turn has come: the others go on once its place has lapsed."""
    monkeypatch.setattr(publishing, "LEAST_SECONDS", 0.5)
    prepare(settings, ["killed", "dev"])

    def die():
        with Lake.open(settings=settings) as lake:
            repo = lake.repository("repo")
            repo.branch("killed").put("killed", b"")
            repo.branch("killed").commit("killed")

            def publish(request):
                if request.publisher is None:
                    raise BranchMoved("others were first")
                os.kill(os.getpid(), signal.SIGKILL)

            lake.catalog.commits.publish = publish  # type: ignore[method-assign]
            repo.merge("killed", "main")

    child = CONTEXT.Process(target=die)
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    fates = merge_often(settings, "dev", range(2))
    check_fates(settings, fates)


def test_a_place_that_nobody_renews_lapses(tmp_path, clock, monkeypatch):
    """By the catalog's clock, however many publish after it."""
    settings = Settings.load(home=tmp_path / "lapse", fsync=False)
    with Lake.open(settings=settings, clock=clock) as lake:
        main = lake.create_repository("repo").branch("main")
        lake.catalog.commits.enqueue("repo", "main", "somebody", lasts=timedelta(seconds=30))
        begun = clock.now()
        monkeypatch.setattr(publishing, "pause", lambda seconds: clock.advance(seconds=max(1, seconds)))
        main.commit("waits", allow_empty=True)
        assert timedelta(seconds=30) <= clock.now() - begun <= timedelta(seconds=31)
        again = clock.now()
        main.commit("need not wait", allow_empty=True)
        assert clock.now() == again


def test_a_place_is_given_up_whatever_ends_the_wait(settings):
    """A conflict that is found when the turn has come, for one: nobody waits for a place that nobody has."""
    prepare(settings, ["dev"])
    faults = Faults()
    with open_faulty(settings, faults) as lake:
        repo = lake.repository("repo")
        for name in ("dev", "main"):
            repo.branch(name).put(name, b"")
            repo.branch(name).commit(name)
        faults.revive()

        def moved(_call):
            raise BranchMoved("others were first")

        def broken(_call):
            raise RuntimeError("the plan broke")

        faults.hook("publish", at=1, action=moved)
        faults.hook("publish", at=2, action=broken)
        with pytest.raises(RuntimeError):
            repo.merge("dev", "main")
        assert (faults.counts["enqueue"], faults.counts["dequeue"]) == (1, 1)
        repo.merge("dev", "main")
        assert (faults.counts["publish"], faults.counts["enqueue"]) == (3, 1)


def test_something_that_publishes_during_a_publish_of_its_thread(settings):
    """It would wait for its own caller; so it publishes at its caller's place, and the caller tries again."""
    prepare(settings, ["dev"])
    faults = Faults()
    with open_faulty(settings, faults) as lake, Lake.open(settings=settings) as other:
        repo, again = lake.repository("repo"), other.repository("repo").branch("main")
        repo.branch("dev").put("dev", b"")
        repo.branch("dev").commit("dev")
        faults.revive()

        def publish_beside(call):
            again.put(f"m{faults.counts['publish']}", b"")
            again.commit("beside")

        for at in (1, 2, 3):
            faults.hook("publish", at=at, action=publish_beside)
        repo.merge("dev", "main")
        assert sorted(tree(repo, "main")) == ["dev", "m1", "m2", "m3"]
