"""What an ETag proves: the MD5 of an object's contents, or of its parts' MD5s, as far as it can be known.

An object that was sent in parts has the MD5 of all their MD5s, a dash and how many there were; without the parts'
sizes that says nothing, so the server is asked for them. Objects encrypted with KMS or with a customer's key have
ETags that are no digest at all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from lakeops.store.s3.failures import status_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_UNKNOWN = frozenset({400, 405, 416, 501})
"""Statuses of servers that do not know what a part is."""

_PLAIN = re.compile(r"[0-9a-f]{32}")
_OF_PARTS = re.compile(r"[0-9a-f]{32}-([1-9]\d{0,4})")

Head = Mapping[str, Any]


def is_encrypted(head: Head) -> bool:
    """Whether the object's ETag is no digest, because of how the object is encrypted."""
    return str(head.get("ServerSideEncryption", "")).startswith("aws:kms") or bool(head.get("SSECustomerAlgorithm"))


def part_count(etag: str) -> int:
    """How many parts an object was sent in; 0 when it came in one request."""
    found = _OF_PARTS.fullmatch(etag)
    return int(found[1]) if found else 0


def part_sizes(client: S3Client, target: dict[str, Any], etag: str, size: int) -> list[int] | None:
    """The sizes of the parts that an object was sent in, in bytes; None when the server does not tell.

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
        """Whether all that was fed has the ETag."""
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
    """What tells whether contents are an object's, given what the server says of it; None when nothing does."""
    etag = head["ETag"].strip('"')
    if is_encrypted(head):
        return None
    if _PLAIN.fullmatch(etag):
        return EtagProof(etag)
    if part_count(etag):
        sizes = part_sizes(client, target, etag, head["ContentLength"])
        return EtagProof(etag, sizes) if sizes else None
    return None
