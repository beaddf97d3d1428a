"""Spark in this process's JVM: the same results as in process, errors as they were, nothing left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import SparkContext
from support.budget import examples
from support.errors import has_kind
from support.rows import SMALL, applied, attempt, built, change_sets, contents, numbered, repositories, staged_table
from support.spark_work import (
    Number,
    corrupted_at_three,
    crash,
    double,
    key_error,
    length,
    partition,
    process,
    unavailable,
    unavailable_at_first,
    unpicklable,
)

from lakeops import Lake, Settings
from lakeops.engine.choose import ChoosingEngine
from lakeops.engine.spark.engine import SparkEngine
from lakeops.engine.spark.jobs import Jobs
from lakeops.engine.spark.session import active
from lakeops.model.errors import Corrupted, LakeopsError, StoreUnavailable, Transient
from lakeops.ranges.apply import apply
from lakeops.ranges.read import RangeReader
from lakeops.store.layout import TASKS
from lakeops.store.local import LocalStore

pytestmark = pytest.mark.spark

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("packages", "missing"),
    [("/nowhere", "(pyarrow|lakeops)"), (Path(pa.__file__).parent.parent, "lakeops")],
    ids=["bare", "without us"],
)
def test_an_executor_without_the_package_is_said_clearly(tmp_path, monkeypatch, packages, missing):
    """Nothing but Python is there, or all but lakeops: it is installed as a link, which ``-S`` does not follow."""
    bare = tmp_path / "bare-python"
    # An earlier session of this process may have put this checkout on the path of its workers, which Spark remembers.
    ours = f"-e {TESTS} -e {TESTS.parent}"
    theirs = f'$(echo "$PYTHONPATH" | tr : "\\n" | grep -v -x {ours} | paste -s -d :)'
    bare.write_text(f'#!/bin/sh\nPYTHONPATH="{theirs}:{packages}" exec {sys.executable} -S -P "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    with Lake.open(settings=Settings.load(home=tmp_path, engine="spark", spark_master="local[1]")) as lake:
        repo = lake.create_repository("repo")
        repo.branch("main").put("a.txt", b"1")
        with pytest.raises(
            LakeopsError,
            match=f"a Spark worker cannot import '{missing}': install lakeops and",
            check=has_kind("unsupported"),
        ):
            repo.branch("main").commit("first")
        assert len(list(repo.log("main"))) == len(list(repo.branch("main").uncommitted())) == 1
    assert active() is None


def test_a_jvm_that_was_killed_is_replaced(tmp_path):
    with Lake.open(settings=Settings.load(home=tmp_path, engine="spark", spark_master="local[1]")) as lake:
        main = lake.create_repository("repo").branch("main")
        for number in range(2):
            main.put(f"{number}", b"1")
            main.commit("one more")
            with SparkContext._gateway.proc as jvm:
                jvm.kill()
    assert active() is None


class Cut(SparkEngine):
    """An engine on another one's session, with tasks of a given size."""

    def __init__(self, jobs: Jobs, size: int = 1) -> None:
        super().__init__()
        self._jobs = jobs
        self._size = size

    def group(self, items: int, *, at_once: bool = False) -> int:
        return self._size


@given(data=st.data(), size=st.sampled_from([1, 2, 5]))
@settings(max_examples=examples(4), deadline=None)
def test_ids_do_not_depend_on_the_engine(spark, tmp_path_factory, data, size):
    store = LocalStore(tmp_path_factory.mktemp("namespace"), fsync=False)
    repository = data.draw(repositories())
    changes = data.draw(change_sets(repository))
    base = built(store, repository)
    found = apply(
        RangeReader(store),
        base,
        staged_table(changes),
        engine=Cut(spark._connected(), size),
        split=SMALL,
        attempt=attempt(),
    )
    assert found.metarange.id == built(store, applied(repository, changes)).id
    assert contents(store, found.metarange) == applied(repository, changes)


def test_every_task_has_its_result(spark, store):
    assert sorted(spark.run(double, map(Number, range(7)), store)) == [*enumerate(range(0, 14, 2))]
    assert list(spark.run(double, [], store)) == []


def test_each_task_is_a_partition_of_its_own(spark, store):
    assert sorted(found for _, found in spark.run(partition, map(Number, range(4)), store)) == [0, 0, 1, 1]


