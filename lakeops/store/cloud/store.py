"""The store in a container of Azure Blob Storage or a bucket of Google Cloud Storage.

How it keeps the seam's promises: both show an object when all of it arrived, and write on conditions. Listings are
checked to come in byte order. Names are built in one place (``store.keys``). An instance holds settings only, so it
pickles. obstore's clients have threads of their own and do not cross a fork: a process that was forked from one that
had used them is told so.

obstore addresses no name with an empty, ``.`` or ``..`` segment or a control character. lakeops itself writes none.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from lakeops.model.clock import Ids
from lakeops.model.errors import InvalidInput, InvalidPath, LakeopsError, ObjectNotFound, StoreError, Transient
from lakeops.model.text import excerpt
from lakeops.store.base import (
    Capabilities,
    DeleteFailure,
    Listing,
    ObjectStore,
    Opened,
    PutResult,
    StoredObject,
    StoreSettings,
    can_put_if_absent,
    can_read_ranges,
    lists_consistently,
)
from lakeops.store.bucket import BucketStore, check_expiry
from lakeops.store.cloud.client import client, no_bucket, translated
from lakeops.store.cloud.upload import swap, write
from lakeops.store.copy import CheckedFile
from lakeops.store.in_flight import in_flight
from lakeops.store.keys import is_plain, listing_prefix, object_name
from lakeops.store.reader import BUFFER_BYTES, ObjectReader

if TYPE_CHECKING:
    from obstore import ObjectMeta

    from lakeops.store.cloud.client import Client

_BATCH = 1000
_PAGE = 1000


class CloudStore(BucketStore):
    """A container or bucket, or a prefix of one, as an object store.

    Args:
        scheme: ``az`` or ``gs``.
        bucket: the container's or bucket's name.
        prefix: what all names start with, without slashes around it. Empty for all of it.
        settings: timeouts and sizes. Credentials are what obstore finds.
    """

    def __init__(self, scheme: str, bucket: str, prefix: str = "", settings: StoreSettings | None = None) -> None:
        self.scheme = scheme
        self.bucket = bucket
        self.prefix = prefix
        self.settings: StoreSettings = settings or StoreSettings()
        self._bucket_seen = False

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.scheme, self.bucket, self.prefix, self.settings))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        """The root: ``az://container/prefix`` or ``gs://bucket/prefix``, without a trailing slash."""
        root = f"{self.scheme}://{self.bucket}"
        return f"{root}/{self.prefix}" if self.prefix else root

    def get(self, key: str) -> bytes:
        """The object's contents. Raises ``ObjectNotFound``."""
        return self._read(key, {})

    def _get_range(self, key: str, start: int, length: int) -> bytes:
        try:
            return self._read(key, {"range": (start, start + length)})
        except LakeopsError as error:
            # Servers refuse a range that begins behind the end, and obstore has no name for that refusal.
            if isinstance(error, ObjectNotFound) or start < self.head(key).size_bytes:
                raise
            return b""

    def open(self, key: str) -> BinaryIO:
        """A seekable, buffered file. Reads fail if the object is replaced meanwhile. Raises ``ObjectNotFound``."""
        return self._reader(key, self._meta(key))

    def open_checked(self, item: StoredObject) -> Opened:
        """An object to be read once. Its size is checked, and that it stays the one that was listed."""
        import obstore

        with self._translated(item.key):
            found = obstore.get(self._client, self._name(item.key), options={"head": True})
            meta, content_type = found.meta, str(found.attributes.get("Content-Type", ""))
        if meta["size"] != item.size_bytes or (item.etag and _etag(meta) != item.etag):
            raise Transient(f"{self.url}/{item.key} was replaced since it was listed; list it again")
        file = CheckedFile(self._reader(item.key, meta), f"{self.url}/{item.key}", item.size_bytes)
        return Opened(file, content_type)

    def copy_from(self, source: ObjectStore, item: StoredObject) -> bool:  # noqa: ARG002 - the protocol's
        """False: contents are read and written again."""
        return False

    def put(self, key: str, data: bytes | BinaryIO, *, if_absent: bool = False, content_type: str = "") -> PutResult:
        """Write an object of any size. Raises ``AlreadyExists`` with ``if_absent``."""
        name = self._name(key)
        with self._translated(key):
            return write(
                self._client,
                name,
                data,
                settings=self.settings,
                if_absent=if_absent,
                content_type=content_type,
                where=f"{self.url}/{key}",
                root=listing_prefix(self.prefix, ""),
            )

    def swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        """Replace a small object on the condition that it holds ``expected``. See ``ObjectStore.swap``."""
        with self._translated(key):
            return swap(self._client, self._name(key), data, expected)

    def head(self, key: str) -> StoredObject:
        """What the server tells of an object. Raises ``ObjectNotFound``."""
        return _stored(key, self._meta(key))

    def delete(self, keys: Iterable[str]) -> list[DeleteFailure]:
        """Delete many. What is not there counts as deleted. Returns what the store refused."""
        refused: list[DeleteFailure] = []
        source = iter(keys)
        while batch := list(islice(source, _BATCH)):
            fit = []
            for key in batch:
                try:
                    self._name(key)
                    fit.append(key)
                except InvalidPath as error:
                    refused.append(DeleteFailure(key, error.message))
            refused += self._delete(list(dict.fromkeys(fit)))
        return refused

    def list(self, prefix: str = "", after: str = "") -> Iterator[StoredObject]:
        """Objects whose key starts with ``prefix`` and comes after ``after``, in byte order."""
        root = listing_prefix(self.prefix, "")
        wanted, start = listing_prefix(self.prefix, prefix), root + after
        listing_prefix("", after)
        return self._listing(root, wanted, start)

    def scan(self, *, under: str = "", skip_special: bool = False, moving: bool = False) -> Iterator[Listing]:
        """Every object, or every one under a folder, in byte order. See ``ObjectStore.scan``.

        Empty objects are looked at: obstore lists what marks a folder as an object that is not there.
        """
        del moving
        found = self.list(under)
        while page := list(islice(found, _PAGE)):
            special = dict(in_flight(lambda item: (item.key, self._is_marker(item)), page))
            kept = [item for item in page if not special[item.key]]
            if len(kept) < len(page) and not skip_special:
                name = next(item.key for item in page if special[item.key])
                raise InvalidInput(
                    f"bucket {self.bucket!r} holds what cannot be an object: {excerpt(name + '/')} (it marks a "
                    "folder); remove it, or skip special files"
                )
            if kept:
                yield Listing(
                    [item.key for item in kept],
                    [item.size_bytes for item in kept],
                    [item.mtime for item in kept],
                    [item.etag for item in kept],
                )

    def keeps_versions(self) -> bool:
        """False: that cannot be told."""
        return False

    def presign(self, key: str, expires: int = 900) -> str:
        """A URL that reads the object for ``expires`` seconds, a week at most.

        Whoever has it may read the object, so it belongs in no log.
        """
        import obstore

        check_expiry(expires)
        with self._translated(key):
            return obstore.sign(self._client, "GET", self._name(key), timedelta(seconds=expires))

    def probe(self) -> Capabilities:
        """What the server can do."""
        ids = Ids()
        conditional, ranges = can_put_if_absent(self, ids), can_read_ranges(self, ids)
        return Capabilities(conditional, ranges, batch_delete=True, consistent_listing=lists_consistently(self, ids))

    @property
    def _client(self) -> Client:
        return client(self.scheme, self.bucket, self.settings)

    def _translated(self, key: str) -> AbstractContextManager[None]:
        _ = self._client  # says first what is missing
        return translated(self.bucket, f"{self.url}/{key}")

    def _name(self, key: str) -> str:
        name = object_name(self.prefix, key)
        # Azure takes a backslash for a slash, and would keep the object under another name.
        if not is_plain(key) or (self.scheme == "az" and "\\" in key):
            raise InvalidPath(
                f"key {key[:200]!a} has an empty, '.' or '..' segment, a control character or a backslash; "
                f"nothing in {self.scheme}:// can be addressed by it"
            )
        return name

    def _meta(self, key: str) -> ObjectMeta:
        import obstore

        name = self._name(key)
        try:
            with self._translated(key):
                found = obstore.head(self._client, name)
        except ObjectNotFound:
            self._require_bucket()
            raise
        self._bucket_seen = True
        return found

    def _read(self, key: str, options: dict[str, Any]) -> bytes:
        import obstore

        name = self._name(key)
        with self._translated(key):
            return bytes(obstore.get(self._client, name, options=cast("Any", options)).bytes())

    def _reader(self, key: str, meta: ObjectMeta) -> BinaryIO:
        etag = meta["e_tag"]
        unchanged = {"if_match": etag} if etag else {}

        def fetch(start: int, length: int) -> bytes:
            return self._read(key, {**unchanged, "range": (start, start + length)})

        return io.BufferedReader(ObjectReader(meta["size"], fetch), BUFFER_BYTES)

    def _listing(self, root: str, wanted: str, start: str) -> Iterator[StoredObject]:
        import obstore

        folder, last = wanted.rpartition("/")[0], ""
        if folder and not is_plain(folder):
            return
        # What obstore begins behind may be any name that comes before. The rest is left out here.
        offset = max(_fit(start), _fit(wanted[:-1]))
        with self._translated(""):
            for page in obstore.list(self._client, folder or None, offset=offset or None, chunk_size=_PAGE):
                for item in page:
                    name = item["path"]
                    # Garbage collection deletes what a listing shows: a server that cannot list must not go unnoticed.
                    if name <= last or (folder and not name.startswith(folder + "/")):
                        raise StoreError(f"bucket {self.bucket!r} does not list a folder's names in byte order")
                    last = name
                    if name.startswith(wanted):
                        if name > start:
                            yield _stored(name.removeprefix(root), item)
                    elif name > wanted:
                        return

    def _is_marker(self, item: StoredObject) -> bool:
        if item.size_bytes:
            return False
        try:
            self.head(item.key)
        except ObjectNotFound:
            return True
        return False

    def _delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        import obstore

        if not keys:
            return []
        try:
            with self._translated(""):
                obstore.delete(self._client, [self._name(key) for key in keys])
            return []
        except LakeopsError:
            # The first object that is missing or refused ends a batch.
            return [failure for failure in in_flight(self._delete_one, keys) if failure is not None]

    def _delete_one(self, key: str) -> DeleteFailure | None:
        import obstore

        try:
            with self._translated(key):
                obstore.delete(self._client, self._name(key))
        except ObjectNotFound:
            return None
        except Transient:
            raise
        except StoreError as error:
            return DeleteFailure(key, error.message)
        return None

    def _require_bucket(self) -> None:
        """Tell a missing bucket from a missing object, which a HEAD request alone cannot."""
        import obstore

        if not self._bucket_seen:
            try:
                with self._translated(""):
                    next(iter(obstore.list(self._client, chunk_size=1)), None)
            except ObjectNotFound:
                raise no_bucket(self.bucket) from None
            self._bucket_seen = True


def _etag(meta: ObjectMeta) -> str:
    return (meta["e_tag"] or "").strip('"')


def _stored(key: str, meta: ObjectMeta) -> StoredObject:
    return StoredObject(key, meta["size"], int(meta["last_modified"].timestamp()), _etag(meta))


def _fit(name: str) -> str:
    """The longest beginning of a name that obstore takes."""
    parts: list[str] = []
    for part in name.split("/"):
        if not is_plain(part):
            break
        parts.append(part)
    return "/".join(parts)
