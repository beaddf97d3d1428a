"""Objects in a container of Azure or a bucket of Google, through obstore.

A process has one client for each bucket and equal settings, made when first needed. Credentials and endpoints are what
obstore itself finds: ``AZURE_STORAGE_...`` and ``GOOGLE_...`` variables, a managed identity, Google's application
default credentials. lakeops never sees them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Any, BinaryIO

from lakeops.model.clock import Ids
from lakeops.model.errors import (
    AlreadyExists,
    InvalidInput,
    InvalidPath,
    LakeopsError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    Transient,
    unsupported,
)
from lakeops.model.sanitising import excerpt
from lakeops.store.base import (
    Capabilities,
    DeleteFailure,
    DigestedParts,
    Listing,
    Opened,
    PutResult,
    StoredObject,
    StoreSettings,
    can_put_if_absent,
    can_read_ranges,
    lists_consistently,
    pieces,
)
from lakeops.store.bucket import (
    BucketStore,
    LazyModule,
    PerProcess,
    etag_of,
    is_plain,
    listing_prefix,
    no_bucket,
    stored,
    threads_lost,
)
from lakeops.store.in_flight import in_flight
from lakeops.store.layout import TASKS
from lakeops.store.listing import look_up
from lakeops.store.reader import CheckedFile

if TYPE_CHECKING:
    import obstore
    from obstore.store import AzureStore, GCSStore

    Client = AzureStore | GCSStore
    from obstore import GetOptions, ObjectMeta
else:
    obstore = LazyModule("obstore")

_LONGEST_REQUEST = timedelta(minutes=10)
"""For one request with its contents, which are a part of ``StoreSettings.part_bytes`` at most."""

_clients: PerProcess[tuple[str, str, StoreSettings], Client] = PerProcess(lambda place: _connect(*place), keep=True)


def client(scheme: str, bucket: str, settings: StoreSettings) -> Client:
    """The process's client for a bucket. Threads may share it. Raises ``unsupported``, ``StoreError``."""
    if threads_lost():
        raise unsupported(
            f"{scheme}:// cannot be used here: this process was forked from one that had loaded obstore before. "
            "Start it with multiprocessing's 'spawn', or use the store only after the fork"
        )
    return _clients.get((scheme, bucket, settings))


def _connect(scheme: str, bucket: str, settings: StoreSettings) -> Client:
    from obstore.store import AzureStore, GCSStore

    options: dict[str, Any] = {
        "client_options": {
            "allow_http": True,  # the endpoint says which; without one it is https
            "connect_timeout": timedelta(seconds=settings.connect_timeout),
            "read_timeout": timedelta(seconds=settings.read_timeout),
            "timeout": _LONGEST_REQUEST,
            "user_agent": "lakeops",
        },
        "retry_config": {"max_retries": settings.max_attempts - 1},
    }
    try:
        return AzureStore(bucket, **options) if scheme == "az" else GCSStore(bucket, **options)
    except Exception as error:  # noqa: BLE001 - obstore names no common class for what it finds in the environment
        raise StoreError(
            f"bucket {bucket!r}: obstore's configuration does not allow a client ({type(error).__name__}); "
            f"correct the {'AZURE_STORAGE_' if scheme == 'az' else 'GOOGLE_'}... variables"
        ) from None


_STATUS = re.compile(r"status(?: code)?: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,80})</Code>")
_NO_BUCKET = {"ContainerNotFound", "NoSuchBucket", "ContainerBeingDeleted"}
_DENIED = ("UnauthenticatedError", "PermissionDeniedError")


@contextmanager
def translated(bucket: str, url: str) -> Iterator[None]:
    """Turn obstore's errors inside the ``with`` into lakeops' own, naming the bucket and ``url``.

    What they say is left out but for codes: it has whole requests in it, and these may hold signatures.
    """
    try:
        yield
    except LakeopsError:
        raise
    except (obstore.exceptions.BaseError, FileNotFoundError, PermissionError, ValueError, TimeoutError) as error:
        raise _as_ours(error, bucket, ascii(url)) from None


def _as_ours(error: Exception, bucket: str, where: str) -> LakeopsError:
    said, kind = str(error), type(error).__name__
    found, named = _STATUS.search(said), _CODE.search(said)
    status, code = int(found[1]) if found else 0, named[1] if named else ""
    if code in _NO_BUCKET:
        return no_bucket(bucket, "account")
    if isinstance(error, FileNotFoundError):
        return ObjectNotFound(f"there is no object {where}")
    if kind == "PreconditionError" or status == 412:
        return Transient(f"{where} was replaced while it was read; open it again")
    if "token request" in said or "credential" in said.lower():
        return StoreError(f"bucket {bucket!r}: no usable credentials ({kind}); set them up the way obstore reads them")
    if kind in _DENIED or isinstance(error, PermissionError) or status in {401, 403}:
        return StoreError(
            f"bucket {bucket!r}: access to {where} is denied ({code or status or kind}); give these credentials the "
            "right to it"
        )
    if isinstance(error, ValueError) or "parse path" in said or "parsing Path" in said:
        return InvalidPath(f"bucket {bucket!r} has a name that obstore cannot address (an empty, '.' or '..' segment)")
    if kind == "NotSupportedError" or status == 501:
        return unsupported(f"the server of bucket {bucket!r} cannot do what was asked of {where}")
    if status in {0, 408, 429} or status >= 500:
        why = code or status or "no answer"
        return StoreUnavailable(f"bucket {bucket!r} keeps failing on {where} ({why}); check the endpoint, try again")
    return StoreError(f"bucket {bucket!r} refuses {where} ({code or status}); see the server's documentation of it")


