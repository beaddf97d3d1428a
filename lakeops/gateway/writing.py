"""Requests that write objects to a branch's staging area: whole, in parts, or not at all, and deletions.

* Conditions are the branch's own ``put(if_absent=True)`` and ``put(seen=...)``: of several writers of one key with
  ``If-None-Match: *`` exactly one succeeds. Delta Lake's and Iceberg's commits rest on that.
* A body is compared with the signed SHA-256, or the signatures of its chunks are verified, before anything is staged.
* The parts of an upload lie on this machine's disk until it is completed. A gateway that ends forgets them, and the
  client begins again.

Nothing is committed here.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import resource
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

from lakeops.gateway import answers, reading
from lakeops.gateway.answers import Refused, checksum_headers, document, elements, etag, etag_of, nest, sum_elements
from lakeops.gateway.chunks import STREAMING, TYPES, check_digest, digests_of, encoded
from lakeops.gateway.headers import DELETE_CONDITIONS, SOURCE_CONDITIONS, check_headers
from lakeops.model import errors
from lakeops.model.clock import Ids, retrying
from lakeops.model.ids import OBJECT_METADATA_BYTES, check_content_type, check_metadata
from lakeops.model.records import DEFAULT_CONTENT_TYPE, Entry
from lakeops.model.sanitising import excerpt
from lakeops.ops.files import check_new_path

if TYPE_CHECKING:
    from lakeops.gateway.signature import S3Request
    from lakeops.lake import Branch, Lake, Ref, Repository

SPOOL_BYTES = 4 << 20
"""Bytes of a body that stay in memory. A larger body goes to the disk."""
MOST_UPLOADS, KEPT_SECONDS = 10_000, 7 * 24 * 3600
"""Uploads in parts that are kept, if there are four descriptors for each. Then ended ones and ones older than this give
way to new ones."""
_NO_UPLOAD = (404, "NoSuchUpload", "no such upload of this key is under way; begin again")
MOST_DOCUMENT = 4 << 20
"""The largest list of parts or of keys that is read, in bytes."""
SOURCE = "x-amz-copy-source"
LEAST_PART = 5 << 20
"""Bytes of each part but the last, as in S3."""
_OF_SOURCE = "x-amz-copy-source-"
_ALGORITHM, _TYPE = f"{answers.CHECKSUM}algorithm", f"{answers.CHECKSUM}type"
_OF_ENTRY = ("ETag", "LastModifiedTime", "Size")
"""The conditions of an entry of DeleteObjects."""
_UPLOADS = {"uploads", "prefix", "max-uploads", "key-marker", "upload-id-marker", "encoding-type"}
_KEEPING = [nest("Initiator", elements(ID=answers.OWNER, DisplayName=answers.OWNER)), answers.OWNER_ELEMENT]
_KEEPING += elements(StorageClass="STANDARD")
_PART = re.compile(r"[1-9][0-9]{0,4}")
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
        self._most = min(MOST_UPLOADS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)

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
                work, conditions = partial(_copy, lake), ("if-none-match", *SOURCE_CONDITIONS)
            case ("PUT",):
                work, conditions = _put, ("if-match", "if-none-match")
            case "PUT", "partNumber", "uploadId":
                work = partial(self._part, lake)
                conditions = (*SOURCE_CONDITIONS, f"{_OF_SOURCE}range") if SOURCE in asked.headers else ()
            case "POST", "uploads":
                work = partial(self._begin, lake)
            case "POST", "uploadId":
                work, conditions = self._complete, ("if-match", "if-none-match", "x-amz-mp-object-size")
            case "DELETE", "uploadId":
                work = self._abort
            case ("DELETE",) if asked.key:
                check_headers(asked.headers, DELETE_CONDITIONS)
                _delete(repository, asked.key, *map(asked.headers.get, DELETE_CONDITIONS))
                return Response(status_code=204)
            case "POST", "delete":
                work = _delete_many
            case "PUT", "acl":
                work = _keep_rights
            case _:
                raise reading.unknown(named or [asked.method])
        check_headers(asked.headers, conditions)
        _check_body(asked)
        return work(repository, asked)

    def list_uploads(self, repository: Repository, asked: S3Request) -> Response:
        """Answer ListMultipartUploads, by key. Raises ``Refused``."""
        if not asked.asks <= _UPLOADS:
            raise reading.unknown(asked.asks - _UPLOADS)
        query = asked.query
        prefix, marker = query.get("prefix", ""), query.get("key-marker", "")
        limit = reading.number_of(query, "max-uploads", reading.PAGE)
        behind = marker, query.get("upload-id-marker") or "~"
        encoding = {"EncodingType": "url"} if query.get("encoding-type") else {}
        shown = partial(quote, safe="/") if encoding else str
        with self._lock:
            open_ = [(one.place, name, one.begun) for name, one in self._uploads.items() if not one.file.closed]
        here = _bucket(repository)
        mine = sorted((key, name, begun) for (place, key), name, begun in open_ if place == here)
        found = [one for one in mine if one[0].startswith(prefix) and one[:2] > behind]
        page = found[:limit]
        more = 0 < limit < len(found)
        after = {"NextKeyMarker": shown(page[-1][0]), "NextUploadIdMarker": page[-1][1]} if more else {}
        given = elements(Bucket=repository.id, Prefix=shown(prefix), MaxUploads=limit, KeyMarker=shown(marker))
        given += elements(IsTruncated=more, **encoding, **after)
        for key, name, begun in page:
            row = elements(Key=shown(key), UploadId=name, Initiated=answers.timestamp(begun))
            given.append(nest("Upload", row + _KEEPING))
        return document("ListMultipartUploadsResult", given)

    def list_parts(self, repository: Repository, asked: S3Request) -> Response:
        """Answer ListParts. Raises ``Refused``."""
        upload, query = self._upload(repository, asked), asked.query
        with upload.lock:
            upload.require_open()
            page, told = reading.page_of_parts(upload.parts, query)
            parts = {number: upload.parts[number] for number in page}
        rows = elements(Bucket=repository.id, Key=asked.key, UploadId=query["uploadId"]) + told + _KEEPING
        for n, part in parts.items():
            row = elements(
                PartNumber=n, ETag=etag_of(part.sha256), Size=part.size, LastModified=answers.timestamp(upload.begun)
            )
            rows.append(nest("Part", row + sum_elements(part.sums)))
        return document("ListPartsResult", rows)

    def _begin(self, lake: Lake, repository: Repository, asked: S3Request) -> Response:
        branch, path = _branch_and_path(repository, asked.key)
        algorithm = asked.headers.get(_ALGORITHM, "").lower()
        types = TYPES.get(algorithm, ("",))
        kind = asked.headers.get(_TYPE, types[0]).upper()
        if not kind or kind not in types:
            raise Refused(400, "InvalidRequest", f"{_ALGORITHM} {algorithm!r} with {_TYPE} {kind!r} is none of S3's")
        name, begun = self._ids.new(), int(lake.clock.now().timestamp())
        branch.require_stageable()  # or its end would be refused
        check_new_path(path)
        media = check_content_type(asked.headers.get("content-type") or DEFAULT_CONTENT_TYPE)
        pairs = check_metadata(_metadata(asked.headers))
        given_up = None
        with self._lock:
            if len(self._uploads) >= self._most:
                spare = (n for n, one in self._uploads.items() if one.file.closed or begun - one.begun > KEPT_SECONDS)
                if (ended := next(spare, None)) is None:
                    raise Refused(503, "SlowDown", f"{self._most} uploads are under way; complete or abort some")
                given_up = self._uploads.pop(ended)
            place = _bucket(repository), asked.key
            self._uploads[name] = MultipartUpload(place, media, pairs, begun, algorithm, kind)
        if given_up is not None:
            with given_up.lock:  # a part of it may be on its way, and nobody else waits for that
                given_up.file.close()
        fields = elements(Bucket=repository.id, Key=asked.key, UploadId=name)
        answer = document("InitiateMultipartUploadResult", fields)
        answer.headers.update({_ALGORITHM: algorithm.upper(), _TYPE: kind} if algorithm else {})
        return answer

    def _part(self, lake: Lake, repository: Repository, asked: S3Request) -> Response:
        upload = self._upload(repository, asked)
        given = asked.query["partNumber"]
        if not _PART.fullmatch(given) or int(given) > answers.MOST_PARTS:
            raise Refused(400, "InvalidArgument", f"partNumber is 1 to {answers.MOST_PARTS}")
        if SOURCE not in asked.headers:
            sums = _given_sums(asked)
            mark = upload.add(int(given), iter(lambda: asked.body.read(reading.PIECE), b""), sums)
            return Response(headers={"etag": mark, **sums})
        _, source, entry = _find_source(lake, asked.headers)
        wanted = asked.headers.get(f"{_OF_SOURCE}range")
        part = reading.ByteRange(0, entry.size_bytes, is_range=False)
        if wanted is not None:
            found = re.fullmatch(r"bytes=([0-9]{1,18})-([0-9]{1,18})", wanted)
            if found is None or int(found[1]) > int(found[2]):
                raise Refused(400, "InvalidArgument", "x-amz-copy-source-range is bytes=FIRST-LAST")
            if int(found[2]) >= entry.size_bytes:
                raise Refused(400, "InvalidRange", f"the source has {entry.size_bytes} bytes, and the range more")
            part = reading.range_of(entry, wanted)
        body_of = reading.contents(source, entry, part)
        mark = upload.add(int(given), [body_of] if isinstance(body_of, bytes) else body_of)
        return document("CopyPartResult", elements(ETag=mark, LastModified=answers.timestamp(entry.mtime)))

    def _complete(self, repository: Repository, asked: S3Request) -> Response:
        branch, path = _branch_and_path(repository, asked.key)
        listed = [_listed(part) for part in _parse_document(asked, "CompleteMultipartUpload").iterfind("{*}Part")]
        told = tuple((number, mark) for number, mark, _ in listed)
        upload = self._upload(repository, asked)
        with upload.lock:
            if upload.completed is None or upload.completed[0] != told:  # else the client got no answer
                parts = upload.listed(listed)
                size = sum(part.size for part in parts)
                if asked.headers.get("x-amz-mp-object-size", str(size)) != str(size):
                    raise Refused(400, "InvalidRequest", f"the parts have {size} bytes, and not x-amz-mp-object-size")
                if asked.headers.get(_TYPE, upload.kind).upper() != upload.kind:
                    raise Refused(400, "InvalidRequest", f"the upload began with the {_TYPE} {upload.kind!r}")
                with cast("BinaryIO", SpooledTemporaryFile(SPOOL_BYTES)) as whole:
                    kept, sums = upload.join(parts, whole, _given_sums(asked))
                    whole.seek(0)
                    entry = _stage(branch, path, whole, asked, upload.content_type, upload.metadata | kept)
                upload.completed = told, etag(entry), sum_elements(sums)
                upload.parts.clear()
                upload.file.close()
        fields = elements(Bucket=repository.id, Key=asked.key, ETag=upload.completed[1])
        return document("CompleteMultipartUploadResult", fields + upload.completed[2])

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
        if found is None or found.place != (_bucket(repository), asked.key):
            raise Refused(*_NO_UPLOAD)
        return found


@dataclass(frozen=True)
class UploadPart:
    """A part of an upload: its place in the upload's file, its SHA-256, and the sums that came with it by header."""

    start: int
    size: int
    sha256: str
    sums: dict[str, str]


