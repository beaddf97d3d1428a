"""Replacing one small object on the condition that it still holds what the caller has seen."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from lakeops.store.s3.failures import code_of, status_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

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
    """The object's contents and its ETag as the server spells it; None where there is no object."""
    try:
        answer = client.get_object(**target)
    except ClientError as error:
        if status_of(error) == 404 and code_of(error) != "NoSuchBucket":
            return None, ""
        raise
    with closing(answer["Body"]) as body:
        return body.read(), answer["ETag"]
