"""Puts of several threads share a check and a transaction, and each one is answered for itself."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from lakeops import Lake
from lakeops.catalog.records import Staged
from lakeops.model.clock import pause
from lakeops.model.errors import AttemptExpired, LakeopsError, PreconditionFailed, Transient
from lakeops.model.names import HeldRepository
from lakeops.model.records import Entry
from lakeops.ops.batcher import FRESH, MOST_OBJECTS, StageQueue
from lakeops.testing import ManualClock

OTHERS = 7


def wait_until(holds):
    while not holds():
        pause(0.002)


# --- the check ---
class Checked:
    """A catalog that counts checks. The first one waits for ``OTHERS`` threads, and has the problem if there is one."""

    def __init__(self, problem=None):
        self.clock = ManualClock()
        self.staging = self
        self.queue = StageQueue(self, HeldRepository("repo", "namespace"), "main")  # type: ignore[arg-type]
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.numbers = count(1)
        self.problem = problem

    def staging_time(self, _repository, _branch):
        number = next(self.numbers)
        if number == 1:
            self.began.set()
            assert self.go_on.wait(60)
            if self.problem is not None:
                raise self.problem
        return number

    def play(self):
        """The answers of the thread that asked first, and of those that asked while its check ran."""
        asked = threading.Semaphore(0)

        def check():
            asked.release()
            return self.queue.check()

        with ThreadPoolExecutor(OTHERS + 1) as pool:
            first = pool.submit(self.queue.check)
            assert self.began.wait(60)
            others = [pool.submit(check) for _ in range(OTHERS)]
            for _ in range(OTHERS):
                assert asked.acquire(timeout=60)
            self.go_on.set()
            return [first, *others]


def test_those_who_ask_while_one_checks_check_no_more():
    assert {answer.result() for answer in Checked().play()} == {1}


@pytest.mark.parametrize("problem", [ValueError("refused"), KeyboardInterrupt()])
def test_what_a_check_raises_is_one_thread_s_own(problem):
    first, *others = Checked(problem).play()
    assert first.exception() is problem
    assert {answer.result() for answer in others} == {2}


def test_an_answer_is_told_again_for_a_moment_by_a_clock_that_nobody_sets():
    catalog = Checked()
    catalog.go_on.set()
    check, clock = catalog.queue.check, catalog.clock
    assert [check(), check()] == [1, 1]
    clock.advance(seconds=FRESH.total_seconds() / 2)
    assert check() == 1
    clock.advance(seconds=FRESH.total_seconds() / 2)
    assert [check(), check()] == [2, 2]
    clock.jump(hours=-1)
    assert check() == 3
    clock.jump(days=9)
    assert check() == 4


def test_an_answer_is_as_old_as_its_question(monkeypatch):
    """An answer may lack what comes about while one checks."""
    catalog = Checked()
    catalog.go_on.set()
    inner = catalog.staging.staging_time

    def slow(*args):
        catalog.clock.advance(seconds=FRESH.total_seconds())
        return inner(*args)

    monkeypatch.setattr(catalog.staging, "staging_time", slow)
    assert catalog.queue.check() == 1
    assert catalog.queue.check() == 2


@pytest.mark.parametrize("change", ["protect", "delete", "delete the repository"])
def test_what_another_process_refuses_meanwhile_is_refused(lake, change):
    repo = lake.create_repository("repo")
    dev = repo.create_branch("dev")
    dev.put("a", b"1")
    with Lake.open(settings=lake.settings, clock=lake.clock) as elsewhere:
        there = elsewhere.repository("repo")
        if change == "protect":
            there.protect("dev")
        elif change == "delete":
            there.delete_branch("dev")
        else:
            elsewhere.delete_repository("repo")
    with pytest.raises(LakeopsError) as caught:
        dev.put("b", b"2")
    assert caught.value.kind in {"protected_branch", "ref_not_found", "repository_not_found"}
    if change == "protect":
        assert [item.path for item in dev.list()] == ["a"]


# --- the transaction ---
class Gate:
    """A catalog whose first transaction waits until all others have joined the queue."""

    def __init__(self, inner, others):
        self.inner = inner
        self.clock = inner.clock
        self.staging = self
        self.calls: list[list[str]] = []
        self.problem: BaseException | None = None
        self.queue: StageQueue
        self._others = others

    def put_staged(self, repository_id, branch, rows, *, started):
        self.calls.append([row.path for row in rows])
        if len(self.calls) == 1:
            wait_until(lambda: len(self.queue._pending) >= self._others)
        elif self.problem is not None:
            raise self.problem
        return self.inner.staging.put_staged(repository_id, branch, rows, started=started)


@pytest.fixture
def repo(lake):
    return lake.create_repository("repo")


def entry(path, address="data/x"):
    return Entry(path, address, "0" * 64, 1, 1)


def open_queue(lake, others):
    gate = Gate(lake.catalog, others)
    gate.queue = StageQueue(gate, lake.repository("repo")._ctx.repository_id, "main")  # type: ignore[arg-type]
    return gate


def play(lake, rows, *, problem=None, started=lambda number: None):
    """Stage the first row, and all others while its transaction runs. Gives the calls and each one's outcome."""
    gate = open_queue(lake, len(rows) - 1)
    gate.problem = problem
    now = lake.catalog.now()

    def stage(number):
        try:
            gate.queue.stage(rows[number], started(number) or now)
        except Exception as error:
            return type(error).__name__
        return None

    with ThreadPoolExecutor(len(rows)) as pool:
        outcomes = [pool.submit(stage, 0)]
        for number in range(1, len(rows)):
            wait_until(lambda number=number: len(gate.calls) == 1 and len(gate.queue._pending) == number - 1)
            outcomes.append(pool.submit(stage, number))
        return gate.calls, [one.result() for one in outcomes]


