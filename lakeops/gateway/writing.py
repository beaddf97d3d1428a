"""Requests that write objects to a branch's staging area: whole, in parts, or not at all, and deletions.

* ``If-None-Match: *`` is the branch's own ``put(if_absent=True)``: of several writers of one key exactly one succeeds.
  Delta Lake's and Iceberg's commits rest on that.
* A body is compared with the signed SHA-256, or the signatures of its chunks are verified, before anything is staged.
* The parts of an upload lie on this machine's disk until it is completed. A gateway that ends forgets them, and the
  client begins again.

Nothing is committed here.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile, TemporaryFile
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from starlette.responses import Response

from lakeops.gateway.answers import HEADER, KEPT_HEADERS, Refused, document, element, elements, etag, nest, timestamp
from lakeops.gateway.chunks import STREAMING, check_digest, digests_of
from lakeops.gateway.reading import PIECE, contents, find_object, has_etag, range_of
from lakeops.model.clock import Ids, retrying
from lakeops.model.errors import InvalidInput, LakeopsError, NotAsSeen, ObjectNotFound, PathTaken, RefNotFound
from lakeops.model.records import Entry
from lakeops.model.sanitising import excerpt

if TYPE_CHECKING:
    from lakeops.gateway.signature import S3Request
    from lakeops.lake import Branch, Ref, Repository

SPOOL_BYTES = 4 << 20
"""Bytes of a body that stay in memory. A larger body goes to the disk."""
MOST_UPLOADS = 200
"""Uploads in parts that are kept. A finished one, or else the oldest, gives way, and its client begins again."""
MOST_DOCUMENT = 2 << 20
"""The largest list of parts or of keys that is read, in bytes."""
SOURCE = "x-amz-copy-source"
IF_MATCH = "x-amz-copy-source-if-match"
_CONDITIONS = ("if-", "x-amz-if-", "x-amz-copy-source-if-", "x-amz-write-offset-bytes")
_PART = re.compile(r"[1-9][0-9]{0,4}")
_MOST_PARTS = 10_000
_DELTA_COMMIT = re.compile(r"(.*/)?_delta_log/[0-9]{20}\.json", re.DOTALL)


class Writing:
    """Answers writing requests, and keeps the uploads in parts. Threads share it."""

    def __init__(self) -> None:
        self._ids = Ids()
        self._lock = Lock()
        self._uploads: dict[str, MultipartUpload] = {}

    def answer(self, repository: Repository, asked: S3Request) -> Response:
        """Answer a request whose signature was verified. Raises ``Refused`` and lakeops' errors."""
        # Any other parameter asks for something else than the object: its tags, its rights, one version of it.
        named = sorted(name for name in asked.query if name != "x-id" and not name.startswith("X-Amz-"))
        _refuse_unknown_conditions(asked)
        match asked.method, *named:
            case ("PUT",):
                return _copy(repository, asked) if SOURCE in asked.headers else _put(repository, asked)
            case "PUT", "partNumber", "uploadId":
                return self._part(repository, asked)
            case "POST", "uploads":
                return self._begin(repository, asked)
            case "POST", "uploadId":
                return self._complete(repository, asked)
            case "DELETE", "uploadId":
                return self._abort(repository, asked)
            case ("DELETE",):
                _delete(*_branch_and_path(repository, asked.key))
                return Response(status_code=204)
            case "POST", "delete":
                return _delete_many(repository, asked)
        asks = excerpt(", ".join(named))
        raise Refused(501, "NotImplemented", f"this gateway does not know such a request ({asked.method} {asks})")

    def _begin(self, repository: Repository, asked: S3Request) -> Response:
        _branch_and_path(repository, asked.key)
        name = self._ids.new()
        content_type = asked.headers.get("content-type")
        upload = MultipartUpload((repository.id, asked.key), content_type, _metadata(asked.headers))
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
        return document("InitiateMultipartUploadResult", fields)

    def _part(self, repository: Repository, asked: S3Request) -> Response:
        upload = self._upload(repository, asked)
        given = asked.query["partNumber"]
        if not _PART.fullmatch(given) or int(given) > _MOST_PARTS:
            raise Refused(400, "InvalidArgument", f"partNumber is 1 to {_MOST_PARTS}")
        if SOURCE not in asked.headers:
            body = _checked_body(asked)
            return Response(headers={"etag": upload.add(int(given), iter(lambda: body.read(PIECE), b""))})
        source, entry = _find_source(repository, asked.headers)
        wanted = asked.headers.get("x-amz-copy-source-range")
        part = range_of(entry, wanted)
        if wanted is not None and not part.is_range:
            raise Refused(400, "InvalidArgument", "x-amz-copy-source-range is bytes=FIRST-LAST")
        found = contents(source, entry, part)
        mark = upload.add(int(given), [found] if isinstance(found, bytes) else found)
        return document("CopyPartResult", elements(ETag=mark, LastModified=timestamp(entry.mtime)))

    def _complete(self, repository: Repository, asked: S3Request) -> Response:
        branch, path = _branch_and_path(repository, asked.key)
        listed = tuple(
            (int(part.findtext("{*}PartNumber") or 0), (part.findtext("{*}ETag") or "").strip('"'))
            for part in _parse_document(asked).iterfind("{*}Part")
        )
        upload = self._upload(repository, asked)
        with upload.lock:
            if upload.completed is None or upload.completed[0] != listed:  # else the client got no answer
                parts = upload.listed(listed)
                with cast("BinaryIO", SpooledTemporaryFile(SPOOL_BYTES)) as whole:
                    upload.join(parts, whole)
                    whole.seek(0)
                    entry = _stage(branch, path, whole, asked, upload.content_type, upload.metadata)
                upload.completed = listed, etag(entry)
                upload.end()
        fields = elements(Bucket=repository.id, Key=asked.key, ETag=upload.completed[1])
        return document("CompleteMultipartUploadResult", fields)

    def _abort(self, repository: Repository, asked: S3Request) -> Response:
        upload = self._upload(repository, asked)
        with upload.lock:
            upload.require_open()
            upload.end()
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
    """A part of an upload: its place in the upload's file, and its ETag without quotes."""

    start: int
    size: int
    etag: str