def _listed(part: ET.Element) -> tuple[int, str, dict[str, str]]:
    """Read a part of the list that ends an upload: its number, its ETag without quotes, its checksums by header."""
    number = part.findtext("{*}PartNumber") or ""
    if not _PART.fullmatch(number):
        raise Refused(400, "MalformedXML", "a part has a PartNumber")
    told = ((one.tag.rpartition("}")[2], one.text or "") for one in part)
    sums = {answers.CHECKSUM + tag.removeprefix("Checksum").lower(): text for tag, text in told if "Checksum" in tag}
    return int(number), (part.findtext("{*}ETag") or "").strip('"'), sums


@dataclass
class MultipartUpload:
    """An object on its way in parts, one behind the other in a file without a name, which ends with the process.

    Attributes:
        place: the repository, as ``_bucket`` gives it, and the key.
        lock: held while a part is added, and while the upload ends, so that it ends once.
        algorithm: of the checksum that the client chose, empty for none, and its type in ``kind``.
        completed: the parts that the object was made of, its ETag and its checksums. A client that asks again has the
            first answer: another object may be at the key by now.
    """

    place: tuple[tuple[str, int], str]
    content_type: str
    metadata: dict[str, str]
    begun: int
    algorithm: str
    kind: str
    file: BinaryIO = field(default_factory=lambda: cast("BinaryIO", TemporaryFile()))  # noqa: SIM115 - until the end
    lock: RLock = field(default_factory=RLock)
    parts: dict[int, UploadPart] = field(default_factory=dict)
    completed: tuple[tuple[tuple[int, str], ...], str, list[str]] | None = None

    def add(self, number: int, body: Iterable[bytes], sums: Mapping[str, str] | None = None) -> str:
        """Keep a part, which replaces an earlier one. Returns its ETag. Raises ``Refused`` after the end."""
        digest = hashlib.sha256()
        with self.lock:
            self.require_open()
            start = self.file.seek(0, os.SEEK_END)
            for piece in body:
                digest.update(piece)
                self.file.write(piece)
            self.parts[number] = UploadPart(start, self.file.tell() - start, digest.hexdigest(), dict(sums or {}))
        return etag_of(digest.hexdigest())

    def require_open(self) -> None:
        """Raise ``Refused`` once the upload has ended."""
        if self.file.closed:
            raise Refused(*_NO_UPLOAD)

    def pieces(self, part: UploadPart) -> Iterator[bytes]:
        """The bytes of a part, some at a time."""
        self.file.seek(part.start)
        for at in range(0, part.size, reading.PIECE):
            yield self.file.read(min(reading.PIECE, part.size - at))

    def join(self, parts: list[UploadPart], whole: BinaryIO, given: Mapping[str, str]) -> tuple[dict[str, str], ...]:
        """Write parts one behind the other to a file, and compare what a client says of all. Raises ``Refused``.

        A sum that ends in the number of parts is the one of their sums. Returns what is kept as metadata, and the sums.
        """
        chosen = answers.CHECKSUM + self.algorithm if self.algorithm else next(iter(given), "")
        names = [*{chosen: "", **given}] if chosen else []
        composed = {name for name in names if "-" in given.get(name, "-" if self.kind == "COMPOSITE" else "")}
        sha256, digests = hashlib.sha256(), digests_of(names)
        running = [sha256, *(digest for name, digest in digests.items() if name not in composed)]
        for part in parts:
            for piece in self.pieces(part):
                whole.write(piece)
                for digest in running:
                    digest.update(piece)
            for name in composed:
                digests[name].update(base64.b64decode(self.sum_of(part, name)))
        sums = {name: encoded(one.digest()) + f"-{len(parts)}" * (name in composed) for name, one in digests.items()}
        for name, text in given.items():
            check_digest(name, sums[name], text)
        each = [sums.get(chosen, ""), *(self.sum_of(part, chosen) for part in parts if chosen)]
        size, room = parts[0].size, OBJECT_METADATA_BYTES - sum(len((k + v).encode()) for k, v in self.metadata.items())
        even = 0 < parts[-1].size <= size and {part.size for part in parts[:-1]} <= {size}
        about = f"{sha256.hexdigest()[:16]} {size} {chosen} "
        text = about + (",".join(each) if len(answers.PARTS + about + ",".join(each)) <= room else each[0])
        sums |= {_TYPE: "COMPOSITE" if composed else "FULL_OBJECT"} if sums else {}
        return {answers.PARTS: text} if even and len(answers.PARTS + text) <= room else {}, sums

    def sum_of(self, part: UploadPart, name: str) -> str:
        """The checksum of a part that a header names, in base64. Raises ``Refused`` for one that is not known."""
        if name not in part.sums:
            digest = digests_of([name])[name]
            for piece in self.pieces(part):
                digest.update(piece)
            part.sums[name] = encoded(digest.digest())
        return part.sums[name]

    def listed(self, told: list[tuple[int, str, dict[str, str]]]) -> list[UploadPart]:
        """The parts of a list. Raises ``Refused`` for other than uploaded ones, small ones, and after the end."""
        self.require_open()
        numbers = [number for number, _, _ in told]
        if not numbers or numbers != sorted(set(numbers)):
            code = "InvalidPartOrder" if numbers else "MalformedXML"
            raise Refused(400, code, "the parts are listed in ascending order, and there is at least one")
        parts: list[UploadPart] = []
        for number, mark, sums in told:
            part = self.parts.get(number)
            if part is None or etag_of(part.sha256) != f'"{mark}"':
                raise Refused(400, "InvalidPart", "a part that is listed was not uploaded, or was uploaded again since")
            for name, given in sums.items():
                if self.sum_of(part, name) != given:
                    raise Refused(400, "InvalidPart", f"{name} of part {number} is not the one of its bytes")
            parts.append(part)
        if any(part.size < LEAST_PART for part in parts[:-1]):
            raise Refused(400, "EntityTooSmall", f"each part but the last has at least {LEAST_PART} bytes")
        return parts


