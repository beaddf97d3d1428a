"""boto3 writes objects to branches through a gateway that may: whole, in parts, only if absent, and deletions."""

from __future__ import annotations

import http.client
import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError
from support.errors import has_kind
from support.served import KEYS, lake, s3_client

from lakeops import Lake, Repository
from lakeops.gateway.app import Gateway
from lakeops.model.errors import InvalidInput

__all__ = ["lake"]

pytestmark = pytest.mark.usefixtures("no_home")


@pytest.fixture
def repo(lake: Lake) -> Repository:
    repo = lake.create_repository("shop")
    repo.branch("main").put("old", b"old")
    repo.branch("main").commit("first")
    repo.create_tag("v1", "main")
    return repo


@pytest.fixture
def s3(lake: Lake, repo: Repository, serve: Callable[..., str]) -> Iterator[Any]:
    with s3_client(serve(lake, KEYS, write=True)) as client:
        yield client


def code(work: Callable[[], object]) -> tuple[int, str]:
    """The status and the code of a request that is refused."""
    with pytest.raises(ClientError) as failed:
        work()
    answer = failed.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


def test_an_object_is_staged_and_not_committed(repo: Repository, s3: Any) -> None:
    put = s3.put_object(Bucket="shop", Key="main/a b/ü", Body=b"1", ContentType="text/plain", Metadata={"k": "v"})
    entry = repo.ref("main").stat("a b/ü")
    assert (entry.content_type, entry.metadata) == ("text/plain", {"k": "v"})
    got = s3.get_object(Bucket="shop", Key="main/a b/ü", IfMatch=put["ETag"])
    assert (got["Body"].read(), got["ETag"]) == (b"1", put["ETag"])
    assert repo.ref("main@").find("a b/ü") is None
    s3.put_object(Bucket="shop", Key="main/empty")
    assert repo.ref("main").read("empty") == b""


def test_headers_that_belong_to_an_object_come_back(repo: Repository, s3: Any) -> None:
    """A reader that is not told of an encoding takes the compressed bytes for the contents."""
    kept = {
        "ContentEncoding": "gzip",
        "CacheControl": "max-age=60, private",
        "ContentDisposition": 'attachment; filename="a,b.csv"',
        "ContentLanguage": "de, en",
    }
    where = {"Bucket": "shop", "Key": "main/a.gz"}
    s3.put_object(**where, Body=b"1", Metadata={"k": "v"}, **kept)
    s3.copy_object(Bucket="shop", Key="main/b.gz", CopySource="shop/main/a.gz")
    upload = s3.create_multipart_upload(Bucket="shop", Key="main/c.gz", Metadata={"k": "v"}, **kept)["UploadId"]
    part = s3.upload_part(Bucket="shop", Key="main/c.gz", UploadId=upload, PartNumber=1, Body=io.BytesIO(b"1"))
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket="shop", Key="main/c.gz", UploadId=upload, MultipartUpload=parts)
    for key in ("main/a.gz", "main/b.gz", "main/c.gz"):
        for found in (s3.get_object(Bucket="shop", Key=key), s3.head_object(Bucket="shop", Key=key)):
            assert {name: found[name] for name in kept} == kept
            assert found["Metadata"] == {"k": "v"}
    s3.copy_object(**where, CopySource="shop/main/a.gz", MetadataDirective="REPLACE", ContentEncoding="br")
    assert s3.head_object(**where)["ContentEncoding"] == "br"
    assert "CacheControl" not in s3.head_object(**where)
    s3.put_object(**where, Body=io.BytesIO(b"plain"), ChecksumAlgorithm="CRC32")  # comes in chunks
    assert "ContentEncoding" not in s3.head_object(**where)
    assert repo.ref("main").stat("a.gz").metadata == {}


