"""boto3 writes objects to branches through a gateway that may: whole, in parts, only if absent, and deletions."""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.utils import formatdate
from itertools import count
from typing import Any

import pytest
import requests
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError
from support.errors import has_kind
from support.served import KEYS, lake, s3_client, signed

from lakeops import Lake, Repository
from lakeops.gateway.app import Gateway
from lakeops.gateway.chunks import digests_of
from lakeops.gateway.writing import LEAST_PART
from lakeops.model.errors import InvalidInput
from lakeops.model.records import DEFAULT_CONTENT_TYPE
from lakeops.testing import ManualClock

__all__ = ["lake"]

pytestmark = pytest.mark.usefixtures("no_home")


def code(work: Callable[[], object]) -> tuple[int, str]:
    """The status and the code of a request that is refused."""
    with pytest.raises(ClientError) as failed:
        work()
    answer = failed.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


def begun(s3: Any, key: str = "main/x", **about: Any) -> dict[str, Any]:
    """An upload in parts that has begun: what each further request names."""
    where = {"Bucket": "shop", "Key": key}
    return where | {"UploadId": s3.create_multipart_upload(**where, **about)["UploadId"]}


def with_parts(s3: Any, upload: dict[str, Any], *texts: Any) -> dict[str, Any]:
    """Send the parts of an upload; gives what names the upload and its parts at its end."""
    marks = [s3.upload_part(**upload, PartNumber=n, Body=text)["ETag"] for n, text in enumerate(texts, 1)]
    parts = [{"PartNumber": n, "ETag": mark} for n, mark in enumerate(marks, 1)]
    return upload | {"MultipartUpload": {"Parts": parts}}


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
    upload = begun(s3, "main/c.gz", Metadata={"k": "v"}, **kept)
    s3.complete_multipart_upload(**with_parts(s3, upload, io.BytesIO(b"1")))
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


@pytest.mark.parametrize("replaces", [False, True])
def test_of_several_writers_with_one_condition_one_succeeds(repo: Repository, s3: Any, replaces: bool) -> None:
    first = s3.put_object(Bucket="shop", Key="main/x", Body=b"first")["ETag"] if replaces else None
    condition = {"IfMatch": first} if replaces else {"IfNoneMatch": "*"}

    def put(number: int) -> int:
        try:
            s3.put_object(Bucket="shop", Key="main/x", Body=b"%d" % number, **condition)
        except ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 412
            return -1
        return number

    with ThreadPoolExecutor(8) as pool:
        done = [number for number in pool.map(put, range(8)) if number >= 0]
    assert [repo.ref("main").read("x")] == [b"%d" % number for number in done]
    again = code(lambda: s3.put_object(Bucket="shop", Key="main/x", Body=b"", **condition))
    assert again == (412, "PreconditionFailed")


