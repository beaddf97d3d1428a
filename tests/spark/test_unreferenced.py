"""What nothing refers to, found by Spark's workers: the same rows as in process, whatever happens to a task."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.references import listing, names, referring, rows
from support.spark_work import reading_again, slow_first_reading

from lakeops.engine import unreferenced as module
from lakeops.engine.local import LocalEngine
from lakeops.engine.unreferenced import distinct_ranges, unreferenced
from lakeops.model.errors import Corrupted
from lakeops.store.layout import RANGES, TASKS
from lakeops.store.local import LocalStore

pytestmark = pytest.mark.spark

LISTED = [f"data/2026010100/{number:04}" for number in range(1_500)]


@pytest.fixture
def joins(monkeypatch):
    """Several joins, however little there is."""
    monkeypatch.setattr(module, "JOINED", 300)


def found(store, engine, some, ranges, **options):
    """The rows that nothing refers to, and the counts."""
    with unreferenced(store, listing(some, 400), ranges, engine=engine, **options) as result:
        tables = list(result.batches())
    return [item for table in tables for item in table.to_pylist()], result.listed, result.kept, result.referenced


@given(st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("joins")
def test_it_is_what_is_found_in_process(spark, tmp_path_factory, data):
    store = LocalStore(tmp_path_factory.mktemp("namespace"), fsync=False)
    some = data.draw(st.lists(names(), max_size=60)) + LISTED[: data.draw(st.sampled_from([0, 500]))]
    live = [data.draw(st.lists(st.sampled_from(some or LISTED), max_size=60)) for _ in range(2)]
    ranges = distinct_ranges([referring(store, part) for part in live])
    staged = [pa.array(data.draw(st.lists(names(), max_size=3)), pa.string())]
    answers = [
        found(store, engine, some, ranges, addresses=staged, prefixes=["data/2026010101/out/"])
        for engine in (spark, LocalEngine(2))
    ]
    assert answers[0] == answers[1]
    assert list(store.list(TASKS)) == []


@pytest.mark.usefixtures("joins")
def test_a_task_that_is_tried_again_changes_nothing(spark, store, monkeypatch):
    metarange = referring(store, LISTED[::3])
    monkeypatch.setattr(module, "read_ranges", reading_again)
    got, *counts = found(store, spark, LISTED, metarange.table)
    assert got == rows(set(LISTED) - set(LISTED[::3]))
    assert counts == [1_500, 500, 500]
    assert list(store.list("tries/"))
    assert list(store.list(TASKS)) == []


def test_a_worker_says_which_range_is_damaged(spark, store):
    metarange = referring(store, LISTED[:100])
    row = metarange.row(1)
    (store.root / row.key).write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(Corrupted, match=row.file):
        found(store, spark, LISTED, metarange.table)
    assert list(store.list(TASKS)) == []


@pytest.mark.usefixtures("joins")
def test_a_twin_on_a_real_cluster_changes_nothing(distributed, store, monkeypatch):
    metarange = referring(store, LISTED[::2])
    monkeypatch.setattr(module, "read_ranges", slow_first_reading)
    files = [item.key for item in store.list(RANGES)]
    got, *counts = found(store, distributed, LISTED, metarange.table)
    assert got == rows(LISTED[1::2])
    assert counts == [1_500, 750, 750]
    assert [item.key for item in store.list(RANGES)] == files
