"""Tests run what pages show of Spark as it is printed, in a session of this process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.doc_pages import Session, blocks
from support.doc_scenes import Scene, flights_made, partitioned

from lakeops import Lake
from lakeops.engine.spark.engine import SparkEngine
from lakeops.fs import LakeopsFileSystem

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # files that libraries leave open
]


@pytest.fixture
def scene(spark: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Scene:
    assert spark.ready
    monkeypatch.setenv("LAKEOPS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAKEOPS_SPARK_MASTER", "local[1]")  # a page sets it, and it goes with the test
    monkeypatch.setattr(LakeopsFileSystem, "_opened", {})
    return Scene(tmp_path, monkeypatch, request.getfixturevalue, Session({"spark": SparkSession.builder.getOrCreate()}))


def test_tables_are_read_and_written_as_the_page_on_reading_shows(scene: Scene) -> None:
    partitioned(scene)
    names = scene.session.names
    for block in blocks("read.md"):
        if block.lane == "spark" or (not block.lane and "repo = " in block.text):
            scene.session.run(block)
    for name in ("orders", "by_format"):
        assert sorted((row.day, row.amount) for row in names[name].collect()) == [(1, 10), (2, 20)]
    assert [row.amount for row in names["second"].collect()] == [20]
    assert len(list(names["repo"].ref("from-spark@").list("copy/"))) == 2


def test_a_merge_on_a_master_as_the_page_on_spark_shows(scene: Scene) -> None:
    scene.session.replaced["spark://master:7077"] = "local[2]"
    scene.run("spark.md", flights_made, "spark")
    assert os.environ["LAKEOPS_SPARK_MASTER"] == "local[2]"
    with Lake.open() as lake:
        assert lake.repository("flights").ref("main").read("raw/c.csv") == b"5\n"