def test_a_version_of_a_delta_table_is_never_replaced(repo: Repository, s3: Any) -> None:
    log = "main/t/_delta_log/00000000000000000000"
    s3.put_object(Bucket="shop", Key=f"{log}.json", Body=b"first")
    taken = (412, "PreconditionFailed")
    assert code(lambda: s3.put_object(Bucket="shop", Key=f"{log}.json", Body=b"second")) == taken
    assert code(lambda: s3.copy_object(Bucket="shop", Key=f"{log}.json", CopySource="shop/main/old")) == taken
    first = s3.head_object(Bucket="shop", Key=f"{log}.json")["ETag"]
    for condition in ({"IfMatch": first}, {"IfNoneMatch": '"else"'}, {"IfMatch": "*"}):
        assert code(lambda more=condition: s3.put_object(Bucket="shop", Key=f"{log}.json", Body=b"x", **more)) == taken
    upload = begun(s3, f"{log}.json")
    ended = with_parts(s3, upload, b"x")
    assert code(lambda: s3.complete_multipart_upload(**ended)) == taken
    s3.abort_multipart_upload(**upload)
    # A client that got no answer sends the same once more, and must not take its own version for another writer's.
    s3.put_object(Bucket="shop", Key=f"{log}.json", Body=b"first")
    assert code(lambda: s3.put_object(Bucket="shop", Key=f"{log}.json", Body=b"first", IfNoneMatch="*")) == taken
    assert repo.ref("main").read("t/_delta_log/00000000000000000000.json") == b"first"
    for name in (f"{log}.crc", "main/t/_delta_log/_last_checkpoint", "main/t/00000000000000000000.json"):
        for text in (b"1", b"2"):
            s3.put_object(Bucket="shop", Key=name, Body=text)
    for _ in range(2):
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
    for number, text in ((2, b"b" * LEAST_PART), (1, b"a" * LEAST_PART), (3, b"x"), (3, b"c")):
        mark = s3.upload_part(**where, UploadId=upload, PartNumber=number, Body=text)["ETag"]
        parts.append({"PartNumber": number, "ETag": mark})
    assert repo.ref("main").find("big") is None
    first, second, stale, third = parts[1], parts[0], parts[2], parts[3]

    def complete(*listed: Any, **more: Any) -> Any:
        return s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": [*listed]}, **more)

    assert code(lambda: complete(second, first)) == (400, "InvalidPartOrder")
    assert code(lambda: complete(first, second, stale)) == (400, "InvalidPart")
    done = complete(first, second, third, IfNoneMatch="*")
    assert repo.ref("main").read("big") == b"a" * LEAST_PART + b"b" * LEAST_PART + b"c"
    assert {**repo.ref("main").stat("big").metadata, "s3:parts": ""} == {"k": "v", "s3:parts": ""}
    head = s3.head_object(**where)
    assert (head["ETag"], head["Metadata"], "MissingMeta" in head) == (done["ETag"], {"k": "v"}, False)
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
    repo.branch("main").put("b ü", b"old", content_type="text/plain")
    s3.copy_object(Bucket="shop", Key="main/c", CopySource="shop/main/b ü", **replacing)
    entry = repo.ref("main").stat("c")
    assert (repo.ref("main").read("c"), entry.metadata, entry.content_type) == (
        b"old",
        {"k": "v"},
        DEFAULT_CONTENT_TYPE,
    )
    for source, status in (("shop/main/none", 404), ("else/main/old", 404), ("shop/main", 404)):
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
    upload = begun(s3)
    part = upload | {"PartNumber": 1, "CopySource": "shop/main/large"}
    assert code(lambda: s3.upload_part_copy(**part, CopySourceRange="five"))[0] == 400
    assert code(lambda: s3.upload_part_copy(**part | {"CopySource": "shop/main/none"}))[0] == 404
    s3.abort_multipart_upload(**upload)


def test_a_deletion_of_a_version_leaves_the_object_as_it_is(repo: Repository, s3: Any) -> None:
    assert code(lambda: s3.delete_object(Bucket="shop", Key="main/old", VersionId="1"))[0] == 501
    listed = {"Objects": [{"Key": "main/old", "VersionId": "1"}]}
    assert [one["Code"] for one in s3.delete_objects(Bucket="shop", Delete=listed)["Errors"]] == ["NotImplemented"]
    assert repo.ref("main").read("old") == b"old"


def test_what_takes_no_changes_says_so(repo: Repository, s3: Any) -> None:
    repo.create_branch("release")
    repo.protect("release")
    for ref in ("v1", "main~1", repo.ref("main").commit_id, "nothing", "main@", "release"):
        assert code(lambda ref=ref: s3.put_object(Bucket="shop", Key=f"{ref}/x", Body=b"")) == (403, "AccessDenied")
    assert code(lambda: s3.put_object(Bucket="shop", Key="main", Body=b"")) == (400, "InvalidArgument")
    assert code(lambda: s3.put_object(Bucket="none", Key="main/x", Body=b"")) == (404, "NoSuchBucket")
    assert code(lambda: s3.put_object(Bucket="shop", Key="main/x", Body=b"", IfMatch="x"))[0] == 404
    assert [change.path for change in repo.branch("main").uncommitted()] == []


@pytest.mark.parametrize("wrong", ["protected", "path", "metadata", "content type"])
def test_an_upload_that_cannot_end_does_not_begin(repo: Repository, s3: Any, wrong: str) -> None:
    if wrong == "protected":
        repo.protect("main")
    about = {"metadata": {"Metadata": {"k": "v" * 2048}}, "content type": {"ContentType": "x" * 256}}.get(wrong, {})
    key = "main/" + "x" * (1025 if wrong == "path" else 1)
    refused = code(lambda: s3.put_object(Bucket="shop", Key=key, Body=b"", **about))
    assert code(lambda: begun(s3, key, **about)) == refused
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="shop")


def test_only_ended_and_old_uploads_give_way_to_new_ones(
    lake: Lake, repo: Repository, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (8, 8))
    with s3_client(serve(lake, KEYS, write=True)) as s3:
        uploads = [with_parts(s3, upload, b"1") for upload in [begun(s3, f"main/{n}") for n in range(2)]]
        assert code(lambda: begun(s3)) == (503, "SlowDown")
        for upload in uploads:
            s3.complete_multipart_upload(**upload)
            latest = begun(s3)
        assert [entry.path for entry in repo.branch("main").list()] == ["0", "1", "old"]
        assert code(lambda: begun(s3)) == (503, "SlowDown")
        monkeypatch.setattr("lakeops.gateway.writing.KEPT_SECONDS", -1)
        begun(s3)
        left = [one["UploadId"] for one in s3.list_multipart_uploads(Bucket="shop")["Uploads"]]
        assert (len(left), latest["UploadId"] in left) == (2, True)
        for upload in left:
            s3.abort_multipart_upload(Bucket="shop", Key="main/x", UploadId=upload)