MARK = "lakeops_write"
"""User metadata that tells which write an object comes from. Azure takes letters, digits and underscores only."""

_PAGE = 1000


class CloudStore(BucketStore):
    """A container or bucket, or a prefix of one, as an object store. Its scheme is ``az`` or ``gs``."""

    _bucket_seen = False

    def open(self, key: str) -> BinaryIO:
        """A seekable, buffered file. Reads fail if the object is replaced meanwhile. Raises ``ObjectNotFound``."""
        found = self._meta(key)
        return self._reader(key, found["size"], found["e_tag"] or "")

    def open_checked(self, item: StoredObject) -> Opened:
        """An object to be read once. Its size is checked, and that it stays the one that was listed."""
        with self._translated(item.key):
            found = obstore.get(self._client, self._name(item.key), options={"head": True})
            meta, content_type = found.meta, str(found.attributes.get("Content-Type", ""))
        self._check_listed(item, meta["size"], etag_of(meta))
        file = self._reader(item.key, item.size_bytes, meta["e_tag"] or "")
        return Opened(CheckedFile(file, f"{self.url}/{item.key}", item.size_bytes), content_type)

    def put(self, key: str, data: bytes | BinaryIO, *, if_absent: bool = False, content_type: str = "") -> PutResult:
        name = self._name(key)
        kind: dict[str, Any] = {"Content-Type": content_type} if content_type else {}
        with self._translated(key):
            source = DigestedParts(pieces(data, self.settings.part_bytes))
            first, second = next(source, b""), next(source, None)
            try:
                if second is not None:
                    etag = self._put_parts(name, chain((first, second), source), source, kind, if_absent=if_absent)
                elif not if_absent:
                    etag = self._put(name, first, kind)
                else:
                    etag = self._put_new(name, first, kind)
            except obstore.exceptions.BaseError as error:
                if if_absent and _exists(error):
                    raise AlreadyExists(f"{self.url}/{key} exists") from None
                raise
        return PutResult(source.size, source.digest.hexdigest(), etag.strip('"'))

    def _put(self, name: str, body: bytes, kind: dict[str, Any], mode: Any = "overwrite") -> str:  # noqa: ANN401 - obstore's
        done = obstore.put(self._client, name, body, attributes=kind, mode=mode, use_multipart=False)
        return done["e_tag"] or ""

    def _put_new(self, name: str, body: bytes, kind: dict[str, Any]) -> str:
        """Write on the condition that nothing is there. The answer to a write that went through may be lost."""
        mark = Ids().new()
        try:
            return self._put(name, body, {**kind, MARK: mark}, "create")
        except obstore.exceptions.BaseError as error:
            # That something is there does not say whose it is.
            with suppress(*(() if _exists(error) else (obstore.exceptions.BaseError, FileNotFoundError))):
                found = obstore.get(self._client, name, options={"head": True})
                if found.attributes.get(MARK) == mark:
                    return found.meta["e_tag"] or ""
            raise

    def _put_parts(
        self, name: str, parts: Iterator[bytes], source: DigestedParts, kind: dict[str, Any], *, if_absent: bool
    ) -> str:
        """Write several parts, with ``if_absent`` under another name first, because only a copy has a condition."""
        client = self._client
        target = listing_prefix(self.prefix, f"{TASKS}{Ids().new()}") if if_absent else name
        try:
            sent = obstore.put(
                client,
                target,
                parts,
                attributes=kind,
                use_multipart=True,
                chunk_size=self.settings.part_bytes,
                max_concurrency=self.settings.parallel_parts,
            )
        except BaseException:
            if source.broke is not None:
                raise source.broke from None
            raise
        if not if_absent:
            return sent["e_tag"] or ""
        try:
            obstore.copy(client, target, name, overwrite=False)
            return obstore.head(client, name)["e_tag"] or ""
        finally:
            with suppress(obstore.exceptions.BaseError, FileNotFoundError):
                obstore.delete(client, target)

    def swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        name = self._name(key)
        with self._translated(key):
            found, version = self._current(name)
            if found == data or found != expected:
                return found == data
            try:
                kind = {"Content-Type": "application/json"}
                self._put(name, data, kind, "create" if expected is None else version)
                return True
            except (obstore.exceptions.BaseError, FileNotFoundError) as error:
                # The answer to a write that went through may be lost, and its repetition refused.
                if self._current(name)[0] == data:
                    return True
                if isinstance(error, FileNotFoundError) or _exists(error):
                    return False
                raise

    def _current(self, name: str) -> tuple[bytes | None, dict[str, str]]:
        """The object's contents and what tells this version from others. None where there is no object."""
        try:
            found = obstore.get(self._client, name)
        except FileNotFoundError:
            return None, {}
        told = {"e_tag": found.meta["e_tag"], "version": found.meta["version"]}
        return bytes(found.bytes()), {key: value for key, value in told.items() if value}

    def head(self, key: str) -> StoredObject:
        return stored(key, self._meta(key))

    def list(self, prefix: str = "", after: str = "") -> Iterator[StoredObject]:
        root = listing_prefix(self.prefix, "")
        wanted, start = listing_prefix(self.prefix, prefix), root + after
        listing_prefix("", after)
        return self._listing(root, wanted, start)

    def scan(
        self, *, under: str = "", after: str = "", until: str = "", skip_special: bool = False, moving: bool = False
    ) -> Iterator[Listing]:
        """Every object, or every one under a folder, in byte order. See ``ObjectStore.scan``.

        Empty objects are looked at: obstore lists what marks a folder as an object that is not there.
        """
        del moving
        found = takewhile(lambda item: not until or item.key <= until, self.list(under, after))
        while page := list(islice(found, _PAGE)):
            seen = in_flight(lambda item: (item.key, not item.size_bytes and look_up(self, item.key) is None), page)
            special = dict(seen)
            kept = [item for item in page if not special[item.key]]
            if len(kept) < len(page) and not skip_special:
                name = next(item.key for item in page if special[item.key])
                raise InvalidInput(
                    f"bucket {self.bucket!r} holds what cannot be an object: {excerpt(name + '/')} (it marks a "
                    "folder); remove it, or leave it out with --skip-special"
                )
            if kept:
                yield Listing(
                    [item.key for item in kept],
                    [item.size_bytes for item in kept],
                    [item.mtime for item in kept],
                    [item.etag for item in kept],
                )

    def _sign(self, key: str, expires: int) -> str:
        with self._translated(key):
            return obstore.sign(self._client, "GET", self._name(key), timedelta(seconds=expires))

    def probe(self) -> Capabilities:
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
        name = super()._name(key)
        # Azure takes a backslash for a slash, and would keep the object under another name.
        if not is_plain(key) or (self.scheme == "az" and "\\" in key):
            raise InvalidPath(
                f"key {key[:200]!a} has an empty, '.' or '..' segment, a control character or a backslash; "
                f"nothing in {self.scheme}:// can be addressed by it"
            )
        return name

    def _meta(self, key: str) -> ObjectMeta:
        name = self._name(key)
        try:
            with self._translated(key):
                found = obstore.head(self._client, name)
        except ObjectNotFound:
            if not self._bucket_seen and not self._find_bucket():
                raise no_bucket(self.bucket, "account") from None
            self._bucket_seen = True
            raise
        self._bucket_seen = True
        return found

    def _read(self, key: str, start: int = 0, length: int | None = None, etag: str = "") -> bytes:
        name = self._name(key)
        options: GetOptions = {"if_match": etag} if etag else {}
        if length is not None:
            options["range"] = (start, start + length)
        try:
            with self._translated(key):
                return bytes(obstore.get(self._client, name, options=options).bytes())
        except LakeopsError as error:
            # Servers refuse a range that begins behind the end, and obstore has no name for that refusal.
            if length is None or isinstance(error, ObjectNotFound) or start < self.head(key).size_bytes:
                raise
            return b""

    def _listing(self, root: str, wanted: str, start: str) -> Iterator[StoredObject]:
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
                            yield stored(name.removeprefix(root), item)
                    elif name > wanted:
                        return

    def _delete_batch(self, names: dict[str, str]) -> Iterable[DeleteFailure]:
        try:
            with self._translated(""):
                obstore.delete(self._client, list(names))
            return []
        except LakeopsError:
            # The first object that is missing or refused ends a batch.
            return [failure for failure in in_flight(self._delete_one, names.values()) if failure is not None]

    def _delete_one(self, key: str) -> DeleteFailure | None:
        try:
            with suppress(ObjectNotFound), self._translated(key):
                obstore.delete(self._client, self._name(key))
        except Transient:
            raise
        except StoreError as error:
            return DeleteFailure(key, error.message)
        return None

    def _find_bucket(self) -> bool:
        with suppress(ObjectNotFound), self._translated(""):
            next(iter(obstore.list(self._client, chunk_size=1)), None)
            return True
        return False


def _exists(error: Exception) -> bool:
    return type(error).__name__ in {"AlreadyExistsError", "PreconditionError"}


def _fit(name: str) -> str:
    """The longest beginning of a name that obstore takes."""
    return "/".join(takewhile(is_plain, name.split("/")))
