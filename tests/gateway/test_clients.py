"""Programs that know S3 and nothing of lakeops read what ``repo.ref`` shows: boto3, pyarrow, polars and aws-cli."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
import pytest
from botocore.exceptions import ClientError
from support.doc_pages import blocks
from support.served import BIG, KEYS, Served, s3_client

from lakeops import Lake, Settings
from lakeops.model.records import CommonPrefix

pytestmark = pytest.mark.usefixtures("no_home")

REFS = ["main", "main-2", "v1", "main~1", "main@", "main^", "COMMIT"]


@pytest.fixture
def s3(served: Served) -> Iterator[Any]:
    with s3_client(served.url) as client:
        yield client


def _ref(served: Served, name: str) -> str:
    return served.repo.ref("main").commit_id if name == "COMMIT" else name


def _rows(client: Any, operation: str, **asked: Any) -> tuple[list[tuple[str, int]], list[str]]:
    """Keys with sizes, and common prefixes, of all pages."""
    keys, folders = [], []
    for page in client.get_paginator(operation).paginate(Bucket="shop", **asked):
        keys += [(row["Key"], row["Size"]) for row in page.get("Contents", ())]
        folders += [row["Prefix"] for row in page.get("CommonPrefixes", ())]
    return keys, folders


@pytest.mark.parametrize("name", REFS)
def test_listings_and_contents_are_those_of_the_ref(served: Served, s3: Any, name: str) -> None:
    ref = _ref(served, name)
    entries = list(served.repo.ref(ref).list())
    expected = [(f"{ref}/{one.path}", one.size_bytes) for one in entries]
    for operation in ("list_objects_v2", "list_objects"):
        assert _rows(s3, operation, Prefix=f"{ref}/", MaxKeys=5) == (expected, [])
    with ThreadPoolExecutor(4) as pool:
        bodies = pool.map(lambda row: s3.get_object(Bucket="shop", Key=row[0])["Body"].read(), expected)
        assert list(bodies) == [served.repo.ref(ref).read(one.path) for one in entries]


@pytest.mark.parametrize("operation", ["list_objects_v2", "list_objects"])
@pytest.mark.parametrize("prefix", ["", "orders/", "orders/day=", "a", "/", "nothing/", "Ünï/"])
def test_folders_are_those_of_the_ref(served: Served, s3: Any, operation: str, prefix: str) -> None:
    listed = list(served.repo.ref("main").list(prefix, delimiter="/"))
    keys, folders = _rows(s3, operation, Prefix=f"main/{prefix}", Delimiter="/", MaxKeys=2)
    assert folders == [f"main/{one.path}" for one in listed if isinstance(one, CommonPrefix)]
    assert [key for key, _ in keys] == [f"main/{one.path}" for one in listed if not isinstance(one, CommonPrefix)]


def test_a_bucket_holds_branches_and_tags(served: Served, s3: Any) -> None:
    assert [one["Name"] for one in s3.list_buckets()["Buckets"]] == ["shop"]
    assert s3.get_bucket_location(Bucket="shop")["LocationConstraint"] is None
    s3.head_bucket(Bucket="shop")
    assert _rows(s3, "list_objects_v2", Delimiter="/", MaxKeys=1) == ([], ["main-2/", "main/", "v1/"])
    assert _rows(s3, "list_objects_v2", Delimiter="/", Prefix="main") == ([], ["main-2/", "main/"])
    everything, _ = _rows(s3, "list_objects_v2", MaxKeys=7)
    keys = [f"{ref}/{one.path}" for ref in ("main-2", "main", "v1") for one in served.repo.ref(ref).list()]
    assert [key for key, _ in everything] == keys
    later, _ = _rows(s3, "list_objects_v2", StartAfter=keys[5])
    assert [key for key, _ in later] == keys[6:]


def test_an_object_says_what_the_entry_says(served: Served, s3: Any) -> None:
    entry = served.repo.ref("main").stat("customers.csv")
    for told in (
        s3.head_object(Bucket="shop", Key="main/customers.csv", ChecksumMode="ENABLED"),
        s3.get_object(Bucket="shop", Key="main/customers.csv"),
    ):
        assert told["ContentType"] == "text/csv"
        assert told["ContentLength"] == entry.size_bytes
        assert told["ETag"] == f'"{entry.checksum}-1"'
        assert int(told["LastModified"].timestamp()) == entry.mtime
        assert told["Metadata"] == {"who": "=?utf-8?b?R3LDvMOfZQ==?="}  # as S3 sends what is not ASCII
        assert told["ChecksumSHA256"]


def test_big_objects_come_in_ranges_at_the_same_time(s3: Any, tmp_path: Path) -> None:
    config = boto3.s3.transfer.TransferConfig(multipart_threshold=1 << 20, multipart_chunksize=1 << 20)
    s3.download_file("shop", "main/big.bin", str(tmp_path / "big"), Config=config)
    assert (tmp_path / "big").read_bytes() == BIG
    assert s3.get_object(Bucket="shop", Key="main/big.bin")["Body"].read() == BIG


def test_nothing_is_found_where_nothing_is(s3: Any) -> None:
    for key in ("main/none", "none/customers.csv", "main", "main/", "main/orders/", "main..x/a", "@/a"):
        with pytest.raises(ClientError) as failed:
            s3.get_object(Bucket="shop", Key=key)
        assert failed.value.response["Error"]["Code"] == "NoSuchKey"
        with pytest.raises(ClientError, match="404"):
            s3.head_object(Bucket="shop", Key=key)
    assert s3.list_objects_v2(Bucket="shop", Prefix="none/")["KeyCount"] == 0
    with pytest.raises(s3.exceptions.NoSuchBucket):
        s3.list_objects_v2(Bucket="none")


def test_a_presigned_url_reads_one_object(served: Served, s3: Any) -> None:
    for key in ("main/customers.csv", "main~1/old.csv", "main/a+b.txt", "main/Ünï/çø∂é.txt"):
        url = s3.generate_presigned_url("get_object", Params={"Bucket": "shop", "Key": key}, ExpiresIn=60)
        ref, _, path = key.partition("/")
        with urllib.request.urlopen(url) as answer:
            assert answer.read() == served.repo.ref(ref).read(path)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(url.replace(quote(key.rpartition("/")[2]), "big.bin"))


def test_a_presigned_url_says_what_the_headers_are_to_be(s3: Any) -> None:
    wanted = {"ResponseContentDisposition": 'attachment; filename="a.csv"', "ResponseContentType": "text/plain"}
    wanted |= {"ResponseCacheControl": "no-store", "ResponseContentEncoding": "x", "ResponseContentLanguage": "de"}
    where = {"Bucket": "shop", "Key": "main/customers.csv"}
    with urllib.request.urlopen(s3.generate_presigned_url("get_object", Params=where | wanted)) as answer:
        for name, value in wanted.items():
            assert answer.headers[re.sub(r"(?<!^)(?=[A-Z])", "-", name.removeprefix("Response"))] == value
    for bad in ("a\r\nx-evil: 1", "ü"):
        with pytest.raises(ClientError, match="InvalidArgument"):
            s3.get_object(**where, ResponseContentType=bad)


def test_attributes_and_the_one_part_of_an_object(served: Served, s3: Any) -> None:
    entry, where = served.repo.ref("main").stat("customers.csv"), {"Bucket": "shop", "Key": "main/customers.csv"}
    names = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]
    found = s3.get_object_attributes(**where, ObjectAttributes=names)
    assert (found["ETag"], found["ObjectSize"], found["StorageClass"]) == (
        f"{entry.checksum}-1",
        entry.size_bytes,
        "STANDARD",
    )
    assert base64.b64decode(found["Checksum"]["ChecksumSHA256"]).hex() == entry.checksum
    assert "ObjectParts" not in found
    assert "ETag" not in s3.get_object_attributes(**where, ObjectAttributes=["ObjectSize"])
    part = s3.get_object(**where, PartNumber=1)
    assert (part["PartsCount"], part["Body"].read()) == (1, served.repo.ref("main").read("customers.csv"))
    with pytest.raises(ClientError, match="InvalidPart"):
        s3.get_object(**where, PartNumber=2)


def test_a_download_that_goes_on_with_another_object_begins_anew(served: Served, s3: Any) -> None:
    def get(mark: str) -> int:
        s3.meta.events.register(
            "before-call.s3", add := lambda params, **_: params["headers"].update({"If-Range": mark})
        )
        answer = s3.get_object(Bucket="shop", Key="main/customers.csv", Range="bytes=2-3")
        s3.meta.events.unregister("before-call.s3", add)
        return int(answer["ContentLength"])

    entry = served.repo.ref("main").stat("customers.csv")
    assert (get(f'"{entry.checksum}-1"'), get('"else"')) == (2, entry.size_bytes)


def test_buckets_are_listed_in_pages(served: Served, s3: Any, serve: Any, tmp_path: Path) -> None:
    settings = Settings.model_construct(home=tmp_path / "home", fsync=False, committer="tester")
    with Lake.open(settings=settings) as lake:
        for name in ("aaa", "aab", "bbb"):
            lake.create_repository(name)
        with s3_client(serve(lake, KEYS)) as client:
            pages = client.get_paginator("list_buckets").paginate(Prefix="a", PaginationConfig={"PageSize": 1})
            assert [[one["Name"] for one in page["Buckets"]] for page in pages] == [["aaa"], ["aab"]]
            assert [one["Name"] for one in client.list_buckets()["Buckets"]] == ["aaa", "aab", "bbb"]
            assert "ContinuationToken" not in client.list_buckets(MaxBuckets=3)


def test_other_keys_and_no_keys_are_refused(served: Served) -> None:
    other = replace(KEYS, secret_key="another secret of sixteen")
    with s3_client(served.url, other) as client, pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        client.list_buckets()
    for path in ("/", "/shop", "/shop/main/customers.csv", "/none/x"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(served.url + path)


def test_pyarrow_reads_refs(served: Served) -> None:
    from pyarrow import dataset, fs

    s3 = fs.S3FileSystem(
        endpoint_override=served.address, scheme="http", access_key=KEYS.access_key, secret_key=KEYS.secret_key
    )
    found = s3.get_file_info(fs.FileSelector("shop/main~1", recursive=True))
    assert {one.path for one in found if one.is_file} == {
        f"shop/main~1/{one.path}" for one in served.repo.ref("main~1").list()
    }
    orders = dataset.dataset("shop/v1/orders", filesystem=s3, format="csv", partitioning="hive").to_table()
    assert sorted(orders["day"].to_pylist()) == [1] * 4 + [2] * 4 + [3] * 4
    assert s3.get_file_info("shop/main/none").type == fs.FileType.NotFound
    with s3.open_input_file("shop/main/big.bin") as file:
        assert file.read_at(1000, 1_500_000) == BIG[1_500_000:1_501_000]
    for path in ("a b.txt", "a+b.txt", "a%2Fb.txt", "~é@main.txt"):
        assert s3.open_input_stream(f"shop/main/{path}").read() == served.repo.ref("main").read(path)


def test_polars_reads_refs(served: Served) -> None:
    import polars as pl

    options = {
        "aws_endpoint_url": served.url,
        "aws_access_key_id": KEYS.access_key,
        "aws_secret_access_key": KEYS.secret_key,
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }
    orders = pl.scan_csv("s3://shop/v1/orders/*/*.csv", storage_options=options).collect()
    assert orders["amount"].sum() == (1 + 2 + 3) * 4


@pytest.mark.skipif(shutil.which("aws") is None, reason="aws-cli is not installed")
def test_aws_cli_reads_refs(served: Served, tmp_path: Path) -> None:
    line = next(block for block in blocks("gateway.md") if block.language == "bash" and "aws " in block.text)
    keys = {"AWS_ACCESS_KEY_ID": KEYS.access_key, "AWS_SECRET_ACCESS_KEY": KEYS.secret_key}
    subprocess.run(
        ["bash", "-c", line.text.replace("127.0.0.1:9010", served.address)],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        check=True,
        env={**os.environ, **keys, "AWS_DEFAULT_REGION": "us-east-1"},
    )
    ref = served.repo.ref("v1")
    expected = {one.path: hashlib.sha256(ref.read(one.path)).digest() for one in ref.list("orders/")}
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {str(f.relative_to(tmp_path)): hashlib.sha256(f.read_bytes()).digest() for f in files} == expected