def _create_bucket(lake: Lake, asked: S3Request) -> Response:
    """Say that a repository is there, as clients ask before they upload. Raises ``Refused`` always."""
    check_headers(asked.headers, ())
    try:
        lake.repository(asked.bucket)
    except errors.RepositoryNotFound:
        raise Refused(403, "AccessDenied", f"make it with lakeops repo create lakefs://{asked.bucket}") from None
    raise Refused(409, "BucketAlreadyOwnedByYou", f"repository {asked.bucket!r} exists")


def _keep_rights(repository: Repository, asked: S3Request) -> Response:
    """Say that a bucket or an object has the rights that it has, all to its owner. Raises ``Refused`` for others.

    The headers' table knows ``x-amz-acl``. s3cmd gives a copy the rights of its source, in a document.
    """
    if asked.body.read(1) or "x-amz-acl" not in asked.headers:
        asked.body.seek(0)
        leaves = [one for one in _parse_document(asked, "AccessControlPolicy").iter() if not len(one)]
        told = [(one.tag.rpartition("}")[2], one.text) for one in leaves if not one.tag.endswith("DisplayName")]
        if told != [("ID", answers.OWNER), ("ID", answers.OWNER), ("Permission", "FULL_CONTROL")]:
            raise Refused(400, "AccessControlListNotSupported", "rights cannot change: the gateway's keys decide them")
    if asked.key:
        reading.find_object(repository, asked.key)
    return Response()


