"""The interface of an object store.

A store is rooted at one location (a storage namespace, or a place that objects were imported from) and takes keys
relative to it. Keys are byte-exact UTF-8 strings with ``/`` as the separator. Every store keeps three things true:

* a key appears whole or not at all, and a reader never sees a mixture of two writes;
* a listing comes in the order of the keys' UTF-8 bytes;
* no key, however spelled, reaches outside the root.

No commit rests on conditional puts: written files have fresh names, and heads live in the catalog. The claim of a new
namespace and its owner record are written on a condition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import BinaryIO, Protocol
from urllib.parse import urlsplit

from lakeops.model.clock import Ids
from lakeops.model.errors import AlreadyExists, InvalidInput, LakeopsError, invalid_settings
from lakeops.model.records import Credentials
from lakeops.store.layout import PROBE


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object as its store describes it: size in bytes, time of the last write in Unix seconds.

    ``etag`` is the store's own checksum or version mark without quotes, empty where it has none.
    """

    key: str
    size_bytes: int
    mtime: int
    etag: str = ""
    content_type: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Some objects by columns, all of one length: what a scan gives, made for millions.

    ``marks`` are change marks that cost nothing to know: the ETag on remote stores, ``mtime-<ns>-<size>`` on local
    disks, which says nothing of the contents.
    """

    keys: Sequence[str]
    sizes: Sequence[int]
    mtimes: Sequence[int]
    marks: Sequence[str]


@dataclass(frozen=True, slots=True)
class PutResult:
    """The result of a write: size in bytes and the SHA-256 of the contents in hex, computed while they streamed by."""

    size_bytes: int
    checksum: str
    etag: str = ""


@dataclass(frozen=True, slots=True)
class DeleteFailure:
    """A key that the store refused to delete, and why."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Opened:
    """An object that is open for reading.

    ``content_type`` is what the store keeps of it. ``checked`` says whether the end is compared with the store's own
    checksum, which is possible only where that is a digest.
    """

    file: BinaryIO
    content_type: str = ""
    checked: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of a store. Correctness rests on ``consistent_listing`` alone, which all must have."""

    conditional_put: bool = False
    range_reads: bool = False
    metadata_case: bool = False
    etag_is_md5: bool = False
    batch_delete: bool = False
    consistent_listing: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def summary(self) -> str:
        """The abilities in words."""
        fields = asdict(self)
        notes = fields.pop("notes")
        words = [name.replace("_", " ") for name, has in fields.items() if has]
        return "; ".join([", ".join(words) or "no special capabilities", *notes])


class ObjectStore(Protocol):
    """One location of an object store."""

    @property
    def url(self) -> str:
        """The root: ``file:///...``, ``s3://bucket/prefix`` and the like, without a trailing slash."""

    @property
    def remote(self) -> bool:
        """Whether requests cross a network, so that few and large ones, several of them at once, are quickest."""

    def get(self, key: str) -> bytes:
        """The object's contents. Raises ``ObjectNotFound``."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """``length`` bytes from ``start``. Fewer at the end of the object. Raises ``ObjectNotFound``."""

    def open(self, key: str) -> BinaryIO:
        """A seekable binary file that reads the object piece by piece. Raises ``ObjectNotFound``."""

    def open_checked(self, item: StoredObject) -> Opened:
        """An object that was listed, to be read once from start to end.

        The end raises ``Corrupted`` unless it was what the store's own checksum says, where it has one. Raises
        ``ObjectNotFound``, and ``Transient`` when it is not, or not as long as, what was listed any more.
        """

    def copy_from(self, source: ObjectStore, item: StoredObject) -> bool:  # noqa: ARG002 - for stores that can
        """Have the server copy an object of another store to the same key. False where no server can.

        A copy that is not what was listed is removed and raises ``Corrupted``. Raises ``ObjectNotFound``, and
        ``Transient`` when it is not what was listed any more.
        """
        return False

    def make_directory(self, prefix: str) -> None:
        """Make the place ready for programs that write files under ``prefix`` themselves. A bucket needs nothing."""

    def sync(self, keys: Iterable[str]) -> None:
        """Force to the disk what other programs wrote, as ``put`` does with its own. A bucket needs nothing."""

    def put(self, key: str, data: bytes | BinaryIO, *, if_absent: bool = False, content_type: str = "") -> PutResult:
        """Write an object of any size, durably, whole or not at all.

        With ``if_absent`` an existing object raises ``AlreadyExists`` where the store can tell (see ``Capabilities``).
        """

    def swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        """Let a small object hold ``data``, if it holds ``expected`` now (None: if there is no such object).

        Returns whether it holds ``data`` afterwards, whoever wrote that. False when it holds something else; others may
        have replaced ``data`` by then. Of several that swap from the same contents, one succeeds. A server without
        conditional writes is looked at first, so there two that are at it at the same instant may both succeed.
        """

    def head(self, key: str) -> StoredObject:
        """Describe an object without reading it. Raises ``ObjectNotFound``."""

    def delete(self, keys: Iterable[str]) -> list[DeleteFailure]:
        """Delete many. What is not there counts as deleted. Returns what the store refused."""

    def list(self, prefix: str = "", after: str = "") -> Iterator[StoredObject]:
        """Objects whose key starts with ``prefix`` and comes after ``after``, in byte order, paged underneath."""

    def scan(
        self, *, under: str = "", after: str = "", until: str = "", skip_special: bool = False, moving: bool = False
    ) -> Iterator[Listing]:
        """Every object of the location, in byte order, several requests at a time; for callers that must miss none.

        What cannot be an object (a link, a device, a name that is not UTF-8) raises ``InvalidInput`` that names it,
        unless ``skip_special`` leaves such things out. What is seen to change meanwhile raises ``Transient``, unless
        the location is ``moving``: then what comes or goes during the scan may be in it or not, and everything else
        is. A location that is not there raises ``ObjectNotFound``. ``under`` is a folder that ends in a slash: only
        what lies in it is listed, by its whole keys. Of these come the keys behind ``after``, up to ``until`` (empty:
        to the end).
        """

    def borders(self, after: str, count: int) -> Sequence[str]:  # noqa: ARG002 - for stores that can
        """About ``count`` ascending keys behind ``after`` between which scans are worth while, side by side.

        They need not exist. None where a place has no way to guess them.
        """
        return []

    def keeps_versions(self) -> bool:
        """Whether a deleted object lives on as a version (a versioned bucket). False where that cannot be told."""
        return False

    def checksum(self, item: StoredObject) -> str:
        """A checksum of the contents that costs as little as the store allows (S3: the ETag; local: SHA-256)."""

    def presign(self, key: str, expires: int = 900) -> str:
        """A URL that reads the object for ``expires`` seconds. Raises ``unsupported`` where there is no such thing."""

    def probe(self) -> Capabilities:
        """Find out what the store can do, with a few small objects under ``_lakefs/probe/`` that are removed again."""


MIN_PART_BYTES = 5 * 1024 * 1024
"""The smallest part, but for the last, that S3 takes in a multipart upload."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The settings that every store of a process is opened with.

    Attributes:
        endpoint_url: an S3-compatible server. AWS when None.
        region: the region. What boto3's configuration says, or ``us-east-1``, when None.
        fsync: whether local files are forced to the disk before a put returns.
        max_attempts: how often botocore makes a request before the store counts as unavailable.
        connect_timeout: seconds to wait for a connection.
        read_timeout: seconds to wait for the next bytes of an answer.
        part_bytes: memory that one part of a big upload takes. Contents up to this size go in one request.
        parallel_parts: parts of one upload that travel at the same time.
        max_connections: connections kept open to one endpoint by one process.
        credentials: keys of S3. What boto3's chain has when None.
        requester_pays: whether requests to S3 say that who makes them pays for them.
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
    credentials: Credentials | None = None
    requester_pays: bool = False

    def __post_init__(self) -> None:
        if self.endpoint_url is not None:
            _check_endpoint(self.endpoint_url)
        if self.part_bytes < MIN_PART_BYTES:
            raise invalid_settings(f"part_bytes is {self.part_bytes}; S3 takes no part below {MIN_PART_BYTES}")
        for name in ("max_attempts", "connect_timeout", "read_timeout", "parallel_parts", "max_connections"):
            if getattr(self, name) <= 0:
                raise invalid_settings(f"{name} is {getattr(self, name)}; give a number above 0")


