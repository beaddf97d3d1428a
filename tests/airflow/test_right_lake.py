"""Every edge that takes a URI opens the lake that it means: of the connection that it names, or of the default one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager

import fsspec
import pandas as pd
import pyarrow as pa
import pytest
from airflow.sdk import ObjectStoragePath
from services.spark import QUICK_JVM

import lakeops.spark
from lakeops import Lake
from lakeops.model.errors import InvalidInput, LakeopsError

pytestmark = pytest.mark.filterwarnings("ignore:UPath 'lakefs' filesystem not explicitly implemented")

HOMES = ("ours", "theirs", "default")


@pytest.fixture
def lakes(home, tmp_path, monkeypatch):
    """A repository of one name in the environment's lake and in those of two connections, each with another table."""
    monkeypatch.setattr("airflow.sdk.io.store._STORE_CACHE", {})
    monkeypatch.delenv("AIRFLOW_CTX_DAG_ID", raising=False)
    opened, found = [], {}
    for name in HOMES:
        place = home if name == "ours" else tmp_path / name
        lake = Lake.open(home=place)
        opened.append(lake)
        found[name] = lake.create_repository("shop")
        branch = found[name].branch("main")
        with branch.output("t/") as url:
            pd.DataFrame({"lake": [name]}).to_parquet(f"{url}/part-0.parquet")
        branch.commit(name)
    for name, connection in {"theirs": "theirs", "default": "lakeops_default"}.items():
        value = json.dumps({"conn_type": "lakeops", "host": str(tmp_path / name)})
        monkeypatch.setenv(f"AIRFLOW_CONN_{connection.upper()}", value)
    yield found
    for lake in opened:
        lake.close()


def by_fsspec(uri):
    with fsspec.open(f"{uri}part-0.parquet") as file:
        return str(pd.read_parquet(file)["lake"][0])


def by_object_storage(uri):
    with (ObjectStoragePath(uri) / "part-0.parquet").open("rb") as file:
        return str(pd.read_parquet(file)["lake"][0])


def by_duckdb(uri):
    duckdb = pytest.importorskip("duckdb")
    from lakeops.fs import LakeopsFileSystem

    with duckdb.connect() as database:
        database.register_filesystem(fsspec.filesystem("lakefs", **LakeopsFileSystem._get_kwargs_from_urls(uri)))
        found = database.execute(f"SELECT lake FROM read_parquet('{uri}*.parquet')").fetchone()
    return str(found[0])


def by_spark_files(uri):
    url = lakeops.spark.files(uri).urls()[0]
    return str(pd.read_parquet(url.removeprefix("file:"))["lake"][0])


def by_command(uri):
    """A command of a task, as Airflow's Bash operator starts it."""
    command = [sys.executable, "-m", "lakeops", "fs", "cat", f"{uri}part-0.parquet"]
    done = subprocess.run(command, check=False, capture_output=True, env={**os.environ, "AIRFLOW_CTX_DAG_ID": "dag"})
    if done.returncode:
        raise LakeopsError(done.stderr.decode())
    return str(pd.read_parquet(pa.BufferReader(done.stdout))["lake"][0])


EDGES: list[Callable[[str], str]] = [by_fsspec, by_object_storage, by_duckdb, by_spark_files, by_command]


@pytest.mark.parametrize("edge", EDGES)
def test_an_edge_reads_the_lake_that_the_uri_means(lakes, edge):
    assert edge("lakefs://theirs@shop/main/t/") == "theirs"
    assert edge("lakefs://lakeops_default@shop/main/t/") == "default"
    assert edge("lakefs://shop/main/t/") == "default"


@pytest.mark.parametrize(
    "edge", [edge for edge in EDGES if edge is not by_duckdb]
)  # it finds no file in words of its own
@pytest.mark.parametrize("place", ["shop/main/gone/", "shop/gone/t/", "nowhere/main/t/"])
def test_an_edge_that_finds_nothing_names_the_lake(lakes, tmp_path, edge, place):
    with pytest.raises(Exception, match=r"theirs/catalog.db") as caught:
        edge(f"lakefs://theirs@{place}")
    assert isinstance(caught.value, FileNotFoundError | LakeopsError)
    assert "connection 'theirs'" in str(caught.value)


