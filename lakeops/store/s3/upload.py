"""Writing an object of any size from a stream, with little memory, whole or not at all.

Contents of one part go in one request. Bigger ones go as a multipart upload, a few parts at a time, which shows
nothing until its last request. Every failure on the way aborts it, so that no hidden parts are left to pay for.

An answer can get lost. Where that matters (a key that must be new, the last request of a multipart upload) the object
carries a mark of this very write, and reading it back tells whose object is there.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, chain, islice, pairwise
from typing import TYPE_CHECKING, Any, BinaryIO
from zlib import crc32

from botocore.exceptions import BotoCoreError, ClientError

from lakeops.model.clock import Ids, retrying
from lakeops.model.errors import AlreadyExists, Corrupted, Transient
from lakeops.store.base import DigestedParts, PutResult, StoredObject, StoreSettings, pieces
from lakeops.store.in_flight import in_flight
from lakeops.store.reader import EtagProof
from lakeops.store.s3.client import client, code_of, status_of
from lakeops.store.s3.direct import direct

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MARK = "lakeops-write"
"""User metadata that tells which write an object comes from."""

_MET_ANOTHER = "ConditionalRequestConflict"

_GROW_AFTER = 1000
"""Parts of one size before they double: 10,000 parts then reach S3's largest object, 5 TiB."""


@dataclass(frozen=True, slots=True)
class ObjectWrite:
    """One write: where to, and under which conditions.

    ``where`` is the object's URL for messages, ``mark`` the name of this write.
    """

    settings: StoreSettings
    bucket: str
    name: str
    where: str
    if_absent: bool
    content_type: str
    mark: str = field(default_factory=lambda: Ids().new())

    def write(self, data: bytes | BinaryIO) -> PutResult:
        """Send the contents. Raises ``AlreadyExists`` with ``if_absent``, and botocore's errors as they are."""
        if isinstance(data, bytes) and len(data) <= self.settings.part_bytes:  # as it is, without a copy
            sha256 = hashlib.sha256(data)
            return PutResult(len(data), sha256.hexdigest(), self._write_whole(data, sha256.digest()).strip('"'))
        digested = DigestedParts(_growing_parts(pieces(data, self.settings.part_bytes)))
        first, second = next(digested, b""), next(digested, None)
        if second is None:
            etag = self._write_whole(first, digested.digest.digest())
        else:
            etag = self._write_parts(chain((first, second), digested))
        return PutResult(digested.size, digested.digest.hexdigest(), etag.strip('"'))

    def _write_whole(self, body: bytes, sha256: bytes) -> str:
        """Write in one request, on a condition where the key must be new and the server has conditions."""
        way = direct(self.bucket, self.settings)
        if way is not None:
            attributes = {"Content-Type": self.content_type} if self.content_type else {}
            marked = {MARK: self.mark} if self.if_absent else {}
            etag = way.write(self.name, body, {**attributes, **marked}, new=self.if_absent)
            if etag is not None:
                return etag
        params: dict[str, Any] = {**self._target, **self._kind, "Body": body, "ChecksumSHA256": _base64(sha256)}
        if self.if_absent:
            params["Metadata"] = {MARK: self.mark}
            try:
                return self._write_new(params)
            except ClientError as error:
                if status_of(error) != 501:
                    raise
            self._refuse_existing()
        return self._client.put_object(**params)["ETag"]

    def _write_new(self, params: dict[str, Any]) -> str:
        """Write on the condition that nothing is there, again if it met another write of the same key."""

        def write() -> str:
            try:
                return self._client.put_object(**params, IfNoneMatch="*")["ETag"]
            except (ClientError, BotoCoreError) as error:
                if (etag := self._etag_if_ours(error)) is not None:
                    return etag
                raise

        again = retrying(
            lambda error: isinstance(error, ClientError) and code_of(error) == _MET_ANOTHER,
            Ids(),
            tries=self.settings.max_attempts,
        )
        return again(write)

    def _write_parts(self, parts: Iterator[bytes]) -> str:
        if self.if_absent:
            self._refuse_existing()
        client, target = self._client, self._target

        def send(part: tuple[int, bytes]) -> dict[str, Any]:
            number, body = part
            told: dict[str, Any] = {"PartNumber": number, "ChecksumCRC32": _base64(crc32(body).to_bytes(4, "big"))}
            return {**told, "ETag": client.upload_part(**target, UploadId=upload, Body=body, **told)["ETag"]}

        kept = {**self._kind, "Metadata": {MARK: self.mark}, "ChecksumAlgorithm": "CRC32"}
        with _multipart_upload(client, target, **kept) as upload:
            sent = in_flight(send, enumerate(parts, 1), self.settings.parallel_parts)
            params: dict[str, Any] = {**target, "UploadId": upload, "MultipartUpload": {"Parts": list(sent)}}
            if self.if_absent:
                self._refuse_existing()
                params["IfNoneMatch"] = "*"
            try:
                answer = client.complete_multipart_upload(**params)
            except (ClientError, BotoCoreError) as error:
                if (etag := self._etag_if_ours(error)) is not None:
                    return etag
                if not self.if_absent or not isinstance(error, ClientError) or status_of(error) not in {400, 501}:
                    raise
                params.pop("IfNoneMatch")
                answer = client.complete_multipart_upload(**params)
            # Ceph, for one, ends an upload without telling the ETag.
            return answer.get("ETag") or client.head_object(**target)["ETag"]

    def _etag_if_ours(self, error: Exception) -> str | None:
        """The ETag when the write went through in spite of its error. ``AlreadyExists`` when another's is there."""
        exists = isinstance(error, ClientError) and status_of(error) == 412
        with suppress(*(() if exists else (ClientError, BotoCoreError))):
            found = self._client.head_object(**self._target)
            if {name.lower(): value for name, value in found["Metadata"].items()}.get(MARK) == self.mark:
                return found["ETag"]
        if exists:
            raise AlreadyExists(f"{self.where} exists") from None
        return None

    def _refuse_existing(self) -> None:
        """Look first: the best that a server without conditional writes allows."""
        try:
            self._client.head_object(**self._target)
        except ClientError as error:
            if status_of(error) == 404:
                return
            raise
        raise AlreadyExists(f"{self.where} exists")

    @property
    def _client(self) -> S3Client:
        return client(self.settings)

    @property
    def _target(self) -> dict[str, Any]:
        return {"Bucket": self.bucket, "Key": self.name}

    @property
    def _kind(self) -> dict[str, Any]:
        return {"ContentType": self.content_type} if self.content_type else {}