def test_an_upload_is_not_of_a_later_repository_of_the_name(
    lake: Lake, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (4, 4))
    with Lake.open(settings=lake.settings, clock=ManualClock()) as then:
        then.create_repository("shop")
    with s3_client(serve(lake, KEYS, write=True)) as s3:
        upload = begun(s3)
        ended = with_parts(s3, upload, b"1")
        lake.delete_repository("shop")
        repo = lake.create_repository("shop")
        for work in (
            lambda: s3.list_parts(**upload),
            lambda: s3.upload_part(**upload, PartNumber=2, Body=b""),
            lambda: s3.complete_multipart_upload(**ended),
            lambda: s3.abort_multipart_upload(**upload),
        ):
            assert code(work) == (404, "NoSuchUpload")
        assert "Uploads" not in s3.list_multipart_uploads(Bucket="shop")
        assert [*repo.branch("main").list()] == []
        monkeypatch.setattr("lakeops.gateway.writing.KEPT_SECONDS", -1)  # it gives way
        s3.abort_multipart_upload(**begun(s3))


@pytest.mark.parametrize("operation", ["list_objects", "list_objects_v2"])
def test_a_listing_of_a_branch_that_is_deleted_meanwhile_is_not_said_to_be_whole(
    repo: Repository, s3: Any, operation: str
) -> None:
    with repo.create_branch("dev").batch() as batch:
        for number in range(4):
            batch.put(f"t/{number}", b"x")
    pages = iter(s3.get_paginator(operation).paginate(Bucket="shop", Prefix="dev/t/", PaginationConfig={"PageSize": 2}))
    assert len(next(pages)["Contents"]) == 2
    repo.delete_branch("dev")
    assert code(lambda: next(pages)) == (404, "NoSuchKey")


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


def sum_of(name: str, text: bytes) -> str:
    digest = digests_of([name])[name]
    digest.update(text)
    return base64.b64encode(digest.digest()).decode()


SUMS = ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"]


@pytest.mark.parametrize("kind", SUMS)
def test_sums_of_parts_and_of_the_whole_are_compared_at_the_end(repo: Repository, s3: Any, kind: str) -> None:
    field, header = f"Checksum{kind.upper()}", f"x-amz-checksum-{kind}"
    texts = [b"a" * LEAST_PART, b"b"]
    upload = begun(s3, "main/big")
    parts = []
    for number, text in enumerate(texts, 1):
        sums = {field: sum_of(header, text)}
        done = s3.upload_part(**upload, PartNumber=number, Body=text, **sums)
        assert done[field] == sums[field]
        parts.append({"PartNumber": number, "ETag": done["ETag"], **sums})
    each = b"".join(base64.b64decode(part[field]) for part in parts)
    whole, composite = sum_of(header, b"".join(texts)), sum_of(header, each) + "-2"

    def complete(listed: list[dict[str, Any]] = parts, **more: Any) -> Any:
        return s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": listed}, **more)

    wrong = sum_of(header, b"else")
    assert code(lambda: complete([{**parts[0], field: wrong}, parts[1]])) == (400, "InvalidPart")
    assert code(lambda: complete(**{field: wrong})) == (400, "BadDigest")
    assert code(lambda: complete(**{field: f"{wrong}-2"})) == (400, "BadDigest")
    assert code(lambda: complete(**{field: composite[:-1] + "3"})) == (400, "BadDigest")
    assert code(lambda: complete(MpuObjectSize=LEAST_PART)) == (400, "InvalidRequest")
    assert repo.ref("main").find("big") is None
    given = whole if kind in {"crc64nvme", "crc32"} else composite
    done = complete(**{field: given}, MpuObjectSize=LEAST_PART + 1)
    assert done[field] == given
    assert repo.ref("main").read("big") == b"".join(texts)


def in_parts(s3: Any, texts: list[bytes], sums: list[str] | None = None, **about: Any) -> Any:
    """Upload an object in parts, with their sums or with what boto3 computes; gives the answer to its end."""
    upload, listed = begun(s3, "main/parts", **about), []
    for number, text in enumerate(texts, 1):
        if sums:
            algorithm = {f"Checksum{about['ChecksumAlgorithm']}": sums[number - 1]}
        else:
            algorithm = {name: value for name, value in about.items() if name == "ChecksumAlgorithm"}
        done = s3.upload_part(**upload, PartNumber=number, Body=text, **algorithm)
        listed.append({"PartNumber": number, "ETag": done["ETag"]})
    return s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": listed})


