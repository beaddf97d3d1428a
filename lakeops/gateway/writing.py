"""Requests that write objects to a branch's staging area: whole, in parts, or not at all, and deletions.

* Conditions are the branch's own ``put(if_absent=True)`` and ``put(seen=...)``: of several writers of one key with
  ``If-None-Match: *`` exactly one succeeds. Delta Lake's and Iceberg's commits rest on that.
* A body is compared with the signed SHA-256, or the signatures of its chunks are verified, before anything is staged.
* The parts of an upload lie on this machine's disk until it is completed. A gateway that ends forgets them, and the
  client begins again.

Nothing is committed here.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.header import decode_header, make_header
from functools import partial
from tempfile import SpooledTemporaryFile, TemporaryFile
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import quote, unquote
from xml.etree import ElementTree as ET

from starlette.responses import Response

from lakeops.gateway.answers import (
    HEADER,
    KEPT_HEADERS,
    OWNER,
    Refused,
    document,
    element,
    elements,
    etag,
    etag_of,
    nest,
    owner_element,
    refusal,
    timestamp,
)
from lakeops.gateway.chunks import CHECKSUM, STREAMING, Digest, check_digest, digests_of, encoded
from lakeops.gateway.headers import check_headers
from lakeops.gateway.reading import (
    PAGE,
    PIECE,
    ByteRange,
    check_conditions,
    contents,
    find_object,
    has_etag,
    number_of,
    range_of,
    unknown,
)
from lakeops.model.clock import Ids, retrying
from lakeops.model.errors import (
    InvalidInput,
    LakeopsError,
    NotAsSeen,
    ObjectNotFound,
    PathTaken,
    RefNotFound,
    RepositoryNotFound,
)
from lakeops.model.records import Entry
from lakeops.model.sanitising import excerpt

if TYPE_CHECKING:
    from lakeops.gateway.signature import S3Request
    from lakeops.lake import Branch, Lake, Ref, Repository

SPOOL_BYTES = 4 << 20
"""Bytes of a body that stay in memory. A larger body goes to the disk."""
MOST_UPLOADS = 200
"""Uploads in parts that are kept. A finished one, or else the oldest, gives way, and its client begins again."""
MOST_DOCUMENT = 2 << 20
"""The largest list of parts or of keys that is read, in bytes."""
SOURCE = "x-amz-copy-source"
LEAST_PART = 5 << 20
"""Bytes of each part but the last, as in S3."""
_OF_SOURCE = "x-amz-copy-source-"
_SOURCE_CONDITIONS = tuple(
    f"{_OF_SOURCE}if-{name}" for name in ("match", "none-match", "modified-since", "unmodified-since")
)
_SUMS_ARE = ("x-amz-checksum-algorithm", "x-amz-checksum-type")
_UPLOADS = {"uploads", "prefix", "max-uploads", "key-marker", "upload-id-marker", "encoding-type"}
_KEEPING = [
    nest("Initiator", elements(ID=OWNER, DisplayName=OWNER)),
    owner_element(),
    element("StorageClass", "STANDARD"),
]
_PART = re.compile(r"[1-9][0-9]{0,4}")
_MOST_PARTS = 10_000
_DELTA_COMMIT = re.compile(r"(.*/)?_delta_log/[0-9]{20}\.json", re.DOTALL)
"""A version of a Delta table, which nobody may replace.

