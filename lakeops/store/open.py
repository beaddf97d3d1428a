"""Locations and addresses: from a URL to a store, and from a physical address to a store and a key.

The one place that knows which schemes exist, takes URLs apart and writes them in one way. So two spellings of a storage
namespace cannot pass for two places. ``file://`` URLs are percent-encoded where a path needs it. Those of buckets
(``s3://``, ``gs://``, and ``az://`` with a container in the bucket's place) are not encoded, which is how every tool
writes them: what follows the bucket is the key, byte for byte. boto3 and obstore are imported when such a store is
first used, not here.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from lakeops.model.errors import InvalidInput, PreconditionFailed
from lakeops.model.sanitising import excerpt
from lakeops.store.base import ObjectStore, StoreSettings
from lakeops.store.bucket import ACCESS_POINT
from lakeops.store.layout import DATA, is_absolute, quote_path, relative

BUCKETS = ("s3", "gs", "az")
"""The schemes of buckets."""

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f]")
_MAX_PREFIX_BYTES = 512
"""Longest prefix of a namespace: it leaves half of S3's 1,024 bytes to the keys below."""


@dataclass(frozen=True, slots=True)
class Location:
    """A root: a directory (absolute path, no bucket) or a bucket and a prefix without slashes around it."""

    scheme: str
    bucket: str
    path: str

    @property
    def url(self) -> str:
        """The URL as it is kept: absolute, one spelling, no trailing slash."""
        if self.scheme == "file":
            return "file://" + quote_path(self.path)
        root = f"{self.scheme}://{self.bucket}"
        return f"{root}/{self.path}" if self.path else root


def parse_location(url: str) -> Location:
    """The location that a storage namespace names. Raises ``InvalidInput`` for everything that is not clearly one."""
    scheme, rest = _scheme(url)
    if "?" in rest or "#" in rest:
        raise _refusal(url, "has a query or a fragment; a storage namespace is a plain location")
    if scheme == "file":
        return Location("file", "", _directory(url, rest))
    bucket, _, path = rest.partition("/")
    path = path.rstrip("/")
    _check_bucket(url, bucket)
    if path.startswith("/") or any(part in {"", ".", ".."} for part in path.split("/") if path):
        raise _refusal(url, "has an empty, '.' or '..' segment; write the prefix out plainly")
    if _UNSAFE.search(path) or "\\" in path:
        raise _refusal(url, "has control characters or a backslash; choose a plain prefix")
    try:
        if len(path.encode()) > _MAX_PREFIX_BYTES:
            raise _refusal(url, f"has a prefix of over {_MAX_PREFIX_BYTES} bytes; choose a shorter one")
    except UnicodeError:
        raise _refusal(url, "holds a lone surrogate, which is no text") from None
    return Location(scheme, bucket, path)


def split_address(address: str) -> tuple[Location, str]:
    """The place that an absolute physical address lies in, and its key there.

    The place is the bucket, or the file's directory. Keys are taken byte for byte. ``InvalidInput`` when there is none.
    """
    scheme, rest = _scheme(address)
    if scheme in BUCKETS:
        bucket, _, key = rest.partition("/")
        _check_bucket(address, bucket)
        place = Location(scheme, bucket, "")
    else:
        path, _, quoted = rest.rpartition("/")
        place, key = Location("file", "", _directory(address, path + "/", allow_root=True)), _unquote(address, quoted)
    if not key:
        raise _refusal(address, "names no object; add its key")
    if scheme == "file" and "/" in key:  # its directory would be another one than the URL shows
        raise _refusal(address, "encodes a slash before the file's name; write / in place of %2F")
    return place, key


def overlap(left: str, right: str) -> bool:
    """Whether two locations are one, or one lies in the other. Links on the way to a directory are followed."""
    one, other = real_place(left), real_place(right)
    return lies_in(one, other) or lies_in(other, one)


def real_place(url: str) -> str:
    """A location, or the directory of an object's address, as it really is: to be compared with ``lies_in``.

    Links on the way to a directory are followed and percent-encoding is undone. Raises ``InvalidInput``.
    """
    scheme, rest = _scheme(url)
    if scheme in BUCKETS:
        return f"{scheme}://{rest.rstrip('/')}"
    # Unlike Path.resolve, this raises nothing for links that lead in a circle.
    return os.path.realpath(_directory(url, rest, allow_root=True))


def lies_in(place: str, other: str) -> bool:
    """Whether a real place is another one, or lies in it."""
    return place == other or place.startswith(other.rstrip("/") + "/")


