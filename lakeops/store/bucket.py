"""Stores in buckets: names of objects, the parts that all servers share, and clients that a process makes once."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TypeVar

from lakeops.model.errors import InvalidInput, InvalidPath, StoreError, Transient
from lakeops.store.base import DeleteFailure, ObjectStore, StoredObject, StoreSettings
from lakeops.store.reader import BUFFER_BYTES, ObjectReader

if TYPE_CHECKING:
    from obstore import ObjectMeta

MAX_NAME_BYTES = 1024

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def is_plain(name: str) -> bool:
    """Whether obstore takes a name as it is: no empty, ``.`` or ``..`` segment, and no control character."""
    return not _CONTROL.search(name) and all(part not in {"", ".", ".."} for part in name.split("/"))


def object_name(prefix: str, key: str) -> str:
    """The object's name in the bucket. Raises ``InvalidPath``."""
    if not key:
        raise InvalidPath("a key must not be empty")
    name = listing_prefix(prefix, key)
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidPath(
            f"key {key[:200]!a} is too long: with the namespace's prefix it is over {MAX_NAME_BYTES} bytes"
        )
    depth = 0
    for segment in key.split("/"):
        depth += {"": 0, ".": 0, "..": -1}.get(segment, 1)
        if depth < 0:
            raise InvalidPath(f"key {key[:200]!a} climbs out of the storage namespace")
    return name


def listing_prefix(prefix: str, part: str) -> str:
    """The beginning of names that a listing looks for. Any text will do, but NUL and lone surrogates are refused."""
    try:
        raw = part.encode()
    except UnicodeError:
        raise InvalidPath(f"key {part[:200]!a} holds a lone surrogate, which is no text") from None
    if b"\0" in raw:
        raise InvalidPath(f"key {part[:200]!a} holds NUL, which no object name may")
    return f"{prefix}/{part}" if prefix else part


_LONGEST_PRESIGN = 7 * 24 * 3600
ACCESS_POINT = re.compile(r"arn:aws[a-z-]*:s3:([a-z0-9-]+):(\d{12}):accesspoint:([a-z0-9-]{3,50})")
"""The ARN of an access point of S3, which stands for a bucket: its region, account and name."""

_BATCH = 1000
"""Keys that one batch delete takes at most."""


class BucketStore(ObjectStore, ABC):
    """A bucket, or a prefix of one: the parts of ``ObjectStore`` that are equal for all servers.

    All names start with ``prefix``, which has no slashes around it and is empty for the whole bucket. It holds settings
    only, so it pickles and crosses a fork.
    """

    remote = True

    def __init__(self, scheme: str, bucket: str, prefix: str = "", settings: StoreSettings | None = None) -> None:
        self.scheme = scheme
        self.bucket = bucket
        self.prefix = prefix
        self.settings: StoreSettings = settings or StoreSettings()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        """The root: ``s3://bucket/prefix`` and the like, without a trailing slash."""
        root = f"{self.scheme}://{self.bucket}"
        return f"{root}/{self.prefix}" if self.prefix else root

    def get(self, key: str) -> bytes:
        return self._read(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise InvalidInput(f"a range starts at 0 or later and has no negative length, not {start}, {length}")
        if length == 0:
            self.head(key)
            return b""
        return self._read(key, start, length)

    @abstractmethod
    def _read(self, key: str, start: int = 0, length: int | None = None, etag: str = "") -> bytes:
        """The contents, or at least one byte from a place that may be behind the end; with ``etag`` of that version."""

    def _reader(self, key: str, size: int, etag: str) -> BinaryIO:
        raw = ObjectReader(size, lambda start, length: self._read(key, start, length, etag))
        return io.BufferedReader(raw, BUFFER_BYTES)

    def _check_listed(self, item: StoredObject, size: int, etag: str) -> None:
        if size != item.size_bytes or (item.etag and etag != item.etag):
            raise Transient(f"{self.url}/{item.key} was replaced since it was listed; list it again")

    def delete(self, keys: Iterable[str]) -> list[DeleteFailure]:
        refused: list[DeleteFailure] = []
        remaining = iter(keys)
        while batch := list(islice(remaining, _BATCH)):
            names: dict[str, str] = {}
            for key in batch:
                try:
                    names[self._name(key)] = key
                except InvalidPath as error:
                    refused.append(DeleteFailure(key, error.message))
            if names:
                refused += self._delete_batch(names)
        return refused

    @abstractmethod
    def _delete_batch(self, names: dict[str, str]) -> Iterable[DeleteFailure]:
        """Delete some objects, given as name to key."""

    def make_directory(self, prefix: str) -> None:
        pass  # a bucket has no directories

    def sync(self, keys: Iterable[str]) -> None:
        pass  # what a bucket acknowledged is durable

    def presign(self, key: str, expires: int = 900) -> str:
        """A URL that reads the object for ``expires`` seconds, a week at most.

        Whoever has it may read the object, so it belongs in no log.
        """
        if not 0 < expires <= _LONGEST_PRESIGN:
            raise InvalidInput(f"a presigned URL is valid for 1 to {_LONGEST_PRESIGN} seconds, not {expires}")
        return self._sign(key, expires)

    @abstractmethod
    def _sign(self, key: str, expires: int) -> str:
        """Sign a request that reads an object."""

    def checksum(self, item: StoredObject) -> str:
        """The ETag, which costs nothing when the item comes from a listing."""
        return item.etag or self.head(item.key).etag

    def _name(self, key: str) -> str:
        return object_name(self.prefix, key)


def etag_of(meta: ObjectMeta) -> str:
    """The ETag in a description of obstore's, without quotes; empty where there is none."""
    return (meta["e_tag"] or "").strip('"')


def stored(key: str, meta: ObjectMeta, content_type: str = "") -> StoredObject:
    """An object as obstore describes it."""
    return StoredObject(key, meta["size"], int(meta["last_modified"].timestamp()), etag_of(meta), content_type)


def no_bucket(bucket: str, place: str) -> StoreError:
    """The error for a bucket or container that is not there."""
    return StoreError(f"bucket {bucket!r} does not exist; create it, or correct the storage namespace or the {place}")


class LazyModule:
    """A module that is imported when something of it is first needed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the module has
        return getattr(import_module(self._name), name)


K = TypeVar("K")
V = TypeVar("V")


class PerProcess(Generic[K, V]):
    """Values by key, each made when it is first asked for. Threads may share it.

    Args:
        make: makes the value of a key.
        keep: whether a child process keeps those of its parent. To drop a client of obstore would wait for threads
            that are not there. ``threads_lost`` tells where they must not be used.
    """

    def __init__(self, make: Callable[[K], V], *, keep: bool = False) -> None:
        self._make = make
        self._keep = keep
        self._made: dict[K, V] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def get(self, key: K) -> V:
        """The value of a key."""
        if key not in self._made:
            with self._lock:
                if key not in self._made:
                    self._made[key] = self._make(key)
        return self._made[key]

    def _forget(self) -> None:
        self._lock = threading.Lock()  # a thread of the parent may have held the one before
        if not self._keep:
            self._made = {}


_forks_with_obstore: list[bool] = []
os.register_at_fork(after_in_child=lambda: _forks_with_obstore.append("obstore" in sys.modules))


def threads_lost() -> bool:
    """Whether this process was forked from one that had loaded obstore, whose threads do not cross a fork."""
    return any(_forks_with_obstore)
