"""What nothing refers to, found by Spark's workers: the same rows as in process, whatever happens to a task."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.references import LISTED, found, names, referring, rows
from support.spark_work import reading_again

from lakeops.engine import unreferenced as module
from lakeops.engine.local import LocalEngine
from lakeops.engine.unreferenced import distinct_ranges
from lakeops.model.errors import Corrupted
from lakeops.store.layout import TASKS
from lakeops.store.local import LocalStore

pytestmark = pytest.mark.spark


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