def above(url: str) -> list[str]:
    """The URLs of everything that a location really lies in, the nearest first: no bucket is left out."""
    real = real_place(url)
    scheme, _, rest = real.partition("://")
    if scheme in BUCKETS:
        bucket, _, path = rest.partition("/")
        parts = path.split("/") if path else []
        return [f"{scheme}://{'/'.join([bucket, *parts[:count]])}" for count in range(len(parts) - 1, -1, -1)]
    return ["file://" + quote_path(str(parent)) for parent in Path(real).parents if parent != parent.parent]


def same_server(left: str | None, right: str | None) -> bool:
    """Whether two endpoints of S3 servers, None for AWS, are spellings of one."""
    return _server(left) == _server(right)


def _server(endpoint: str | None) -> tuple[str, str, int | None, str]:
    parts = urlsplit(endpoint or "https://s3.amazonaws.com")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").rstrip("."), port, parts.path.rstrip("/")


def without_links(url: str) -> str:
    """Spell a location by its real path, with links of directories followed. Raises ``InvalidInput``."""
    place = parse_location(url)
    return parse_location("file://" + quote_path(real_place(place.url))).url if place.scheme == "file" else place.url


def relative_directory(namespace: str, folder: str) -> str | None:
    """The place of a directory in a namespace on disk: empty, or a key ending in a slash. None when it lies elsewhere.

    Both are ``file://`` URLs (else ``InvalidInput``). Links on the way to either are followed.
    """
    root = Path(real_place(parse_location(namespace).url))
    place = Path(os.path.realpath(_directory(folder, _scheme(folder)[1], allow_root=True)))
    if not place.is_relative_to(root):
        return None
    return f"{place.relative_to(root).as_posix()}/" if place != root else ""


def _scheme(url: str) -> tuple[str, str]:
    if not isinstance(url, str):
        raise InvalidInput(f"a location is text, not {excerpt(url)}", kind="invalid_uri")
    scheme, separator, rest = url.partition("://")
    if separator and scheme in {"file", *BUCKETS}:
        # Both spellings of an ARN mean one access point. Without a slash it is a bucket's name as any other.
        return scheme, re.sub("^(arn:[^/]*:accesspoint)/", r"\1:", rest) if scheme == "s3" else rest
    if scheme in {"s3a", "s3n"}:
        raise _refusal(url, "is Hadoop's spelling; write s3://")
    if scheme in {"abfs", "abfss", "wasb", "wasbs", "azure", "adl"}:
        raise _refusal(url, "is another spelling of Azure's storage; write az://container/prefix")
    raise _refusal(
        url,
        "is not a location; write file:///absolute/path, s3://bucket/prefix, gs://bucket/prefix or "
        "az://container/prefix",
    )


def _check_bucket(url: str, bucket: str) -> None:
    is_arn = url.startswith("s3:") and ACCESS_POINT.fullmatch(bucket)
    if not is_arn and (not _BUCKET.fullmatch(bucket) or ".." in bucket):
        raise _refusal(
            url, f"has no proper bucket name; write {url.partition('://')[0]}://bucket/prefix, without user or port"
        )


def _directory(url: str, rest: str, *, allow_root: bool = False) -> str:
    host, slash, quoted = rest.partition("/")
    if host not in {"", "localhost"} or not slash:
        raise _refusal(url, "is not an absolute path on this machine; write file:///absolute/path")
    path = _unquote(url, quoted)
    if not {".", ".."}.isdisjoint(path.split("/")):
        raise _refusal(url, "has a '.' or '..' segment; write the path out")
    path = posixpath.normpath("/" + path.strip("/"))
    if path == "/" and not allow_root:
        raise _refusal(url, "is the whole file system; name a directory")
    return path


def _unquote(url: str, quoted: str) -> str:
    try:
        path = unquote_to_bytes(quoted).decode()
    except UnicodeError:
        raise _refusal(url, "is not UTF-8 once it is percent-decoded") from None
    if "\0" in path:
        raise _refusal(url, "holds NUL, which no file name may")
    return path


def _refusal(url: str, why: str) -> InvalidInput:
    return InvalidInput(f"{_printable(url)} {why}", kind="invalid_uri")


def _printable(url: str) -> str:
    """The URL for a message: no user-info, no query, no control characters, not endless."""
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    plain = f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"
    return ascii(re.split(r"[?#]", plain, maxsplit=1)[0][:200])


