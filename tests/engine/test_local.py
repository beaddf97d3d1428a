import threading
from dataclasses import dataclass

import pytest

from lakeops.engine.base import LocalEngine


@dataclass(frozen=True)
class Number:
    value: int


def double(task: Number, store) -> int:
    return 2 * task.value


def fail_at_five(task: Number, store) -> int:
    if task.value == 5:
        raise ValueError("five")
    return task.value


def test_every_task_has_its_result(store):
    assert sorted(LocalEngine(3).run(double, map(Number, range(50)), store)) == list(range(0, 100, 2))
    assert list(LocalEngine().run(double, [], store)) == []


def test_tasks_are_taken_as_there_is_room(store):
    taken = []

    def tasks():
        for value in range(100):
            taken.append(value)
            yield Number(value)

    results = LocalEngine(2).run(double, tasks(), store)
    next(results)
    assert len(taken) <= 3
    results.close()
    assert len(taken) <= 3


def test_the_first_error_ends_the_run(store):
    taken = []

    def tasks():
        for value in range(1_000):
            taken.append(value)
            yield Number(value)

    with pytest.raises(ValueError, match="five"):
        list(LocalEngine(2).run(fail_at_five, tasks(), store))
    assert len(taken) < 20


def test_tasks_run_at_the_same_time(store):
    barrier = threading.Barrier(3, timeout=200)

    def meet(task, store):
        return barrier.wait()

    assert sorted(LocalEngine(3).run(meet, map(Number, range(3)), store)) == [0, 1, 2]


def test_groups_keep_all_threads_busy():
    engine = LocalEngine(4)
    assert [engine.group(items) for items in (0, 1, 16, 17, 400, 40_000)] == [1, 1, 1, 2, 16, 16]
    assert [engine.group(items, at_once=True) for items in (0, 1, 12, 13, 40_000)] == [1, 1, 1, 2, 16]
    assert engine.name == "in process"