Delta on Spark looks whether it is there and then writes without a condition. Another writer may come between the two,
whose rows would be lost.
"""


class Writing:
    """Answers writing requests, and keeps the uploads in parts. Threads share it."""

    def __init__(self) -> None:
        self._ids = Ids()
        self._lock = Lock()
        self._uploads: dict[str, MultipartUpload] = {}

    def answer(self, lake: Lake, asked: S3Request) -> Response:
        """Answer a request whose signature was verified. Raises ``Refused`` and lakeops' errors."""
        # Any other parameter asks for something else than the object: its tags, its rights, one version of it.
        named = sorted(asked.asks)
        if (asked.method, *named, asked.key) == ("PUT", ""):
            return _create_bucket(lake, asked)
        repository = lake.repository(asked.bucket)
        conditions: tuple[str, ...] = ()
        work: Callable[[Repository, S3Request], Response]
        match asked.method, *named:
            case ("PUT",) if SOURCE in asked.headers:
                work, conditions = partial(_copy, lake), ("if-none-match", *_SOURCE_CONDITIONS)
            case ("PUT",):
                work, conditions = _put, ("if-match", "if-none-match")
            case "PUT", "partNumber", "uploadId":
                work, conditions = partial(self._part, lake), _SOURCE_CONDITIONS if SOURCE in asked.headers else ()
            case "POST", "uploads":
                work = partial(self._begin, lake)
            case "POST", "uploadId":
                work, conditions = self._complete, ("if-match", "if-none-match")
            case "DELETE", "uploadId":
                work = self._abort
            case ("DELETE",) if asked.key:
                check_headers(asked.headers, ("if-match",))
                _delete(repository, asked.key, asked.headers.get("if-match"))
                return Response(status_code=204)
            case "POST", "delete":
                work = _delete_many
            case _:
                raise unknown(named or [asked.method])
        check_headers(asked.headers, conditions)
        return work(repository, asked)

    def list_uploads(self, repository: Repository, asked: S3Request) -> Response:
        """Answer ListMultipartUploads, by key. Raises ``Refused``."""
        if not asked.asks <= _UPLOADS:
            raise unknown(asked.asks - _UPLOADS)
        query = asked.query
        prefix, marker = query.get("prefix", ""), query.get("key-marker", "")
        limit, behind = number_of(query, "max-uploads", PAGE), (marker, query.get("upload-id-marker") or "~")
        shown = partial(quote, safe="/") if query.get("encoding-type") else str
        with self._lock:
            open_ = [(one.place, name, one.begun) for name, one in self._uploads.items() if not one.file.closed]
        mine = sorted((key, name, begun) for (bucket, key), name, begun in open_ if bucket == repository.id)
        found = [one for one in mine if one[0].startswith(prefix) and one[:2] > behind]
        page = found[:limit]
        given: dict[str, str | int | bool] = {"Bucket": repository.id, "Prefix": shown(prefix), "MaxUploads": limit}
        given |= {"KeyMarker": shown(marker), "IsTruncated": 0 < limit < len(found)}
        if given["IsTruncated"]:
            given |= {"NextKeyMarker": shown(page[-1][0]), "NextUploadIdMarker": page[-1][1]}
        rows = [
            nest("Upload", [*elements(Key=shown(key), UploadId=name, Initiated=timestamp(begun)), *_KEEPING])
            for key, name, begun in page
        ]
        return document("ListMultipartUploadsResult", [*elements(**given), *rows])

    def list_parts(self, repository: Repository, asked: S3Request) -> Response:
        """Answer ListParts. Raises ``Refused``."""
        upload, query = self._upload(repository, asked), asked.query
        limit = number_of(query, "max-parts", PAGE)
        marker = number_of(query, "part-number-marker", _MOST_PARTS, left_out=0)
        with upload.lock:
            upload.require_open()
            found = sorted(number for number in upload.parts if number > marker)
            parts = {number: upload.parts[number] for number in found[:limit]}
        given: dict[str, str | int | bool] = {"Bucket": repository.id, "Key": asked.key, "UploadId": query["uploadId"]}
        given |= {"PartNumberMarker": marker, "MaxParts": limit, "IsTruncated": 0 < limit < len(found)}
        given |= {"NextPartNumberMarker": max(parts)} if parts else {}
        rows = [*_KEEPING]
        for number, part in parts.items():
            inner = elements(PartNumber=number, ETag=etag_of(part.sha256), Size=part.size)
            rows.append(nest("Part", [*inner, element("LastModified", timestamp(upload.begun)), *_sums(part.sums)]))
        return document("ListPartsResult", [*elements(**given), *rows])

    def _begin(self, lake: Lake, repository: Repository, asked: S3Request) -> Response:
        _branch_and_path(repository, asked.key)
        digests_of([CHECKSUM + asked.headers.get(_SUMS_ARE[0], "crc32").lower()])  # refuses one that is not known
        name, begun = self._ids.new(), int(lake.clock.now().timestamp())
        content_type = asked.headers.get("content-type")
        upload = MultipartUpload((repository.id, asked.key), content_type, _metadata(asked.headers), begun)
        oldest = None
        with self._lock:
            if len(self._uploads) >= MOST_UPLOADS:
                ended = (id_ for id_, one in self._uploads.items() if one.file.closed)
                oldest = self._uploads.pop(next(ended, next(iter(self._uploads))))
            self._uploads[name] = upload
        if oldest is not None:
            with oldest.lock:
                oldest.file.close()
        fields = elements(Bucket=repository.id, Key=asked.key, UploadId=name)
        answer = document("InitiateMultipartUploadResult", fields)
        answer.headers.update({name: asked.headers[name] for name in _SUMS_ARE if name in asked.headers})
        return answer

    def _part(self, lake: Lake, repository: Repository, asked: S3Request) -> Response:
        upload = self._upload(repository, asked)
        given = asked.query["partNumber"]
        if not _PART.fullmatch(given) or int(given) > _MOST_PARTS:
            raise Refused(400, "InvalidArgument", f"partNumber is 1 to {_MOST_PARTS}")
        if SOURCE not in asked.headers:
            body = _checked_body(asked)
            sums = _given_sums(asked)
            mark = upload.add(int(given), iter(lambda: body.read(PIECE), b""), sums)
            return Response(headers={"etag": mark, **sums})
        _, source, entry = _find_source(lake, asked.headers)
        wanted = asked.headers.get("x-amz-copy-source-range")
        part = ByteRange(0, entry.size_bytes, is_range=False)
        if wanted is not None:
            found = re.fullmatch(r"bytes=([0-9]{1,18})-([0-9]{1,18})", wanted)
            if found is None or int(found[1]) > int(found[2]):
                raise Refused(400, "InvalidArgument", "x-amz-copy-source-range is bytes=FIRST-LAST")
            if int(found[2]) >= entry.size_bytes:
                raise Refused(400, "InvalidRange", f"the source has {entry.size_bytes} bytes, and the range more")
            part = range_of(entry, wanted)
        body_of = contents(source, entry, part)
        mark = upload.add(int(given), [body_of] if isinstance(body_of, bytes) else body_of)
        return document("CopyPartResult", elements(ETag=mark, LastModified=timestamp(entry.mtime)))

    def _complete(self, repository: Repository, asked: S3Request) -> Response:
        branch, path = _branch_and_path(repository, asked.key)
        listed = [_listed(part) for part in _parse_document(asked).iterfind("{*}Part")]
        told = tuple((number, mark) for number, mark, _ in listed)
        upload = self._upload(repository, asked)
        with upload.lock:
            if upload.completed is None or upload.completed[0] != told:  # else the client got no answer
                parts = upload.listed(listed)
                size = sum(part.size for part in parts)
                if asked.headers.get("x-amz-mp-object-size", str(size)) != str(size):
                    raise Refused(400, "InvalidRequest", f"the parts have {size} bytes, and not x-amz-mp-object-size")
                with cast("BinaryIO", SpooledTemporaryFile(SPOOL_BYTES)) as whole:
                    upload.join(parts, whole, _given_sums(asked))
                    whole.seek(0)
                    entry = _stage(branch, path, whole, asked, upload.content_type, upload.metadata)
                upload.completed = told, etag(entry)
                upload.parts.clear()
                upload.file.close()
        fields = elements(Bucket=repository.id, Key=asked.key, ETag=upload.completed[1])
        return document("CompleteMultipartUploadResult", fields + _sums(_given_sums(asked)))

    def _abort(self, repository: Repository, asked: S3Request) -> Response:
        upload = self._upload(repository, asked)
        with upload.lock:
            upload.require_open()
            upload.file.close()
        with self._lock:
            self._uploads.pop(asked.query["uploadId"], None)
        return Response(status_code=204)

    def _upload(self, repository: Repository, asked: S3Request) -> MultipartUpload:
        found = self._uploads.get(asked.query["uploadId"])
        if found is None or found.place != (repository.id, asked.key):
            raise _no_such_upload()
        return found


