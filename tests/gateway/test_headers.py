"""Each header and subresource of S3 is served, harmless or refused, as the page says. A refusal stages nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from support.served import lake, signed

from lakeops import Repository
from lakeops.gateway.answers import OWNER
from lakeops.gateway.headers import BUCKET, HEADERS, OBJECT

__all__ = ["lake"]

pytestmark = pytest.mark.usefixtures("no_home")
PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"

REFUSED = {
    "x-amz-acl": ["public-read", "authenticated-read", "nonsense"],
    "x-amz-grant-read": ["id=1"],
    "x-amz-expected-bucket-owner": ["111122223333"],
    "x-amz-source-expected-bucket-owner": ["111122223333"],
    "x-amz-object-lock-mode": ["GOVERNANCE", "COMPLIANCE"],
    "x-amz-object-lock-retain-until-date": ["2030-01-01T00:00:00Z"],
    "x-amz-object-lock-legal-hold": ["ON", "OFF"],
    "x-amz-server-side-encryption": ["AES256", "aws:kms"],
    "x-amz-server-side-encryption-aws-kms-key-id": ["key"],
    "x-amz-server-side-encryption-customer-algorithm": ["AES256"],
    "x-amz-server-side-encryption-customer-key": ["a2V5"],
    "x-amz-copy-source-server-side-encryption-customer-algorithm": ["AES256"],
    "x-amz-storage-class": ["GLACIER", "REDUCED_REDUNDANCY"],
    "x-amz-tagging": ["k=v"],
    "x-amz-tagging-directive": ["nonsense"],
    "x-amz-website-redirect-location": ["/else"],
    "x-amz-write-offset-bytes": ["3"],
    "x-amz-mfa": ["1 2"],
    "x-amz-if-unmodified-size": ["3"],
    "x-amz-not-known-yet": ["1"],
    "x-amz-copy-source-if-size": ["1"],
}
HARMLESS = {
    "x-amz-acl": ["private", "bucket-owner-full-control"],
    "x-amz-expected-bucket-owner": ["lakeops"],
    "x-amz-storage-class": ["STANDARD"],
    "x-amz-tagging": [""],
    "x-amz-tagging-directive": ["COPY", "REPLACE"],
    "x-amz-request-payer": ["requester"],
    "x-amz-user-agent": ["aws-sdk-js"],
    "x-amz-api-version": ["2006-03-01"],
}
WRITES = ["put_object", "create_multipart_upload", "copy_object", "delete_object"]


def ask(s3: Any, operation: str, headers: dict[str, str], **more: Any) -> tuple[int, str]:
    """The status and the code of an answer."""

    def add(params: dict[str, Any], **_: Any) -> None:
        params["headers"].update(headers)

    more = {
        "Bucket": "shop",
        "Key": "main/old",
        **({"CopySource": "shop/main/old"} if "copy" in operation else {}),
        **more,
    }
    more |= {"MetadataDirective": "REPLACE", "Metadata": {"k": "v"}} if operation == "copy_object" else {}
    more = {name: value for name, value in more.items() if value is not None}
    s3.meta.events.register("before-call.s3", add)
    try:
        answer = getattr(s3, operation)(**more)
    except ClientError as failed:
        answer = failed.response
    finally:
        s3.meta.events.unregister("before-call.s3", add)
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer.get("Error", {}).get("Code", "")


def _row(name: str) -> Any:
    from fnmatch import fnmatchcase

    return next(row for row in HEADERS if any(fnmatchcase(name, one) for one in row.names))


def test_the_page_has_the_table() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `x-amz-")]
    assert lines == [f"| {', '.join(f'`{name}`' for name in row.names)} | {row.answer} |" for row in HEADERS]


def test_each_row_of_the_table_is_tried() -> None:
    refusing = {row.names for row in HEADERS if row.harmless is not None}
    assert {_row(name).names for name in REFUSED} == refusing - {("x-amz-bucket-object-lock-enabled",)}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_done_is_refused_and_stages_nothing(repo: Repository, s3: Any, name: str) -> None:
    row = _row(name)
    for value in REFUSED[name]:
        for operation in WRITES:
            assert ask(s3, operation, {name: value}) == (row.status, row.code), (operation, value)
    assert not list(repo.branch("main").uncommitted())
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="shop")
    if name == "x-amz-expected-bucket-owner":
        assert ask(s3, "get_object", {name: "111122223333"}) == (403, "AccessDenied")


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_so_anyway_is_taken(repo: Repository, s3: Any, name: str) -> None:
    for value in HARMLESS[name]:
        assert ask(s3, "copy_object", {name: value})[0] == 200
        assert ask(s3, "put_object", {name: value}, Body=b"new")[0] == 200
    assert repo.ref("main").read("old") == b"new"


@pytest.mark.parametrize("key", ["", "/main/old"])
def test_rights_that_are_so_anyway_are_taken_and_others_refused(repo: Repository, s3: Any, key: str) -> None:
    def put(path: str, right: str, body: bytes = b"") -> tuple[int, bool]:
        status, text = signed(s3, "PUT", f"/{path}?acl", body, {"x-amz-acl": right})
        return status, "AccessControlListNotSupported" in text

    for right in HARMLESS["x-amz-acl"]:
        assert put("shop" + key, right) == (200, False)
        assert put("shop" + key, right, b"<X/>") == (400, False)
    for right in REFUSED["x-amz-acl"]:
        assert put("shop" + key, right) == (400, True)
    assert put("shop/main/none", "private") == put("none" + key, "private") == (404, False)
    assert not list(repo.branch("main").uncommitted())


@pytest.mark.parametrize("key", ["", "/main/old"])
def test_a_document_of_rights_is_taken_if_they_are_so(repo: Repository, s3: Any, key: str) -> None:
    """s3cmd reads the rights of the source of a copy, and writes them to the copy."""
    _, policy = signed(s3, "GET", f"/shop{key}?acl", b"")
    assert signed(s3, "PUT", f"/shop{key}?acl", policy.encode()) == (200, "")
    grant = policy[policy.index("<Grant>") : policy.index("</AccessControlList>")]
    for other in (
        policy.replace("FULL_CONTROL", "READ"),
        policy.replace(f"<ID>{OWNER}</ID>", "<ID>other</ID>", 1),
        policy.replace(grant, grant.replace(f"<ID>{OWNER}</ID>", "<ID>other</ID>")),
        policy.replace(grant, grant.replace(f"<ID>{OWNER}</ID>", "<URI>http://acs.amazonaws.com/AllUsers</URI>")),
        policy.replace(grant, grant * 2),
        policy.replace(grant, ""),
    ):
        assert other != policy
        status, text = signed(s3, "PUT", f"/shop{key}?acl", other.encode())
        assert (status, "AccessControlListNotSupported" in text) == (400, True), other
    assert not list(repo.branch("main").uncommitted())


@pytest.mark.parametrize("many", [False, True], ids=["DeleteObject", "DeleteObjects"])
def test_a_deletion_under_conditions_deletes_the_object_that_meets_them_all(
    repo: Repository, s3: Any, many: bool
) -> None:
    names = ["ETag", "LastModifiedTime", "Size"] if many else ["IfMatch", "IfMatchLastModifiedTime", "IfMatchSize"]

    def delete(key: str, **told: Any) -> str:
        if many:
            answer = s3.delete_objects(Bucket="shop", Delete={"Objects": [{"Key": key, **told}]})
            return answer["Errors"][0]["Code"] if "Errors" in answer else ""
        try:
            s3.delete_object(Bucket="shop", Key=key, **told)
        except ClientError as failed:
            assert failed.response["ResponseMetadata"]["HTTPStatusCode"] == 412
            return failed.response["Error"]["Code"]
        return ""

    head = s3.head_object(Bucket="shop", Key="main/old")
    so = dict(zip(names, (head["ETag"], head["LastModified"], 3), strict=True))
    other = dict(zip(names, ("other", head["LastModified"] - timedelta(seconds=1), 4), strict=True))
    for name in names:
        for told in ({name: other[name]}, so | {name: other[name]}):
            assert delete("main/old", **told) == "PreconditionFailed", told
            assert delete("main/none", **told) == ""
    assert repo.ref("main").read("old") == b"old"
    for told in ({name: so[name]} for name in names):
        assert delete("main/old", **told) == ""
        assert repo.ref("main").find("old") is None
        repo.branch("main").reset("old")
    assert delete("main/old", **so) == ""
    assert repo.ref("main").find("old") is None


def test_a_condition_that_cannot_be_read_is_not_met(repo: Repository, s3: Any) -> None:
    for name in ("x-amz-if-match-last-modified-time", "x-amz-if-match-size"):
        for value in ("", "nonsense", "3.0", "-3"):
            assert ask(s3, "delete_object", {name: value}) == (412, "PreconditionFailed")
    assert repo.ref("main").read("old") == b"old"


@pytest.fixture
def upload(s3: Any) -> Iterator[dict[str, Any]]:
    """An upload with one part."""
    where = {"Bucket": "shop", "Key": "main/parts"}
    where["UploadId"] = s3.create_multipart_upload(**where)["UploadId"]
    s3.upload_part(**where, PartNumber=1, Body=b"1")
    yield where
    s3.abort_multipart_upload(**where)


def writes(s3: Any, upload: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The arguments of each request that writes."""
    mark = s3.list_parts(**upload)["Parts"][0]["ETag"]
    return {
        "put_object": {"Body": b"1"},
        "copy_object": {},
        "create_multipart_upload": {},
        "upload_part": {**upload, "PartNumber": 2, "Body": b"2"},
        "upload_part_copy": {**upload, "PartNumber": 2},
        "complete_multipart_upload": {**upload, "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": mark}]}},
        "delete_object": {},
        "delete_objects": {"Key": None, "Delete": {"Objects": [{"Key": "main/old"}]}},
        "abort_multipart_upload": upload,
    }