PARTS = [b"a" * LEAST_PART, b"b" * LEAST_PART, b"c"]
TYPES = {"CRC32": {"COMPOSITE", "FULL_OBJECT"}, "CRC32C": {"COMPOSITE", "FULL_OBJECT"}, "CRC64NVME": {"FULL_OBJECT"}}
TYPES |= {"SHA1": {"COMPOSITE"}, "SHA256": {"COMPOSITE"}}


@pytest.mark.parametrize(("algorithm", "kind"), [(one, kind) for one, kinds in TYPES.items() for kind in sorted(kinds)])
def test_parts_and_the_checksum_that_was_chosen_are_read_after_the_end(
    repo: Repository, s3: Any, algorithm: str, kind: str
) -> None:
    field, header, where = f"Checksum{algorithm}", f"x-amz-checksum-{algorithm.lower()}", {"Bucket": "shop"}
    sums = [sum_of(header, text) for text in PARTS]
    whole = sum_of(header, b"".join(PARTS))
    if kind == "COMPOSITE":
        whole = sum_of(header, b"".join(map(base64.b64decode, sums))) + "-3"
    # boto3 sends CRC32C and CRC64NVME by another package alone; the gateway computes those that did not come.
    given = sums if algorithm in {"CRC32C", "CRC64NVME"} else None
    done = in_parts(s3, PARTS, given, ChecksumAlgorithm=algorithm, ChecksumType=kind, Metadata={"k": "v"})
    assert (done[field], done["ChecksumType"]) == (whole, kind)
    s3.copy_object(**where, Key="main/copy", CopySource="shop/main/parts")
    replacing = {"Metadata": {"k": "v"}, "MetadataDirective": "REPLACE"}
    s3.copy_object(**where, Key="main/replaced", CopySource="shop/main/parts", **replacing)
    for key in ("main/parts", "main/copy", "main/replaced"):
        head = s3.head_object(**where, Key=key, ChecksumMode="ENABLED")
        assert (head[field], head["ChecksumType"], head["Metadata"]) == (whole, kind, {"k": "v"})
        assert s3.get_object(**where, Key=key)["Body"].read() == b"".join(PARTS)
        for number, text in enumerate(PARTS, 1):
            part = s3.get_object(**where, Key=key, PartNumber=number, ChecksumMode="ENABLED")
            assert (part["PartsCount"], part[field], part["Body"].read()) == (3, sums[number - 1], text)
            head = s3.head_object(**where, Key=key, PartNumber=number)
            assert (head["ContentLength"], head["PartsCount"]) == (len(text), 3)
        attributes = {"ObjectAttributes": ["Checksum", "ObjectParts"], "MaxParts": 2}
        found = s3.get_object_attributes(**where, Key=key, **attributes)
        assert found["Checksum"] == {field: whole, "ChecksumType": kind}
        parts = found["ObjectParts"]
        assert (parts["TotalPartsCount"], parts["IsTruncated"], parts["NextPartNumberMarker"]) == (3, True, 2)
        rest = s3.get_object_attributes(**where, Key=key, **attributes, PartNumberMarker=2)["ObjectParts"]
        assert not rest["IsTruncated"]
        assert parts["Parts"] + rest["Parts"] == [
            {"PartNumber": n, "Size": len(text), field: sums[n - 1]} for n, text in enumerate(PARTS, 1)
        ]
    assert code(lambda: s3.get_object(**where, Key="main/parts", PartNumber=4)) == (400, "InvalidPart")
    both = {"PartNumber": 1, "Range": "bytes=0-0"}
    assert code(lambda: s3.get_object(**where, Key="main/parts", **both)) == (400, "InvalidRequest")


@pytest.mark.parametrize("algorithm", [*TYPES, "", "MD5"])
@pytest.mark.parametrize("kind", ["COMPOSITE", "FULL_OBJECT", "NONSENSE"])
def test_only_checksums_that_s3_has_are_begun_with(s3: Any, algorithm: str, kind: str) -> None:
    about = {"x-amz-checksum-type": kind}
    about |= {"x-amz-checksum-algorithm": algorithm} if algorithm else {}
    s3.meta.events.register("before-call.s3", add := lambda params, **_: params["headers"].update(about))
    if kind not in TYPES.get(algorithm, {"FULL_OBJECT"} if not algorithm else set()):
        assert code(lambda: begun(s3)) == (400, "InvalidRequest")
        return
    upload = begun(s3)
    s3.meta.events.unregister("before-call.s3", add)
    ended = with_parts(s3, upload, b"1")
    other = {"FULL_OBJECT": "COMPOSITE", "COMPOSITE": "FULL_OBJECT"}[kind]
    assert code(lambda: s3.complete_multipart_upload(**ended, ChecksumType=other)) == (400, "InvalidRequest")
    s3.complete_multipart_upload(**ended, ChecksumType=kind)