def test_uris_of_one_command_name_one_lake(lakes):
    for left, right in (("theirs@shop", "shop"), ("theirs@shop", "lakeops_default@shop")):
        command = [sys.executable, "-m", "lakeops", "diff", f"lakefs://{left}/main", f"lakefs://{right}/main~1"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert (done.returncode, "name several lakes" in done.stderr) == (2, True)


@pytest.mark.parametrize("edge", EDGES)
def test_a_connection_that_is_not_there_is_no_other_lake(lakes, edge):
    with pytest.raises(Exception, match="no connection 'gone'"):
        edge("lakefs://gone@shop/main/t/")


def test_a_table_is_written_to_the_lake_that_the_uri_means(lakes):
    with lakeops.spark.tables.opened("lakefs://theirs@shop/main/new/", None) as (lake, place):
        lake.repository(place.repository).branch("main").put("new/a", b"1")
    assert lakes["theirs"].ref("main").exists("new/a")
    assert not lakes["ours"].ref("main").exists("new/a")
    assert not lakes["default"].ref("main").exists("new/a")


def test_iceberg_tables_are_in_the_lake_that_the_warehouse_means(lakes):
    iceberg = pytest.importorskip("lakeops.iceberg")
    for warehouse, name in {
        "lakefs://theirs@shop/main/tables": "theirs",
        "lakefs://shop/main/tables": "default",
    }.items():
        catalog = iceberg.RefCatalog("shop", warehouse=warehouse)
        catalog.create_namespace("n")
        catalog.create_table("n.t", pa.schema([("a", pa.int64())])).append(pa.table({"a": [1]}))
        assert lakes[name].ref("main").exists("tables/n/_namespace.json")
    assert not lakes["ours"].ref("main").exists("tables/n/_namespace.json")


@pytest.mark.parametrize("path", ["lakefs://theirs@shop/main/t/part-0.parquet", "theirs@shop/main/t/part-0.parquet"])
@pytest.mark.parametrize("verb", ["open", "ls", "info", "cat", "exists", "find", "rm"])
def test_a_filesystem_of_one_lake_takes_no_path_of_another(lakes, path, verb):
    for options in ({}, {"lake": Lake.open()}, {"conn_id": "lakeops_default"}):
        files = fsspec.filesystem("lakefs", skip_instance_cache=True, **options)
        with pytest.raises(InvalidInput, match="in the lake of connection 'theirs'"):
            getattr(files, verb)(path)
    assert fsspec.filesystem("lakefs", conn_id="theirs").exists(path)


@pytest.mark.parametrize("more", [{"home": "/x"}, {"database_url": "sqlite:////x"}, {"lake": None}])
def test_a_lake_is_named_once(lakes, more):
    with Lake.open() as lake, pytest.raises(InvalidInput, match="named twice"):
        fsspec.filesystem("lakefs", conn_id="theirs", **{name: value or lake for name, value in more.items()})


def test_a_lake_that_is_passed_is_the_one_of_the_uri(lakes, tmp_path):
    uri = "lakefs://theirs@shop/main/t/"
    with Lake.open(home=tmp_path / "theirs") as theirs:
        assert len(lakeops.spark.files(uri, lake=theirs)) == 1
    with Lake.open() as ours, pytest.raises(InvalidInput, match="lake is another one"):
        lakeops.spark.files(uri, lake=ours)


SPARK_JOB = """
import os, sys
import airflow.sdk  # a task's process
import lakeops.spark
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
lakeops.spark.register(spark)
lakeops.spark.write(lakeops.spark.read(spark, "lakefs://theirs@shop/main/t/"), "lakefs://theirs@shop/main/copy/")
for uri in ("lakefs://theirs@shop/main/t/", "lakefs://shop/main/t/"):
    print(uri, lakeops.spark.read(spark, uri).first().lake, spark.read.format("lakeops").load(uri).first().lake)
os.environ["AIRFLOW_CONN_LAKEOPS_DEFAULT"] = os.environ["AIRFLOW_CONN_THEIRS"]  # as Airflow's database may say
lakeops.spark.register(spark)
print(lakeops.spark.read(spark, "lakefs://shop/main/t/").first().lake)
try:
    spark.read.format("lakeops").load("lakefs://shop/main/t/").show()
except Exception as error:
    print("refused" if "the session was registered for" in str(error) else error)
"""


@pytest.mark.timeout(600)
def test_spark_in_a_task_reads_and_writes_the_lake_that_the_uri_means(lakes, tmp_path):
    places = {"SPARK_LOCAL_DIRS": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    environment = os.environ | {"SPARK_SUBMIT_OPTS": QUICK_JVM, **places}
    command = [sys.executable, "-c", SPARK_JOB]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == [
        "lakefs://theirs@shop/main/t/ theirs theirs",
        "lakefs://shop/main/t/ default default",
        "theirs",
        "refused",
    ]
    assert list(lakes["theirs"].ref("main").list("copy/"))
    assert not list(lakes["ours"].ref("main").list("copy/"))


def test_the_spark_job_of_the_example_works_on_the_lake_of_the_other_tasks(lakes, tmp_path, monkeypatch):
    from publish_iceberg import write_with_spark

    opened = []

    @contextmanager
    def serving(lake, *, write):
        opened.append((lake.settings.home, write))
        yield dict.fromkeys(("aws_access_key_id", "aws_secret_access_key", "aws_endpoint_url"), "x")

    monkeypatch.setattr("lakeops.gateway.app.serving", serving)
    write_with_spark("true", "shop", "main", "2026-01-01", [])
    assert opened == [(tmp_path / "default", True)]
