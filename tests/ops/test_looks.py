"""Threads that ask the same at the same time share a look, and no answer is older than its question."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count

import pytest
from support.statements import transactions

from lakeops.ops.looks import Looks

OTHERS = 7


class Turn:
    """A lock that says when somebody waits for it."""

    def __init__(self, waiting: threading.Semaphore) -> None:
        self._lock = threading.Lock()
        self._waiting = waiting

    def __enter__(self) -> None:
        self._waiting.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Line:
    """Asks in threads. The first look waits until all others are in line."""

    def __init__(self) -> None:
        self.looks = Looks[int]()
        self.waiting = threading.Semaphore(0)
        self.looks._turns.default_factory = lambda: Turn(self.waiting)  # type: ignore[assignment,return-value]
        self.began = threading.Event()
        self.numbers = count(1)
        self.problem: BaseException | None = None

    def look(self) -> int:
        number = next(self.numbers)
        if number == 1:
            self.began.set()
            for _ in range(OTHERS + 1):  # the first one, and those that wait for it
                assert self.waiting.acquire(timeout=60)
        elif self.problem is not None:
            problem, self.problem = self.problem, None
            raise problem
        return number

    def play(self) -> list[Future[int]]:
        """The answers of the thread that asked first, and of those that asked while its look ran."""
        with ThreadPoolExecutor(OTHERS + 1) as pool:
            first = pool.submit(self.looks.ask, "main", self.look)
            assert self.began.wait(60)
            return [first, *(pool.submit(self.looks.ask, "main", self.look) for _ in range(OTHERS))]


def test_those_who_ask_while_one_looks_share_the_next_look() -> None:
    line = Line()
    first, *others = [answer.result() for answer in line.play()]
    assert first == 1
    assert {*others} == {2}, "no answer is older than its question, and nobody looks alone"
    assert line.looks.ask("main", line.look) == 3
    assert not line.looks._next


def test_another_question_waits_for_nobody() -> None:
    looks = Looks[int]()
    assert looks.ask("main", lambda: looks.ask("other", lambda: 1)) == 1


def test_an_error_is_an_answer() -> None:
    line = Line()
    line.problem = ValueError("refused")
    first, *others = line.play()
    assert first.result() == 1
    assert {str(answer.exception()) for answer in others} == {"refused"}
    assert line.looks.ask("main", lambda: 9) == 9


def test_an_interruption_is_one_thread_s_own() -> None:
    line = Line()
    line.problem = KeyboardInterrupt()
    first, *others = line.play()
    interrupted = [answer for answer in others if isinstance(answer.exception(), KeyboardInterrupt)]
    assert len(interrupted) == 1
    assert first.result() == 1
    assert min(answer.result() for answer in others if answer not in interrupted) == 3, "they ask again"


@pytest.mark.parametrize("threads", [1, 8])
def test_puts_at_once_share_looks(lake, threads: int) -> None:
    repo = lake.create_repository("repo")
    main = repo.branch("main")
    barrier = threading.Barrier(threads)

    def put(number: int) -> None:
        barrier.wait(60)
        main.put(f"p{number}", b"x")

    with transactions(lake.catalog) as seen, ThreadPoolExecutor(threads) as pool:
        list(pool.map(put, range(threads)))
    assert seen.count("read") <= threads
    assert {item.path for item in main.list()} == {f"p{number}" for number in range(threads)}
