"""Cost of a read of a ref beside Spark's own read of the files: it does not grow with the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import lakeops.spark
from lakeops import Lake, Settings
from lakeops.model.clock import Ids
from lakeops.testing import Faults, open_faulty

pytestmark = pytest.mark.spark

FEW, MANY = 40, 80


@pytest.fixture
def lake(tmp_path: Path, faults: Faults) -> Iterator[Lake]:
    """A lake with a table of each number of files, plain and in folders."""
    with open_faulty(Settings.load(home=tmp_path / "home", fsync=False), faults) as opened:
        main = opened.create_repository("shop").branch("main")
        for files in (FEW, MANY):
            for folder in ("", "day={}/"):
                with main.output(f"{files}{'-by-day' if folder else ''}/") as url:
                    for number in range(files):
                        file = Path(url.file(f"{folder.format(number % 4)}{number}.parquet").removeprefix("file://"))
                        file.parent.mkdir(parents=True, exist_ok=True)
                        pq.write_table(pa.table({"id": [number]}), file)
        main.commit("tables")
        yield opened


def tasks(session: SparkSession, read: Callable[[], DataFrame], rows: int) -> int:
    """How many tasks Spark runs to read and count a table."""
    group = Ids().new()
    session.sparkContext.setJobGroup(group, "a read")
    assert read().count() == rows
    session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    told = session.sparkContext.statusTracker()
    jobs = [job for number in told.getJobIdsForGroup(group) if (job := told.getJobInfo(number)) is not None]
    stages = [stage for job in jobs for number in job.stageIds if (stage := told.getStageInfo(number)) is not None]
    return sum(stage.numTasks for stage in stages)


@pytest.mark.parametrize("shape", ["", "-by-day"])
def test_a_read_asks_for_the_same_however_many_files_there_are(
    session: SparkSession, lake: Lake, faults: Faults, shape: str
) -> None:
    asked = []
    uris = [f"lakefs://shop/main/{files}{shape}/" for files in (FEW, MANY)]
    for uri in uris:
        lakeops.spark.files(uri, lake=lake)  # what is remembered of a commit is loaded once
    for uri in uris:
        faults.counts.clear()
        lakeops.spark.read(session, uri, lake=lake)
        asked.append(dict(faults.counts))
    assert asked[0] == asked[1]
    assert asked[0].get("head", 0) == 0
    assert sum(asked[0].values()) <= 4


@pytest.mark.parametrize("shape", ["", "-by-day"])
def test_spark_looks_no_file_up(session: SparkSession, lake: Lake, shape: str) -> None:
    uri = f"lakefs://shop/main/{MANY}{shape}/"
    urls = lakeops.spark.files(uri, lake=lake).urls()
    direct = tasks(session, lambda: session.read.parquet(*urls), MANY)
    declared = tasks(session, lambda: session.read.schema("id bigint").parquet(*urls), MANY)
    ours = tasks(session, lambda: lakeops.spark.read(session, uri, lake=lake), MANY)
    assert declared > MANY, "Spark by itself looks each file up in a task of its own"
    assert ours <= direct - MANY