SETTING = "external_prefixes"


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """Which objects outside its storage namespace a repository may refer to. Plain data, for workers too.

    An entry can name any file and any bucket, and whoever reads it reads that place with his own rights. So what it
    names is believed only as far as the policy goes: when it is linked, when a mirror is brought it, and whenever it is
    opened. Stores open no address without a policy.

    Attributes:
        namespace: its storage namespace.
        prefixes: the locations that its entries may refer to besides. None for every one that can be named.
        files: whether ``None`` stands for files of this machine too.
        managed: what repositories manage themselves: a repository's name and the real place of one of its folders.
    """

    namespace: str
    prefixes: tuple[str, ...] | None = None
    files: bool = True
    managed: tuple[tuple[str, str], ...] = ()

    def check(self, address: str) -> str:
        """An address as it is stored, when it may be opened.

        Raises ``PreconditionFailed`` (``address_refused``), ``InvalidInput``.
        """
        key = relative(self.namespace, address)
        if is_absolute(key):
            place, name = split_address(key)
            self.check_folders([place.url if place.scheme == "file" else f"{place.url}/{name.rpartition('/')[0]}"])
        elif not key.startswith(DATA):
            raise PreconditionFailed(
                f"{excerpt(address)} is no object of {self.namespace}; it was not read", kind="address_refused"
            )
        return key

    def check_folders(self, folders: Iterable[str]) -> None:
        """Refuse objects in a directory that entries may not refer to.

        Raises ``PreconditionFailed`` (``address_refused``), ``InvalidInput``.

        Args:
            folders: directories, or a bucket's prefixes, as absolute addresses spell them.
        """
        allowed = None if self.prefixes is None else [real_place(prefix) for prefix in self.prefixes]
        for folder in folders:
            reason = self._reason(folder, real_place(folder), allowed)
            if reason is not None:
                raise PreconditionFailed(f"objects in {excerpt(folder)} are refused: {reason}", kind="address_refused")

    def _reason(self, folder: str, place: str, allowed: list[str] | None) -> str | None:
        local = folder.startswith("file://")
        if local and not self.namespace.startswith("file://"):
            return "a repository in a bucket may not refer to local files, which differ from machine to machine"
        for name, root in self.managed:
            if lies_in(place, root):
                return f"repository {name!r} manages what lies there, and may delete it"
        if allowed is not None:
            listed = any(lies_in(place, prefix) for prefix in allowed)
            return None if listed else f"the setting {SETTING} does not list this place"
        if local and not self.files:
            return f"the source of this mirror names files of this machine; the setting {SETTING} has to list the place"
        return None


__all__ = ["StoreSettings", "Stores"]

_KEPT = 256
"""Opened stores that a resolver remembers. They are light, and opened again when forgotten."""


class Stores:
    """Stores by location, each opened once.

    Args:
        settings: what all of them are opened with.
        wrap: put around every store that is opened. Tests pass a store that fails or counts.
    """

    def __init__(
        self, settings: StoreSettings | None = None, *, wrap: Callable[[ObjectStore], ObjectStore] | None = None
    ) -> None:
        self.settings: StoreSettings = settings or StoreSettings()
        self._wrap = wrap
        self._opened: dict[tuple[Location, str], ObjectStore] = {}

    def at(self, url: str, *, needs: str = "") -> ObjectStore:
        """The store at a storage namespace. ``needs`` is that of a ``LocalStore``. Raises ``InvalidInput``."""
        return self._store(parse_location(url), needs)

    def locate(self, policy: AddressPolicy, address: str) -> tuple[ObjectStore, str]:
        """The store and the key of a physical address, relative to the policy's namespace or absolute.

        An absolute address may lie wherever the policy allows: its store is rooted at its bucket, or at its file's
        directory. Raises ``PreconditionFailed`` (``address_refused``), ``InvalidInput``.
        """
        found = policy.check(address)
        if not is_absolute(found):
            return self.at(policy.namespace), found
        place, key = split_address(found)
        return self._store(place), key

    def _store(self, place: Location, needs: str = "") -> ObjectStore:
        known = place, needs if place.scheme == "file" else ""
        found = self._opened.get(known)
        if found is not None:
            return found
        if place.scheme == "file":
            from lakeops.store.local import LocalStore

            found = LocalStore(Path(place.path), fsync=self.settings.fsync, needs=needs)
        elif place.scheme == "s3":
            from lakeops.store.s3 import S3Store

            found = S3Store(place.bucket, place.path, self.settings)
        else:
            from lakeops.store.cloud import CloudStore

            found = CloudStore(place.scheme, place.bucket, place.path, self.settings)
        if self._wrap is not None:
            found = self._wrap(found)
        while len(self._opened) >= _KEPT:
            self._opened.pop(next(iter(self._opened)), None)
        self._opened[known] = found
        return found