def test_of_several_writers_who_want_no_object_there_one_succeeds(repo: Repository, s3: Any) -> None:
    def put(number: int) -> int:
        try:
            s3.put_object(Bucket="shop", Key="main/once", Body=str(number).encode(), IfNoneMatch="*")
        except ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 412
            return -1
        return number

    with ThreadPoolExecutor(8) as pool:
        done = [number for number in pool.map(put, range(8)) if number >= 0]
    assert [repo.ref("main").read("once")] == [str(number).encode() for number in done]
    assert code(lambda: s3.put_object(Bucket="shop", Key="main/old", Body=b"", IfNoneMatch="*")) == (
        412,
        "PreconditionFailed",
    )


def test_a_version_of_a_delta_table_is_never_replaced(repo: Repository, s3: Any) -> None:
    log = "main/t/_delta_log/00000000000000000000"
    s3.put_object(Bucket="shop", Key=f"{log}.json", Body=b"first")
    taken = (412, "PreconditionFailed")
    assert code(lambda: s3.put_object(Bucket="shop", Key=f"{log}.json", Body=b"second")) == taken
    assert code(lambda: s3.copy_object(Bucket="shop", Key=f"{log}.json", CopySource="shop/main/old")) == taken
    where = {"Bucket": "shop", "Key": f"{log}.json"}
    upload = s3.create_multipart_upload(**where)["UploadId"]
    part = {"PartNumber": 1, "ETag": s3.upload_part(**where, UploadId=upload, PartNumber=1, Body=b"x")["ETag"]}
    parts = {"Parts": [part]}
    assert code(lambda: s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload=parts)) == taken
    s3.abort_multipart_upload(**where, UploadId=upload)
    # A client that got no answer sends the same once more, and must not take its own version for another writer's.
    s3.put_object(Bucket="shop", Key=f"{log}.json", Body=b"first")
    assert code(lambda: s3.put_object(Bucket="shop", Key=f"{log}.json", Body=b"first", IfNoneMatch="*")) == taken
    assert repo.ref("main").read("t/_delta_log/00000000000000000000.json") == b"first"
    for name in (f"{log}.crc", "main/t/_delta_log/_last_checkpoint", "main/t/00000000000000000000.json"):
        for text in (b"1", b"2"):
            s3.put_object(Bucket="shop", Key=name, Body=text)
    s3.copy_object(Bucket="shop", Key="main/t/_delta_log/00000000000000000001.json", CopySource=f"shop/{log}.json")
    s3.delete_object(Bucket="shop", Key=f"{log}.json")
    s3.put_object(Bucket="shop", Key=f"{log}.json", Body=b"of a new table")


def test_a_refusal_tells_spark_s_log_store_that_another_writer_was_first(repo: Repository, s3: Any) -> None:
    with pytest.raises(ClientError, match="412 Precondition Failed: branch 'main' has an object 'old' already"):
        s3.put_object(Bucket="shop", Key="main/old", Body=b"", IfNoneMatch="*")


def test_an_upload_in_parts(repo: Repository, s3: Any) -> None:
    where = {"Bucket": "shop", "Key": "main/big"}
    upload = s3.create_multipart_upload(**where, ContentType="text/plain", Metadata={"k": "v"})["UploadId"]
    parts = []
    for number, text in ((2, b"b" * 5_000_000), (1, b"a" * 5_000_000), (3, b"x"), (3, b"c")):
        mark = s3.upload_part(**where, UploadId=upload, PartNumber=number, Body=text)["ETag"]
        parts.append({"PartNumber": number, "ETag": mark})
    assert repo.ref("main").find("big") is None
    first, second, stale, third = parts[1], parts[0], parts[2], parts[3]

    def complete(*listed: Any, **more: Any) -> Any:
        return s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": [*listed]}, **more)

    assert code(lambda: complete(second, first)) == (400, "InvalidPartOrder")
    assert code(lambda: complete(first, second, stale)) == (400, "InvalidPart")
    done = complete(first, second, third, IfNoneMatch="*")
    assert repo.ref("main").read("big") == b"a" * 5_000_000 + b"b" * 5_000_000 + b"c"
    assert repo.ref("main").stat("big").metadata == {"k": "v"}
    assert s3.head_object(**where)["ETag"] == done["ETag"]
    assert code(lambda: complete(first)) == (404, "NoSuchUpload")
    gone = s3.create_multipart_upload(**where)["UploadId"]
    s3.abort_multipart_upload(**where, UploadId=gone)
    assert code(lambda: s3.upload_part(**where, UploadId=gone, PartNumber=1, Body=b""))[0] == 404


