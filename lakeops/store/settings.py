"""How stores are reached: plain data, hashable and picklable, without secrets (credentials come from boto3's chain)."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from lakeops.model.errors import InvalidSettings

MIN_PART_BYTES = 5 * 1024 * 1024
"""The smallest part, but for the last, that S3 takes in a multipart upload."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What every store of a process is opened with.

    Attributes:
        endpoint_url: an S3-compatible server; AWS when None.
        region: the region; what boto3's configuration says, or ``us-east-1``, when None.
        fsync: whether local files are forced to the disk before a put returns.
        max_attempts: how often one request is made in all before the store counts as unavailable.
        connect_timeout: seconds to wait for a connection.
        read_timeout: seconds to wait for the next bytes of an answer.
        part_bytes: memory that one part of a big upload takes; contents up to this size go in one request.
        parallel_parts: parts of one upload that travel at the same time.
        max_connections: connections kept open to one endpoint by one process.
    """

    endpoint_url: str | None = None
    region: str | None = None
    fsync: bool = True
    max_attempts: int = 5
    connect_timeout: float = 10.0
    read_timeout: float = 60.0
    part_bytes: int = 8 * 1024 * 1024
    parallel_parts: int = 4
    max_connections: int = 32

    def __post_init__(self) -> None:
        if self.endpoint_url is not None:
            _check_endpoint(self.endpoint_url)
        if self.part_bytes < MIN_PART_BYTES:
            raise InvalidSettings(f"part_bytes is {self.part_bytes}; S3 takes no part below {MIN_PART_BYTES}")
        for name in ("max_attempts", "connect_timeout", "read_timeout", "parallel_parts", "max_connections"):
            if getattr(self, name) <= 0:
                raise InvalidSettings(f"{name} is {getattr(self, name)}; give a number above 0")


def _check_endpoint(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, credentials = parts.hostname, parts.username or parts.password
        _ = parts.port
    except ValueError:
        host, credentials = None, None
    if credentials:
        raise InvalidSettings(
            "the S3 endpoint URL carries a user or password; give credentials the way boto3 reads them"
        )
    if host is None or parts.scheme not in {"http", "https"} or parts.query or parts.fragment:
        raise InvalidSettings("the S3 endpoint must look like https://host[:port]; correct LAKEOPS_S3_ENDPOINT_URL")
