"""Answers of an S3 server: each must hold what an answer to its operation holds, before anybody believes it.

A proxy's page, an empty body or half of a listing comes with status 200 as well. One table says what an answer holds.
botocore's clients ask it after each request and obstore's requests ask it too. An answer that lacks something counts
as a status of 503: the client asks again as it does after any 503, and in the end raises ``StoreUnavailable``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote_plus

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

NO_ANSWER: Final = "lakeops-no-answer"
"""The code of the error that stands in place of such an answer. Its message says what is missing."""

_UNAVAILABLE = 503
_ELSEWHERE = {302, 303, 307, 308}
_ROOT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:\w+:)?(\w+)", re.DOTALL)
_TRUTH = re.compile(rb"<(?:\w+:)?IsTruncated>\s*(?:true|false)\s*<")
_SPAN = re.compile(r"bytes[ =](\d+)-(\d+)(?:/(\d+|\*))?")

_Fields = Mapping[str, Any]


class _Form(NamedTuple):
    """What an answer holds: one of some root elements (empty: no body), fields, and what a check asks for."""

    root: str | None = None
    fields: tuple[str, ...] = ()
    check: Callable[[_Fields, _Fields], str] = lambda _asked, _answer: ""


def find_flaw(operation: str, asked: _Fields, answer: _Fields) -> str:
    """Say what the fields of an answer lack, empty when nothing. Parameters and fields are named as botocore does."""
    form = _FORMS.get(operation, _Form())
    for field in form.fields:
        found: Any = answer
        for part in field.split("."):
            found = (found or {}).get(part)
        if found in (None, "", '""'):
            return f"it has no {field}"
    return form.check(asked, answer)


def _flaw_of_page(asked: _Fields, page: _Fields) -> str:
    decoded = unquote_plus if page.get("EncodingType") == "url" else str
    objects, folders = page.get("Contents", ()), page.get("CommonPrefixes", ())
    prefix, bucket, token = asked["Prefix"], asked["Bucket"], page.get("NextContinuationToken")
    # The name of an access point leads to a bucket of another name.
    if page.get("Name", bucket) != bucket and not bucket.endswith("-s3alias") and ":" not in bucket:
        return "it lists another bucket"
    told = page.get("Prefix", prefix)  # Ceph encodes keys alone, and XML changes the ends of lines
    if "".join(prefix.split()) not in {"".join(name.split()) for name in (told, decoded(told))}:
        return "it lists another prefix"
    if page["IsTruncated"] and (not token or token == asked.get("ContinuationToken")):
        return "it is truncated and has no token to go on with"
    if page.get("KeyCount", len(objects)) not in {len(objects), len(objects) + len(folders)}:  # some count no folders
        return "its KeyCount is not the number of its entries"
    if folders and not asked.get("Delimiter"):
        return "it has folders in place of objects"
    if any(not {"Key", "ETag", "LastModified"} <= item.keys() or item.get("Size", -1) < 0 for item in objects):
        return "an entry lacks its Key, Size, ETag or LastModified"
    names = chain((item["Key"] for item in objects), (item.get("Prefix", "") for item in folders))
    return "" if all(decoded(name).startswith(prefix) for name in names) else "an entry is not below the prefix"


def _flaw_of_contents(asked: _Fields, answer: _Fields) -> str:
    wanted, given = asked.get("IfMatch", "").strip('"'), answer["ETag"].strip('"')
    if wanted and wanted != given:
        return "its ETag is not the one that was asked for"
    told, size = answer.get("ContentRange"), answer["ContentLength"]
    if told is None:
        partial = answer.get("ResponseMetadata", {}).get("HTTPStatusCode") == 206
        return "it is a part without a Content-Range" if partial else ""
    found, span = _SPAN.fullmatch(told), _SPAN.fullmatch(asked.get("Range", ""))
    if found is None or span is None:
        return "its Content-Range is none that was asked for"
    whole = int(found[3]) if found[3] and found[3] != "*" else int(found[2]) + 1
    first, last = int(span[1]), min(int(span[2]), whole - 1)
    same = (first, last, last - first + 1) == (int(found[1]), int(found[2]), size)
    return "" if same else "it holds another range"


def _flaw_of_deletion(asked: _Fields, answer: _Fields) -> str:
    keys = {item["Key"] for item in asked["Delete"]["Objects"]}
    done, refused = ({item.get("Key") for item in answer.get(name, ())} for name in ("Deleted", "Errors"))
    if not refused <= keys:
        return "it refuses keys that were not to be deleted"
    return "" if asked["Delete"].get("Quiet") or keys == done | refused else "it leaves keys out"


_OBJECT = ("ETag", "ContentLength", "LastModified")
_BARE = "DeleteObject AbortMultipartUpload PutBucketVersioning PutBucketLifecycleConfiguration PutBucketReplication"
_FORMS: Mapping[str, _Form] = {
    "ListObjectsV2": _Form("ListBucketResult", ("IsTruncated",), _flaw_of_page),
    "HeadObject": _Form(None, _OBJECT),
    "GetObject": _Form(None, _OBJECT, _flaw_of_contents),
    "PutObject": _Form(None, ("ETag",)),
    "UploadPart": _Form(None, ("ETag",)),
    "CopyObject": _Form("CopyObjectResult", ("CopyObjectResult.ETag",)),
    "UploadPartCopy": _Form("CopyPartResult", ("CopyPartResult.ETag",)),
    "CreateMultipartUpload": _Form("InitiateMultipartUploadResult", ("UploadId",)),
    "CompleteMultipartUpload": _Form("CompleteMultipartUploadResult"),  # Ceph tells no ETag here
    "DeleteObjects": _Form("DeleteResult", (), _flaw_of_deletion),
    "GetBucketLocation": _Form("LocationConstraint"),
    "GetBucketVersioning": _Form("VersioningConfiguration|GetBucketVersioningResponse"),  # moto has the latter
    "GetBucketLifecycleConfiguration": _Form("LifecycleConfiguration"),
    "GetBucketReplication": _Form("ReplicationConfiguration"),
    "GetBucketEncryption": _Form("ServerSideEncryptionConfiguration"),
    **dict.fromkeys(_BARE.split(), _Form("")),
}


def let_parsers_read_anything(factory: Any) -> None:  # noqa: ANN401 - botocore's
    """Have botocore's parsers take a body that they cannot read for an answer of 503."""
    make = factory.create_parser

    def create(protocol: str) -> Any:  # noqa: ANN401 - botocore's
        parser = make(protocol)
        read = parser.parse

        def parse(response: dict[str, Any], shape: Any) -> Any:  # noqa: ANN401 - botocore's
            try:
                return read(response, shape)
            except Exception:  # noqa: BLE001 - whatever a parser meets in what is not the server's
                getattr(response["body"], "close", bool)()
                return read({**response, "status_code": _UNAVAILABLE, "body": b""}, shape)

        parser.parse = parse
        return parser

    factory.create_parser = create