@dataclass(frozen=True)
class UploadPart:
    """A part of an upload: its place in the upload's file, its SHA-256, and the sums that came with it by header."""

    start: int
    size: int
    sha256: str
    sums: dict[str, str]


Listed = tuple[int, str, dict[str, str]]
"""A part as the end of an upload lists it: its number, its ETag without quotes, and its checksums by their headers."""


def _listed(part: ET.Element) -> Listed:
    number = part.findtext("{*}PartNumber") or ""
    if not _PART.fullmatch(number):
        raise Refused(400, "MalformedXML", "a part has a PartNumber")
    names = ((one.tag.rpartition("}")[2], one.text or "") for one in part)
    sums = {CHECKSUM + name.removeprefix("Checksum").lower(): text for name, text in names if "Checksum" in name}
    return int(number), (part.findtext("{*}ETag") or "").strip('"'), sums


@dataclass
class MultipartUpload:
    """An object on its way in parts, one behind the other in a file without a name, which ends with the process.

    Attributes:
        place: the repository and the key.
        lock: held while a part is added, and while the upload ends, so that it ends once.
        completed: the parts that the object was made of, and its ETag. A client that asks again has the first answer:
            another object may be at the key by now.
    """

    place: tuple[str, str]
    content_type: str | None
    metadata: dict[str, str]
    begun: int
    file: BinaryIO = field(default_factory=lambda: cast("BinaryIO", TemporaryFile()))  # noqa: SIM115 - until the end
    lock: RLock = field(default_factory=RLock)
    parts: dict[int, UploadPart] = field(default_factory=dict)
    completed: tuple[tuple[tuple[int, str], ...], str] | None = None

    def add(self, number: int, body: Iterable[bytes], sums: Mapping[str, str] | None = None) -> str:
        """Keep a part, which replaces an earlier one. Returns its ETag. Raises ``Refused`` after the end."""
        digest = hashlib.sha256()
        with self.lock:
            self.require_open()
            start = self.file.seek(0, os.SEEK_END)
            for piece in body:
                digest.update(piece)
                self.file.write(piece)
            size = self.file.tell() - start
            self.parts[number] = UploadPart(start, size, digest.hexdigest(), dict(sums or {}))
        return etag_of(digest.hexdigest())

    def require_open(self) -> None:
        """Raise ``Refused`` once the upload has ended."""
        if self.file.closed:
            raise _no_such_upload()

    def pieces(self, part: UploadPart) -> Iterator[bytes]:
        """The bytes of a part, some at a time."""
        self.file.seek(part.start)
        for at in range(0, part.size, PIECE):
            yield self.file.read(min(PIECE, part.size - at))

    def join(self, parts: list[UploadPart], whole: BinaryIO, sums: Mapping[str, str]) -> None:
        """Write parts one behind the other to a file, and compare what a client says of all. Raises ``Refused``.

        A sum that ends in the number of parts is the one of their sums.
        """
        digests = digests_of(sums)
        for part in parts:
            for piece in self.pieces(part):
                whole.write(piece)
                for digest in digests.values():
                    digest.update(piece)
        for name, given in sums.items():
            suffix = f"-{len(parts)}" if "-" in given else ""
            if suffix:
                digests |= digests_of([name])
                for part in parts:
                    digests[name].update(self.digest(part, name).digest())
            check_digest(name, digests[name].digest(), given, suffix)

    def digest(self, part: UploadPart, name: str) -> Digest:
        """The digest of a part that a checksum's header names. Raises ``Refused`` for one that is not known."""
        digest = digests_of([name])[name]
        for piece in self.pieces(part):
            digest.update(piece)
        return digest

    def listed(self, told: list[Listed]) -> list[UploadPart]:
        """The parts of a list. Raises ``Refused`` for other than uploaded ones, small ones, and after the end."""
        self.require_open()
        numbers = [number for number, _, _ in told]
        if not numbers or numbers != sorted(set(numbers)):
            raise Refused(400, "InvalidPartOrder", "the parts are listed in ascending order, and there is at least one")
        parts: list[UploadPart] = []
        for number, mark, sums in told:
            part = self.parts.get(number)
            if part is None or etag_of(part.sha256) != f'"{mark}"':
                raise Refused(400, "InvalidPart", "a part that is listed was not uploaded, or was uploaded again since")
            for name, given in sums.items():
                if (part.sums.get(name) or encoded(self.digest(part, name).digest())) != given:
                    raise Refused(400, "InvalidPart", f"{name} of part {number} is not the one of its bytes")
            parts.append(part)
        if any(part.size < LEAST_PART for part in parts[:-1]):
            raise Refused(400, "EntityTooSmall", f"each part but the last has at least {LEAST_PART} bytes")
        return parts


