"""Calls that ask the same within a moment share a look, and what is refused meanwhile is refused all the same."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count

import pytest
from support.statements import transactions

from lakeops import Lake
from lakeops.model.clock import SystemClock
from lakeops.model.errors import LakeopsError
from lakeops.ops.looks import FRESH, Looks
from lakeops.testing import ManualClock

OTHERS = 7


class Turn:
    """A lock that says when somebody asks for it."""

    def __init__(self, asked: threading.Semaphore) -> None:
        self._lock = threading.Lock()
        self._asked = asked

    def __enter__(self) -> None:
        self._asked.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Line:
    """Asks in threads. The first look waits until all others are in line, and has the problem if there is one."""

    def __init__(self, problem: BaseException | None = None) -> None:
        self.looks = Looks[int](ManualClock())
        self.asked = threading.Semaphore(0)
        self.looks._turns.default_factory = lambda: Turn(self.asked)  # type: ignore[assignment,return-value]
        self.began = threading.Event()
        self.numbers = count(1)
        self.problem = problem

    def look(self) -> int:
        number = next(self.numbers)
        if number == 1:
            self.began.set()
            for _ in range(OTHERS + 1):
                assert self.asked.acquire(timeout=60)
            if self.problem is not None:
                raise self.problem
        return number

    def play(self) -> list[Future[int]]:
        """The answers of the thread that asked first, and of those that asked while its look ran."""
        with ThreadPoolExecutor(OTHERS + 1) as pool:
            first = pool.submit(self.looks.ask, "main", self.look)
            assert self.began.wait(60)
            return [first, *(pool.submit(self.looks.ask, "main", self.look) for _ in range(OTHERS))]


def test_those_who_ask_while_one_looks_look_no_more() -> None:
    assert {answer.result() for answer in Line().play()} == {1}


@pytest.mark.parametrize("problem", [ValueError("refused"), KeyboardInterrupt()])
def test_what_a_look_raises_is_one_thread_s_own(problem: BaseException) -> None:
    first, *others = Line(problem).play()
    assert first.exception() is problem
    assert {answer.result() for answer in others} == {2}


def test_an_answer_is_told_again_for_a_moment_by_a_clock_that_nobody_sets() -> None:
    clock, numbers = ManualClock(), count(1)
    looks = Looks[int](clock)

    def ask() -> int:
        return looks.ask("main", lambda: next(numbers))

    assert [ask(), ask()] == [1, 1]
    clock.advance(seconds=FRESH.total_seconds() / 2)
    assert ask() == 1
    clock.advance(seconds=FRESH.total_seconds() / 2)
    assert [ask(), ask()] == [2, 2]
    clock.jump(hours=-1)
    assert ask() == 3
    clock.jump(days=9)
    assert ask() == 4


def test_an_answer_is_as_old_as_its_question() -> None:
    """What comes about while one looks may be missing from the answer."""
    clock = ManualClock()
    looks = Looks[int](clock)

    def slow() -> int:
        clock.advance(seconds=FRESH.total_seconds())
        return 1

    assert looks.ask("main", slow) == 1
    assert looks.ask("main", lambda: 2) == 2


def test_another_question_waits_for_nobody() -> None:
    looks = Looks[int]()
    assert looks.ask("main", lambda: looks.ask("other", lambda: 1)) == 1


@pytest.mark.parametrize("threads", [1, 8])
def test_puts_within_a_moment_look_once(lake: Lake, threads: int) -> None:
    main = lake.create_repository("repo").branch("main")
    with transactions(lake.catalog) as seen, ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda number: main.put(f"p{number}", b"x"), range(40)))
    assert seen.count("read") == 1
    assert {item.path for item in main.list()} == {f"p{number}" for number in range(40)}


@pytest.mark.parametrize("change", ["protect", "delete", "delete the repository"])
def test_what_another_process_refuses_meanwhile_is_refused(lake: Lake, change: str) -> None:
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


def test_the_machine_s_clock_is_the_one_by_default() -> None:
    assert isinstance(Looks[int]()._clock, SystemClock)
