import os
import sys
import threading
from dataclasses import dataclass
from itertools import islice

import pytest

from lakeops import machine
from lakeops.engine.base import LocalEngine
from lakeops.engine.choose import ChoosingEngine
from lakeops.engine.spark.engine import SparkEngine
from lakeops.model.errors import Transient

V1_QUOTA, V1_PERIOD = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


@pytest.fixture
def container(tmp_path, monkeypatch):
    """A container on a machine of 64 cores: takes the files that tell it of its limits, by name."""
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)

    def told(files):
        (tmp_path / "cpu").mkdir()
        for name, text in files.items():
            (tmp_path / name).write_text(text)

    return told


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "9900000 100000\n"}, 64),
        ({"cpu.max": "\n"}, 64),
        ({"cpu.max": "200000 0\n"}, 64),
        ({V1_QUOTA: "400000\n", V1_PERIOD: "100000\n"}, 4),
        ({V1_QUOTA: "-1\n", V1_PERIOD: "100000\n"}, 64),
        ({V1_QUOTA: "400000\n"}, 64),
    ],
)
def test_a_containers_quota_is_what_counts(container, files, expected):
    container(files)
    assert machine.cores() == expected


def test_engines_have_a_thread_for_each_core_that_they_may_use(container):
    container({"cpu.max": "200000 100000\n"})
    assert LocalEngine().threads == 2
    engine = ChoosingEngine(lambda: SparkEngine("local[64]"))
    assert engine.for_work(120).name == "on spark"
    # Sixty-four cores do this in two seconds, so Spark would not be worth while.
    assert ChoosingEngine(lambda: SparkEngine("local[64]"), 64).for_work(120).name == "in process"


def test_one_core_of_a_bigger_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5}, raising=False)
    assert machine.cores() == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert machine.cores() == 12


@pytest.fixture
def unset(monkeypatch):
    """A process that has not imported numpy, and in which nobody said how many threads it shall have."""
    monkeypatch.delitem(sys.modules, "numpy")
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def told():
    return os.environ.get("OPENBLAS_NUM_THREADS")


@pytest.mark.usefixtures("unset")
def test_numpy_is_told_to_start_no_threads_and_children_are_not():
    with pytest.raises(KeyError), machine.without_blas_threads():
        assert told() == "1"
        raise KeyError
    assert told() is None


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize("name", ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"])
def test_who_said_how_many_threads_numpy_has_is_heard(monkeypatch, name):
    monkeypatch.setenv(name, "7")
    with machine.without_blas_threads():
        assert os.environ[name] == "7"
        assert told() in ("7", None)
    assert os.environ[name] == "7"


def test_nothing_changes_where_numpy_is_imported_already(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    import numpy as np  # noqa: F401 - by whoever wants its threads

    with machine.without_blas_threads():
        assert told() is None


# --- local ---
@dataclass(frozen=True)
class Number:
    value: int


def double(task, store):
    return 2 * task.value


def fail_at_five(task, store):
    if task.value == 5:
        raise ValueError("five")
    return task.value


def test_every_task_has_its_result(store):
    assert sorted(LocalEngine(3).run(double, map(Number, range(50)), store)) == [*enumerate(range(0, 100, 2))]
    assert list(LocalEngine().run(double, [], store)) == []


class Unreliable(LocalEngine):
    """Gives the results of an engine as ``spoil`` makes them."""

    def __init__(self, spoil):
        super().__init__(2)
        self.perform = lambda work, tasks, store: spoil(super(Unreliable, self).perform(work, tasks, store))


@pytest.mark.parametrize(
    "spoil", [lambda found: [*found] * 2, lambda found: [*found][::-1] * 3], ids=["twice", "any order"]
)
def test_a_repeated_result_counts_once(store, spoil):
    results = list(Unreliable(spoil).run(double, map(Number, range(9)), store))
    assert sorted(results) == [*enumerate(range(0, 18, 2))]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: [*found][1:],
        lambda found: [*found][:-1],
        lambda found: [*found][:4] * 3,
        lambda found: islice(found, 2),
        lambda found: [],
    ],
    ids=["one", "another", "repeated instead", "stopped early", "never began"],
)
def test_a_lost_result_is_an_error(store, spoil):
    with pytest.raises(Transient, match=r"gave back \d of 9 results; try again"):
        list(Unreliable(spoil).run(double, map(Number, range(9)), store))


def test_tasks_are_taken_as_there_is_room(store):
    taken = []

    def tasks():
        for value in range(100):
            taken.append(value)
            yield Number(value)

    results = LocalEngine(2).run(double, tasks(), store)
    next(results)
    assert len(taken) <= 4  # one is done, two are under way, and one waits
    results.close()
    assert len(taken) <= 4


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

    assert sorted(met for _, met in LocalEngine(3).run(meet, map(Number, range(3)), store)) == [0, 1, 2]


def test_groups_keep_all_threads_busy():
    engine = LocalEngine(4)
    assert [engine.group(items) for items in (0, 1, 16, 17, 400, 40_000)] == [1, 1, 1, 2, 16, 16]
    assert [engine.group(items, at_once=True) for items in (0, 1, 24, 25, 40_000)] == [2, 2, 2, 3, 16]
    assert engine.name == "in process"
