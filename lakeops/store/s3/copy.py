"""Copies that the server makes: from one name to another, of any size, without the contents coming here.

An object that was sent in parts is copied in the same parts: the copy then has the ETag of the original, which proves
that it is one, and the checksum that an entry of lakeops keeps goes on being true.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from lakeops.model.errors import Corrupted, Transient
from lakeops.store.base import StoredObject
from lakeops.store.in_flight import in_flight
from lakeops.store.s3.client import status_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


_UNKNOWN = frozenset({400, 405, 416, 501})
"""Statuses of servers that do not know what a part is."""

_PLAIN = re.compile(r"[0-9a-f]{32}")
_OF_PARTS = re.compile(r"[0-9a-f]{32}-([1-9]\d{0,4})")

Head = Mapping[str, Any]


def is_encrypted(head: Head) -> bool:
    """Whether the object's ETag is no digest, because of how the object is encrypted."""
    return head.get("ServerSideEncryption", "AES256") != "AES256" or bool(head.get("SSECustomerAlgorithm"))


def part_count(etag: str) -> int:
    """How many parts an object was sent in. 0 when it came in one request."""
    found = _OF_PARTS.fullmatch(etag)
    return int(found[1]) if found else 0


def part_sizes(client: S3Client, target: dict[str, Any], etag: str, size: int) -> list[int] | None:
    """The sizes of the parts that an object was sent in, in bytes. None when the server does not tell.

    Two requests where all parts but the last are of one size, which is how most programs send them.
    """
    count = part_count(etag)
    asked: dict[int, int] = {}

    def part(number: int) -> int | None:
        if number not in asked:
            try:
                head = client.head_object(**target, PartNumber=number)
            except ClientError as error:
                if status_of(error) in _UNKNOWN:
                    return None
                raise
            if head.get("PartsCount") != count:
                return None
            asked[number] = head["ContentLength"]
        return asked[number]

    first, last = part(1), part(count)
    if first is None or last is None:
        return None
    if first * (count - 1) + last == size:
        return [first] * (count - 1) + [last]
    sizes = [part(number) for number in range(1, count + 1)]
    known = [size for size in sizes if size is not None]
    return known if len(known) == count and sum(known) == size else None


class EtagProof:
    """Tells whether contents have an ETag.

    Args:
        etag: as the server gives it, without quotes.
        sizes: of the parts, for an ETag of parts.
    """

    def __init__(self, etag: str, sizes: Sequence[int] = ()) -> None:
        self._etag = etag
        self._left = list(reversed(sizes))
        self._whole = hashlib.md5(usedforsecurity=False)
        self._part = hashlib.md5(usedforsecurity=False)
        self._room = self._left.pop() if self._left else 0
        self._count = len(sizes)

    def update(self, data: bytes) -> None:
        """Take the next bytes."""
        if not self._count:
            self._whole.update(data)
            return
        view = memoryview(data)
        while view:
            taken = view[: self._room] if self._left else view
            self._part.update(taken)
            self._room -= len(taken)
            view = view[len(taken) :]
            if not self._room and self._left:
                self._end_part()
                self._room = self._left.pop()

    def holds(self) -> bool:
        """Whether the bytes that were fed have the ETag."""
        if not self._count:
            return self._whole.hexdigest() == self._etag
        if self._left or self._room:
            return False
        whole = self._whole.copy()
        whole.update(self._part.digest())
        return f"{whole.hexdigest()}-{self._count}" == self._etag

    def _end_part(self) -> None:
        self._whole.update(self._part.digest())
        self._part = hashlib.md5(usedforsecurity=False)


def proof_of(client: S3Client, target: dict[str, Any], head: Head) -> EtagProof | None:
    """What tells whether contents are an object's, given what the server says of it. None when nothing does."""
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
    """One copy: from where to where, and what was listed there.

    ``where`` is the copy's URL for messages. ``parallel`` is how many parts are under way at a time.
    """

    client: S3Client
    source: dict[str, Any]
    target: dict[str, Any]
    item: StoredObject
    where: str
    parallel: int

    def make(self) -> bool:
        """Copy. False when this server cannot. Raises botocore's errors, ``Transient`` and ``Corrupted``."""
        count = part_count(self.item.etag)
        sizes = part_sizes(self.client, self.source, self.item.etag, self.item.size_bytes) if count else None
        if sizes is None and self.item.size_bytes > _MOST_AT_ONCE:
            return False
        try:
            etag = self._in_parts(sizes) if sizes else self._whole()
        except ClientError as error:
            if status_of(error) == 412:
                raise self._replaced() from None
            if status_of(error) in {405, 501}:
                return False
            raise
        self._check(etag, same_parts=bool(sizes) or not count)
        return True

    def _whole(self) -> str:
        answer = self.client.copy_object(**self.target, CopySource=self._from, **self._unchanged)
        return answer["CopyObjectResult"]["ETag"]

    def _in_parts(self, sizes: Sequence[int]) -> str:
        head = self.client.head_object(**self.source)
        kept: dict[str, Any] = {"Metadata": head["Metadata"], "ContentType": head.get("ContentType", "")}
        upload = self.client.create_multipart_upload(**self.target, **kept)["UploadId"]
        try:
            ends = accumulate(sizes)
            spans = enumerate(pairwise([0, *ends]), 1)
            etags = in_flight(lambda span: self._part(upload, span[0], *span[1]), spans, self.parallel)
            parts: list[Any] = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
            answer = self.client.complete_multipart_upload(
                **self.target, UploadId=upload, MultipartUpload={"Parts": parts}
            )
        except BaseException:
            with suppress(ClientError, BotoCoreError):
                self.client.abort_multipart_upload(**self.target, UploadId=upload)
            raise
        return answer.get("ETag") or self.client.head_object(**self.target)["ETag"]

    def _part(self, upload: str, number: int, start: int, end: int) -> str:
        answer = self.client.upload_part_copy(
            **self.target,
            UploadId=upload,
            PartNumber=number,
            CopySource=self._from,
            CopySourceRange=f"bytes={start}-{end - 1}",
            **self._unchanged,
        )
        return answer["CopyPartResult"]["ETag"]

    def _check(self, etag: str, *, same_parts: bool) -> None:
        """Believe in a copy with the original's ETag; else look at it, and remove it when it is not one."""
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
    def _from(self) -> Any:  # noqa: ANN401 - botocore quotes it
        return dict(self.source)

    @property
    def _unchanged(self) -> dict[str, Any]:
        return {"CopySourceIfMatch": f'"{self.item.etag}"'} if self.item.etag else {}