@dataclass
class MultipartUpload:
    """An object on its way in parts, one behind the other in a file without a name, which ends with the process.

    Attributes:
        place: the repository and the key.
        lock: held while a part is added, and while the upload ends, so that it ends once.
        parts: by number.
        completed: the parts that the object was made of, and its ETag. A client that asks again has the first answer:
            another object may be at the key by now.
    """

    place: tuple[str, str]
    content_type: str | None
    metadata: dict[str, str]
    file: BinaryIO = field(default_factory=lambda: cast("BinaryIO", TemporaryFile()))  # noqa: SIM115 - until the end
    lock: RLock = field(default_factory=RLock)
    parts: dict[int, UploadPart] = field(default_factory=dict)
    completed: tuple[tuple[tuple[int, str], ...], str] | None = None

    def add(self, number: int, body: Iterable[bytes]) -> str:
        """Keep a part, which replaces an earlier one. Returns its ETag. Raises ``Refused`` after the end."""
        digest = hashlib.sha256()
        with self.lock:
            self.require_open()
            start = self.file.seek(0, os.SEEK_END)
            for piece in body:
                digest.update(piece)
                self.file.write(piece)
            part = self.parts[number] = UploadPart(start, self.file.tell() - start, digest.hexdigest())
        return f'"{part.etag}"'

    def require_open(self) -> None:
        """Raise ``Refused`` once the upload has ended."""
        if self.file.closed:
            raise _no_such_upload()

    def end(self) -> None:
        """Drop the parts."""
        self.parts.clear()
        self.file.close()

    def join(self, parts: list[UploadPart], whole: BinaryIO) -> None:
        """Write parts one behind the other to a file."""
        for part in parts:
            self.file.seek(part.start)
            whole.writelines(self.file.read(min(PIECE, part.size - at)) for at in range(0, part.size, PIECE))

    def listed(self, told: Iterable[tuple[int, str]]) -> list[UploadPart]:
        """The parts by their numbers and ETags. Raises ``Refused`` for other than uploaded ones and after the end."""
        self.require_open()
        numbers = [number for number, _ in told]
        if not numbers or numbers != sorted(set(numbers)):
            raise Refused(400, "InvalidPartOrder", "the parts are listed in ascending order, and there is at least one")
        if any(number not in self.parts or self.parts[number].etag != mark for number, mark in told):
            raise Refused(400, "InvalidPart", "a part that is listed was not uploaded, or was uploaded again since")
        return [self.parts[number] for number in numbers]


