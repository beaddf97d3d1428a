"""What all stores in buckets share, whoever serves them."""

from __future__ import annotations

from collections.abc import Iterable

from lakeops.model.errors import InvalidInput
from lakeops.store.base import StoredObject

_LONGEST_PRESIGN = 7 * 24 * 3600


class BucketStore:
    """A bucket, or a prefix of one: the parts of ``ObjectStore`` that no server has a say in."""

    remote = True

    def head(self, key: str) -> StoredObject:
        """What the server tells of an object. Raises ``ObjectNotFound``."""
        raise NotImplementedError

    def _get_range(self, key: str, start: int, length: int) -> bytes:
        """At least one byte from a place that may be behind the end."""
        raise NotImplementedError

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """``length`` bytes from ``start``. Fewer at the end of the object. Raises ``ObjectNotFound``."""
        if start < 0 or length < 0:
            raise InvalidInput(f"a range starts at 0 or later and has no negative length, not {start}, {length}")
        if length == 0:
            self.head(key)
            return b""
        return self._get_range(key, start, length)

    def make_directory(self, prefix: str) -> None:
        """Nothing: a bucket has no directories."""

    def sync(self, keys: Iterable[str]) -> None:
        """Nothing: what a bucket acknowledged is durable."""

    def checksum(self, item: StoredObject) -> str:
        """The ETag, which costs nothing when the item comes from a listing."""
        return item.etag or self.head(item.key).etag


def check_expiry(seconds: int) -> None:
    """Raise ``InvalidInput`` unless a presigned URL may be valid for so long."""
    if not 0 < seconds <= _LONGEST_PRESIGN:
        raise InvalidInput(f"a presigned URL is valid for 1 to {_LONGEST_PRESIGN} seconds, not {seconds}")
