"""The verbs on buckets: moto in every run, a real S3 server with ``make test-s3``, Azurite with ``make test-azure``."""

import hashlib
import io
import json
import os
import re
import urllib.request
import uuid
from dataclasses import replace

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from services.s3 import QUICK, S3_KINDS
from support.scenes import tree
from support.soundness import assert_sound
from typer.testing import CliRunner

from lakeops import Lake, Settings, Split
from lakeops.cli.app import app
from lakeops.model.errors import InvalidInput, MergeConflict, NamespaceTaken, SweepIncomplete
from lakeops.store import layout
from lakeops.store.base import DeleteFailure
from lakeops.store.open import Stores
from lakeops.store.s3.client import client

AZURE = pytest.param("azure", marks=pytest.mark.azure)
on_azure = pytest.mark.parametrize("place", [AZURE], indirect=True)


@pytest.fixture(params=[*S3_KINDS, AZURE])
def place(request):
    """The endpoint of a server of S3, and where in it a namespace may be: in a bucket, or in a container of Azure."""
    if request.param == "azure":
        return request.getfixturevalue(
            "moto_endpoint"
        ), f"az://{request.getfixturevalue('container')}/{uuid.uuid4().hex}"
    endpoint = request.getfixturevalue("endpoint_of")(request.param)
    return endpoint, f"s3://{request.getfixturevalue('buckets')(endpoint)}/{uuid.uuid4().hex}"


@pytest.fixture
def lake(place, tmp_path, clock):
    with Lake.open(settings=Settings.load(home=tmp_path / "home", s3_endpoint_url=place[0]), clock=clock) as lake:
        yield lake


@pytest.fixture
def repo(lake, place):
    return lake.create_repository("repo", storage_namespace=place[1], split=Split(2, 4, 8))


def test_a_session(lake, repo):
    main, big = repo.branch("main"), 20 << 20 if repo.storage_namespace.startswith("az://") else 6 << 20
    for number in range(20):
        main.put(f"f{number:02}", str(number).encode())
    main.put("big", io.BytesIO(b"x" * big))
    main.commit("base")
    repo.create_branch("dev")
    repo.branch("dev").put("f03", b"dev")
    repo.branch("dev").delete("f07")
    repo.branch("dev").commit("dev")
    main.put("f15", b"main")
    main.commit("main")
    assert repo.merge("dev", "main").summary.to_json() == {"added": 0, "removed": 1, "changed": 1}
    files = tree(repo, "main")
    assert (files["f03"], files["f15"], "f07" in files, len(files["big"])) == (b"dev", b"main", False, big)
    assert tree(repo, "main~2")["f03"] == b"3"
    with repo.ref("main").open("big") as file:
        file.seek(-3, io.SEEK_END)
        assert file.read() == b"xxx"
    with urllib.request.urlopen(repo.ref("main").presign("f03")) as answer:
        assert answer.read() == b"dev"
    repo.branch("dev").put("f15", b"dev")
    repo.branch("dev").commit("conflict")
    with pytest.raises(MergeConflict):
        repo.merge("dev", "main")
    with pytest.raises(NamespaceTaken):
        lake.create_repository("other", storage_namespace=repo.storage_namespace)
    assert list(repo.fsck(data=True)) == []


def test_an_output_directory(repo):
    with repo.branch("main").output("events/") as url:
        assert url.startswith(f"{repo.storage_namespace}/data/")
        store = Stores(repo._ctx.stores().settings).at(url)
        store.put("part-0.csv", b"a,b")
        store.put("_temporary/0/part", b"unfinished")
    assert tree(repo, "main") == {"events/part-0.csv": b"a,b"}
    if url.startswith("s3://"):
        assert repo.ref("main").stat("events/part-0.csv").checksum == hashlib.md5(b"a,b").hexdigest()


def test_a_namespace_that_another_lake_has_is_taken(repo, tmp_path):
    settings = Settings.load(home=tmp_path / "other", s3_endpoint_url=repo._ctx.stores().settings.endpoint_url)
    with Lake.open(settings=settings) as other, pytest.raises(NamespaceTaken):
        other.create_repository("other", storage_namespace=repo.storage_namespace)


@on_azure
def test_imports_between_kinds_of_stores(lake, repo, container, buckets):
    bucket = buckets(lake.settings.s3_endpoint_url)
    stores = Stores(repo._ctx.stores().settings)
    for url, text in ((f"s3://{bucket}/raw-az", b"from s3"), (f"az://{container}/raw", b"from azure")):
        stores.at(url).put("day=1/a b.csv", text)
    repo.branch("main").import_objects(f"s3://{bucket}/raw-az/", "s3/", "import")
    assert tree(repo, "main") == {"s3/day=1/a b.csv": b"from s3"}
    files = lake.create_repository("files")
    files.branch("main").import_objects(f"az://{container}/raw/", "azure/", "import")
    assert tree(files, "main") == {"azure/day=1/a b.csv": b"from azure"}
    assert files.ref("main").stat("azure/day=1/a b.csv").physical_address == f"az://{container}/raw/day=1/a b.csv"


