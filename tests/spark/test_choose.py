"""Which engine a planner takes, and what it says."""

from __future__ import annotations

import pytest
from support.rows import SMALL, attempt, built, numbered, staged_table

from lakeops import Lake, Settings
from lakeops.engine.base import LocalEngine
from lakeops.engine.choose import ChoosingEngine, open_engine
from lakeops.engine.spark.engine import SparkEngine, tasks_for
from lakeops.ranges.apply import plan
from lakeops.ranges.rewrite import RANGE_SECONDS


class Ready(SparkEngine):
    """A session that is there, of so many cores."""

    def __init__(self, cores: int) -> None:
        super().__init__()
        self._found = cores

    @property
    def ready(self) -> bool:
        return True

    @property
    def cores(self) -> int:
        return self._found


def chosen(ranges: int, spark: SparkEngine, cores: int = 2) -> str:
    return ChoosingEngine(LocalEngine(), lambda: spark, cores=cores).for_work(ranges * RANGE_SECONDS).name


def crossover(spark: SparkEngine, cores: int = 2) -> int:
    """The least work that goes to Spark."""
    low, high = 1, 1_000_000
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if chosen(middle, spark, cores) == "on spark" else (middle + 1, high)
    return low


def test_a_big_cluster_that_is_ready_takes_work_early_and_a_cold_one_late():
    assert 250 <= crossover(Ready(100)) <= 500
    assert 4_000 <= crossover(SparkEngine("spark://somewhere:7077")) <= 8_000
    assert crossover(Ready(4), cores=1) > crossover(Ready(100), cores=1)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[*,4]", "local[3]"])
def test_threads_of_this_machine_are_never_worth_it(master):
    assert chosen(1_000_000, SparkEngine(master)) == "in process"


def test_many_threads_for_few_cores_would_be():
    assert chosen(1_000_000, SparkEngine("local[32]"), cores=2) == "on spark"


def test_without_a_master_and_a_session_work_stays_here(monkeypatch):
    monkeypatch.setattr("lakeops.engine.spark.engine.active", lambda: None)
    assert chosen(1_000_000, SparkEngine()) == "in process"


def test_a_machine_as_big_as_the_cluster_keeps_its_work():
    assert chosen(1_000_000, Ready(16), cores=16) == "in process"


def test_estimates_grow_with_the_work_and_shrink_with_cores():
    assert Ready(100).estimate(60, 2) < Ready(10).estimate(60, 2) < Ready(10).estimate(120, 2)
    assert SparkEngine("spark://somewhere:7077").estimate(1, 2) - Ready(32).estimate(1, 2) == pytest.approx(7)


def test_small_work_asks_for_no_spark():
    def make() -> SparkEngine:
        raise AssertionError("nobody needs it")

    engine = ChoosingEngine(LocalEngine(), make, cores=2)
    assert engine.for_work(1.6) is engine.for_work(0)
    engine.close()


def test_tasks_are_a_few_a_core_of_many_ranges():
    assert [tasks_for(items, 100) for items in (1, 55, 300, 10_000)] == [1, 55, 300, 300]
    assert tasks_for(40_000, 2) == 157
    assert tasks_for(1_000_000, 100) == 3_907


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ChoosingEngine),
        ({"engine": "auto", "spark_master": "spark://somewhere:7077"}, ChoosingEngine),
        ({"engine": "local", "spark_master": "spark://somewhere:7077"}, LocalEngine),
        ({"engine": "spark"}, SparkEngine),
    ],
)
def test_settings_force_an_engine(settings, expected, tmp_path):
    engine = open_engine(Settings.load(home=tmp_path, **settings))
    assert type(engine) is expected
    assert getattr(engine, "master", None) is None
    engine.close()


def test_a_plan_says_where_it_will_run(store):
    repository = numbered(range(300))
    base = built(store, repository)
    planned = plan(base, staged_table(dict.fromkeys(repository)), split=SMALL, attempt=attempt())
    begin = f"will rewrite {len(planned.touched)} of {len(base)} ranges, "
    choosing = ChoosingEngine(LocalEngine(), lambda: SparkEngine("spark://somewhere:7077"))
    assert planned.describe(choosing).startswith(begin)
    assert planned.describe(choosing).endswith(" kB, in process")
    assert planned.describe(SparkEngine()).endswith(" kB, on spark")


def test_a_lake_works_with_the_engine_of_its_settings(tmp_path):
    for engine, name in {"auto": "in process or on spark", "local": "in process", "spark": "on spark"}.items():
        with Lake.open(settings=Settings.load(home=tmp_path, engine=engine)) as lake:
            assert lake._range_engine().name == name
            assert lake._range_engine() is lake._range_engine()


def test_work_of_an_unknown_size_stays_here(store):
    engine = ChoosingEngine(LocalEngine(2), lambda: SparkEngine("spark://127.0.0.1:1"))
    assert list(engine.run(lambda task, _: task + 1, [1], store)) == [2]
    assert engine.group(10) == LocalEngine(2).group(10)
    assert engine.name == "in process or on spark"
    engine.close()