def test_deletions(repo: Repository, s3: Any) -> None:
    branch = repo.branch("main")
    for name in ("a", "b", "c&d"):
        branch.put(name, b"1")
    s3.delete_object(Bucket="shop", Key="main/a")
    s3.delete_object(Bucket="shop", Key="main/never there")
    listed = {"Objects": [{"Key": "main/b"}, {"Key": "main/c&d"}, {"Key": "v1/old"}]}
    done = s3.delete_objects(Bucket="shop", Delete=listed)
    assert [one["Key"] for one in done["Deleted"]] == ["main/b", "main/c&d"]
    assert [(one["Key"], one["Code"]) for one in done["Errors"]] == [("v1/old", "AccessDenied")]
    assert [one.path for one in branch.list()] == ["old"]


def test_a_copy_moves_no_bytes(repo: Repository, s3: Any) -> None:
    done = s3.copy_object(Bucket="shop", Key="main/b ü", CopySource="shop/v1/old", Metadata={"k": "v"})
    copied, source = repo.ref("main").stat("b ü"), repo.ref("v1").stat("old")
    assert (copied.physical_address, copied.metadata) == (source.physical_address, {})
    assert s3.head_object(Bucket="shop", Key="main/b ü", IfMatch=done["CopyObjectResult"]["ETag"])
    replacing = {"Metadata": {"k": "v"}, "MetadataDirective": "REPLACE"}
    s3.copy_object(Bucket="shop", Key="main/c", CopySource="shop/main/b ü", **replacing)
    assert (repo.ref("main").read("c"), repo.ref("main").stat("c").metadata) == (b"old", {"k": "v"})
    for source, status in (("shop/main/none", 404), ("else/main/old", 501), ("shop/main", 501)):
        assert code(lambda source=source: s3.copy_object(Bucket="shop", Key="main/x", CopySource=source))[0] == status
    assert code(lambda: s3.copy_object(Bucket="shop", Key="v1/x", CopySource="shop/main/old"))[0] == 403
    assert repo.ref("main").find("x") is None


def test_a_copy_to_itself_replaces_what_is_said_of_the_object(repo: Repository, s3: Any) -> None:
    where = {"Bucket": "shop", "Key": "main/old", "CopySource": "shop/main/old"}
    s3.copy_object(**where, MetadataDirective="REPLACE", Metadata={"k": "v"}, ContentType="text/plain")
    entry = repo.ref("main").stat("old")
    assert (entry.metadata, entry.content_type, repo.ref("main").read("old")) == ({"k": "v"}, "text/plain", b"old")
    assert code(lambda: s3.copy_object(**where)) == (400, "InvalidRequest")


def test_parts_of_an_upload_are_copied(repo: Repository, s3: Any) -> None:
    """As Hadoop renames a large file."""
    text = b"".join(b"%07d\n" % number for number in range(750_000))
    repo.branch("main").put("large", text)
    config = TransferConfig(multipart_threshold=1 << 20, multipart_chunksize=5 << 20, use_threads=False)
    s3.copy({"Bucket": "shop", "Key": "main/large"}, "shop", "main/renamed", Config=config)
    assert repo.ref("main").read("renamed") == text
    where = {"Bucket": "shop", "Key": "main/x"}
    upload = where | {"UploadId": s3.create_multipart_upload(**where)["UploadId"]}
    part = upload | {"PartNumber": 1, "CopySource": "shop/main/large"}
    assert code(lambda: s3.upload_part_copy(**part, CopySourceRange="five"))[0] == 400
    assert code(lambda: s3.upload_part_copy(**part | {"CopySource": "shop/main/none"}))[0] == 404
    s3.abort_multipart_upload(**upload)