def test_tasks_are_taken_as_there_is_room(spark, store):
    taken = []

    def tasks():
        for value in range(100):
            taken.append(value)
            yield Number(value)

    results = spark.run(double, tasks(), store)
    next(results)
    assert len(taken) <= 13, "those of two jobs, and one more"
    results.close()
    assert len(taken) <= 13


def test_workers_are_reused(spark, store):
    assert len({found for _, found in spark.run(process, map(Number, range(8)), store)}) <= 3


def test_big_tasks_go_through_the_store_and_leave_nothing(spark, store):
    size = 300 * 1024
    seen = []

    def tasks():
        for value in range(3):
            seen.append(len(list(store.list(TASKS))))
            yield Number(value, bytes(size))

    assert sorted(spark.run(length, tasks(), store)) == [*enumerate([(0, size), (1, size), (2, size)])]
    assert max(seen) > 0
    assert list(store.list(TASKS)) == []


def test_an_error_of_ours_comes_back_as_it_was_and_ends_the_run(spark, store):
    with pytest.raises(Corrupted, match="does not match its digest"):
        list(spark.run(corrupted_at_three, map(Number, range(50)), store))


def test_other_errors_come_back_with_the_place_where_they_were(spark, store):
    with pytest.raises(KeyError) as caught:
        list(spark.run(key_error, [Number(5)], store))
    assert "in key_error" in caught.value.__notes__[0]
    with pytest.raises(LakeopsError, match="Unpicklable: left right"):
        list(spark.run(unpicklable, [Number(5)], store))


def test_what_may_go_away_is_tried_again(spark, store):
    assert sorted(spark.run(unavailable_at_first, map(Number, range(2)), store)) == [*enumerate(range(2))]


def test_what_does_not_go_away_comes_back_as_it_was(spark, store):
    with pytest.raises(StoreUnavailable, match="503"):
        list(spark.run(unavailable, [Number(0, bytes(300 * 1024))], store))
    assert len(list(store.list("tries/"))) == 2
    assert list(store.list(TASKS)) == []


def test_a_worker_that_dies_at_every_try_is_one_clear_error(spark, store):
    with pytest.raises(
        Transient, match=r"Spark gave up: .*nothing was published", check=has_kind("engine_unavailable")
    ) as caught:
        list(spark.run(crash, [Number(0)], store))
    assert "\n" not in caught.value.message


def test_a_damaged_range_stops_everything(spark, store):
    base = built(store, numbered(range(300)))
    row = base.row(5)
    (store.root / row.key).write_bytes(b"PAR1 nothing PAR1")
    changes = staged_table(dict.fromkeys(numbered(range(300))))
    with pytest.raises(Corrupted, match=row.file):
        apply(RangeReader(store), base, changes, engine=spark, split=SMALL, attempt=attempt())


def test_a_session_of_somebody_else_is_used_and_left_alone(spark, store):
    guest = SparkEngine("spark://127.0.0.1:1")
    assert guest.ready
    assert list(guest.run(double, [Number(4)], store)) == [(0, 8)]
    guest.close()
    assert list(spark.run(double, [Number(4)], store)) == [(0, 8)]
    assert active() is not None


def test_a_planner_finds_the_active_session(spark):
    chooser = ChoosingEngine(SparkEngine, 1)
    assert chooser.for_work(0.01).name == "in process"
    assert chooser.for_work(600).name == "in process"  # two threads do not do it in half the time
    assert ChoosingEngine(lambda: FourCores(spark._connected()), 1).for_work(6).name == "on spark"


class FourCores(Cut):
    @property
    def cores(self) -> int:
        return 4


def test_progress_and_groups(spark, store):
    repository = numbered(range(600))
    base = built(store, repository)
    steps = []
    changes = staged_table(dict.fromkeys(list(repository)[::5], ("9", 9)))
    apply(
        RangeReader(store),
        base,
        changes,
        engine=spark,
        split=SMALL,
        attempt=attempt(),
        progress=lambda *step: steps.append(step),
    )
    assert len(steps) == 7
    label, first, touched = steps[0]
    assert label.endswith(", on spark")
    assert (first, steps[-1]) == (0, (label, touched, touched))
    assert touched == len(np.unique(base.route(changes["path"])))
    assert (spark.group(0), spark.group(1), spark.group(6), spark.group(7)) == (1, 1, 1, 2)
    assert spark.group(100_000) == 256