def _no_such_upload() -> Refused:
    return Refused(404, "NoSuchUpload", "no such upload of this key is under way; begin again")


def _create_bucket(lake: Lake, asked: S3Request) -> Response:
    """Say that a repository is there, as clients ask before they upload. Raises ``Refused`` always."""
    check_headers(asked.headers, ())
    try:
        lake.repository(asked.bucket)
    except RepositoryNotFound:
        raise Refused(403, "AccessDenied", f"make it with lakeops repo create lakefs://{asked.bucket}") from None
    raise Refused(409, "BucketAlreadyOwnedByYou", f"repository {asked.bucket!r} exists")


def _put(repository: Repository, asked: S3Request) -> Response:
    if asked.headers.keys().isdisjoint({"content-length", "transfer-encoding"}):
        raise Refused(411, "MissingContentLength", "the length of the body is not known; send Content-Length")
    body = _checked_body(asked)
    branch, _, path = asked.key.partition("/")
    if not path and asked.key.endswith("/") and not body.read(1):  # the folder that a branch is
        repository.branch(branch).commit_id  # noqa: B018 - raises for none
        return Response(headers={"etag": etag_of(hashlib.sha256().hexdigest())})
    body.seek(0)
    target, path = _branch_and_path(repository, asked.key)
    entry = _stage(target, path, body, asked, asked.headers.get("content-type"), _metadata(asked.headers))
    return Response(headers={"etag": etag(entry), **_given_sums(asked)})


