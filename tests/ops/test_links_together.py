"""Puts of several threads share transactions, and each one is answered for itself."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from lakeops.catalog.records import Staged
from lakeops.model.errors import AttemptExpired, CatalogUnavailable, ProtectedBranch
from lakeops.model.records import Entry
from lakeops.ops.links import MOST, Links


class Gate:
    """A catalog whose first transaction waits until all others are in line behind it."""

    def __init__(self, inner, others: int) -> None:
        self.inner = inner
        self.calls: list[list[str]] = []
        self.problem: BaseException | None = None
        self.in_line = threading.Semaphore(0)
        self._others = others

    def put_staged(self, repository_id, branch, rows, *, started):
        self.calls.append([row.path for row in rows])
        if len(self.calls) == 1:
            for _ in range(self._others):
                assert self.in_line.acquire(timeout=60)
        elif self.problem is not None:
            raise self.problem
        return self.inner.put_staged(repository_id, branch, rows, started=started)


class Counted(Links):
    """Says when somebody has got in line."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._waiting.default_factory = lambda: _Line(gate)


class _Line(list):
    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def append(self, item) -> None:
        super().append(item)
        if len(self._gate.calls):
            self._gate.in_line.release()


@pytest.fixture
def repo(lake):
    return lake.create_repository("repo")


def entry(path: str, address: str = "data/x") -> Entry:
    return Entry(path, address, "0" * 64, 1, 1)


def play(lake, rows, *, problem=None, started=lambda number: None):
    """Stage the first row, and all others while its transaction runs. Gives the calls and each one's outcome."""
    gate = Gate(lake.catalog, len(rows) - 1)
    gate.problem = problem
    links = Counted(gate)
    now = lake.catalog.now()

    def stage(number):
        try:
            links.stage(gate, lake.repository("repo")._ctx.repository_id, "main", rows[number], started(number) or now)
        except Exception as error:
            return type(error).__name__
        return None

    with ThreadPoolExecutor(len(rows)) as pool:
        first = pool.submit(stage, 0)
        while not gate.calls:
            assert not first.done()
        outcomes = [pool.submit(stage, number) for number in range(1, len(rows))]
        return gate.calls, [first.result(), *(one.result() for one in outcomes)]


def test_those_in_line_share_a_transaction(lake, repo):
    calls, outcomes = play(lake, [Staged(f"p{number}", entry(f"p{number}")) for number in range(8)])
    assert [len(call) for call in calls] == [1, 7]
    assert outcomes == [None] * 8
    assert [item.path for item in repo.branch("main").list()] == [f"p{number}" for number in range(8)]


def test_a_transaction_takes_only_so_many(lake, repo):
    rows = [Staged(f"p{number:03}", entry(f"p{number:03}")) for number in range(MOST + 50)]
    calls, outcomes = play(lake, rows)
    assert [len(call) for call in calls] == [1, MOST, 49]
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


@pytest.mark.parametrize("problem", [CatalogUnavailable("gone"), ProtectedBranch("no")])
def test_another_error_is_everybodys_and_nobody_tries_again(lake, repo, problem):
    """Whether the rows are there is not known, and somebody may have put newer ones meanwhile."""
    calls, outcomes = play(lake, [Staged(f"p{n}", entry(f"p{n}")) for n in range(3)], problem=problem)
    assert outcomes == [None, *[type(problem).__name__] * 2]
    assert [len(call) for call in calls] == [1, 2]


def test_whoever_is_interrupted_leaves_the_others_with_an_error(lake, repo):
    class Interrupted(BaseException):
        pass

    gate = Gate(lake.catalog, 0)
    links = Links()
    now = lake.catalog.now()
    links.stage(gate, repo._ctx.repository_id, "main", Staged("p0", entry("p0")), now)
    gate.problem = Interrupted()
    with pytest.raises(Interrupted):
        links.stage(gate, repo._ctx.repository_id, "main", Staged("p1", entry("p1")), now)
    gate.problem = None
    links.stage(gate, repo._ctx.repository_id, "main", Staged("p2", entry("p2")), now + timedelta(0))
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