@on_azure
def test_mirrors_between_kinds_of_stores(lake, repo, tmp_path, buckets):
    bucket = buckets(lake.settings.s3_endpoint_url)
    elsewhere = f"s3://{bucket}/{uuid.uuid4().hex}"
    source = lake.create_repository("source", storage_namespace=elsewhere)
    for origin in (source, repo):
        origin.branch("main").put("f", origin.id.encode())
        origin.branch("main").commit("first")
    with Lake.open(settings=Settings.load(home=tmp_path / "there"), clock=lake.clock) as there:
        for origin, place in ((source, f"{repo.storage_namespace}-mirror"), (repo, (tmp_path / "copy").as_uri())):
            mirror = there.create_mirror(origin.id, storage_namespace=place, source=lake)
            mirror.replicate()
            mirror.sync()
            assert tree(mirror, "main") == {"f": origin.id.encode()}


@on_azure  # each of the libraries leaves files to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_readers_open_a_ref(repo, tmp_path):
    import duckdb
    import fsspec
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    options = {"home": str(tmp_path / "home")}
    frame = pd.DataFrame({"day": [1, 2], "n": [10, 20]})
    frame.to_parquet("lakefs://repo/main/t/part.parquet", storage_options=options)
    repo.branch("main").commit("table")
    frame.iloc[:1].to_parquet("lakefs://repo/main/t/part.parquet", storage_options=options)
    for ref, numbers in (("main", [10]), ("main@", [10, 20])):
        address = f"lakefs://repo/{ref}/t/part.parquet"
        assert list(pd.read_parquet(address, storage_options=options)["n"]) == numbers
        with fsspec.open(address, "rb", **options) as file:
            assert pl.read_parquet(file)["n"].to_list() == numbers
        filesystem = fsspec.filesystem("lakefs", **options)
        table = pa.dataset.dataset(f"repo/{ref}/t", filesystem=filesystem).to_table()
        assert table["n"].to_pylist() == numbers
        with duckdb.connect() as connection:
            connection.register_filesystem(filesystem)
            assert connection.sql(f"SELECT sum(n) FROM '{address}'").fetchall() == [(sum(numbers),)]


@on_azure
def test_doctor_looks_at_the_container(repo, tmp_path, monkeypatch):
    monkeypatch.setenv("LAKEOPS_HOME", str(tmp_path / "home"))
    found = CliRunner().invoke(app, ["doctor", "--json"])
    assert found.exit_code == 0, found.output
    results = {result["name"]: result for result in json.loads(found.stdout)["results"]}
    assert results["repository repo"]["status"] == results["obstore"]["status"] == "ok"
    assert repo.storage_namespace in results["repository repo"]["detail"]


# --- garbage collection ---
@pytest.fixture
def old(repo, clock):
    """Two commits, of which the rules keep one."""
    for text in ("old", "new"):
        for number in range(9):
            repo.branch("main").put(f"ö/{number} %2f", f"{text}{number}".encode())
        repo.branch("main").commit(text)
    repo.gc.set_rules({"default_retention_days": 1})
    clock.advance(days=8)
    return repo


def test_what_nothing_needs_goes(old):
    store = old._ctx.store
    store.put("data/theirs.txt", b"not ours")
    mark = old.gc.mark()
    report = old.gc.report(mark.id)
    assert (mark.objects, report["versioned"], report["notes"]) == (9, False, [])
    assert report["strays"]["sample"] == ["data/theirs.txt"]
    done = old.gc.sweep(mark.id)
    assert (done.deleted, done.versioned) == (mark.rows, False)
    assert tree(old, "main") == {f"ö/{number} %2f": f"new{number}".encode() for number in range(9)}
    assert len(list(store.list(layout.DATA))) == 10
    assert len(list(store.list(layout.METARANGES))) == 1
    assert old.gc.mark().rows == 0
    assert_sound(old, data=True)


def test_a_bucket_that_forbids_deletes_is_named(old, monkeypatch):
    mark, store = old.gc.mark(), old._ctx.store
    monkeypatch.setattr(store, "delete", lambda keys: [DeleteFailure(key, "AccessDenied") for key in keys])
    with pytest.raises(SweepIncomplete, match="AccessDenied"):
        old.gc.sweep(mark.id)
    assert len(list(store.list(layout.DATA))) == 18