def _put(repository: Repository, asked: S3Request) -> Response:
    if asked.headers.keys().isdisjoint({"content-length", "transfer-encoding"}):
        raise Refused(411, "MissingContentLength", "the length of the body is not known; send Content-Length")
    branch, _, path = asked.key.partition("/")
    if not path and asked.key.endswith("/") and not asked.body.read(1):  # the folder that a branch is
        repository.branch(branch).commit_id  # noqa: B018 - raises for none
        return Response(headers={"etag": etag_of(hashlib.sha256().hexdigest())})
    target, path = _branch_and_path(repository, asked.key)
    entry = _stage(target, path, asked.body, asked, asked.headers.get("content-type"), _metadata(asked.headers))
    return Response(headers={"etag": etag(entry), **_given_sums(asked)})


def _bucket(repository: Repository) -> tuple[str, int]:
    """The name and the creation date of a repository, which tell it from a later one of its name."""
    return repository.id, repository.record.creation_date


def _copy(lake: Lake, repository: Repository, asked: S3Request) -> Response:
    """Stage the object of another key with its metadata and content type, or with those of the request.

    Within a repository no bytes are copied, except those of a new version of a Delta table. Hadoop renames files so. A
    copy to itself replaces the metadata of the object that is there when it is staged.
    """
    branch, path = _branch_and_path(repository, asked.key)
    absent = "if-none-match" in asked.headers
    if asked.headers.get("if-none-match", "*") != "*":
        raise Refused(501, "NotImplemented", "If-None-Match of a copy is * alone")
    if _ALGORITHM in asked.headers:
        raise Refused(501, "NotImplemented", f"this gateway computes no checksum of a copy; leave {_ALGORITHM} out")
    directive = asked.headers.get("x-amz-metadata-directive", "COPY")
    if directive not in {"COPY", "REPLACE"}:
        raise Refused(400, "InvalidArgument", "x-amz-metadata-directive is COPY or REPLACE")

    def look_and_link() -> Entry:
        owner, source, found = _find_source(lake, asked.headers)
        itself = not absent and (owner.id, source.id, found.path) == (repository.id, branch.id, path)
        if itself and directive == "COPY":
            raise Refused(400, "InvalidRequest", "a copy of an object to itself has to replace its metadata")
        about, media = found.metadata, found.content_type
        if directive == "REPLACE":
            about, media = _metadata(asked.headers), asked.headers.get("content-type") or DEFAULT_CONTENT_TYPE
        with suppress(errors.InvalidInput):  # there may be no room for the parts
            about = check_metadata({**about, **{k: v for k, v in found.metadata.items() if k == answers.PARTS}})
        if owner.id == repository.id and (absent or itself or not _DELTA_COMMIT.fullmatch(path)):
            return branch.link(found, path, metadata=about, content_type=media, if_absent=absent, in_place=itself)
        with source.open_entry(found) as file:
            return _stage(branch, path, cast("BinaryIO", file), asked, media, about)

    # Another one may replace the source after the look.
    entry = retrying(lambda error: isinstance(error, errors.NotAsSeen), Ids())(look_and_link)
    made = elements(ETag=etag(entry), LastModified=answers.timestamp(entry.mtime))
    return document("CopyObjectResult", made + sum_elements(checksum_headers(entry)))


