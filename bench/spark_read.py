"""Spark reads many Parquet files through ``lakeops.spark.read``, and the same physical files without lakeops.

::

    PYTHONPATH=.:tests python -m bench.spark_read                    1,000 files of this machine
    PYTHONPATH=.:tests python -m bench.spark_read --files 10000      10,000 of them
    PYTHONPATH=.:tests python -m bench.spark_read --s3               a bucket of LAKEOPS_TEST_S3_ENDPOINT

A bucket needs Spark's S3 connector: LAKEOPS_TEST_ENGINES is where ``tests/services/engines.py`` has put one. Each way
counts the rows and sums a column in the same session, by turns. *Files* names the physical files one by one to Spark,
up to 1,000 of them: Spark starts a task for each. *Folder* names the directory that they lie in, which only works for
a table that was written in one go.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody does

import lakeops.spark
from lakeops import Lake, Repository, Settings

ROWS, DAYS, FEW = 1000, 50, 1000
SHAPES, DIRECT = ("plain", "by day"), ("files", "folder")


def fill(repo: Repository, files: int) -> None:
    """Write the tables, each as one output."""
    for shape in SHAPES:
        branch = repo.branch("main")
        output = branch.open_output(f"{shape}/", "append", "refuse")
        for number in range(files):
            rows = {"id": range(number * ROWS, (number + 1) * ROWS), "amount": [number] * ROWS}
            written = io.BytesIO()
            pq.write_table(pa.table(rows), written)
            written.seek(0)
            folder = f"day={number % DAYS}/" if shape == "by day" else ""
            output.store.put(f"{output.address}{folder}part-{number:05}.parquet", written)
        assert branch.link_output(output, "append", "refuse") == files
    repo.branch("main").commit("Two tables")


def ways(spark: SparkSession, lake: Lake, uri: str, files: int) -> dict[str, Callable[[], DataFrame]]:
    """What to measure, by name."""
    urls = lakeops.spark.files(uri, lake=lake).urls()
    folder = urls[0].rpartition("/day=" if "/day=" in urls[0] else "/")[0]
    named = {"files": lambda: spark.read.parquet(*urls)} if files <= FEW else {}
    return {
        **named,
        "folder": lambda: spark.read.parquet(folder),
        "lakeops": lambda: lakeops.spark.read(spark, uri, lake=lake),
        "lakeops, check=False": lambda: lakeops.spark.read(spark, uri, lake=lake, check=False),
    }


def measure(spark: SparkSession, lake: Lake, uri: str, files: int, repeats: int) -> None:
    """Print the median of each way, and its ratio to both direct ones."""
    found = ways(spark, lake, uri, files)
    loads: dict[str, list[float]] = {way: [] for way in found}
    times: dict[str, list[float]] = {way: [] for way in found}
    for turn in range(-2, repeats):  # the first ones warm the JVM up
        for way, read in found.items():
            began = perf_counter()
            frame = read()
            loaded = perf_counter()
            row = frame.agg(F.count("*"), F.sum("amount")).first()
            assert tuple(row) == (files * ROWS, ROWS * files * (files - 1) // 2)
            if turn >= 0:
                loads[way].append(loaded - began)
                times[way].append(perf_counter() - began)
    medians = {way: statistics.median(some) for way, some in times.items()}
    for way, median in medians.items():
        ratios = [f"{median / medians[direct]:8.2f}" if direct in medians else f"{'-':>8}" for direct in DIRECT]
        print(f"  {way:22}{1000 * statistics.median(loads[way]):8.0f}{1000 * median:8.0f}{''.join(ratios)}")


def session(place: str, *, s3: bool) -> SparkSession:
    """Spark in this process, with two threads."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in {"ui.showConsoleProgress": "false", "local.dir": place, "driver.memory": "1g"}.items():
        builder = builder.config(f"spark.{name}", value)
    if s3:
        from services.engines import class_path

        builder = builder.config("spark.driver.extraClassPath", class_path(Path(os.environ["LAKEOPS_TEST_ENGINES"])))
        for name, value in {
            "endpoint": os.environ["LAKEOPS_TEST_S3_ENDPOINT"],
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "access.key": os.environ["AWS_ACCESS_KEY_ID"],
            "secret.key": os.environ["AWS_SECRET_ACCESS_KEY"],
        }.items():
            builder = builder.config(f"spark.hadoop.fs.s3a.{name}", value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--s3", action="store_true", help="in a bucket")
    parser.add_argument("--files", type=int, default=FEW)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        spark = session(home, s3=given.s3)
        settings, namespace = Settings.load(home=home), None
        if given.s3:
            from lakeops.store.base import StoreSettings
            from lakeops.store.s3.client import client

            endpoint = os.environ["LAKEOPS_TEST_S3_ENDPOINT"]
            settings = Settings.load(home=home, s3_endpoint_url=endpoint)
            bucket = f"bench-{uuid.uuid4().hex[:12]}"
            client(StoreSettings(endpoint)).create_bucket(Bucket=bucket)
            namespace = f"s3://{bucket}/tables"
        with Lake.open(settings=settings) as lake:
            repo = lake.create_repository("bench", storage_namespace=namespace)
            fill(repo, given.files)
            for shape in SHAPES:
                print(f"{shape}, {given.files:,} files")
                print(f"  {'medians, ms':22}{'load':>8}{'all':>8}{'files':>8}{'folder':>8}")
                measure(spark, lake, f"lakefs://bench/main/{shape}/", given.files, given.repeats)
        spark.stop()


if __name__ == "__main__":
    main()
