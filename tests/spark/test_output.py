"""Managed output directories beside Spark: what a session writes, and what others write in the same process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from support.spark_work import Number, double

from lakeops import Lake, Repository, Settings, Split
from lakeops.engine.spark.engine import SparkEngine
from lakeops.store.local import LocalStore

pytestmark = pytest.mark.spark


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Lake.open(settings=Settings.load(home=tmp_path / "home", fsync=False)) as lake:
        yield lake.create_repository("repo", split=Split(2, 4, 8))


def paths(repo: Repository) -> list[str]:
    return [item.path.split("-")[0] for item in repo.branch("main").list()]


def test_a_loaded_spark_and_the_engines_own_context_are_no_session(
    repo: Repository, spark: SparkEngine, store: LocalStore
) -> None:
    assert spark.ready
    assert list(spark.run(double, [Number(2)], store)) == [(0, 4)]
    assert SparkSession.getActiveSession() is None
    with repo.branch("main").output("t/") as url:
        pd.DataFrame({"n": [1]}).to_parquet(f"{url}/rows.parquet")
    assert paths(repo) == ["t/rows.parquet"]


def test_a_session_writes_its_own_directory(repo: Repository, spark: SparkEngine, store: LocalStore) -> None:
    assert spark.ready
    session = SparkSession.builder.getOrCreate()  # over the engine's context; ends with it
    assert list(spark.run(double, [Number(2)], store)) == [(0, 4)]
    assert SparkSession.getActiveSession() is session
    main = repo.branch("main")
    with main.output("t/") as url:
        session.createDataFrame([(1,), (2,)], "n int").coalesce(1).write.parquet(url)
    assert paths(repo) == ["t/_SUCCESS", "t/part"]
    with main.output("u/") as url:
        pd.DataFrame({"n": [1]}).to_parquet(url.file("rows.parquet"))
    assert paths(repo)[-1] == "u/rows.parquet"
