"""``lakefs://`` paths in Airflow: each is opened in the lake of its connection, and of no other."""

import json

import fsspec
import pandas as pd
import pytest
from airflow.sdk import DAG, ObjectStoragePath, task
from support.dags import known, states

from lakeops import Lake
from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.publish import WriteAuditPublish

pytestmark = pytest.mark.filterwarnings("ignore:UPath 'lakefs' filesystem not explicitly implemented")


def connect(monkeypatch, name, home):
    connection = {"conn_type": "lakeops", "host": str(home), "extra": {"committer": "the-other-team"}}
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))


@pytest.fixture
def theirs(flights, tmp_path, monkeypatch):
    """A repository of the same name in another lake, with another object at the same path."""
    monkeypatch.setattr("airflow.sdk.io.store._STORE_CACHE", {})  # it keeps a file system for each connection's name
    flights.branch("main").put("a", b"ours")
    connect(monkeypatch, "theirs", tmp_path / "theirs")
    with Lake.open(home=tmp_path / "theirs") as lake:
        repository = lake.create_repository("flights")
        repository.branch("main").put("a", b"theirs")
        repository.branch("main").commit("theirs")
        yield repository


def test_a_path_is_opened_by_its_connection(theirs):
    with fsspec.open("lakefs://theirs@flights/main/a") as file:
        assert file.read() == b"theirs"
    with fsspec.open("lakefs://flights/main/a") as file:
        assert file.read() == b"ours"
    with fsspec.open("lakefs://flights/main/a", **LakeopsHook("theirs").storage_options) as file:
        assert file.read() == b"theirs"
    for path in (
        ObjectStoragePath("lakefs://theirs@flights/main/a"),
        ObjectStoragePath("lakefs://flights/main/a", conn_id="theirs"),
    ):
        assert (path.read_bytes(), path.exists()) == (b"theirs", True)
    assert ObjectStoragePath("lakefs://flights/main/a").read_bytes() == b"ours"
    ObjectStoragePath("lakefs://theirs@flights/main/b").write_bytes(b"new")
    assert theirs.branch("main").read("b") == b"new"


def test_a_hook_and_a_block_give_paths_of_their_connection(theirs):
    assert LakeopsHook("theirs").uri("main", "a", "flights") == "lakefs://theirs@flights/main/a"
    assert LakeopsHook().uri("main", "a", "flights") == "lakefs://flights/main/a"
    for connection, start in {
        "theirs": "lakefs://theirs@flights/own/",
        "lakeops_default": "lakefs://flights/own/",
    }.items():
        with DAG(connection, schedule=None):
            block = WriteAuditPublish(repo="flights", branch="own", message="m", lakeops_conn_id=connection)
        assert block.uri("t/x.parquet") == f"{start}t/x.parquet"


def test_a_tasks_own_code_works_in_the_blocks_lake(theirs, airflow_database):
    with (
        DAG("pandas", schedule=None) as dag,
        WriteAuditPublish(repo="flights", message="Publish", lakeops_conn_id="theirs", branch="own") as publish,
    ):

        @task
        def write(url):
            pd.DataFrame({"n": [1, 2]}).to_parquet(url)

        @publish.check
        def complete(ref, url):
            return [] if len(pd.read_parquet(url)) == 2 else ["rows are missing"]

        url = publish.uri("t/part.parquet")
        write(url)
        complete(url)
    assert set(states(known(dag).test()).values()) == {"success"}
    assert theirs.ref("main").exists("t/part.parquet")
    assert theirs.branch("main").head.committer == "the-other-team"