def _check_endpoint(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, credentials = parts.hostname, parts.username or parts.password
        _ = parts.port
    except ValueError:
        host, credentials = None, None
    if credentials:
        raise invalid_settings(
            "the S3 endpoint URL carries a user or password; give credentials the way boto3 reads them"
        )
    if host is None or parts.scheme not in {"http", "https"} or parts.query or parts.fragment:
        raise invalid_settings("the S3 endpoint must look like https://host[:port]; correct LAKEOPS_S3_ENDPOINT_URL")


def pieces(data: bytes | BinaryIO, size: int) -> Iterator[bytes | memoryview]:
    """The contents in pieces of ``size`` bytes, the last one shorter. Nothing at all for empty contents.

    A file may answer with less than it was asked for, as pipes and sockets do. What it raises passes through.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        view = memoryview(data).cast("B")
        for start in range(0, len(view), size):
            yield view[start : start + size]
        return
    if not hasattr(data, "read"):
        raise InvalidInput(f"contents must be bytes or a binary file, not {type(data).__name__}")
    while piece := _read(data, size):
        yield piece


class DigestedParts:
    """Parts as they stream by, with the SHA-256 and the size of all that went, and what broke the stream."""

    def __init__(self, parts: Iterator[bytes | memoryview]) -> None:
        self._parts = parts
        self.digest = hashlib.sha256()
        self.size = 0
        self.broke: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            part = bytes(next(self._parts))
        except StopIteration:
            raise
        except BaseException as error:
            self.broke = error
            raise
        self.digest.update(part)
        self.size += len(part)
        return part


def _read(file: BinaryIO, size: int) -> bytes:
    first = _read_some(file, size)
    if len(first) in {0, size}:
        return first
    parts, missing = [first], size - len(first)
    while missing and (part := _read_some(file, missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _read_some(file: BinaryIO, size: int) -> bytes:
    part = file.read(size)
    if not isinstance(part, bytes):
        raise InvalidInput(f"contents must come from a binary file in blocking mode, not {type(part).__name__}")
    return part


def can_put_if_absent(store: ObjectStore, ids: Ids) -> bool:
    """Whether a second put of a key that must be new is refused, and leaves the first one's contents."""
    key = PROBE + ids.new()
    store.put(key, b"first")
    try:
        store.put(key, b"second", if_absent=True)
    except AlreadyExists:
        return store.get(key) == b"first"
    finally:
        store.delete([key])
    return False


def lists_consistently(
    store: ObjectStore, ids: Ids, listing: Callable[[str], Iterator[StoredObject]] | None = None
) -> bool:
    """Whether listings show each write and each deletion from then on. ``listing`` lists, by small pages if it can."""
    listing, folder = listing or store.list, f"{PROBE}{ids.new()}/"
    keys = [folder + name for name in "ab"]
    try:
        for key in keys:
            store.put(key, b"")
        written = [item.key for item in listing(folder)]
    finally:
        store.delete(keys)
    return written == keys and not any(listing(folder))


def can_read_ranges(store: ObjectStore, ids: Ids) -> bool:
    """Whether a piece from the middle comes back as just that piece."""
    key = PROBE + ids.new()
    store.put(key, bytes(range(256)))
    try:
        return store.get_range(key, 100, 8) == bytes(range(100, 108))
    except LakeopsError:
        return False
    finally:
        store.delete([key])