def test_what_asks_for_something_else_than_the_object_leaves_the_object_as_it_is(repo: Repository, s3: Any) -> None:
    """Each of these was once taken for a write or a deletion of the object itself."""
    old, mark = {"Bucket": "shop", "Key": "main/old"}, repo.ref("main").stat("old").checksum
    upload = s3.create_multipart_upload(**old)["UploadId"]
    source = {"CopySource": "shop/main/other"}
    repo.branch("main").put("other", b"other")
    for work, wanted in (
        (lambda: s3.put_object_acl(**old, ACL="private"), 501),
        (lambda: s3.put_object_tagging(**old, Tagging={"TagSet": [{"Key": "k", "Value": "v"}]}), 501),
        (lambda: s3.put_object_retention(**old, Retention={"Mode": "GOVERNANCE"}), 501),
        (lambda: s3.put_object_legal_hold(**old, LegalHold={"Status": "ON"}), 501),
        (lambda: s3.delete_object_tagging(**old), 501),
        (lambda: s3.delete_object(**old, VersionId="1"), 501),
        (lambda: s3.delete_object(**old, IfMatch="other"), 501),
        (lambda: s3.put_object(**old, Body=b"more", WriteOffsetBytes=3), 501),
        (lambda: s3.put_object(**old, Body=b"more", IfMatch=mark), 501),
        (lambda: s3.copy_object(**old, **source, CopySourceIfNoneMatch=mark), 501),
        (lambda: s3.copy_object(**old, **source, CopySourceIfMatch=mark), 412),
        (lambda: s3.upload_part_copy(**old, **source, UploadId=upload, PartNumber=1, CopySourceIfMatch=mark), 412),
    ):
        assert code(work)[0] == wanted
    s3.abort_multipart_upload(**old, UploadId=upload)
    listed = {"Objects": [{"Key": "main/old", "VersionId": "1"}]}
    assert [one["Code"] for one in s3.delete_objects(Bucket="shop", Delete=listed)["Errors"]] == ["NotImplemented"]
    assert repo.ref("main").read("old") == b"old"
    s3.copy_object(**old, CopySource="shop/main/other", CopySourceIfMatch=repo.ref("main").stat("other").checksum)
    assert repo.ref("main").read("old") == b"other"


def test_what_takes_no_changes_says_so(repo: Repository, s3: Any) -> None:
    repo.create_branch("release")
    repo.protect("release")
    for ref in ("v1", "main~1", repo.ref("main").commit_id, "nothing", "main@", "release"):
        assert code(lambda ref=ref: s3.put_object(Bucket="shop", Key=f"{ref}/x", Body=b"")) == (403, "AccessDenied")
    assert code(lambda: s3.put_object(Bucket="shop", Key="main", Body=b"")) == (400, "InvalidArgument")
    assert code(lambda: s3.put_object(Bucket="none", Key="main/x", Body=b"")) == (404, "NoSuchBucket")
    assert code(lambda: s3.put_object(Bucket="shop", Key="main/x", Body=b"", IfMatch="x"))[0] == 501
    assert [change.path for change in repo.branch("main").uncommitted()] == []


def test_another_body_than_the_signed_one_is_refused(repo: Repository, s3: Any) -> None:
    sent: list[Any] = []
    s3.meta.events.register("before-send.s3", lambda request, **_: sent.append(request))
    s3.put_object(Bucket="shop", Key="main/x", Body=b"1")
    request = sent[0]
    address = s3.meta.endpoint_url.removeprefix("http://")
    for body, status in ((b"1", 200), (b"2", 400)):
        connection = http.client.HTTPConnection(address)
        headers = {name: value if isinstance(value, str) else value.decode() for name, value in request.headers.items()}
        connection.request("PUT", "/shop/main/x", body, headers)
        assert connection.getresponse().status == status
        connection.close()
    connection = http.client.HTTPConnection(address)
    connection.request("PUT", "/shop/main/x", b"3")
    assert connection.getresponse().status == 403
    connection.close()
    assert repo.ref("main").read("x") == b"1"


def test_a_gateway_without_keys_takes_no_writes(lake: Lake) -> None:
    with pytest.raises(InvalidInput, match="needs gateway_access_key", check=has_kind("invalid_settings")):
        Gateway(lake, None, write=True)