def _no_such_upload() -> Refused:
    return Refused(404, "NoSuchUpload", "no such upload of this key is under way; begin again")


def _put(repository: Repository, asked: S3Request) -> Response:
    body = _checked_body(asked)
    if asked.key.endswith("/") and not body.read(1):
        # S3A and pyarrow mark folders with empty objects. Here a folder is there while it has objects.
        _branch_and_path(repository, asked.key + "marker")
        return Response(headers={"etag": f'"{hashlib.md5(usedforsecurity=False).hexdigest()}"'})
    body.seek(0)
    branch, path = _branch_and_path(repository, asked.key)
    entry = _stage(branch, path, body, asked, asked.headers.get("content-type"), _metadata(asked.headers))
    return Response(headers={"etag": etag(entry)})


def _copy(repository: Repository, asked: S3Request) -> Response:
    """Stage the object of another key with its metadata and content type, or with those of the request.

    No bytes are copied. Hadoop renames files so. A copy to itself replaces the metadata of the object that is there
    when it is staged.
    """
    branch, path = _branch_and_path(repository, asked.key)
    told: dict[str, Any] = {}
    if asked.headers.get("x-amz-metadata-directive") == "REPLACE":
        told = {"metadata": _metadata(asked.headers), "content_type": asked.headers.get("content-type")}

    def look_and_link() -> Entry:
        source, found = _find_source(repository, asked.headers)
        itself = (source.id, found.path) == (branch.id, path)
        if itself and not told:
            raise Refused(400, "InvalidRequest", "a copy of an object to itself has to replace its metadata")
        absent = _is_delta_commit(path) and not itself
        return branch.link(found, path, if_absent=absent, in_place=itself, **told)

    # Another one may replace the source after the look.
    entry = retrying(lambda error: isinstance(error, NotAsSeen), Ids())(look_and_link)
    return document("CopyObjectResult", elements(ETag=etag(entry), LastModified=timestamp(entry.mtime)))


def _find_source(repository: Repository, headers: Mapping[str, str]) -> tuple[Ref, Entry]:
    """The ref and the object that a copy is made from. Raises ``Refused``."""
    bucket, _, key = unquote(headers[SOURCE]).removeprefix("/").partition("/")
    if bucket != repository.id or not key.partition("/")[2]:
        raise Refused(501, "NotImplemented", "this gateway copies objects of one repository")
    ref, entry = find_object(repository, key)
    if IF_MATCH in headers and not has_etag(headers[IF_MATCH], entry):
        raise Refused(412, "PreconditionFailed", "the source is not the object that was named; it was replaced")
    return ref, entry


def _stage(
    branch: Branch,
    path: str,
    body: BinaryIO,
    asked: S3Request,
    content_type: str | None,
    metadata: dict[str, str],
) -> Entry:
    condition = asked.headers.get("if-none-match")
    implied = condition is None and _is_delta_commit(path)
    absent = condition is not None or implied
    try:
        return branch.put(path, body, metadata=metadata, content_type=content_type, if_absent=absent)
    except PathTaken:
        there = branch.find(path) if implied else None
        body.seek(0)
        if there is not None and there.checksum == hashlib.file_digest(cast("Any", body), "sha256").hexdigest():
            return there  # the answer to the first request was lost, and the client sent it again
        raise


