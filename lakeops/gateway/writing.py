"""Requests that write objects to a branch's staging area: whole, in parts, or not at all, and deletions.

What keeps this safe:

* ``If-None-Match: *`` is the branch's own ``put(if_absent=True)``: of several writers of one key exactly one succeeds.
  Delta Lake's and Iceberg's commits rest on that;
* a body is what its signature says: it is compared with the signed SHA-256, or the signatures of its chunks are
  verified, before anything is staged;
* the parts of an upload lie on this machine's disk until it is completed. A gateway that ends forgets them, and the
  client begins again. The catalog and the store know nothing of them.

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
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from lakeops.gateway.answers import HEADER, KEPT_HEADERS, Refused, document, element, etag, nest, timestamp
from lakeops.gateway.chunks import STREAMING, check_digest, digests_of
from lakeops.gateway.reading import contents, names_mark, range_of
from lakeops.model.clock import Ids
from lakeops.model.errors import InvalidInput, LakeopsError, NotAsSeen, ObjectNotFound, PathTaken, RefNotFound
from lakeops.model.records import Entry
from lakeops.model.sanitising import excerpt

if TYPE_CHECKING:
    from lakeops.lake import Branch, Ref, Repository

SPOOL_BYTES = 4 << 20
"""How much of a body is kept in memory. A larger one goes to the disk."""
MOST_UPLOADS = 200
"""Uploads in parts that are under way at once. The oldest gives way to another one, and its client begins again."""
MOST_DOCUMENT = 2 << 20
"""The largest list of parts or of keys that is read, in bytes."""
_CONDITIONS = ("if-", "x-amz-if-", "x-amz-copy-source-if-", "x-amz-write-offset-bytes")
_PART = re.compile(r"[1-9][0-9]{0,4}")
_MOST_PARTS = 10_000
_DELTA_COMMIT = re.compile(r"(.*/)?_delta_log/[0-9]{20}\.json", re.DOTALL)


@dataclass(frozen=True)
class WriteRequest:
    """A writing request, after its signature was verified.

    Attributes:
        method: ``PUT``, ``POST`` or ``DELETE``.
        key: the ref and the path.
        query: the parameters.
        headers: by name in lower case.
        body: what it brought, from its beginning, out of its chunks.
    """

    method: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: BinaryIO

    def document(self) -> ET.Element:
        """The body as XML. Raises ``Refused``."""
        text = _checked(self).read(MOST_DOCUMENT + 1)
        try:
            if len(text) > MOST_DOCUMENT or b"<!" in text:  # nothing in these documents declares anything
                raise ET.ParseError
            return ET.fromstring(text)  # noqa: S314 - it is signed, small, and declares no entities
        except ET.ParseError:
            raise Refused(400, "MalformedXML", "the body is not the XML that this request takes") from None


@dataclass(frozen=True)
class Answer:
    """What a writing request is answered with."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Writing:
    """Answers to writing requests, and the uploads that are under way. Threads share it."""

    def __init__(self) -> None:
        self._ids = Ids()
        self._lock = Lock()
        self._uploads: dict[str, MultipartUpload] = {}
        self._completed: dict[Completion, Answer] = {}

    def answer(self, repository: Repository, asked: WriteRequest) -> Answer:
        """Do what a request asks for. Raises ``Refused`` and lakeops' errors."""
        # Any other parameter asks for something else than the object: its tags, its rights, one version of it.
        named = {name for name in asked.query if name != "x-id" and not name.startswith("X-Amz-")}
        _check_conditions(asked)
        match asked.method, *sorted(named):
            case ("PUT",):
                return _put(repository, asked)
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
                return Answer(204)
            case "POST", "delete":
                return _delete_many(repository, asked)
        asks = excerpt(", ".join(sorted(named)))
        raise Refused(501, "NotImplemented", f"this gateway does not know such a request ({asked.method} {asks})")

    def _begin(self, repository: Repository, asked: WriteRequest) -> Answer:
        _branch_and_path(repository, asked.key)
        name = self._ids.new()
        upload = MultipartUpload(
            (repository.id, asked.key), asked.headers.get("content-type"), _metadata(asked.headers)
        )
        with self._lock:
            oldest = next(iter(self._uploads)) if len(self._uploads) >= MOST_UPLOADS else ""
            self._uploads[name] = upload
        self._end(oldest)
        return _xml("InitiateMultipartUploadResult", Bucket=repository.id, Key=asked.key, UploadId=name)

    def _part(self, repository: Repository, asked: WriteRequest) -> Answer:
        upload = self._upload(repository, asked)
        given = asked.query.get("partNumber", "")
        if not _PART.fullmatch(given) or int(given) > _MOST_PARTS:
            raise Refused(400, "InvalidArgument", f"partNumber is 1 to {_MOST_PARTS}")
        if SOURCE in asked.headers:
            source, entry = find_source(repository, asked.headers)
            mark = upload.add(int(given), bytes_of(source, entry, asked.headers))
            return _xml("CopyPartResult", ETag=mark, LastModified=timestamp(entry.mtime))
        body = _checked(asked)
        return Answer(headers={"etag": upload.add(int(given), iter(lambda: body.read(PIECE), b""))})

    def _complete(self, repository: Repository, asked: WriteRequest) -> Answer:
        branch_and_path = _branch_and_path(repository, asked.key)
        listed = tuple(
            (int(part.findtext("{*}PartNumber") or 0), (part.findtext("{*}ETag") or "").strip('"'))
            for part in asked.document().iterfind("{*}Part")
        )
        told = Completion((repository.id, asked.key), asked.query["uploadId"], listed)
        answered = self._completed.get(told)
        if answered is not None:  # the client did not get the first answer
            return answered
        upload = self._upload(repository, asked)
        with upload.ending:
            answered = self._completed.get(told)
            if answered is not None:
                return answered
            with cast("BinaryIO", SpooledTemporaryFile(SPOOL_BYTES)) as whole:
                upload.join(upload.listed(told), whole)
                whole.seek(0)
                entry = _stage(*branch_and_path, whole, asked, upload.content_type, upload.metadata)
            answer = _xml("CompleteMultipartUploadResult", Bucket=repository.id, Key=asked.key, ETag=etag(entry))
            with self._lock:
                self._completed[told] = answer
                while len(self._completed) > MOST_UPLOADS:
                    del self._completed[next(iter(self._completed))]
            self._end(told.upload)
        return answer

    def _abort(self, repository: Repository, asked: WriteRequest) -> Answer:
        upload = self._upload(repository, asked)
        with upload.ending:
            upload.require_open()
            self._end(asked.query["uploadId"])
        return Answer(204)

    def _upload(self, repository: Repository, asked: WriteRequest) -> MultipartUpload:
        found = self._uploads.get(asked.query["uploadId"])
        if found is None or found.place != (repository.id, asked.key):
            raise no_such_upload()
        return found

    def _end(self, name: str) -> None:
        with self._lock:
            upload = self._uploads.pop(name, None)
        if upload is not None:
            with upload.lock:
                upload.file.close()