def check_answers(client: S3Client) -> None:
    """Have a client check all of its answers."""
    keep = "before-parameter-build.s3"
    client.meta.events.register(keep, lambda params, context, **_: context.update(lakeops_params=params))
    client.meta.events.register_first("needs-retry.s3.*", _check)


def _check(response: Any, operation: Any, request_dict: dict[str, Any], **_: object) -> None:  # noqa: ANN401 - botocore's
    """A handler of botocore's event ``needs-retry``: make an answer that is none one of 503."""
    if response is None:
        return
    http, parsed = response
    if flaw := _flaw_of(operation, http, parsed, request_dict["context"]["lakeops_params"]):
        if "Body" in parsed:
            parsed["Body"].close()
        about = {**parsed["ResponseMetadata"], "HTTPStatusCode": _UNAVAILABLE}
        http.status_code = _UNAVAILABLE
        parsed.clear()  # botocore goes on with what is left
        parsed.update(Error={"Code": NO_ANSWER, "Message": flaw}, ResponseMetadata=about)


def _flaw_of(operation: Any, http: Any, parsed: _Fields, asked: _Fields) -> str:  # noqa: ANN401 - botocore's
    """Say what is wrong with an answer: its status, its body or its fields."""
    if http.status_code in _ELSEWHERE:
        return "it leads to another place"
    if http.status_code == 404 and operation.http["method"] != "HEAD" and _root(http) != "Error":
        return "it says that nothing is there, and not as S3 says it"
    if http.status_code >= 300:
        return ""
    if parsed["ResponseMetadata"]["HTTPStatusCode"] == _UNAVAILABLE:
        return "its body cannot be read"
    if "Error" in parsed:  # botocore has seen that the body is an error
        return ""
    roots = _FORMS.get(operation.name, _Form()).root
    if roots is not None and _root(http) not in roots.split("|"):
        return f"its body is no {roots.partition('|')[0]}" if roots else "it has a body"
    if operation.name == "ListObjectsV2" and not _TRUTH.search(http.content):
        return "it does not say whether it is truncated"
    return find_flaw(operation.name, asked, parsed)


def _root(http: Any) -> str:  # noqa: ANN401 - botocore's
    found = _ROOT.match(http.content)
    return found[1].decode() if found else "something else" if http.content else ""
