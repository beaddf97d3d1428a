"""Copies that the server makes: from one name to another, of any size, without the contents coming here.

An object that was sent in parts is copied in the same parts: the copy then has the ETag of the original, which proves
that it is one, and the checksum that an entry of lakeops keeps goes on being true.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from lakeops.model.errors import Corrupted, Transient
from lakeops.store.base import StoredObject
from lakeops.store.s3.etag import is_encrypted, part_count, part_sizes
from lakeops.store.s3.failures import status_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_MOST_AT_ONCE = 5 * 1024**3
"""Bytes of the largest object that S3 copies in one request."""


@dataclass(frozen=True, slots=True)
class ServerCopy:
    """One copy: from where to where, and what was listed there.

    ``where`` is the copy's URL for messages; ``parallel`` is how many parts are under way at a time.
    """

    client: S3Client
    source: dict[str, Any]
    target: dict[str, Any]
    item: StoredObject
    where: str
    parallel: int

    def make(self) -> bool:
        """Copy; False when this server cannot. Raises botocore's errors, ``Transient`` and ``Corrupted``."""
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
            ends = [*accumulate(sizes)]
            with ThreadPoolExecutor(self.parallel, thread_name_prefix="lakeops-copy") as pool:
                etags = [
                    *pool.map(lambda at: self._part(upload, at, ends[at] - sizes[at], ends[at]), range(len(sizes)))
                ]
            parts: list[Any] = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
            answer = self.client.complete_multipart_upload(
                **self.target, UploadId=upload, MultipartUpload={"Parts": parts}
            )
        except BaseException:
            with suppress(ClientError, BotoCoreError):
                self.client.abort_multipart_upload(**self.target, UploadId=upload)
            raise
        return answer.get("ETag") or self.client.head_object(**self.target)["ETag"]

    def _part(self, upload: str, at: int, start: int, end: int) -> str:
        answer = self.client.upload_part_copy(
            **self.target,
            UploadId=upload,
            PartNumber=at + 1,
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
