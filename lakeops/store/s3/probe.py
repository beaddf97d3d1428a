"""Trying out what an S3 server really does; see ``docs/stores.md`` for what was found where."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from lakeops.model.clock import Ids
from lakeops.store.base import Capabilities
from lakeops.store.s3.failures import status_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_METADATA = "lakeops-case"


def probe(client: S3Client, bucket: str, prefix: str) -> Capabilities:
    """What the server can do, with two objects whose names start with ``prefix`` and are removed again."""
    names = [prefix + Ids().new() for _ in range(2)]
    body = bytes(range(256))
    for name in names:
        client.put_object(Bucket=bucket, Key=name, Body=body, Metadata={_METADATA: "1"})
    notes: list[str] = []
    try:
        found = client.head_object(Bucket=bucket, Key=names[0])
        conditional = _refuses_second_put(client, bucket, names[0])
        if not conditional:
            notes.append("conditional puts are not honoured; lakeops looks first where it matters")
        ranges = _reads_ranges(client, bucket, names[1], body)
        if not ranges:
            notes.append("range requests are not answered with 206; some readers of Parquet refuse that")
    finally:
        batch = _deletes_batches(client, bucket, names)
        if not batch:
            notes.append("batch deletes do not work; objects are deleted one by one")
    return Capabilities(
        conditional_put=conditional,
        range_reads=ranges,
        metadata_case=_METADATA in found["Metadata"],
        etag_is_md5=found["ETag"].strip('"') == hashlib.md5(body, usedforsecurity=False).hexdigest(),
        batch_delete=batch,
        notes=tuple(notes),
    )


def _refuses_second_put(client: S3Client, bucket: str, name: str) -> bool:
    try:
        client.put_object(Bucket=bucket, Key=name, Body=b"second", IfNoneMatch="*")
    except ClientError as error:
        if status_of(error) in {412, 501, 400}:
            return status_of(error) == 412
        raise
    return False


def _reads_ranges(client: S3Client, bucket: str, name: str, body: bytes) -> bool:
    answer = client.get_object(Bucket=bucket, Key=name, Range="bytes=100-107")
    return answer["ResponseMetadata"]["HTTPStatusCode"] == 206 and answer["Body"].read() == body[100:108]


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
