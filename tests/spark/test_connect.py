"""Spark Connect: no JVM in this process, no RDDs, the same results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from services.spark import connect_server
from support.rows import SMALL, applied, attempt, built, numbered, staged_table
from support.spark_work import Number, corrupted_at_three, length, process, unavailable

import lakeops.spark
from lakeops import Lake, Settings
from lakeops.engine.spark import session
from lakeops.engine.spark.engine import SparkEngine
from lakeops.model.errors import Corrupted, StoreUnavailable
from lakeops.ranges.apply import apply
from lakeops.ranges.read import RangeReader
from lakeops.store.layout import TASKS

pytestmark = pytest.mark.spark
pytest.importorskip("grpc_status", reason="needs pyspark[connect]")


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.fixture(scope="module")
def remote(server) -> Iterator[SparkEngine]:
    engine = SparkEngine(server)
    yield engine
    engine.close()


def test_ids_do_not_depend_on_the_engine(remote, store):
    repository = numbered(range(600))
    changes = dict.fromkeys(list(repository)[::7], ("9", 9)) | dict.fromkeys(list(repository)[3::50])
    base = built(store, repository)
    found = apply(RangeReader(store), base, staged_table(changes), engine=remote, split=SMALL, attempt=attempt())
    assert found.metarange.id == built(store, applied(repository, changes)).id
    assert remote.cores == 2
    assert len({found for _, found in remote.run(process, map(Number, range(8)), store)}) <= 3


def test_big_tasks_go_through_the_store(remote, store):
    size = 300 * 1024
    assert list(remote.run(length, [Number(1, bytes(size))], store)) == [(0, (1, size))]
    assert list(store.list(TASKS)) == []


def test_errors_come_back_as_they_were(remote, store):
    with pytest.raises(Corrupted, match="does not match its digest"):
        list(remote.run(corrupted_at_three, map(Number, range(20)), store))
    with pytest.raises(StoreUnavailable, match="503"):
        list(remote.run(unavailable, [Number(1)], store))


def test_the_code_is_sent_along_when_workers_are_elsewhere(server, store, monkeypatch):
    monkeypatch.setattr(session, "is_here", lambda _: False)
    engine = SparkEngine(server)
    assert list(engine.run(length, [Number(1, b"abc")], store)) == [(0, (1, 3))]
    engine.close()


def test_tables_of_refs(server, tmp_path, monkeypatch):
    # The builder sets it for the rest of the process, which then starts no session of its own.
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    session = SparkSession.builder.remote(server).create()
    lakeops.spark.register(session)
    with Lake.open(settings=Settings.load(home=tmp_path, fsync=False)) as lake:
        lake.create_repository("repo")
        days = session.range(4).selectExpr("id", "id % 2 as day")
        assert lakeops.spark.write(days, "lakefs://repo/main/t/", partition_by="day", lake=lake) >= 2
        days.write.format("lakeops").option("home", str(tmp_path)).mode("append").save("lakefs://repo/main/u/")
        found = lakeops.spark.read(session, "lakefs://repo/main/t/", where="day < 9", lake=lake)
        assert sorted(map(tuple, found.collect())) == [(0, 0), (1, 1), (2, 0), (3, 1)]
        odd = lakeops.spark.read(session, "lakefs://repo/main/t/", where="day = 1", lake=lake)
        assert sorted(row.id for row in odd.collect()) == [1, 3]
    for name in ("t", "u"):
        frame = session.read.format("lakeops").option("home", str(tmp_path)).load(f"lakefs://repo/main/{name}/")
        assert sorted(map(tuple, frame.where("day = 1").select("id").collect())) == [(1,), (3,)]
    session.stop()
