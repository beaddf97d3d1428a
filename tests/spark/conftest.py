"""Stores for the tests of Spark, and sessions: one a module, because a process has room for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from services.spark import SPARK_CONF, Cluster, cluster

from lakeops.engine.spark.engine import SparkEngine
from lakeops.engine.spark.session import active
from lakeops.ops.gc import unreferenced
from lakeops.store.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "namespace", fsync=False)


@pytest.fixture(scope="module")
def spark(tmp_path_factory) -> Iterator[SparkEngine]:
    """A session of two threads in this process's JVM; a task is tried twice."""
    engine = SparkEngine("local[2,2]", conf=SPARK_CONF | {"spark.local.dir": str(tmp_path_factory.mktemp("spark"))})
    assert engine.cores == 2
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def session(spark: SparkEngine) -> Any:
    """The engine's own session, which knows ``spark.read.format("lakeops")``."""
    from pyspark.sql import SparkSession

    import lakeops.spark

    assert spark.ready
    found = SparkSession.builder.getOrCreate()
    lakeops.spark.register(found)
    return found


@pytest.fixture(scope="module")
def master(tmp_path_factory) -> Iterator[Cluster]:
    """A real cluster: a master and two workers."""
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def distributed(master: Cluster, tmp_path_factory) -> Iterator[SparkEngine]:
    """An application on the cluster; tasks that take long get a twin. Not beside ``spark`` in one module."""
    assert active() is None, "the session that is there would be used instead"
    conf = SPARK_CONF | {
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.speculation": "true",
        # Whatever runs for three seconds gets one, however long a cold worker's tasks took beside it.
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "0.1",
        "spark.speculation.minTaskRuntime": "3s",
        "spark.speculation.efficiency.enabled": "false",
    }
    engine = SparkEngine(master.url, conf=conf)
    assert engine.cores == 2
    yield engine
    engine.close()


@pytest.fixture
def slices(monkeypatch):
    """Several slices of a listing, however short it is."""
    monkeypatch.setattr(unreferenced, "SLICE", 300)