def test_parts_are_known_as_far_as_the_metadata_has_room(repo: Repository, s3: Any) -> None:
    where, main = {"Bucket": "shop", "Key": "main/parts"}, repo.branch("main")
    for taken, known in ((0, "sums"), (1900, "sizes"), (2035, "none")):
        in_parts(s3, PARTS, ChecksumAlgorithm="SHA256", Metadata={"k": "x" * taken})
        head = s3.head_object(**where, ChecksumMode="ENABLED", PartNumber=1)
        assert head["PartsCount"] == (1 if known == "none" else 3)
        assert ("ChecksumSHA256" in head) == (known != "sizes")
        assert s3.get_object(**where)["Body"].read() == b"".join(PARTS)
    in_parts(s3, PARTS)
    s3.copy_object(**where, CopySource="shop/main/parts", MetadataDirective="REPLACE", Metadata={"k": "x" * 2035})
    assert s3.head_object(**where, PartNumber=1)["PartsCount"] == 1
    for sizes in ([LEAST_PART, LEAST_PART + 1], [LEAST_PART + 1, LEAST_PART, 1]):
        in_parts(s3, [b"x" * size for size in sizes])
        assert s3.head_object(**where, PartNumber=1)["PartsCount"] == 1
        assert main.stat("parts").metadata == {}


@pytest.mark.parametrize(
    "kept",
    [
        None,
        "",
        "x",
        "0" * 16 + " 1 x-amz-checksum-crc32 AAAAAA==",
        "{} 0  ",
        "{} 1 x-amz-checksum-crc32",
        "{} 1 set-cookie a",
        "{} 1 x-amz-checksum-crc32 a\r\nx-evil:1",
        "{} -1  ",
        "{} 99999999999999999999  ",
    ],
)
def test_parts_of_other_contents_count_for_nothing(repo: Repository, s3: Any, kept: str | None) -> None:
    main, where = repo.branch("main"), {"Bucket": "shop", "Key": "main/x"}
    if kept is None:
        in_parts(s3, PARTS, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
        about = main.stat("parts").metadata
    else:
        about = {"s3:parts": kept.format(hashlib.sha256(b"else").hexdigest()[:16])}
    main.put("x", b"else", metadata=about)
    got = s3.get_object(**where, ChecksumMode="ENABLED")
    assert (got["Body"].read(), got["ChecksumSHA256"]) == (b"else", sum_of("x-amz-checksum-sha256", b"else"))
    assert not {"x-evil", "set-cookie", "x-amz-checksum-crc32"} & got["ResponseMetadata"]["HTTPHeaders"].keys()
    assert s3.head_object(**where, PartNumber=1)["PartsCount"] == 1
    assert "ObjectParts" not in s3.get_object_attributes(**where, ObjectAttributes=["ObjectParts", "Checksum"])


@pytest.mark.parametrize("algorithm", TYPES)
def test_a_copy_that_is_to_have_a_checksum_of_its_own_is_refused(repo: Repository, s3: Any, algorithm: str) -> None:
    copy = {"Bucket": "shop", "Key": "main/x", "CopySource": "shop/main/old"}
    assert code(lambda: s3.copy_object(**copy, ChecksumAlgorithm=algorithm)) == (501, "NotImplemented")
    assert repo.ref("main").find("x") is None
    assert s3.copy_object(**copy)["CopyObjectResult"]["ChecksumSHA256"] == sum_of("x-amz-checksum-sha256", b"old")


@pytest.mark.parametrize(
    ("path", "body", "status", "gone"),
    [
        ("?delete", "<Foo><Object><Key>main/old</Key></Object></Foo>", 400, False),
        ("?delete", "<Delete><Object><Key>main/old</Key><IfSize>9</IfSize></Object></Delete>", 200, False),
        ("?delete", "<Delete><Object><Key>main/old</Key><Size>9</Size></Object></Delete>", 200, False),
        ("?delete", "<Delete><Object><Key>main/old</Key><LastModifiedTime/></Object></Delete>", 200, False),
        ("?delete", "<Delete><Object><Key>main/old</Key><ETag/></Object></Delete>", 200, False),
        ("?delete", "<Delete><Quiet>true</Quiet><Object><Key>main/old</Key></Object></Delete>", 200, True),
        ("?delete", "<Delete><Quiet>1</Quiet><Object><Key>main/old</Key></Object></Delete>", 200, True),
        ("/main/x?uploadId={}", "<Delete><Part><PartNumber>1</PartNumber></Part></Delete>", 400, False),
        ("/main/x?uploadId={}", "<CompleteMultipartUpload/>", 400, False),
    ],
)
def test_a_document_that_asks_for_more_than_is_done_is_refused(
    repo: Repository, s3: Any, path: str, body: str, status: int, gone: bool
) -> None:
    upload = begun(s3)
    found = signed(s3, "POST", "/shop" + path.format(upload["UploadId"]), body.encode())
    assert found[0] == status
    if status == 200:
        assert ("<Error>" in found[1]) is not gone
        assert "<Deleted>" not in found[1]
    else:
        assert "<Code>MalformedXML</Code>" in found[1]
    assert (repo.ref("main").find("old") is None) is gone
    s3.abort_multipart_upload(**upload)


SHA256 = hashlib.sha256(b"1").hexdigest()


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("", 400),
        ("foo", 400),
        ("UNSIGNED-PAYLOAD-", 400),
        ("0" * 64, 400),
        (SHA256[:-1], 400),
        ("A" * 64, 400),
        (SHA256.upper(), 200),
    ],
)
def test_a_sum_of_any_spelling_is_compared_with_the_body(repo: Repository, s3: Any, said: str, status: int) -> None:
    assert signed(s3, "PUT", "/shop/main/x", b"1", sha256=said)[0] == status
    assert (repo.ref("main").find("x") is not None) == (status == 200)