@contextmanager
def _multipart_upload(client: S3Client, target: dict[str, Any], **params: Any) -> Iterator[str]:  # noqa: ANN401 - boto3's
    """Begin an upload in parts, and give it up when the ``with`` fails, so that no hidden parts are left to pay for."""
    upload = client.create_multipart_upload(**target, **params)["UploadId"]
    try:
        yield upload
    except BaseException:
        with suppress(ClientError, BotoCoreError):
            client.abort_multipart_upload(**target, UploadId=upload)
        raise


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _growing_parts(small: Iterator[bytes | memoryview]) -> Iterator[bytes]:
    """Parts that double in size as their number grows, because a multipart upload takes 10,000 at most."""
    number = 0
    while group := list(islice(small, 2 ** (number // _GROW_AFTER))):
        yield bytes(group[0]) if len(group) == 1 else b"".join(group)
        number += 1


_MOVED = {404, 409, 412}
"""Statuses that say the object is another one by now."""

_REFUSED = 412


def swap(client: S3Client, target: dict[str, Any], data: bytes, expected: bytes | None) -> bool:
    """See ``ObjectStore.swap``. On a server without conditional writes it reads, compares and then writes."""
    found, etag = _current(client, target)
    if found == data:
        return True
    if found != expected:
        return False
    params: dict[str, Any] = {**target, "Body": data, "ContentType": "application/json"}
    # Older Ceph compares the header with the bare ETag, so the quoted one is refused although nothing changed.
    spellings = dict.fromkeys((etag, etag.strip('"')))
    conditions: list[dict[str, Any]] = [{"IfMatch": one} for one in spellings]
    for condition in [{"IfNoneMatch": "*"}] if expected is None else conditions:
        try:
            client.put_object(**params, **condition)
            return True
        except (ClientError, BotoCoreError) as error:
            if isinstance(error, ClientError) and (status_of(error) == 501 or code_of(error) == "NotImplemented"):
                break
            # The answer to a write that went through may be lost, and its repetition refused.
            now = _current(client, target)[0]
            if now == data:
                return True
            if not isinstance(error, ClientError) or status_of(error) not in _MOVED:
                raise
            if expected is None or now != expected or status_of(error) != _REFUSED:
                return False
    # The server has no such condition, or refuses each spelling of it while the object is what the caller has seen:
    # Ceph 16 does so in buckets that keep versions.
    client.put_object(**params)
    return True


def _current(client: S3Client, target: dict[str, Any]) -> tuple[bytes | None, str]:
    """The object's contents and its ETag as the server spells it. None where there is no object."""
    try:
        answer = client.get_object(**target)
    except ClientError as error:
        if status_of(error) == 404 and code_of(error) != "NoSuchBucket":
            return None, ""
        raise
    with closing(answer["Body"]) as body:
        return body.read(), answer["ETag"]


_UNKNOWN = frozenset({400, 405, 416, 501})
"""Statuses of servers that do not know what a part is."""

_PLAIN = re.compile(r"[0-9a-f]{32}")
_OF_PARTS = re.compile(r"[0-9a-f]{32}-([1-9]\d{0,4})")

Head = Mapping[str, Any]


def is_encrypted(head: Head) -> bool:
    """Whether the object's ETag is no digest, because of how the object is encrypted."""
    return head.get("ServerSideEncryption", "AES256") != "AES256" or bool(head.get("SSECustomerAlgorithm"))


def part_count(etag: str) -> int:
    """The number of parts that an object was sent in. 0 when it came in one request."""
    found = _OF_PARTS.fullmatch(etag)
    return int(found[1]) if found else 0


def part_sizes(client: S3Client, target: dict[str, Any], etag: str, size: int) -> list[int] | None:
    """The sizes of the parts that an object was sent in, in bytes. None when the server does not tell.

    Two requests where all parts but the last are of one size, which is how most programs send them.
    """
    count = part_count(etag)

    @cache
    def part(number: int) -> int | None:
        try:
            head = client.head_object(**target, PartNumber=number)
        except ClientError as error:
            if status_of(error) in _UNKNOWN:
                return None
            raise
        return head["ContentLength"] if head.get("PartsCount") == count else None

    first, last = part(1), part(count)
    if first is None or last is None:
        return None
    if first * (count - 1) + last == size:
        return [first] * (count - 1) + [last]
    sizes = [part(number) for number in range(1, count + 1)]
    known = [size for size in sizes if size is not None]
    return known if len(known) == count and sum(known) == size else None


def proof_of(client: S3Client, target: dict[str, Any], head: Head) -> EtagProof | None:
    """A proof of an object's contents, given what the server says of it. None where there is none."""
    etag = head["ETag"].strip('"')
    if is_encrypted(head):
        return None
    if _PLAIN.fullmatch(etag):
        return EtagProof(etag)
    if part_count(etag):
        sizes = part_sizes(client, target, etag, head["ContentLength"])
        return EtagProof(etag, sizes) if sizes else None
    return None


_MOST_AT_ONCE = 5 * 1024**3
"""Bytes of the largest object that S3 copies in one request."""


@dataclass(frozen=True, slots=True)
class ServerCopy:
    """A copy by the server: its source, its target, and the source object as it was listed.

    ``where`` is the copy's URL for messages. ``parallel`` is how many parts are under way at a time.
    """

    client: S3Client
    source: dict[str, Any]
    target: dict[str, Any]
    item: StoredObject
    where: str
    parallel: int

    def make(self) -> bool:
        """Make the copy. False when this server cannot. Raises botocore's errors, ``Transient`` and ``Corrupted``."""
        count = part_count(self.item.etag)
        sizes = part_sizes(self.client, self.source, self.item.etag, self.item.size_bytes) if count else None
        if sizes is None and self.item.size_bytes > _MOST_AT_ONCE:
            return False
        try:
            if sizes:
                etag = self._in_parts(sizes)
            else:
                etag = self.client.copy_object(**self.target, **self._original)["CopyObjectResult"]["ETag"]
        except ClientError as error:
            if status_of(error) == 412:
                raise self._replaced() from None
            if status_of(error) in {405, 501}:
                return False
            raise
        self._check(etag, same_parts=bool(sizes) or not count)
        return True

    def _in_parts(self, sizes: Sequence[int]) -> str:
        head = self.client.head_object(**self.source)
        kept: dict[str, Any] = {"Metadata": head["Metadata"], "ContentType": head.get("ContentType", "")}

        def copy(span: tuple[int, tuple[int, int]]) -> Any:  # noqa: ANN401 - botocore's
            number, (start, end) = span
            part: dict[str, Any] = {"PartNumber": number, "CopySourceRange": f"bytes={start}-{end - 1}"}
            answer = self.client.upload_part_copy(**self.target, **self._original, **part, UploadId=upload)
            return {"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]}

        with _multipart_upload(self.client, self.target, **kept) as upload:
            copied = in_flight(copy, enumerate(pairwise([0, *accumulate(sizes)]), 1), self.parallel)
            answer = self.client.complete_multipart_upload(
                **self.target, UploadId=upload, MultipartUpload={"Parts": list(copied)}
            )
        return answer.get("ETag") or self.client.head_object(**self.target)["ETag"]

    def _check(self, etag: str, *, same_parts: bool) -> None:
        """Check a copy: one with the original's ETag is right; any other is looked at, and removed when wrong."""
        if same_parts and etag.strip('"') == self.item.etag:
            return
        copy, original = self.client.head_object(**self.target), self.client.head_object(**self.source)
        comparable = same_parts and not is_encrypted(copy) and not is_encrypted(original)
        if not comparable and copy["ContentLength"] == self.item.size_bytes:
            return
        self.client.delete_object(**self.target)
        if original["ETag"].strip('"') != self.item.etag:  # some servers take no heed of the condition
            raise self._replaced()
        raise Corrupted(f"{self.where} arrived with another size or checksum than its original; it was removed again")

    def _replaced(self) -> Transient:
        return Transient(f"{self.where}: its original was replaced while it was copied; copy it again")

    @property
    def _original(self) -> dict[str, Any]:
        """The parameters that say what is copied, and that it is to be unchanged. botocore quotes the name."""
        unchanged = {"CopySourceIfMatch": f'"{self.item.etag}"'} if self.item.etag else {}
        return {"CopySource": dict(self.source), **unchanged}
