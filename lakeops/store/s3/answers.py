"""Answers of an S3 server: each must hold what an answer to its operation holds, before anybody believes it.

A proxy's page, an empty body or half of a listing comes with status 200 as well. One table says what an answer holds.
botocore's clients ask it after each request and obstore's requests ask it too. An answer that lacks something counts
as a status of 503: the client asks again as it does after any 503, and in the end raises ``StoreUnavailable``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_plus

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

NO_ANSWER: Final = "lakeops-no-answer"
"""The code of the error that stands in place of such an answer. Its message says what is missing."""

_UNAVAILABLE, _MISSING = 503, 404
_ELSEWHERE = {302, 303, 307, 308}
_PARAMS = "lakeops_params"

_ROOT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:\w+:)?(\w+)", re.DOTALL)
_TRUTH = re.compile(rb"<(?:\w+:)?IsTruncated>\s*(?:true|false)\s*<")
_SPAN = re.compile(r"bytes[ =](\d+)-(\d+)?(?:/(\d+|\*))?")

_Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Form:
    """What an answer holds: a root element, of several that servers know, fields in botocore's words, and a check."""

    root: str = ""
    fields: tuple[str, ...] = ()
    check: Callable[[_Fields, _Fields], str] = lambda _asked, _answer: ""
    no_body: bool = False


def find_flaw(operation: str, asked: _Fields, answer: _Fields) -> str:
    """Say what the fields of an answer lack, empty when nothing. ``asked`` are the parameters of the operation."""
    form = _FORMS.get(operation)
    if form is None:
        return ""
    for field in form.fields:
        found: Any = answer
        for part in field.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if found is None or (isinstance(found, str) and not found.strip('"')):
            return f"it has no {field}"
    return form.check(asked, answer)


def _flaw_of_page(asked: _Fields, page: _Fields) -> str:
    decoded = unquote_plus if page.get("EncodingType") == "url" else str
    objects, folders = page.get("Contents", ()), page.get("CommonPrefixes", ())
    prefix, bucket, token = asked.get("Prefix", ""), asked["Bucket"], page.get("NextContinuationToken")
    # The name of an access point leads to a bucket of another name.
    if page.get("Name", bucket) != bucket and not bucket.endswith("-s3alias") and ":" not in bucket:
        return "it lists another bucket"
    if prefix not in {page.get("Prefix", prefix), decoded(page.get("Prefix", prefix))}:  # Ceph encodes the keys alone
        return "it lists another prefix"
    if page["IsTruncated"] and (not token or token == asked.get("ContinuationToken")):
        return "it is truncated and has no token to go on with"
    # Some servers do not count folders.
    if page.get("KeyCount", len(objects)) not in {len(objects), len(objects) + len(folders)}:
        return "its KeyCount is not the number of its entries"
    if folders and not asked.get("Delimiter"):
        return "it has folders in place of objects"
    for item in objects:
        if not {"Key", "ETag", "LastModified"} <= item.keys() or item.get("Size", -1) < 0:
            return "an entry lacks its Key, Size, ETag or LastModified"
        if not decoded(item["Key"]).startswith(prefix):
            return "an entry is not below the prefix"
    if any(not decoded(item.get("Prefix", "")).startswith(prefix) for item in folders):
        return "a folder is not below the prefix"
    return ""


def _flaw_of_contents(asked: _Fields, answer: _Fields) -> str:
    wanted, given = asked.get("IfMatch", "").strip('"'), answer["ETag"].strip('"')
    if wanted and wanted != given:
        return "its ETag is not the one that was asked for"
    told, size = answer.get("ContentRange"), answer["ContentLength"]
    if told is None:
        partial = answer.get("ResponseMetadata", {}).get("HTTPStatusCode") == 206
        return "it is a part without a Content-Range" if partial else ""
    found, span = _SPAN.fullmatch(told), _SPAN.fullmatch(asked.get("Range", ""))
    if found is None or span is None or found[2] is None:
        return "its Content-Range is none that was asked for"
    first, last = int(found[1]), int(found[2])
    end = int(span[2]) if span[2] else last
    if found[3] and found[3].isdecimal():
        end = min(end, int(found[3]) - 1)
    return "" if (first, last, size) == (int(span[1]), end, end - first + 1) else "it holds another range"


def _flaw_of_deletion(asked: _Fields, answer: _Fields) -> str:
    keys = {item["Key"] for item in asked["Delete"]["Objects"]}
    done, refused = ({item.get("Key") for item in answer.get(name, ())} for name in ("Deleted", "Errors"))
    if not refused <= keys:
        return "it refuses keys that were not to be deleted"
    return "" if asked["Delete"].get("Quiet") or keys == done | refused else "it leaves keys out"


_OBJECT = ("ETag", "ContentLength", "LastModified")

