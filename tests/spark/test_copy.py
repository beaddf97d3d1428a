"""Replication on Spark: what arrives is the same as in process."""

from __future__ import annotations

import pytest

from lakeops.engine.spark.engine import SparkEngine
from lakeops.model.errors import NotAllReplicated
from lakeops.ops import copying
from lakeops.ops.replicate import Replicated, replicate
from lakeops.store.layout import CLAIM
from lakeops.store.local import LocalStore

pytestmark = pytest.mark.spark

CONTENTS = {CLAIM: b"{}", **{f"data/2026010100/{number:02}": b"x" * number for number in range(40)}}


@pytest.fixture
def destination(store: LocalStore, tmp_path, monkeypatch) -> LocalStore:
    monkeypatch.setattr(copying, "MOST_OBJECTS", 7)
    for key, data in CONTENTS.items():
        store.put(key, data)
    return LocalStore(tmp_path / "mirror", fsync=False)


def test_workers_copy_and_delete(spark: SparkEngine, store: LocalStore, destination: LocalStore):
    assert replicate(store, destination, spark).copied == 40
    assert {item.key: destination.get(item.key) for item in destination.list()} == CONTENTS
    store.delete(["data/2026010100/03"])
    assert replicate(store, destination, spark, delete=True) == Replicated(present=39, extra=1, deleted=1)


def test_failures_come_back_as_they_were(spark: SparkEngine, store: LocalStore, destination: LocalStore):
    (destination.root / "data/2026010100/05/in the way").mkdir(parents=True)
    with pytest.raises(NotAllReplicated) as caught:
        replicate(store, destination, spark)
    assert [(key, error.kind) for key, error in caught.value.failures] == [("data/2026010100/05", "invalid_path")]
    assert caught.value.done == 39