def _is_delta_commit(path: str) -> bool:
    """Tell whether a path is a version of a Delta table, which nobody may replace.

    Delta on Spark looks whether it is there and then writes without a condition. Another writer may come between the
    two, whose rows would be lost.
    """
    return _DELTA_COMMIT.fullmatch(path) is not None


def _branch_and_path(repository: Repository, key: str) -> tuple[Branch, str]:
    """The branch and the path that a key names. Raises ``Refused``."""
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
    found = {name.removeprefix(prefix): value for name, value in headers.items() if name.startswith(prefix)}
    for name in KEPT_HEADERS:
        value = headers.get(name, "")
        if name == "content-encoding":  # how the body travels is no property of the object
            value = ",".join(part for part in value.split(",") if part.strip().lower() != "aws-chunked").strip()
        if value:
            found[HEADER + name] = value
    return found


def _checked_body(asked: S3Request) -> BinaryIO:
    """Compare the body with what the headers say of it, and return it from its beginning. Raises ``Refused``.

    The signatures of chunks were verified while they came.
    """
    signed = asked.headers.get("x-amz-content-sha256", "")
    body = asked.body
    # The end of an upload tells the checksum of the object, and not of its own body.
    told = digests_of(asked.headers) if asked.method == "PUT" or "uploadId" not in asked.query else {}
    sha256 = hashlib.sha256()
    size = 0
    while piece := body.read(PIECE):
        size += len(piece)
        for digest in (*told.values(), sha256):
            digest.update(piece)
    if re.fullmatch(r"[0-9a-f]{64}", signed) and signed != sha256.hexdigest():
        raise Refused(400, "XAmzContentSHA256Mismatch", "the body is not the one that was signed")
    for name, digest in told.items():
        check_digest(name, digest, asked.headers[name])
    if not signed.startswith(STREAMING) and asked.headers.get("content-length", str(size)) != str(size):
        raise Refused(400, "IncompleteBody", "the body ended early")
    body.seek(0)
    return body


def _parse_document(asked: S3Request) -> ET.Element:
    """Parse the body as XML. Raises ``Refused``."""
    text = _checked_body(asked).read(MOST_DOCUMENT + 1)
    try:
        if len(text) > MOST_DOCUMENT or b"<!" in text:  # nothing in these documents declares anything
            raise ET.ParseError
        return ET.fromstring(text)  # noqa: S314 - it is signed, small, and declares no entities
    except ET.ParseError:
        raise Refused(400, "MalformedXML", "the body is not the XML that this request takes") from None


def _refuse_unknown_conditions(asked: S3Request) -> None:
    """Refuse conditions that nobody would check: the write or deletion would happen anyway. Raises ``Refused``."""
    kept = {"if-none-match": "*"} if asked.method != "DELETE" and SOURCE not in asked.headers else {}
    for name, value in asked.headers.items():
        if name == IF_MATCH or kept.get(name) == value:
            continue
        if name.startswith(_CONDITIONS):
            raise Refused(501, "NotImplemented", f"this gateway does not know {name} of such a request")


def _delete(branch: Branch, path: str) -> None:
    with suppress(ObjectNotFound):  # which is no error, as in S3
        branch.delete(path)


def _delete_many(repository: Repository, asked: S3Request) -> Response:
    listed = _parse_document(asked)
    rows = []
    for one in listed.iterfind("{*}Object"):
        key = one.findtext("{*}Key") or ""
        try:
            if one.find("{*}VersionId") is not None:
                raise Refused(501, "NotImplemented", "this gateway deletes no versions")
            _delete(*_branch_and_path(repository, key))
        except (LakeopsError, Refused) as error:
            code = error.code if isinstance(error, Refused) else "AccessDenied"
            rows.append(nest("Error", elements(Key=key, Code=code, Message=error.message)))
        else:
            rows.append(nest("Deleted", [element("Key", key)]))
    if (listed.findtext("{*}Quiet") or "") == "true":
        rows = [row for row in rows if row.startswith("<Error>")]
    return document("DeleteResult", rows)
