"""What nothing refers to, found by a real cluster that runs a task twice."""

from __future__ import annotations

import pytest
from support.references import LISTED, found, referring, rows
from support.spark_work import slow_first_reading

from lakeops.engine.spark import antijoin
from lakeops.store.layout import RANGES

pytestmark = pytest.mark.spark


@pytest.mark.usefixtures("slices")
def test_a_twin_on_a_real_cluster_changes_nothing(distributed, store, monkeypatch):
    metarange = referring(store, LISTED[::2])
    monkeypatch.setattr(antijoin, "referenced_names", slow_first_reading)
    files = [item.key for item in store.list(RANGES)]
    got, *counts = found(store, distributed, LISTED, metarange.table)
    assert got == rows(LISTED[1::2])
    assert counts == [1_500, 750]
    assert [item.key for item in store.list(RANGES)] == files