def _put(repository: Repository, asked: WriteRequest) -> Answer:
    if "x-amz-copy-source" in asked.headers:
        return _copy(repository, asked)
    body = _checked(asked)
    if asked.key.endswith("/") and not body.read(1):
        # S3A and pyarrow mark folders with empty objects. Here a folder is there while it has objects.
        _branch_and_path(repository, asked.key + "marker")
        return Answer(headers={"etag": f'"{hashlib.md5(usedforsecurity=False).hexdigest()}"'})
    body.seek(0)
    branch, path = _branch_and_path(repository, asked.key)
    entry = _stage(branch, path, body, asked, asked.headers.get("content-type"), _metadata(asked.headers))
    return Answer(headers={"etag": etag(entry)})


def _copy(repository: Repository, asked: WriteRequest) -> Answer:
    """Stage what another key of the repository shows. Hadoop renames files so."""
    branch, path = _branch_and_path(repository, asked.key)
    metadata = _metadata(asked.headers)
    entry = copy_object(repository, branch, path, asked.headers, metadata, if_absent=_is_delta_commit(path))
    return _xml("CopyObjectResult", ETag=etag(entry), LastModified=timestamp(entry.mtime))


def _stage(
    branch: Branch,
    path: str,
    body: BinaryIO,
    asked: WriteRequest,
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
        if there is not None and there.checksum == _sha256(body):
            return there  # the answer to the first request was lost, and the client sent it again
        raise


def _sha256(body: BinaryIO) -> str:
    body.seek(0)
    digest = hashlib.sha256()
    while piece := body.read(PIECE):
        digest.update(piece)
    return digest.hexdigest()


def _is_delta_commit(path: str) -> bool:
    """Whether a path is a version of a Delta table, which nobody may replace once it is there.

    Delta on Spark looks whether it is there and then writes without a condition. Between the two another writer may
    come, whose rows would be lost.
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


def _checked(asked: WriteRequest) -> BinaryIO:
    """The body from its beginning, when it is what the request's headers say of it. Raises ``Refused``.

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


def _check_conditions(asked: WriteRequest) -> None:
    """Refuse conditions that nobody would look at: the write or deletion would happen anyway. Raises ``Refused``."""
    kept = {"if-none-match": "*"} if asked.method != "DELETE" and SOURCE not in asked.headers else {}
    for name, value in asked.headers.items():
        if name == IF_MATCH or kept.get(name) == value:
            continue
        if name.startswith(_CONDITIONS):
            raise Refused(501, "NotImplemented", f"this gateway does not know {name} of such a request")


def _delete(branch: Branch, path: str) -> None:
    """Delete an object. One that is not there is no error, as in S3."""
    with suppress(ObjectNotFound):
        branch.delete(path)


def _delete_many(repository: Repository, asked: WriteRequest) -> Answer:
    listed = asked.document()
    rows = []
    for one in listed.iterfind("{*}Object"):
        key = one.findtext("{*}Key") or ""
        try:
            if one.find("{*}VersionId") is not None:
                raise Refused(501, "NotImplemented", "this gateway deletes no versions")
            _delete(*_branch_and_path(repository, key))
        except (LakeopsError, Refused) as error:
            code = error.code if isinstance(error, Refused) else "AccessDenied"
            rows.append(nest("Error", (element("Key", key), element("Code", code), element("Message", error.message))))
        else:
            rows.append(nest("Deleted", [element("Key", key)]))
    if (listed.findtext("{*}Quiet") or "") == "true":
        rows = [row for row in rows if row.startswith("<Error>")]
    return Answer(headers={"content-type": "application/xml"}, body=document("DeleteResult", rows))


def _xml(name: str, **fields: str) -> Answer:
    inner = [element(key, value) for key, value in fields.items()]
    return Answer(headers={"content-type": "application/xml"}, body=document(name, inner))


SOURCE = "x-amz-copy-source"
RANGE = "x-amz-copy-source-range"
IF_MATCH = "x-amz-copy-source-if-match"


def find_source(repository: Repository, headers: Mapping[str, str]) -> tuple[Ref, Entry]:
    """The ref and the object that a copy is made from. Raises ``Refused``."""
    bucket, _, key = unquote(headers[SOURCE]).removeprefix("/").partition("/")
    name, _, path = key.partition("/")
    if bucket != repository.id or not path:
        raise Refused(501, "NotImplemented", "this gateway copies objects of one repository")
    ref = repository.ref(name)
    entry = ref.find(path)
    if entry is None:
        raise Refused(404, "NoSuchKey", f"no object {path!r} at {name!r} of repository {repository.id!r}")
    wanted = headers.get(IF_MATCH)
    if wanted is not None and not names_mark(wanted, etag(entry)):
        raise Refused(412, "PreconditionFailed", "the source is not the object that was named; it was replaced")
    return ref, entry


def copy_object(
    repository: Repository,
    branch: Branch,
    path: str,
    headers: Mapping[str, str],
    metadata: Mapping[str, str],
    *,
    if_absent: bool,
) -> Entry:
    """Stage an object of a ref on a branch, with its own metadata and content type or with those of the request.

    Nothing is copied, and the object is there with its metadata at once. A copy to itself describes the object anew
    that is there when it is staged. Raises ``Refused``, and what ``Branch.link`` raises.
    """
    told: dict[str, Any] = {}
    if headers.get("x-amz-metadata-directive") == "REPLACE":
        told = {"metadata": metadata, "content_type": headers.get("content-type")}
    while True:
        source, entry = find_source(repository, headers)
        itself = (source.id, entry.path) == (branch.id, path)
        if itself and not told:
            raise Refused(400, "InvalidRequest", "a copy of an object to itself has to replace its metadata")
        with suppress(NotAsSeen):  # it was replaced after the look: look again
            return branch.link(entry, path, if_absent=if_absent and not itself, in_place=itself, **told)


def bytes_of(source: Ref, entry: Entry, headers: Mapping[str, str]) -> Iterable[bytes]:
    """The bytes of an object that become a part of an upload, piece by piece. Raises ``Refused``."""
    wanted = headers.get(RANGE)
    part = range_of(entry, wanted)
    if wanted is not None and not part.is_range:
        raise Refused(400, "InvalidArgument", f"{RANGE} is bytes=FIRST-LAST")
    found = contents(source, entry, part)
    return [found] if isinstance(found, bytes) else found


PIECE = 1 << 20
"""Bytes that are copied at a time."""


def no_such_upload() -> Refused:
    """The refusal of a request about an upload that is over, or never was."""
    return Refused(404, "NoSuchUpload", "no such upload of this key is under way; begin again")


def _file() -> BinaryIO:
    return cast("BinaryIO", TemporaryFile())


@dataclass(frozen=True)
class Completion:
    """How a client wants an upload to end: the key, the upload's id, and the parts with their ETags.

    One that comes again has the first answer: the object is there, and another one may be in its place by now.
    """

    place: tuple[str, str]
    upload: str
    parts: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class UploadPart:
    """A part of an upload: where it lies in the upload's file, and its ETag without quotes."""

    start: int
    size: int
    etag: str


@dataclass
class MultipartUpload:
    """An object on its way in parts, one behind the other in a file without a name, which ends with the process.

    Whoever ends the upload, with an object or without, holds ``ending``.
    """

    place: tuple[str, str]
    content_type: str | None
    metadata: dict[str, str]
    file: BinaryIO = field(default_factory=_file)
    lock: Lock = field(default_factory=Lock)
    ending: Lock = field(default_factory=Lock)
    parts: dict[int, UploadPart] = field(default_factory=dict)

    def add(self, number: int, body: Iterable[bytes]) -> str:
        """Keep a part, which takes the place of an earlier one. Returns its ETag. Raises ``Refused`` after the end."""
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
            raise no_such_upload()

    def join(self, parts: list[UploadPart], whole: BinaryIO) -> None:
        """Write parts one behind the other to a file. Raises ``Refused`` after the end."""
        with self.lock:
            self.require_open()
            for part in parts:
                self.file.seek(part.start)
                whole.writelines(self.file.read(min(PIECE, part.size - at)) for at in range(0, part.size, PIECE))

    def listed(self, told: Completion) -> list[UploadPart]:
        """The parts that a client has listed. Raises ``Refused`` for others than were uploaded."""
        numbers = [number for number, _ in told.parts]
        if not numbers or numbers != sorted(set(numbers)):
            raise Refused(400, "InvalidPartOrder", "the parts are listed in ascending order, and there is at least one")
        known = dict(self.parts)
        if any(number not in known or known[number].etag != mark for number, mark in told.parts):
            raise Refused(400, "InvalidPart", "a part that is listed was not uploaded, or was uploaded again since")
        return [known[number] for number in numbers]