@pytest.mark.parametrize("kind", ["x-amz-date", "date", "both"])
def test_requests_are_signed_with_either_date(repo: Repository, s3: Any, kind: str) -> None:
    more = {"x-amz-date": {}, "date": {"Date": formatdate(usegmt=True)}}
    more["both"] = {**more["date"], "X-Amz-Date": formatdate(usegmt=True)}
    assert signed(s3, "PUT", "/shop/main/x", b"1", more[kind])[0] == 200
    assert repo.ref("main").read("x") == b"1"


def test_a_form_is_refused_and_stages_nothing(repo: Repository, s3: Any) -> None:
    form = s3.generate_presigned_post("shop", "main/x")
    answer = requests.post(form["url"], data=form["fields"], files={"file": b"1"}, timeout=60)
    assert (answer.status_code, "<Code>NotImplemented</Code>" in answer.text) == (501, True)
    assert repo.ref("main").find("x") is None


@pytest.mark.parametrize("kind", SUMS)
def test_sums_of_a_body_are_compared_and_given_back(repo: Repository, s3: Any, kind: str) -> None:
    field, where = f"Checksum{kind.upper()}", {"Bucket": "shop", "Key": "main/x", "Body": b"1"}
    right, wrong = sum_of(f"x-amz-checksum-{kind}", b"1"), sum_of(f"x-amz-checksum-{kind}", b"2")
    assert s3.put_object(**where, **{field: right})[field] == right
    if kind not in {"crc32c", "crc64nvme"}:  # which boto3 sends behind a body by another package alone
        assert s3.put_object(**where | {"Body": io.BytesIO(b"1")}, ChecksumAlgorithm=kind.upper())[field] == right
    assert code(lambda: s3.put_object(**where, **{field: wrong})) == (400, "BadDigest")


@pytest.mark.parametrize("given", ["", "YWJyYWNhZGFicmE=", "rL0Y20zC+Fzt72VPzMSk2A", "not base64"])
def test_a_malformed_content_md5_is_refused(s3: Any, given: str) -> None:
    s3.meta.events.register("before-call.s3", lambda params, **_: params["headers"].update({"Content-MD5": given}))
    assert code(lambda: s3.put_object(Bucket="shop", Key="main/x", Body=b"1")) == (400, "InvalidDigest")