_FORMS: Mapping[str, _Form] = {
    "ListObjectsV2": _Form("ListBucketResult", ("IsTruncated",), _flaw_of_page),
    "HeadObject": _Form(fields=_OBJECT),
    "GetObject": _Form(fields=_OBJECT, check=_flaw_of_contents),
    "PutObject": _Form(fields=("ETag",)),
    "UploadPart": _Form(fields=("ETag",)),
    "CopyObject": _Form("CopyObjectResult", ("CopyObjectResult.ETag",)),
    "UploadPartCopy": _Form("CopyPartResult", ("CopyPartResult.ETag",)),
    "CreateMultipartUpload": _Form("InitiateMultipartUploadResult", ("UploadId",)),
    "CompleteMultipartUpload": _Form("CompleteMultipartUploadResult"),  # Ceph tells no ETag here
    "DeleteObjects": _Form("DeleteResult", check=_flaw_of_deletion),
    "DeleteObject": _Form(no_body=True),
    "AbortMultipartUpload": _Form(no_body=True),
    "GetBucketLocation": _Form("LocationConstraint"),
    "GetBucketVersioning": _Form("VersioningConfiguration|GetBucketVersioningResponse"),  # moto has the latter
    "GetBucketLifecycleConfiguration": _Form("LifecycleConfiguration"),
    "GetBucketReplication": _Form("ReplicationConfiguration"),
    "GetBucketEncryption": _Form("ServerSideEncryptionConfiguration"),
    "PutBucketVersioning": _Form(no_body=True),
    "PutBucketLifecycleConfiguration": _Form(no_body=True),
    "PutBucketReplication": _Form(no_body=True),
    "DeleteBucketReplication": _Form(no_body=True),
}


class Parsers:
    """botocore's parsers, for which a body that cannot be read is an answer of 503 and no error of this program.

    Args:
        inner: botocore's own component.
    """

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - botocore's
        self._inner = inner

    def create_parser(self, protocol_name: str) -> Any:  # noqa: ANN401 - botocore's
        """A parser of a protocol."""
        return _Parser(self._inner.create_parser(protocol_name))


class _Parser:
    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - botocore's
        self._inner = inner

    def parse(self, response: dict[str, Any], shape: Any) -> Any:  # noqa: ANN401 - botocore's
        try:
            return self._inner.parse(response, shape)
        except Exception:  # noqa: BLE001 - whatever a parser meets in what is not the server's
            getattr(response["body"], "close", bool)()
            return self._inner.parse({**response, "status_code": _UNAVAILABLE, "body": b""}, shape)


def check_answers(client: S3Client) -> None:
    """Have a client check all of its answers."""
    client.meta.events.register("before-parameter-build.s3", _keep_params)
    client.meta.events.register_first("needs-retry.s3.*", _check)


def _keep_params(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
    context[_PARAMS] = params


def _check(response: Any, operation: Any, request_dict: dict[str, Any], **_: object) -> None:  # noqa: ANN401 - botocore's
    """A handler of botocore's event ``needs-retry``: make an answer that is none one of 503."""
    if response is None:
        return
    http, parsed = response
    flaw = _flaw_of_status(operation, http, parsed)
    if flaw is None:
        flaw = find_flaw(operation.name, request_dict["context"].get(_PARAMS, {}), parsed)
    if not flaw:
        return
    if "Body" in parsed:
        parsed["Body"].close()
    about = {**parsed["ResponseMetadata"], "HTTPStatusCode": _UNAVAILABLE}
    http.status_code = _UNAVAILABLE
    parsed.clear()  # botocore goes on with what is left
    parsed.update(Error={"Code": NO_ANSWER, "Message": flaw}, ResponseMetadata=about)


def _flaw_of_status(operation: Any, http: Any, parsed: _Fields) -> str | None:  # noqa: ANN401 - botocore's
    """What is wrong with an answer's status and body. None where its fields have to be looked at."""
    form, status = _FORMS.get(operation.name, _Form()), http.status_code
    if status in _ELSEWHERE:
        return "it leads to another place"
    if status == _MISSING and operation.http["method"] != "HEAD" and _root(http) != "Error":
        return "it says that nothing is there, and not as S3 says it"
    if status >= 300:
        return ""
    if parsed["ResponseMetadata"]["HTTPStatusCode"] == _UNAVAILABLE:
        return "its body cannot be read"
    if "Error" in parsed:  # botocore has seen that the body is an error
        return ""
    if form.root and _root(http) not in form.root.split("|"):
        return f"its body is no {form.root.partition('|')[0]}"
    if form.no_body and http.content:
        return "it has a body"
    if operation.name == "ListObjectsV2" and not _TRUTH.search(http.content):
        return "it does not say whether it is truncated"
    return None


def _root(http: Any) -> str:  # noqa: ANN401 - botocore's
    found = _ROOT.match(http.content)
    return found[1].decode() if found else ""