def _copy(lake: Lake, repository: Repository, asked: S3Request) -> Response:
    """Stage the object of another key with its metadata and content type, or with those of the request.

    Within a repository no bytes are copied. Hadoop renames files so. A copy to itself replaces the metadata of the
    object that is there when it is staged.
    """
    branch, path = _branch_and_path(repository, asked.key)
    absent = "if-none-match" in asked.headers
    if asked.headers.get("if-none-match", "*") != "*":
        raise Refused(501, "NotImplemented", "If-None-Match of a copy is * alone")
    told: dict[str, Any] = {}
    directive = asked.headers.get("x-amz-metadata-directive", "COPY")
    if directive not in {"COPY", "REPLACE"}:
        raise Refused(400, "InvalidArgument", "x-amz-metadata-directive is COPY or REPLACE")
    if directive == "REPLACE":
        told = {"metadata": _metadata(asked.headers), "content_type": asked.headers.get("content-type")}

    def look_and_link() -> Entry:
        owner, source, found = _find_source(lake, asked.headers)
        itself = (owner.id, source.id, found.path) == (repository.id, branch.id, path)
        if itself and not told:
            raise Refused(400, "InvalidRequest", "a copy of an object to itself has to replace its metadata")
        once = absent or (not itself and _DELTA_COMMIT.fullmatch(path) is not None)
        if owner.id == repository.id:
            return branch.link(found, path, if_absent=once, in_place=itself and not once, **told)
        said = told or {"metadata": found.metadata, "content_type": found.content_type}
        with source.open_entry(found) as file:
            return branch.put(path, cast("BinaryIO", file), if_absent=once, **said)

    # Another one may replace the source after the look.
    entry = retrying(lambda error: isinstance(error, NotAsSeen), Ids())(look_and_link)
    return document("CopyObjectResult", elements(ETag=etag(entry), LastModified=timestamp(entry.mtime)))