def test_parts_are_as_large_as_s3_has_them_and_are_listed(repo: Repository, s3: Any) -> None:
    upload = begun(s3, "main/big")
    ended = with_parts(s3, upload, b"1", b"2", b"3")
    parts = ended["MultipartUpload"]["Parts"]
    assert code(lambda: s3.complete_multipart_upload(**ended)) == (400, "EntityTooSmall")
    listed = s3.list_parts(**upload, MaxParts=2)
    kept = [{name: one[name] for name in ("PartNumber", "ETag", "Size")} for one in listed["Parts"]]
    assert kept == [part | {"Size": 1} for part in parts[:2]]
    rest = s3.list_parts(**upload, PartNumberMarker=listed["NextPartNumberMarker"])
    assert ([one["PartNumber"] for one in rest["Parts"]], rest["IsTruncated"]) == ([3], False)
    others = [s3.create_multipart_upload(Bucket="shop", Key=f"main/{name}")["UploadId"] for name in ("a", "a", "z")]
    odd = begun(s3, "main/a b+c")
    listed = s3.list_multipart_uploads(Bucket="shop", Prefix="main/a ", EncodingType="url")
    assert (listed["EncodingType"], listed["Uploads"][0]["Key"]) == ("url", "main/a%20b%2Bc")
    s3.abort_multipart_upload(**odd)
    pages = s3.get_paginator("list_multipart_uploads").paginate(Bucket="shop", PaginationConfig={"PageSize": 1})
    found = [(one["Key"], one["UploadId"]) for page in pages for one in page["Uploads"]]
    assert found == sorted(zip(("main/a", "main/a", "main/z", "main/big"), (*others, upload["UploadId"]), strict=True))
    for key, name in found:
        s3.abort_multipart_upload(Bucket="shop", Key=key, UploadId=name)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="shop")
    assert code(lambda: s3.list_parts(**upload)) == (404, "NoSuchUpload")


def test_a_range_past_the_end_of_a_source_is_refused(repo: Repository, s3: Any) -> None:
    upload = begun(s3)
    part = upload | {"PartNumber": 1, "CopySource": "shop/main/old"}
    for given, wanted in (
        ("bytes=0-3", "InvalidRange"),
        ("bytes=3-3", "InvalidRange"),
        ("bytes=-1", "InvalidArgument"),
        ("bytes=1-", "InvalidArgument"),
        ("bytes=2-1", "InvalidArgument"),
        ("0-1", "InvalidArgument"),
    ):
        assert code(lambda given=given: s3.upload_part_copy(**part, CopySourceRange=given)) == (400, wanted)
    mark = s3.upload_part_copy(**part, CopySourceRange="bytes=1-2")["CopyPartResult"]["ETag"]
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": mark}]})
    assert repo.ref("main").read("x") == b"ld"


@pytest.mark.parametrize("way", ["put", "parts"])
def test_conditions_of_writes_hold(repo: Repository, s3: Any, way: str) -> None:
    where, body = {"Bucket": "shop", "Key": "main/x"}, count()

    def write(**condition: str) -> Any:
        text = b"%d" % next(body)
        if way == "put":
            return s3.put_object(**where, Body=text, **condition)
        upload = begun(s3)
        try:
            return s3.complete_multipart_upload(**with_parts(s3, upload, text), **condition)
        except ClientError:
            s3.abort_multipart_upload(**upload)
            raise

    for match in ("*", '"else"'):
        assert code(lambda match=match: write(IfMatch=match)) == (404, "NoSuchKey")
    first = write(IfNoneMatch='"else"')["ETag"]
    assert code(lambda: write(IfNoneMatch="*")) == (412, "PreconditionFailed")
    assert code(lambda: write(IfNoneMatch=first)) == (412, "PreconditionFailed")
    assert code(lambda: write(IfMatch='"else"')) == (412, "PreconditionFailed")
    kept = repo.ref("main").stat("x")
    assert (s3.head_object(**where)["ETag"], kept.size_bytes) == (first, 1)
    second = write(IfMatch=first)["ETag"]
    third = write(IfMatch="*", IfNoneMatch=first)["ETag"]
    assert len({first, second, third}) == 3
    assert s3.head_object(**where)["ETag"] == third


@pytest.mark.parametrize("count", [0, 1001])
def test_a_request_deletes_one_object_to_a_thousand(s3: Any, count: int) -> None:
    many = {"Objects": [{"Key": f"main/{n}"} for n in range(count)]}
    assert code(lambda: s3.delete_objects(Bucket="shop", Delete=many)) == (400, "MalformedXML")


def test_conditions_of_copies_are_those_of_the_source(repo: Repository, s3: Any) -> None:
    copy = {"Bucket": "shop", "Key": "main/x", "CopySource": "shop/main/old"}
    source = s3.head_object(Bucket="shop", Key="main/old")
    mark, since, day = source["ETag"], source["LastModified"], timedelta(days=1)
    for refused in (
        {"CopySourceIfMatch": '"else"'},
        {"CopySourceIfNoneMatch": mark},
        {"CopySourceIfModifiedSince": since + day},
        {"CopySourceIfUnmodifiedSince": since - day},
    ):
        assert code(lambda refused=refused: s3.copy_object(**copy, **refused)) == (412, "PreconditionFailed")
    assert repo.ref("main").find("x") is None
    s3.copy_object(**copy, CopySourceIfMatch=mark, CopySourceIfModifiedSince=since - day, IfNoneMatch="*")
    assert code(lambda: s3.copy_object(**copy, IfNoneMatch="*")) == (412, "PreconditionFailed")
    s3.copy_object(**copy, CopySourceIfNoneMatch='"else"', CopySourceIfUnmodifiedSince=since + day)
    upload = begun(s3)
    part = upload | {"PartNumber": 1, "CopySource": "shop/main/old"}
    assert code(lambda: s3.upload_part_copy(**part, CopySourceIfMatch='"else"')) == (412, "PreconditionFailed")
    s3.abort_multipart_upload(**upload)


