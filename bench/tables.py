"""Append one file to an Iceberg table in a bucket 25 ms away, through the gateway and through pyiceberg's SQL catalog.

::

    PYTHONPATH=.:tests python -m bench.tables
    PYTHONPATH=.:tests python -m bench.tables --scan     Spark reads 1,000 data files of a table on this machine's disk
    PYTHONPATH=.:tests python -m bench.tables --rebase   a merge rebases 50 tables that both sides appended to

Both catalogs keep their rows in SQLite on this machine. pyiceberg writes the same files to the same bucket (see
``bench.far`` for the server and its relay). An append loads the table and appends one row. The chain is the longest row
of requests to the bucket of which each waited for the one before. ``--scan`` needs what ``make test-engines`` brings,
and LAKEOPS_TEST_ENGINES names its place. Spark then reads the table by its name and by the path of its metadata file.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any
from urllib.parse import urlsplit

import boto3
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from support.engines import Driver, iceberg_configuration

from bench.far import BANDWIDTH, DELAY, server
from bench.relay import Relay, longest_chain
from bench.run import machine
from lakeops import Lake, Settings
from lakeops.gateway.app import serving
from lakeops.iceberg import RefCatalog

ROW = pa.table({"id": pa.array([1], pa.int64())})


def measure(relay: Relay, catalogs: dict[str, Callable[[], Catalog]], repeats: int) -> None:
    """Print the median of each catalog, its requests and their longest chain. The catalogs take turns."""
    for catalog in catalogs.values():
        catalog().create_namespace("web")
        catalog().create_table("web.sales", ROW.schema).append(ROW)
    walls: dict[str, list[float]] = {name: [] for name in catalogs}
    chains: dict[str, tuple[int, int]] = {}
    for _ in range(repeats):
        for name, catalog in catalogs.items():
            opened = catalog()
            relay.forget()
            begun = perf_counter()
            opened.load_table("web.sales").append(ROW)
            walls[name].append(perf_counter() - begun)
            chains[name] = len(relay.requests), longest_chain(relay.requests)
    first = median(next(iter(walls.values())))
    for name, each in walls.items():
        requests, chain = chains[name]
        wall = median(each)
        print(
            f"{name:12} {wall * 1000:7.0f} ms  {wall / first:5.2f}x  {requests:3} requests, chain {chain}", flush=True
        )


SCAN = """
from time import perf_counter
spark.sql("CREATE NAMESPACE shop.main.web")
as_it_is = "TBLPROPERTIES ('write.distribution-mode' = 'none')"
spark.sql(f"CREATE TABLE shop.main.web.sales (id BIGINT) USING iceberg {as_it_is}")
spark.range(0, 1000000, 1, 1000).writeTo("shop.main.web.sales").append()
path = spark.sql("SELECT file FROM shop.main.web.sales.metadata_log_entries ORDER BY timestamp DESC").first()[0]
ways = {"name": lambda: spark.table("shop.main.web.sales"), "path": lambda: spark.read.format("iceberg").load(path)}
value = {way: [] for way in ways}
for _ in range(REPEATS):
    for way, table in ways.items():
        begun = perf_counter()
        spark.catalog.clearCache()
        if way == "name":
            spark.sql("REFRESH TABLE shop.main.web.sales")
        assert table().selectExpr("sum(id)").first()[0] == 499999500000
        value[way].append(perf_counter() - begun)
"""


def scan(repeats: int) -> None:
    """Print the median time of reading a table by its name and by the path of its metadata file."""
    place = Path(os.environ["LAKEOPS_TEST_ENGINES"])
    with tempfile.TemporaryDirectory(prefix="lakeops-tables-") as folder:
        settings = Settings.load(home=Path(folder) / "home", fsync=False)
        with Lake.open(settings=settings) as lake, serving(lake, write=True) as options:
            lake.create_repository("shop")
            driver = Driver(place, Path(folder) / "spark", iceberg_configuration(place, options), "iceberg")
            try:
                found: Any = driver.run(SCAN.replace("REPEATS", str(repeats + 1)))
            finally:
                driver.stop()
    name, path = (median(found[way][1:]) for way in ("name", "path"))
    print(f"{machine()}: by name {name * 1000:.0f} ms, by path {path * 1000:.0f} ms, {name / path:.2f}x", flush=True)


def rebase(tables: int = 50) -> None:
    """Print how long a merge takes that rebases tables on this machine's disk. Both branches appended a row to each."""
    with (
        tempfile.TemporaryDirectory(prefix="lakeops-tables-") as home,
        Lake.open(settings=Settings.load(home=home, fsync=False)) as lake,
    ):
        repository = lake.create_repository("shop")
        names = [f"web.sales{number}" for number in range(tables)]

        def opened(branch: str) -> Catalog:
            return RefCatalog(branch, warehouse=f"lakefs://shop/{branch}/lake", **{"lakeops.home": home})

        opened("main").create_namespace("web")
        for name in names:
            opened("main").create_table(name, ROW.schema).append(ROW)
        repository.branch("main").commit("tables")
        repository.create_branch("dev", "main")
        for branch in ("main", "dev"):
            for name in names:
                opened(branch).load_table(name).append(ROW)
            repository.branch(branch).commit("appended")
        begun, cpu = perf_counter(), process_time()
        repository.merge("dev", "main", tables="rebase")
        wall, cpu = perf_counter() - begun, process_time() - cpu
        assert all(opened("main").load_table(name).scan().to_arrow().num_rows == 3 for name in names)
    print(f"{machine()}: {tables} tables rebased in {wall:.2f} s, {cpu:.2f} s of CPU", flush=True)


def main() -> None:
    """Measure appends, scans, or a merge that rebases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--scan", action="store_true")
    parser.add_argument("--rebase", action="store_true")
    given = parser.parse_args()
    if given.rebase:
        rebase()
    elif given.scan:
        scan(given.repeats)
    else:
        append(given.repeats)


def append(repeats: int) -> None:
    """Start both catalogs on one bucket, and measure."""
    os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")  # older radosgw knows no trailing ones
    with server() as (what, near), tempfile.TemporaryDirectory(prefix="lakeops-tables-") as place:
        relay = Relay((urlsplit(near).hostname, urlsplit(near).port), DELAY, BANDWIDTH)
        bucket = f"bench-{uuid.uuid4().hex[:12]}"
        boto3.client("s3", endpoint_url=near, region_name="us-east-1").create_bucket(Bucket=bucket)
        with relay.running() as far:
            settings = Settings.load(home=Path(place) / "home", s3_endpoint_url=far, s3_region="us-east-1")
            with Lake.open(settings=settings) as lake, serving(lake, write=True) as options:
                lake.create_repository("shop", f"s3://{bucket}/shop")
                uri = f"{options['aws_endpoint_url']}/iceberg"
                keys = f"{options['aws_access_key_id']}:{options['aws_secret_access_key']}"
                files = {"s3.endpoint": far, "s3.region": "us-east-1"}
                rest = {"type": "rest", "uri": uri, "credential": keys, "oauth2-server-uri": f"{uri}/v1/oauth/tokens"}
                sql = {"type": "sql", "uri": f"sqlite:///{place}/peer.db", "warehouse": f"s3://{bucket}/peer"}
                print(f"{what}, {DELAY * 1000:.0f} ms away, {machine()}", flush=True)
                catalogs = {
                    "SQL catalog": lambda: load_catalog("peer", **sql, **files),
                    "gateway": lambda: load_catalog("shop", **rest, **files, warehouse="shop/main"),
                }
                measure(relay, catalogs, repeats)


if __name__ == "__main__":
    main()