def test_those_in_line_share_a_transaction(lake, repo):
    calls, outcomes = play(lake, [Staged(f"p{number}", entry(f"p{number}")) for number in range(8)])
    assert [len(call) for call in calls] == [1, 7]
    assert outcomes == [None] * 8
    assert [item.path for item in repo.branch("main").list()] == [f"p{number}" for number in range(8)]


def test_a_transaction_takes_only_so_many(lake, repo):
    rows = [Staged(f"p{number:03}", entry(f"p{number:03}")) for number in range(MOST_OBJECTS + 50)]
    calls, outcomes = play(lake, rows)
    assert [len(call) for call in calls] == [1, MOST_OBJECTS, 49]
    assert set(outcomes) == {None}


def test_one_that_waited_too_long_fails_alone(lake, repo, clock):
    early = lake.catalog.now()
    clock.advance(days=40)
    calls, outcomes = play(
        lake,
        [Staged(f"p{number}", entry(f"p{number}")) for number in range(4)],
        started=lambda number: early if number == 2 else None,
    )
    assert outcomes == [None, None, AttemptExpired.__name__, None]
    assert [len(call) for call in calls] == [1, 3, 1, 1, 1]
    assert [item.path for item in repo.branch("main").list()] == ["p0", "p1", "p3"]


@pytest.mark.parametrize(
    "problem", [Transient("gone", kind="catalog_unavailable"), PreconditionFailed("no", kind="protected_branch")]
)
def test_another_error_is_everybodys_and_nobody_tries_again(lake, repo, problem):
    """Whether the rows are there is not known, and somebody may have put newer ones meanwhile."""
    calls, outcomes = play(lake, [Staged(f"p{n}", entry(f"p{n}")) for n in range(3)], problem=problem)
    assert outcomes == [None, *[type(problem).__name__] * 2]
    assert [len(call) for call in calls] == [1, 2]


def test_whoever_is_interrupted_leaves_the_others_with_an_error(lake, repo):
    class Interrupted(BaseException):
        pass

    gate = open_queue(lake, 0)
    now = lake.catalog.now()
    gate.queue.stage(Staged("p0", entry("p0")), now)
    gate.problem = Interrupted()
    with pytest.raises(Interrupted):
        gate.queue.stage(Staged("p1", entry("p1")), now)
    gate.problem = None
    gate.queue.stage(Staged("p2", entry("p2")), now)
    assert [item.path for item in repo.branch("main").list()] == ["p0", "p2"]


def test_of_one_path_the_last_in_line_stays(lake, repo):
    rows = [Staged("p", entry("p", f"data/{number}")) for number in range(6)]
    calls, outcomes = play(lake, rows)
    assert [len(call) for call in calls] == [1, 1]
    assert outcomes == [None] * 6


def test_real_puts_of_many_threads(lake, repo):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: repo.branch("main").put(f"p{number:03}", b"%d" % number), range(100)))
    assert [repo.ref("main").read(f"p{number:03}") for number in range(100)] == [b"%d" % n for n in range(100)]