def _find_source(lake: Lake, headers: Mapping[str, str]) -> tuple[Repository, Ref, Entry]:
    named, _, version = headers[SOURCE].partition("?versionId=")
    bucket, _, key = unquote(named).removeprefix("/").partition("/")
    if version not in {"", "null"}:
        raise Refused(501, "NotImplemented", "this gateway has no versions; a key begins with the ref to copy from")
    repository = lake.repository(bucket)
    ref, entry = find_object(repository, key)
    check_conditions(entry, headers, _OF_SOURCE)
    return repository, ref, entry


def _stage(
    branch: Branch, path: str, body: BinaryIO, asked: S3Request, content_type: str | None, metadata: dict[str, str]
) -> Entry:
    unmatched, match = asked.headers.get("if-none-match"), asked.headers.get("if-match")
    never_replaced = _DELTA_COMMIT.fullmatch(path) is not None
    implied = unmatched is None and never_replaced

    def attempt() -> Entry:
        body.seek(0)
        there = branch.find(path) if match is not None or unmatched not in {None, "*"} else None
        if match is not None and there is None:
            raise Refused(404, "NoSuchKey", "there is no object as If-Match names it")
        if there is not None and not never_replaced:
            if not has_etag(match or "*", there) or (unmatched is not None and has_etag(unmatched, there)):
                raise Refused(412, "PreconditionFailed", "the object is not the one that the condition names")
            return branch.put(path, body, metadata=metadata, content_type=content_type, seen=there)
        absent = never_replaced or unmatched is not None
        return branch.put(path, body, metadata=metadata, content_type=content_type, if_absent=absent)

    try:
        return retrying(lambda error: isinstance(error, NotAsSeen), Ids())(attempt)
    except PathTaken:
        there = branch.find(path) if implied else None
        body.seek(0)
        if there is not None and there.checksum == hashlib.file_digest(cast("Any", body), "sha256").hexdigest():
            return there  # the answer to the first request was lost, and the client sent it again
        raise


def _branch_and_path(repository: Repository, key: str) -> tuple[Branch, str]:
    name, _, path = key.partition("/")
    if not path:
        raise Refused(400, "InvalidArgument", "a key is BRANCH/PATH")
    try:
        return repository.branch(name), path
    except (RefNotFound, InvalidInput):  # clients would take "not found" for an object that is not there
        raise Refused(403, "AccessDenied", f"{excerpt(name)} is no branch; tags and commits never change") from None


def _metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """The user metadata of an object: the client's own, and headers that readers get back as they were."""
    prefix = "x-amz-meta-"
    found = {name.removeprefix(prefix): _decoded(value) for name, value in headers.items() if name.startswith(prefix)}
    for name in KEPT_HEADERS:
        value = headers.get(name, "")
        if name == "content-encoding":  # how the body travels is no property of the object
            value = ",".join(part for part in value.split(",") if part.strip().lower() != "aws-chunked").strip()
        if value:
            found[HEADER + name] = value
    return found


def _decoded(value: str) -> str:
    """Decode a text that a client has encoded as answers have it (RFC 2047)."""
    if not re.fullmatch(r"(=\?utf-8\?[bq]\?[^?\s]*\?=\s*)+", value, re.IGNORECASE):
        return value
    try:
        decoded = str(make_header(decode_header(value)))
    except (LookupError, ValueError):
        return value
    return value if decoded.isascii() else decoded  # nobody encodes ASCII: it only looks so


def _given_sums(asked: S3Request) -> dict[str, str]:
    about, given = {"algorithm", "type", "mode"}, {**asked.headers, **asked.trailers}
    names = [name for name in given if name.startswith(CHECKSUM) and name.removeprefix(CHECKSUM) not in about]
    return {name: given[name] for name in names}