PUTS = {"put_object", "complete_multipart_upload"}
SERVED_BY = {
    "if-match": {*PUTS, "delete_object"},
    "if-none-match": {*PUTS, "copy_object"},
    "if-modified-since": set(),
    "if-unmodified-since": set(),
    "content-range": set(),
    "x-amz-copy-source-range": {"upload_part_copy"},
    "x-amz-copy-source-if-match": {"copy_object", "upload_part_copy"},
    "x-amz-copy-source-if-none-match": {"copy_object", "upload_part_copy"},
    "x-amz-copy-source-if-modified-since": {"copy_object", "upload_part_copy"},
    "x-amz-copy-source-if-unmodified-since": {"copy_object", "upload_part_copy"},
    "x-amz-mp-object-size": {"complete_multipart_upload"},
    "x-amz-if-match-last-modified-time": {"delete_object"},
    "x-amz-if-match-size": {"delete_object"},
}


@pytest.mark.parametrize("name", SERVED_BY)
def test_a_header_of_some_requests_is_refused_by_all_others(
    repo: Repository, s3: Any, upload: dict[str, Any], name: str
) -> None:
    for operation, more in writes(s3, upload).items():
        if operation not in SERVED_BY[name]:
            assert ask(s3, operation, {name: "bytes 0-0/1"}, **more) == (501, "NotImplemented"), operation
    assert not list(repo.branch("main").uncommitted())
    assert [one["Size"] for one in s3.list_parts(**upload)["Parts"]] == [1]


