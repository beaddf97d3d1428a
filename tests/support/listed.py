"""The answer to a listing, from names in memory."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from threading import Lock

from lakeops.model.errors import ObjectNotFound
from lakeops.store.base import StoredObject
from lakeops.store.s3.scan import scan

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


class Bucket:
    """S3's answer to a listing, from names in memory.

    Args:
        names: what is there.
        page: how many names and folders a page has.
        asking: entered around each request.
        before: called before each request, to change what is there.
    """

    def __init__(
        self,
        names: list[str],
        page: int,
        asking: Callable[[], AbstractContextManager[None]] = nullcontext,
        before: Callable[[list[str]], None] = lambda _: None,
    ) -> None:
        self.names = sorted(names)
        self.requests = 0
        self._page, self._asking, self._before = page, asking, before
        self._lock = Lock()

    def list_objects_v2(self, **asked: str) -> dict:
        with self._asking(), self._lock:
            self.requests += 1
            self._before(self.names)
            after = asked.get("ContinuationToken") or asked.get("StartAfter", "")
            return self._answer(asked["Prefix"], asked.get("Delimiter", ""), after)

    def _answer(self, prefix: str, delimiter: str, after: str) -> dict:
        objects, folders, last = [], [], after
        for name in self.names[bisect_right(self.names, after) :]:
            if not name.startswith(prefix) or (folders and name.startswith(folders[-1])):
                continue
            if delimiter and after.endswith(delimiter) and name.startswith(after):
                continue  # the page before ended with this folder
            if len(objects) + len(folders) == self._page:
                break
            end = name.find(delimiter, len(prefix)) + 1 if delimiter else 0
            if end:
                folders.append(name[:end])
            else:
                objects.append({"Key": name, "Size": len(name), "LastModified": MOMENT, "ETag": '"e"'})
            last = name[:end] or name
        else:
            return {"Contents": objects, "CommonPrefixes": [{"Prefix": one} for one in folders], "IsTruncated": False}
        return {
            "Contents": objects,
            "CommonPrefixes": [{"Prefix": one} for one in folders],
            "IsTruncated": True,
            "NextContinuationToken": last,
        }


def scanned(bucket: Bucket, root: str = "", **options: bool) -> list[str]:
    listings = scan(bucket, "bucket", root, **{"skip_special": False, **options})
    return [key for listing in listings for key in listing.keys]


class Named:
    """A store of names alone; counts names listed and objects asked for."""

    url = "s3://bucket"

    def __init__(self, keys) -> None:
        self.keys = sorted(keys)
        self.counts: Counter[str] = Counter()

    def head(self, key):
        self.counts["head"] += 1
        if key not in set(self.keys):
            raise ObjectNotFound(key)
        return StoredObject(key, len(key), 0)

    def list(self, prefix="", after=""):
        for key in self.keys:
            if key.startswith(prefix) and key > after:
                self.counts["listed"] += 1
                yield StoredObject(key, len(key), 0)