def _find_source(lake: Lake, headers: Mapping[str, str]) -> tuple[Repository, Ref, Entry]:
    named, _, version = headers[SOURCE].partition("?versionId=")
    bucket, _, key = unquote(named).removeprefix("/").partition("/")
    if version not in {"", "null"}:
        raise Refused(501, "NotImplemented", "this gateway has no versions; a key begins with the ref to copy from")
    repository = lake.repository(bucket)
    ref, entry = reading.find_object(repository, key)
    reading.check_conditions(entry, headers, _OF_SOURCE)
    return repository, ref, entry


def _stage(
    branch: Branch, path: str, body: BinaryIO, asked: S3Request, content_type: str | None, metadata: Mapping[str, str]
) -> Entry:
    unmatched, match = asked.headers.get("if-none-match"), asked.headers.get("if-match")
    never_replaced = _DELTA_COMMIT.fullmatch(path) is not None
    implied = unmatched is None and never_replaced

    def attempt() -> Entry:
        body.seek(0)
        there = branch.find(path) if match is not None or unmatched not in {None, "*"} else None
        if match is not None and there is None:
            raise Refused(404, "NoSuchKey", "there is no object at this key, so If-Match cannot hold")
        if there is not None and not never_replaced:
            excluded = unmatched is not None and reading.has_etag(unmatched, there)
            if excluded or not reading.has_etag(match or "*", there):
                raise Refused(412, "PreconditionFailed", "the object is not the one that the condition names")
            return branch.put(path, body, metadata=metadata, content_type=content_type, seen=there)
        absent = never_replaced or unmatched is not None
        return branch.put(path, body, metadata=metadata, content_type=content_type, if_absent=absent)

    try:
        return retrying(lambda error: isinstance(error, errors.NotAsSeen), Ids())(attempt)
    except errors.PathTaken:
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
    except (errors.RefNotFound, errors.InvalidInput):  # clients would take "not found" for an object that is not there
        raise Refused(403, "AccessDenied", f"{excerpt(name)} is no branch; tags and commits never change") from None


