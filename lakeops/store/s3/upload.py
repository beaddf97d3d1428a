"""Writing an object of any size from a stream, with little memory, whole or not at all.

Contents of one part go in one request. Bigger ones go as a multipart upload, a few parts at a time, which shows
nothing until its last request. Every failure on the way aborts it, so that no hidden parts are left to pay for.

An answer can get lost. Where that matters (a key that must be new, the last request of a multipart upload) the object
carries a mark of this very write, and reading it back tells whose object is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, BinaryIO

from botocore.exceptions import BotoCoreError, ClientError

from lakeops.model.clock import Ids, retrying
from lakeops.model.errors import AlreadyExists
from lakeops.store.base import PutResult, StoreSettings, pieces
from lakeops.store.in_flight import in_flight
from lakeops.store.s3.client import client, code_of, status_of
from lakeops.store.s3.direct import direct

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef


MARK = "lakeops-write"
"""User metadata that tells which write an object comes from."""

_MET_ANOTHER = "ConditionalRequestConflict"

_GROW_AFTER = 1000
"""Parts of one size before they double: 10,000 parts then reach S3's largest object, 5 TiB."""


@dataclass(frozen=True, slots=True)
class ObjectWrite:
    """One write: where to, and under which conditions.

    ``where`` is the object's URL for messages, ``mark`` a fresh name of this write.
    """

    settings: StoreSettings
    bucket: str
    name: str
    where: str
    if_absent: bool
    content_type: str
    mark: str

    def write(self, data: bytes | BinaryIO) -> PutResult:
        """Send the contents. Raises ``AlreadyExists`` with ``if_absent``, and botocore's errors as they are."""
        if isinstance(data, bytes) and len(data) <= self.settings.part_bytes:  # as it is, without a copy
            etag = self._write_whole(data)
            return PutResult(len(data), hashlib.sha256(data).hexdigest(), etag.strip('"'))
        tally = _DigestedParts(_growing_parts(pieces(data, self.settings.part_bytes)))
        first = next(tally, b"")
        second = next(tally, None)
        etag = self._write_whole(first) if second is None else self._write_parts(chain((first, second), tally))
        return PutResult(tally.size, tally.digest.hexdigest(), etag.strip('"'))

    @property
    def client(self) -> S3Client:
        """The client of botocore, made when a request needs it."""
        return client(self.settings)

    # --- one request ---

    def _write_whole(self, body: bytes) -> str:
        way = direct(self.bucket, self.settings)
        attributes = {"Content-Type": self.content_type} if self.content_type else {}
        if way is not None:
            marked = {MARK: self.mark} if self.if_absent else {}
            etag = way.write(self.name, body, {**attributes, **marked}, new=self.if_absent)
            if etag is not None:
                return etag
        params: dict[str, Any] = {**self._target(), **self._kind(), "Body": body}
        if not self.if_absent:
            return self.client.put_object(**params)["ETag"]
        params |= self._marked()
        try:
            return self._write_new(params)
        except ClientError as error:
            if status_of(error) != 501:
                raise
        self._refuse_existing()
        return self.client.put_object(**params)["ETag"]

    def _write_new(self, params: dict[str, Any]) -> str:
        """Write on the condition that nothing is there, again if it met another write of the same key."""

        def write() -> str:
            try:
                return self.client.put_object(**params, IfNoneMatch="*")["ETag"]
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

    # --- many requests ---

    def _write_parts(self, parts: Iterator[bytes]) -> str:
        if self.if_absent:
            self._refuse_existing()
        started = self.client.create_multipart_upload(**self._target(), **self._kind(), **self._marked())
        upload = started["UploadId"]
        try:
            return self._complete(upload, self._send(upload, parts))
        except BaseException:
            with suppress(ClientError, BotoCoreError):
                self.client.abort_multipart_upload(**self._target(), UploadId=upload)
            raise

    def _send(self, upload: str, parts: Iterator[bytes]) -> list[CompletedPartTypeDef]:
        numbered = enumerate(parts, 1)
        etags = in_flight(lambda part: self._send_part(upload, *part), numbered, self.settings.parallel_parts)
        return [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]

    def _send_part(self, upload: str, number: int, part: bytes) -> str:
        return self.client.upload_part(**self._target(), UploadId=upload, PartNumber=number, Body=part)["ETag"]

    def _complete(self, upload: str, parts: list[CompletedPartTypeDef]) -> str:
        params: dict[str, Any] = {**self._target(), "UploadId": upload, "MultipartUpload": {"Parts": parts}}
        if self.if_absent:
            self._refuse_existing()
            params["IfNoneMatch"] = "*"
        try:
            answer = self.client.complete_multipart_upload(**params)
        except (ClientError, BotoCoreError) as error:
            if (etag := self._etag_if_ours(error)) is not None:
                return etag
            if not self.if_absent or not isinstance(error, ClientError) or status_of(error) not in {400, 501}:
                raise
            params.pop("IfNoneMatch")
            answer = self.client.complete_multipart_upload(**params)
        # Ceph, for one, ends an upload without telling the ETag.
        return answer.get("ETag") or self.client.head_object(**self._target())["ETag"]

    # --- who wrote what is there ---

    def _etag_if_ours(self, error: Exception) -> str | None:
        """The ETag when the write went through in spite of its error. ``AlreadyExists`` when another's is there."""
        refused = isinstance(error, ClientError) and status_of(error) == 412
        try:
            found = self.client.head_object(**self._target())
        except (ClientError, BotoCoreError):
            if refused:
                raise AlreadyExists(f"{self.where} exists") from None
            return None
        marks = {name.lower(): value for name, value in found["Metadata"].items()}
        if marks.get(MARK) == self.mark:
            return found["ETag"]
        if refused:
            raise AlreadyExists(f"{self.where} exists") from None
        return None

    def _refuse_existing(self) -> None:
        """The best a server without conditional writes allows: look first."""
        try:
            self.client.head_object(**self._target())
        except ClientError as error:
            if status_of(error) == 404:
                return
            raise
        raise AlreadyExists(f"{self.where} exists")

    def _target(self) -> dict[str, Any]:
        return {"Bucket": self.bucket, "Key": self.name}

    def _kind(self) -> dict[str, Any]:
        return {"ContentType": self.content_type} if self.content_type else {}

    def _marked(self) -> dict[str, Any]:
        return {"Metadata": {MARK: self.mark}}


class _DigestedParts:
    """Parts as they stream by, with the SHA-256 and the size of all that went."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self.digest = hashlib.sha256()
        self.size = 0

    def __iter__(self) -> _DigestedParts:
        return self

    def __next__(self) -> bytes:
        part = next(self._parts)
        self.digest.update(part)
        self.size += len(part)
        return part


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
    """See ``ObjectStore.swap``. A server without conditional writes is asked first, the best that it allows."""
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
