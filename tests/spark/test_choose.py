"""Which engine a planner takes, and what it says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.rows import SMALL, attempt, built, numbered, staged_table

from lakeops import Lake, Settings
from lakeops.engine.base import LocalEngine
from lakeops.engine.choose import ChoosingEngine, open_engine
from lakeops.engine.spark.engine import SparkEngine, tasks_for
from lakeops.ranges.apply import plan
from lakeops.ranges.rewrite import RANGE_SECONDS


class Cluster(SparkEngine):
    """A cluster of so many cores, which says so once it is asked. It counts how often it was started."""

    def __init__(self, cores: int, *, cold: bool = True) -> None:
        super().__init__("spark://somewhere:7077")
        self._found, self._cold, self.starts = cores, cold, 0

    @property
    def ready(self) -> bool:
        return not self._cold

    @property
    def cores(self) -> int:
        assert self.ready, "nobody has asked it"
        return self._found

    def ask(self) -> None:
        self._cold = False
        self.starts += 1


def ready(cores: int) -> Cluster:
    return Cluster(cores, cold=False)


def chosen(ranges: int, spark: SparkEngine, cores: int = 2) -> str:
    return ChoosingEngine(lambda: spark, cores).for_work(ranges * RANGE_SECONDS).name


def crossover(make: Callable[[], SparkEngine], cores: int = 2) -> int | None:
    """The least ranges that go to Spark, None where none do."""
    low, high = 1, 10_000_000
    if chosen(high, make(), cores) != "on spark":
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if chosen(middle, make(), cores) == "on spark" else (middle + 1, high)
    return low


@pytest.mark.parametrize("here", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("there", [1, 2, 8, 16, 32, 100, 1_000])
@pytest.mark.parametrize("seconds", [0.5, 5, 30, 120, 1_000, 20_000])
def test_the_engine_that_is_chosen_is_the_right_one(here, there, seconds):
    """Within a third of the quicker one, start included, and never half as quick as it could be by much work."""
    for cold in (True, False):
        spark = Cluster(there, cold=cold)
        engine = ChoosingEngine(lambda spark=spark: spark, here)
        name = engine.for_work(seconds).name
        assert engine.for_work(seconds).name == name, "it decides again as it did"
        started = spark.starts * 7.0
        here_seconds, there_seconds = seconds / here, ready(there).estimate(seconds, here)
        took = started + (there_seconds if name == "on spark" else here_seconds)
        assert took <= 1.5 * here_seconds
        assert spark.starts <= (cold and here_seconds > 2 * 7.4)
        if there >= 8 * here and here_seconds > 60:
            assert name == "on spark", "any cluster that much larger is worth it, cold or not"
        if there <= 2 * here:
            assert name == "in process"


@pytest.mark.parametrize("cores", [2, 8, 16])
def test_the_page_has_the_thresholds(cores):
    (row,) = [
        line
        for line in (Path(__file__).parents[2] / "docs/spark.md").read_text().splitlines()
        if line.startswith(f"| {cores} |")
    ]
    found = [crossover(partial(Cluster, there, cold=cold), cores) for cold in (False, True) for there in (32, 100)]
    shown = ["never" if each is None else f"{round(each, 2 - len(str(each))):,}" for each in found]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [str(cores), *shown]


def test_why_is_in_the_log(caplog, monkeypatch):
    caplog.set_level("INFO", "lakeops.engine.choose")
    # Airflow's own set-up switches off the loggers that are there.
    monkeypatch.setattr(logging.getLogger("lakeops.engine.choose"), "disabled", False)
    assert chosen(100_000, Cluster(2)) == "in process"
    assert chosen(100_000, Cluster(64)) == "on spark"
    assert [record.getMessage() for record in caplog.records] == [
        "in process: 400.0 s of work on 2 cores here, 413.7 s on Spark",
        "on spark: 400.0 s of work on 2 cores here, 13.3 s on Spark",
    ]


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[*,4]", "local[3]"])
def test_threads_of_this_machine_are_never_worth_it(master):
    assert chosen(1_000_000, SparkEngine(master)) == "in process"


def test_many_threads_for_few_cores_would_be():
    assert chosen(1_000_000, SparkEngine("local[32]"), cores=2) == "on spark"


def test_without_a_master_and_a_session_work_stays_here(monkeypatch):
    monkeypatch.setattr("lakeops.engine.spark.engine.active", lambda: None)
    assert chosen(1_000_000, SparkEngine()) == "in process"


def test_estimates_grow_with_the_work_and_shrink_with_cores():
    assert ready(100).estimate(60, 2) < ready(10).estimate(60, 2) < ready(10).estimate(120, 2)
    assert SparkEngine("spark://somewhere:7077").estimate(1_000, 2) == pytest.approx(7.55)


def test_small_work_asks_for_no_spark():
    def make() -> SparkEngine:
        raise AssertionError("nobody needs it")

    engine = ChoosingEngine(make, 2)
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
    choosing = ChoosingEngine(lambda: SparkEngine("spark://somewhere:7077"))
    assert planned.describe(choosing).startswith(begin)
    assert planned.describe(choosing).endswith(" kB, in process")
    assert planned.describe(SparkEngine()).endswith(" kB, on spark")


def test_a_lake_works_with_the_engine_of_its_settings(tmp_path):
    for engine, name in {"auto": "in process", "local": "in process", "spark": "on spark"}.items():
        with Lake.open(settings=Settings.load(home=tmp_path, engine=engine)) as lake:
            assert lake._range_engine().name == name
            assert lake._range_engine() is lake._range_engine()


def test_work_of_an_unknown_size_stays_here(store):
    engine = ChoosingEngine(lambda: SparkEngine("spark://127.0.0.1:1"), 2)
    assert list(engine.run(lambda task, _: task + 1, [1], store)) == [(0, 2)]
    assert engine.group(10) == LocalEngine(2).group(10)
    assert engine.name == "in process"
    engine.close()