def _metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """The user metadata of an object: the client's own, and headers that readers get back as they were."""
    prefix = "x-amz-meta-"
    found = {name.removeprefix(prefix): _decoded(value) for name, value in headers.items() if name.startswith(prefix)}
    for name in answers.KEPT_HEADERS:
        value = headers.get(name, "")
        if name == "content-encoding":  # how the body travels is no property of the object
            value = ",".join(part for part in value.split(",") if part.strip().lower() != "aws-chunked").strip()
        if value:
            found[answers.HEADER + name] = value
    return found


def _decoded(value: str) -> str:
    """Decode a text that a client has encoded as answers have it (RFC 2047)."""
    if not re.fullmatch(r"(=\?utf-8\?[bq]\?[^?\s]*\?=\s*)+", value, re.IGNORECASE):
        return value
    try:
        decoded = str(make_header(decode_header(value)))
    except (LookupError, ValueError):
        return value
    return value if answers.is_plain(decoded) else decoded  # nobody encodes such text: it only looks so


def _given_sums(asked: S3Request) -> dict[str, str]:
    given = {**asked.headers, **asked.trailers}
    return {name: given[name] for name in digests_of(given) if name.startswith(answers.CHECKSUM)}


def _check_body(asked: S3Request) -> None:
    """Compare the body with what the headers say of it. Raises ``Refused``.

    The signatures of chunks were verified while they came.
    """
    signed = asked.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
    body = asked.body
    # The end of an upload tells the checksum of the object, and not of its own body.
    ends = asked.method == "POST" and "uploadId" in asked.query
    told = digests_of([name for name in asked.headers if not (ends and name.startswith(answers.CHECKSUM))])
    sha256 = hashlib.sha256()
    size = 0
    while piece := body.read(reading.PIECE):
        size += len(piece)
        for digest in (*told.values(), sha256):
            digest.update(piece)
    named = asked.headers.get("x-amz-sdk-checksum-algorithm")
    if size and named is not None and not ends and answers.CHECKSUM + named.lower() not in {*told, *asked.trailers}:
        raise Refused(400, "InvalidRequest", f"{named} is announced as the checksum, and none came")
    if signed != "UNSIGNED-PAYLOAD" and not signed.startswith(STREAMING) and signed.lower() != sha256.hexdigest():
        raise Refused(400, "XAmzContentSHA256Mismatch", "the body is not the one that was signed")
    for name, digest in told.items():
        check_digest(name, encoded(digest.digest()), asked.headers[name])
    if not signed.startswith(STREAMING) and asked.headers.get("content-length", str(size)) != str(size):
        raise Refused(400, "IncompleteBody", "the body ended early")
    body.seek(0)