def test_copies_between_repositories_bring_contents_and_metadata(lake: Lake, repo: Repository, s3: Any) -> None:
    other = lake.create_repository("other")
    text = b"x" * (LEAST_PART + 7)
    repo.branch("main").put("big", text, metadata={"k": "v"}, content_type="text/plain")
    s3.copy_object(Bucket="other", Key="main/a", CopySource="shop/main/big")
    entry = other.ref("main").stat("a")
    assert (entry.metadata, entry.content_type, other.ref("main").read("a")) == ({"k": "v"}, "text/plain", text)
    config = TransferConfig(multipart_threshold=1 << 20, multipart_chunksize=LEAST_PART)
    s3.copy({"Bucket": "shop", "Key": "main/big"}, "other", "main/b", Config=config)
    assert other.ref("main").read("b") == text
    assert code(lambda: s3.copy_object(Bucket="other", Key="main/c", CopySource="shop/main/none"))[0] == 404


def test_folder_markers_are_objects(repo: Repository, s3: Any) -> None:
    s3.put_object(Bucket="shop", Key="main/logs/day/", Body=b"")
    assert [one.path for one in repo.branch("main").list("logs/")] == ["logs/day/"]
    assert s3.head_object(Bucket="shop", Key="main/logs/day/")["ContentLength"] == 0
    listed = s3.list_objects_v2(Bucket="shop", Prefix="main/logs/", Delimiter="/")
    assert [one["Prefix"] for one in listed["CommonPrefixes"]] == ["main/logs/day/"]
    assert [one["Key"] for one in s3.list_objects_v2(Bucket="shop", Prefix="main/logs/day/")["Contents"]] == [
        "main/logs/day/"
    ]
    s3.put_object(Bucket="shop", Key="main/", Body=b"")  # the branch is there, and is no object
    s3.delete_object(Bucket="shop", Key="main/")
    assert code(lambda: s3.put_object(Bucket="shop", Key="none/", Body=b""))[0] in {403, 404}
    s3.delete_object(Bucket="shop", Key="main/logs/day/")
    assert [one.path for one in repo.branch("main").list()] == ["old"]


@pytest.mark.parametrize("text", ["Grüße 漢字", "line 1\nline 2", " a ", "\x1b[2J\\n"])
def test_metadata_that_no_header_can_hold_is_written_and_read_alike(repo: Repository, s3: Any, text: str) -> None:
    repo.branch("main").put("x", b"1", metadata={"who": text})
    read = s3.head_object(Bucket="shop", Key="main/x")["Metadata"]
    assert read["who"].isascii()
    s3.put_object(Bucket="shop", Key="main/y", Body=b"1", Metadata=read)
    assert repo.ref("main").stat("y").metadata == {"who": text}
    for plain in ("=?utf-8?x?a?=", "a =?", "=?utf-8?b?!?="):
        s3.put_object(Bucket="shop", Key="main/z", Body=b"1", Metadata={"who": plain})
        assert s3.head_object(Bucket="shop", Key="main/z")["Metadata"] == {"who": plain}


def test_a_repository_that_exists_is_said_to(repo: Repository, s3: Any) -> None:
    assert code(lambda: s3.create_bucket(Bucket="shop")) == (409, "BucketAlreadyOwnedByYou")
    assert code(lambda: s3.create_bucket(Bucket="new")) == (403, "AccessDenied")
    elsewhere: Any = {"LocationConstraint": "eu-west-1"}
    for name, wanted in (("shop", (409, "BucketAlreadyOwnedByYou")), ("new", (403, "AccessDenied"))):
        assert code(lambda name=name: s3.create_bucket(Bucket=name, CreateBucketConfiguration=elsewhere)) == wanted
        assert code(lambda name=name: s3.create_bucket(Bucket=name, ACL="public-read"))[0] == 400
        assert code(lambda name=name: s3.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True))[0] == 501
    assert [one.path for one in repo.ref("main").list()] == ["old"]
    assert code(lambda: s3.delete_bucket(Bucket="shop"))[0] == 501