CHECKS = {
    "Content-MD5": ("AAAAAAAAAAAAAAAAAAAAAA==", "BadDigest"),
    "content-md5": ("nonsense", "InvalidDigest"),
    "x-amz-checksum-crc32": ("AAAAAQ==", "BadDigest"),
    "x-amz-checksum-crc32c": ("AAAAAQ==", "BadDigest"),
    "x-amz-checksum-crc64nvme": ("AAAAAAAAAAE=", "BadDigest"),
    "x-amz-checksum-sha1": ("AAAA", "BadDigest"),
    "x-amz-checksum-sha256": ("nonsense", "BadDigest"),
    "x-amz-trailer": ("x-amz-checksum-crc32", "InvalidRequest"),
    "x-amz-decoded-content-length": ("1", "InvalidRequest"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_what_is_said_of_a_body_is_compared_whatever_the_request(
    repo: Repository, s3: Any, upload: dict[str, Any], name: str
) -> None:
    value, code = CHECKS[name]
    for operation, more in writes(s3, upload).items():
        if operation not in {"delete_object", "abort_multipart_upload"}:  # which have no body
            s3.meta.events.register_first(
                "before-sign.s3", take_out := lambda request, **_: _keep(request, name, value)
            )
            try:
                assert ask(s3, operation, {name: value}, **more) == (400, code), operation
            finally:
                s3.meta.events.unregister("before-sign.s3", take_out)
    assert not list(repo.branch("main").uncommitted())
    assert [one["Size"] for one in s3.list_parts(**upload)["Parts"]] == [1]


def _keep(request: Any, name: str, value: str) -> None:
    """Leave the header as the test has it, where the client puts another one beside."""
    for other in [one for one in request.headers if one.lower().startswith(("x-amz-checksum-", "x-amz-sdk-checksum"))]:
        del request.headers[other]
    del request.headers[name]
    request.headers[name] = value


def test_headers_that_a_presigned_url_has_in_its_query_count_as_well(repo: Repository, s3: Any) -> None:
    import urllib.error
    import urllib.request

    for query, wanted in (("x-amz-tagging=k%3Dv", 501), ("x-amz-acl=public-read", 400), ("x-amz-acl=private", 200)):

        def add(request: Any, query: str = query, **_: Any) -> None:
            request.url += ("&" if "?" in request.url else "?") + query

        s3.meta.events.register("before-sign.s3.PutObject", add)
        url = s3.generate_presigned_url("put_object", Params={"Bucket": "shop", "Key": "main/new"})
        s3.meta.events.unregister("before-sign.s3.PutObject", add)
        assert query in url
        asked = urllib.request.Request(url, b"1", {"Content-Type": ""}, method="PUT")
        try:
            status = urllib.request.urlopen(asked).status
        except urllib.error.HTTPError as error:
            status = error.code
        assert status == wanted, query
        assert (repo.ref("main").find("new") is not None) == (wanted == 200)


def test_reads_leave_out_what_they_do_not_know(repo: Repository, s3: Any) -> None:
    assert ask(s3, "get_object", {"x-amz-not-known-yet": "1"})[0] == 200
    assert ask(s3, "head_object", {"x-amz-request-payer": "requester"})[0] == 200


@pytest.mark.parametrize(
    ("place", "name"),
    [*(("shop", name) for name in BUCKET), *(("shop/main/old", name) for name in OBJECT)],
    ids=lambda one: one.replace("/", "-"),
)
def test_subresources_are_read_and_not_written(repo: Repository, s3: Any, place: str, name: str) -> None:
    expected = (BUCKET if place == "shop" else OBJECT)[name]
    for method, body in (("GET", b""), ("PUT", b"<X/>"), ("DELETE", b"")):
        status, text = signed(s3, method, f"/{place}?{name}", body)
        if (method, name) == ("PUT", "acl"):
            assert (status, "<Code>MalformedXML</Code>" in text) == (400, True)
        elif method != "GET":
            assert (status, "NotImplemented" in text) == (501, True)
        elif isinstance(expected, str):
            assert (status, f"<Code>{expected}</Code>" in text) == (404, True)
        else:
            assert (status, f"<{expected[0]} " in text) == (200, True)
    assert repo.ref("main").read("old") == b"old"
    assert not list(repo.branch("main").uncommitted())
    assert signed(s3, "GET", f"/{place}/none?{name}", b"")[0] in {404, 501}
