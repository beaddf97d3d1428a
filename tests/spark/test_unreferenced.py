"""Tests of unreferenced objects by Spark's workers: the rows that one process finds, whatever happens to a task."""

from __future__ import annotations

from time import monotonic

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.references import ALIKE, LISTED, found, names, referring, rows
from support.spark_work import LONGEST, reading_again, reading_for_ever

from lakeops.engine.base import LocalEngine
from lakeops.engine.spark import engine
from lakeops.model.errors import Corrupted
from lakeops.ops.gc import unreferenced
from lakeops.ops.gc.unreferenced import distinct_ranges
from lakeops.store.layout import TASKS
from lakeops.store.local import LocalStore

pytestmark = pytest.mark.spark


@given(st.data())
@settings(max_examples=examples(4), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("slices")
def test_it_is_what_is_found_in_process(spark, tmp_path_factory, data):
    store = LocalStore(tmp_path_factory.mktemp("namespace"), fsync=False)
    some = data.draw(st.sets(names(), max_size=60)).union(LISTED[: data.draw(st.sampled_from([0, 500]))])
    some = sorted(some, key=str.encode)
    live = [data.draw(st.lists(st.sampled_from(some or LISTED), max_size=60)) for _ in range(2)]
    ranges = distinct_ranges([referring(store, part) for part in live])
    staged = [pa.array(data.draw(st.lists(names(), max_size=3)), pa.string())]
    answers = [
        found(store, engine, some, ranges, addresses=staged, prefixes=["data/2026010101/out/"])
        for engine in (spark, LocalEngine(2))
    ]
    assert answers[0] == answers[1]
    assert list(store.list(TASKS)) == []


@pytest.mark.usefixtures("slices")
def test_a_task_that_is_tried_again_changes_nothing(spark, store, monkeypatch):
    metarange = referring(store, LISTED[::3])
    monkeypatch.setattr(unreferenced, "read_references", reading_again)
    monkeypatch.setattr(engine, "_TASKS_PER_CORE", 1)  # tasks of one partition share its tries
    got, *counts = found(store, spark, LISTED, metarange.table)
    assert got == rows(set(LISTED) - set(LISTED[::3]))
    assert counts == [1_500, 500]
    assert list(store.list("tries/"))
    assert list(store.list(TASKS)) == []


@pytest.mark.usefixtures("slices")
def test_addresses_are_compared_byte_by_byte(spark, store):
    for side in (0, 1):
        # Some pairs share a name, and what one pair refers to is kept for all.
        live = {pair[side] for pair in ALIKE}
        some = {name for pair in ALIKE for name in pair}
        assert some - live
        got, *counts = found(store, spark, sorted(some, key=str.encode), referring(store, sorted(live)).table)
        assert got == rows(some - live)
        assert counts == [len(some), len(live)]


def test_a_worker_says_which_range_is_damaged(spark, store):
    metarange = referring(store, LISTED[:100])
    row = metarange.row(1)
    (store.root / row.key).write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(Corrupted, match=row.file):
        found(store, spark, LISTED, metarange.table)
    assert list(store.list(TASKS)) == []


def test_slices_of_a_listing_lie_in_the_store_until_they_are_joined(spark, store, monkeypatch):
    monkeypatch.setattr("lakeops.engine.spark.engine.PARK_ABOVE", 0)
    got, *counts = found(store, spark, LISTED, referring(store, LISTED[:7]).table)
    assert got == rows(LISTED[7:])
    assert counts == [1_500, 7]
    assert list(store.list(TASKS)) == []


def test_an_interrupted_join_ends_its_jobs(spark, store, monkeypatch):
    """The caller's interrupt comes while Spark is at work."""
    told = []

    class Interrupted(KeyboardInterrupt):
        pass

    def interrupted(*waiting, real=engine.wait, **how):
        if told:
            return real(*waiting, **how)
        raise Interrupted

    jobs, metarange = spark._connected(), referring(store, LISTED[:7])
    monkeypatch.setattr(unreferenced, "read_references", reading_for_ever)
    monkeypatch.setattr(engine, "wait", interrupted)
    monkeypatch.setattr(jobs, "cancel", lambda tag, real=jobs.cancel: (told.append(tag), real(tag)))
    begun = monotonic()
    with pytest.raises(Interrupted):
        found(store, spark, LISTED, metarange.table)
    assert monotonic() - begun < LONGEST, "the tasks gave up by themselves"
    assert told
    assert list(store.list(TASKS)) == []