def _sums(given: Mapping[str, str]) -> list[str]:
    """Checksums as documents have them."""
    found = [element("Checksum" + name.removeprefix(CHECKSUM).upper(), value) for name, value in given.items()]
    kind = "COMPOSITE" if any("-" in value for value in given.values()) else "FULL_OBJECT"
    return [*found, element("ChecksumType", kind)] if found else []


def _checked_body(asked: S3Request) -> BinaryIO:
    """Compare the body with what the headers say of it, and return it from its beginning. Raises ``Refused``.

    The signatures of chunks were verified while they came.
    """
    signed = asked.headers.get("x-amz-content-sha256", "")
    body = asked.body
    # The end of an upload tells the checksum of the object, and not of its own body.
    ends = asked.method == "POST" and "uploadId" in asked.query
    told = digests_of([name for name in asked.headers if not (ends and name.startswith(CHECKSUM))])
    named = asked.headers.get("x-amz-sdk-checksum-algorithm")
    if named is not None and not ends and CHECKSUM + named.lower() not in {*told, *asked.trailers}:
        raise Refused(400, "InvalidRequest", f"{named} is announced as the checksum, and none came")
    sha256 = hashlib.sha256()
    size = 0
    while piece := body.read(PIECE):
        size += len(piece)
        for digest in (*told.values(), sha256):
            digest.update(piece)
    if re.fullmatch(r"[0-9a-f]{64}", signed) and signed != sha256.hexdigest():
        raise Refused(400, "XAmzContentSHA256Mismatch", "the body is not the one that was signed")
    for name, digest in told.items():
        check_digest(name, digest.digest(), asked.headers[name])
    if not signed.startswith(STREAMING) and asked.headers.get("content-length", str(size)) != str(size):
        raise Refused(400, "IncompleteBody", "the body ended early")
    body.seek(0)
    return body


def _parse_document(asked: S3Request) -> ET.Element:
    text = _checked_body(asked).read(MOST_DOCUMENT + 1)
    try:
        if len(text) > MOST_DOCUMENT or b"<!" in text:  # nothing in these documents declares anything
            raise ET.ParseError
        return ET.fromstring(text)  # noqa: S314 - it is signed, small, and declares no entities
    except ET.ParseError:
        raise Refused(400, "MalformedXML", "the body is not the XML that this request takes") from None


def _delete(repository: Repository, key: str, match: str | None) -> None:
    """Delete an object, if it is the one of an ETag. None there is no error, as in S3. Raises ``Refused``."""
    if key.endswith("/") and key.count("/") == 1:
        return  # the folder that a branch is, which is there while the branch is
    branch, path = _branch_and_path(repository, key)
    seen = None
    if match is not None and (seen := branch.find(path)) is None:
        return
    if match is not None and seen is not None and not has_etag(match, seen):
        raise Refused(412, "PreconditionFailed", "the object is not the one of the condition; it was replaced")
    with suppress(ObjectNotFound):
        branch.delete(path, seen=seen)


def _delete_many(repository: Repository, asked: S3Request) -> Response:
    listed = _parse_document(asked)
    objects = listed.findall("{*}Object")
    if not 0 < len(objects) <= PAGE:
        raise Refused(400, "MalformedXML", f"a list has 1 to {PAGE} keys")
    rows = []
    for one in objects:
        key = one.findtext("{*}Key") or ""
        try:
            if one.findtext("{*}VersionId", "null") != "null":
                raise Refused(501, "NotImplemented", "this gateway deletes no versions")
            if one.find("{*}LastModifiedTime") is not None or one.find("{*}Size") is not None:
                raise Refused(501, "NotImplemented", "this gateway knows no condition but ETag")
            _delete(repository, key, one.findtext("{*}ETag"))
        except (LakeopsError, Refused) as error:
            refused = error if isinstance(error, Refused) else refusal(error)
            rows.append(nest("Error", elements(Key=key, Code=refused.code, Message=refused.message)))
        else:
            rows.append(nest("Deleted", [element("Key", key)]))
    if (listed.findtext("{*}Quiet") or "") == "true":
        rows = [row for row in rows if row.startswith("<Error>")]
    return document("DeleteResult", rows)
