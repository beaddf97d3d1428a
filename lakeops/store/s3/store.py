"""The store in a bucket.

S3 shows an object when all of it arrived. Listings are checked to come in byte order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from botocore.exceptions import BotoCoreError, ClientError

from lakeops.model.clock import Ids, retrying
from lakeops.model.errors import StoreError, Transient
from lakeops.store.base import (
    Capabilities,
    DeleteFailure,
    Listing,
    ObjectStore,
    Opened,
    PutResult,
    StoredObject,
    StoreSettings,
    lists_consistently,
)
from lakeops.store.bucket import BucketStore, listing_prefix
from lakeops.store.layout import PROBE
from lakeops.store.reader import CheckedFile
from lakeops.store.s3.client import CONNECTION, client, code_of, is_vague, status_of, translated, xml_part
from lakeops.store.s3.direct import direct
from lakeops.store.s3.scan import borders, scan
from lakeops.store.s3.upload import ObjectWrite, ServerCopy, proof_of, swap

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef


_METADATA = "lakeops-case"
_WITHOUT = {
    "conditional_put": "conditional puts are not honoured; lakeops looks first where it matters",
    "range_reads": "range requests are not answered with 206; some readers of Parquet refuse that",
    "batch_delete": "batch deletes do not work; objects are deleted one by one",
}
"""Notes on servers without an ability."""


class S3Store(BucketStore):
    """A bucket, or a prefix of one, as an object store. Credentials come from the settings or boto3's chain."""

    def __init__(self, bucket: str, prefix: str = "", settings: StoreSettings | None = None) -> None:
        super().__init__("s3", bucket, prefix, settings)

    def open(self, key: str) -> BinaryIO:
        """A seekable, buffered file. Reads fail if the object is replaced meanwhile. Raises ``ObjectNotFound``."""
        found = self.head(key)
        return self._reader(key, found.size_bytes, found.etag)

    def open_checked(self, item: StoredObject) -> Opened:
        """An object to be read once, checked against its ETag where that is a digest. See ``ObjectStore``."""
        with self._confirming(item.key):
            head = self._client.head_object(**self._request_name(item.key))
            size, etag = head["ContentLength"], head["ETag"].strip('"')
            self._check_listed(item, size, etag)
            proof = proof_of(self._client, self._request_name(item.key), head)
        reader = self._reader(item.key, size, etag)
        file = CheckedFile(reader, f"{self.url}/{item.key}", size, proof)
        return Opened(file, head.get("ContentType", ""), proof is not None)

    def copy_from(self, source: ObjectStore, item: StoredObject) -> bool:
        if not isinstance(source, S3Store):
            return False
        there, here = source.settings, self.settings  # with other keys, one of the two may not see the other's objects
        if (there.endpoint_url, there.credentials) != (here.endpoint_url, here.credentials):
            return False
        original = source._request_name(item.key)  # noqa: SLF001 - another one of this class
        with source._confirming(item.key):  # noqa: SLF001
            target, where = self._request_name(item.key), f"{self.url}/{item.key}"
            return ServerCopy(self._client, original, target, item, where, here.parallel_parts).make()

    def put(self, key: str, data: bytes | BinaryIO, *, if_absent: bool = False, content_type: str = "") -> PutResult:
        name, where = self._name(key), f"{self.url}/{key}"
        with self._translated(key):
            return ObjectWrite(self.settings, self.bucket, name, where, if_absent, content_type).write(data)

    def swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        with self._translated(key):
            return swap(self._client, self._request_name(key), data, expected)

    def head(self, key: str) -> StoredObject:
        name = self._name(key)
        with self._confirming(key):
            way = direct(self.bucket, self.settings)
            if way is not None and (told := way.head(key, name)) is not None:
                return told
            found = self._client.head_object(Bucket=self.bucket, Key=name)
        return _described(key, found["ContentLength"], found)

    def list(self, prefix: str = "", after: str = "") -> Iterator[StoredObject]:
        return self._listing(listing_prefix(self.prefix, prefix), listing_prefix(self.prefix, after) if after else "")

    def scan(
        self, *, under: str = "", after: str = "", until: str = "", skip_special: bool = False, moving: bool = False
    ) -> Iterator[Listing]:
        root = listing_prefix(self.prefix, "")
        names = (f"{root}{key}" if key else "" for key in (after, until))
        with self._translated(""):
            yield from scan(self._client, self.bucket, root, under, *names, skip_special=skip_special, moving=moving)

    def borders(self, after: str, count: int) -> Sequence[str]:
        """Folders, or names that the first page of a flat folder suggests. See ``ObjectStore.borders``."""
        root = listing_prefix(self.prefix, "")
        with self._translated(""):
            found = borders(self._client, self.bucket, root, f"{root}{after}" if after else "", count)
            return [name[len(root) :] for name in found]

    def keeps_versions(self) -> bool:
        """Whether the bucket's versioning is on, as far as the credentials may know."""
        try:
            return self._client.get_bucket_versioning(Bucket=self.bucket).get("Status") == "Enabled"
        except (BotoCoreError, ClientError):
            return False

    def _sign(self, key: str, expires: int) -> str:
        params = {"Bucket": self.bucket, "Key": self._name(key)}
        with self._translated(key):
            return self._client.generate_presigned_url("get_object", Params=params, ExpiresIn=expires)

    def probe(self) -> Capabilities:
        client, body, can = self._client, bytes(range(256)), dict[str, bool]()
        first, second = (self._request_name(PROBE + Ids().new()) for _ in range(2))
        with self._translated(PROBE):
            for target in (first, second):
                client.put_object(**target, Body=body, Metadata={_METADATA: "1"})
            try:
                found = client.head_object(**first)
                can["conditional_put"] = _refuses_second_put(client, first)
                answer = client.get_object(**second, Range="bytes=100-107")
                is_part = answer["ResponseMetadata"]["HTTPStatusCode"] == 206
                can["range_reads"] = is_part and answer["Body"].read() == body[100:108]
            finally:
                can["batch_delete"] = _deletes_batches(client, self.bucket, [first["Key"], second["Key"]])
        return Capabilities(
            **can,
            metadata_case=_METADATA in found["Metadata"],
            etag_is_md5=found["ETag"].strip('"') == hashlib.md5(body, usedforsecurity=False).hexdigest(),
            consistent_listing=lists_consistently(
                self, Ids(), lambda prefix: self._listing(listing_prefix(self.prefix, prefix), "", 1)
            ),
            notes=tuple(note for ability, note in _WITHOUT.items() if not can[ability]),
        )

    @property
    def _client(self) -> S3Client:
        return client(self.settings)

    def _translated(self, key: str) -> AbstractContextManager[None]:
        return translated(self.bucket, f"{self.url}/{key}")

    @contextmanager
    def _confirming(self, key: str) -> Iterator[None]:
        """Turn botocore's errors into lakeops' own. A GET has to say what a HEAD's answer means."""
        with self._translated(key):
            try:
                yield
            except ClientError as error:
                if is_vague(error):
                    self._read(key, 0, 1)
                raise

    def _request_name(self, key: str) -> dict[str, Any]:
        return {"Bucket": self.bucket, "Key": self._name(key)}

    def _read(self, key: str, start: int = 0, length: int | None = None, etag: str = "") -> bytes:
        """The contents or a range of them. A connection that breaks half-way is tried again."""
        name = self._name(key)
        params: dict[str, Any] = {"Bucket": self.bucket, "Key": name}
        if etag:
            params["IfMatch"] = f'"{etag}"'
        if length is not None:
            params["Range"] = f"bytes={start}-{start + length - 1}"
        answered = False

        def ask() -> bytes:
            nonlocal answered
            answered = False
            answer = self._client.get_object(**params)
            answered = True
            return _body(answer, start, length)

        # The client tries again by itself until there is an answer.
        again = retrying(
            lambda error: answered and isinstance(error, CONNECTION), Ids(), tries=self.settings.max_attempts
        )
        with self._translated(key):
            try:
                way = direct(self.bucket, self.settings)
                found = None if way is None else way.read(name, start, length, etag)
                return again(ask) if found is None else found
            except ClientError as error:
                if length is not None and status_of(error) == 416:
                    return b""
                if etag and status_of(error) == 412:
                    raise Transient(f"{self.url}/{key} was replaced while it was read; open it again") from None
                raise

    def _listing(self, prefix: str, after: str, page_size: int | None = None) -> Iterator[StoredObject]:
        root, last = listing_prefix(self.prefix, ""), ""
        asked, pages_of = xml_part(prefix), self._client.get_paginator("list_objects_v2").paginate
        size: Any = {"PageSize": page_size} if page_size else {}
        pages = pages_of(Bucket=self.bucket, Prefix=asked, StartAfter=xml_part(after), PaginationConfig=size)
        with self._translated(""):
            for item in (item for page in pages for item in page.get("Contents", ())):
                name = item["Key"]
                # Garbage collection deletes what a listing shows: a server that cannot list must not go unnoticed.
                if name <= last or not name.startswith(asked):
                    raise StoreError(f"bucket {self.bucket!r} does not list names in byte order; use another server")
                last = name
                if name > after and name.startswith(prefix) and name != root:
                    yield _described(name.removeprefix(root), item["Size"], item)

    def _delete_batch(self, names: dict[str, str]) -> Iterator[DeleteFailure]:
        """Delete objects, given as name to key: in one request but for names that XML cannot spell."""
        batch = [name for name in names if xml_part(name) == name]
        singles = [name for name in names if xml_part(name) != name]
        with self._translated(""):
            if batch:
                try:
                    answer = self._client.delete_objects(
                        Bucket=self.bucket, Delete={"Objects": [{"Key": name} for name in batch], "Quiet": True}
                    )
                except ClientError as error:
                    if status_of(error) not in {400, 405, 501}:
                        raise
                    singles += batch
                else:
                    for one in answer.get("Errors", ()):
                        yield DeleteFailure(names[one["Key"]], one.get("Code", "refused"))
            for name in singles:
                try:
                    self._client.delete_object(Bucket=self.bucket, Key=name)
                except ClientError as error:
                    if status_of(error) != 403:
                        raise
                    yield DeleteFailure(names[name], code_of(error))


def _described(key: str, size: int, told: Mapping[str, Any]) -> StoredObject:
    """An object as botocore describes it."""
    modified, etag = int(told["LastModified"].timestamp()), told["ETag"].strip('"')
    return StoredObject(key, size, modified, etag, told.get("ContentType", ""))


def _body(answer: GetObjectOutputTypeDef, start: int, length: int | None) -> bytes:
    with closing(answer["Body"]) as body:
        if length is None or answer.get("ContentRange"):
            return body.read()
        # The server sent the object from its first byte.
        return body.read(start + length)[start:]


def _refuses_second_put(client: S3Client, target: dict[str, Any]) -> bool:
    try:
        client.put_object(**target, Body=b"second", IfNoneMatch="*")
    except ClientError as error:
        if status_of(error) in {412, 501, 400}:
            return status_of(error) == 412
        raise
    return False


def _deletes_batches(client: S3Client, bucket: str, names: list[str]) -> bool:
    try:
        answer = client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": name} for name in names]})
        done = not answer.get("Errors")
    except ClientError:
        done = False
    if not done:
        for name in names:
            client.delete_object(Bucket=bucket, Key=name)
    return done