class TestOutputs:
    """Outputs that programs write themselves, by folders: what marks a folder is no object of the output."""

    @pytest.fixture(params=["file", *S3_KINDS])
    def place(self, request, tmp_path):
        if request.param == "file":
            return None, f"file://{tmp_path}/namespace"
        endpoint = request.getfixturevalue("endpoint_of")(request.param)
        return endpoint, f"s3://{request.getfixturevalue('buckets')(endpoint)}/{uuid.uuid4().hex}"

    @pytest.fixture
    def files(self, place, monkeypatch):
        """The file system that pyarrow itself has for the place."""
        if place[0] is None:
            return pa.fs.LocalFileSystem()
        # radosgw answers 411 to parts with a trailing checksum, which the AWS SDK sends by default.
        monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
        keys = {"access_key": os.environ["AWS_ACCESS_KEY_ID"], "secret_key": os.environ["AWS_SECRET_ACCESS_KEY"]}
        return pa.fs.S3FileSystem(endpoint_override=place[0], region="us-east-1", **keys)

    @pytest.mark.parametrize("mode", ["replace", "append"])
    def test_partitions_that_pyarrow_writes(self, repo, files, mode):
        rows = pa.table({"region": ["x", "y/z", "x"], "n": [1, 2, 3]})
        main = repo.branch("main")
        with main.output("t/", mode=mode) as url:
            path = re.sub("^(s3|file)://", "", url)
            files.create_dir(path)
            ds.write_dataset(
                rows, path, filesystem=files, format="parquet", partitioning=["region"], partitioning_flavor="hive"
            )
            files.create_dir(f"{path}/empty")
        main.commit("partitions")
        names = [entry.path for entry in main.list("t/")]
        assert [name.rpartition("/")[0] for name in names] == ["t/region=x", "t/region=y%2Fz"]
        assert [pq.read_table(io.BytesIO(main.read(name)))["n"].to_pylist() for name in names] == [[1, 3], [2]]

    @pytest.mark.parametrize("marker", ["", "day=1/", "day=1/hour=2/", "day=1_$folder$", "/", "day=1//"])
    def test_what_marks_a_folder_is_left_out(self, place, repo, marker):
        if place[0] is None:
            pytest.skip("folders of a disk are no files")
        main, s3 = repo.branch("main"), client(repo._ctx.stores().settings)
        with main.output("t/") as url:
            bucket, _, folder = url.removeprefix("s3://").partition("/")
            s3.put_object(Bucket=bucket, Key=f"{folder}/{marker}", Body=b"")
            s3.put_object(Bucket=bucket, Key=f"{folder}/day=1/part", Body=b"1")
        assert [entry.path for entry in main.list()] == ["t/day=1/part"]

    def test_rows_under_the_name_of_a_folder_are_refused(self, place, repo):
        if place[0] is None:
            pytest.skip("a disk has no such files")
        main, s3 = repo.branch("main"), client(repo._ctx.stores().settings)
        with pytest.raises(InvalidInput, match="t/day=1/"), main.output("t/") as url:
            bucket, _, folder = url.removeprefix("s3://").partition("/")
            s3.put_object(Bucket=bucket, Key=f"{folder}/day=1/", Body=b"rows")
        assert not list(main.uncommitted())

    @pytest.mark.parametrize("partitions", [None, ["region"]])
    def test_what_pandas_writes(self, place, repo, partitions):
        pd = pytest.importorskip("pandas")
        main, rows = repo.branch("main"), pd.DataFrame({"region": ["x", "y"], "n": [1, 2]})
        options = None if place[0] is None else {"endpoint_url": place[0]}
        if options:
            pytest.importorskip("s3fs")
        with main.output("t/") as url:
            target = url if partitions else url.file("all.parquet")
            rows.to_parquet(target, partition_cols=partitions, storage_options=options)
        names = [entry.path for entry in main.list()]
        assert sum(len(pq.read_table(io.BytesIO(main.read(name)))) for name in names) == 2
        assert {name.split("/")[1] for name in names} == ({"region=x", "region=y"} if partitions else {"all.parquet"})


class TestVersions:
    """A bucket of the test's own: one that ever had versions is not as others are, even when they are off again."""

    @pytest.fixture(params=S3_KINDS)
    def place(self, request, endpoint_of):
        endpoint, name = endpoint_of(request.param), f"lakeops-test-{uuid.uuid4().hex[:12]}"
        s3 = client(replace(QUICK, endpoint_url=endpoint))
        s3.create_bucket(Bucket=name)
        yield endpoint, f"s3://{name}/flights"
        for page in s3.get_paginator("list_object_versions").paginate(Bucket=name):
            for version in [*page.get("Versions", []), *page.get("DeleteMarkers", [])]:
                s3.delete_object(Bucket=name, Key=version["Key"], VersionId=version["VersionId"])
        s3.delete_bucket(Bucket=name)

    def test_a_bucket_with_versions_says_that_they_remain(self, old):
        s3, bucket = client(old._ctx.stores().settings), old.storage_namespace.split("/")[2]
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        mark = old.gc.mark()
        report = old.gc.report(mark.id)
        assert report["versioned"] is True
        assert "NoncurrentVersionExpiration" in report["notes"][0]
        assert old.gc.sweep(mark.id).versioned is True
        gone = s3.list_object_versions(Bucket=bucket, Prefix=f"flights/{layout.DATA}").get("DeleteMarkers", [])
        assert len(gone) == 9
        assert len(tree(old, "main")) == 9