def _parse_document(asked: S3Request, name: str) -> ET.Element:
    text = asked.body.read(MOST_DOCUMENT + 1)
    try:
        plain = len(text) <= MOST_DOCUMENT and b"<!" not in text  # nothing in these documents declares anything
        found = ET.fromstring(text if plain else b"")  # noqa: S314 - it is signed, small, and declares no entities
        if found.tag.rpartition("}")[2] != name:
            raise ET.ParseError
        return found
    except ET.ParseError:
        raise Refused(400, "MalformedXML", "the body is not the XML that this request takes") from None


def _delete(repository: Repository, key: str, match: str | None, date: str | None, size: str | None) -> None:
    """Delete an object, if it is there, under conditions (None for one that is not set). Raises ``Refused``."""
    if key.endswith("/") and key.count("/") == 1:
        return  # the folder that a branch is, which is there while the branch is
    branch, path = _branch_and_path(repository, key)
    seen = None
    if (match, date, size) != (None, None, None):
        if (seen := branch.find(path)) is None:
            return
        told = match is None or reading.has_etag(match, seen), date is None or reading.seconds_of(date) == seen.mtime
        if not all(told) or size not in {None, str(seen.size_bytes)}:
            raise Refused(412, "PreconditionFailed", "the object is not the one of the condition; it was replaced")
    with suppress(errors.ObjectNotFound):
        branch.delete(path, seen=seen)


def _delete_many(repository: Repository, asked: S3Request) -> Response:
    listed = _parse_document(asked, "Delete")
    objects = listed.findall("{*}Object")
    if not 0 < len(objects) <= reading.PAGE:
        raise Refused(400, "MalformedXML", f"a list has 1 to {reading.PAGE} keys")
    rows = []
    for one in objects:
        key = one.findtext("{*}Key") or ""
        try:
            if one.findtext("{*}VersionId", "null") != "null":
                raise Refused(501, "NotImplemented", "this gateway deletes no versions")
            if not {child.tag.rpartition("}")[2] for child in one} <= {"Key", "VersionId", *_OF_ENTRY}:
                raise Refused(501, "NotImplemented", f"this gateway knows no condition but {', '.join(_OF_ENTRY)}")
            _delete(repository, key, *(one.findtext(f"{{*}}{name}") for name in _OF_ENTRY))
        except (errors.LakeopsError, Refused) as error:
            refused = error if isinstance(error, Refused) else answers.refusal(error)
            rows.append(nest("Error", elements(Key=key, Code=refused.code, Message=refused.message)))
        else:
            rows.append(nest("Deleted", elements(Key=key)))
    if (listed.findtext("{*}Quiet") or "").strip().lower() in {"true", "1"}:
        rows = [row for row in rows if row.startswith("<Error>")]
    return document("DeleteResult", rows)
