"""obstore's clients: one a process for each bucket and equal settings, made when first needed; and its errors.

Credentials and endpoints are what obstore itself finds: ``AZURE_STORAGE_...`` and ``GOOGLE_...`` variables, a managed
identity, Google's application default credentials. lakeops never sees them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lakeops.model.errors import (
    InvalidPath,
    LakeopsError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    Transient,
    Unsupported,
)
from lakeops.store.base import StoreSettings
from lakeops.store.obstore_threads import threads_lost
from lakeops.store.per_process import PerProcess

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore

    Client = AzureStore | GCSStore

EXTRAS = {"az": "azure", "gs": "gcs"}
"""The extra that each scheme needs."""

_LONGEST_REQUEST = timedelta(minutes=10)
"""For one request with its contents, which are a part of ``StoreSettings.part_bytes`` at most."""

_Key = tuple[str, str, StoreSettings]


_clients: PerProcess[_Key, Client] = PerProcess(lambda place: _connect(*place), keep=True)


def client(scheme: str, bucket: str, settings: StoreSettings) -> Client:
    """The process's client for a bucket. Threads may share it. Raises ``Unsupported``, ``StoreError``."""
    if threads_lost():
        raise Unsupported(
            f"{scheme}:// cannot be used here: this process was forked from one that had loaded obstore before. "
            "Start it with multiprocessing's 'spawn', or use the store only after the fork"
        )
    return _clients.get((scheme, bucket, settings))


def _connect(scheme: str, bucket: str, settings: StoreSettings) -> Client:
    extra = EXTRAS[scheme]
    try:
        from obstore.store import AzureStore, GCSStore
    except ImportError:
        raise Unsupported(f'{scheme}:// needs obstore; install lakeops with its extra "{extra}"') from None
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
    from obstore.exceptions import BaseError

    try:
        yield
    except LakeopsError:
        raise
    except (BaseError, FileNotFoundError, PermissionError, ValueError, TimeoutError) as error:
        raise _as_ours(error, bucket, ascii(url)) from None


def _as_ours(error: Exception, bucket: str, where: str) -> LakeopsError:
    said, kind = str(error), type(error).__name__
    found, named = _STATUS.search(said), _CODE.search(said)
    status, code = int(found[1]) if found else 0, named[1] if named else ""
    if code in _NO_BUCKET:
        return no_bucket(bucket)
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
        return Unsupported(f"the server of bucket {bucket!r} cannot do what was asked of {where}")
    if status in {0, 408, 429} or status >= 500:
        why = code or status or "no answer"
        return StoreUnavailable(f"bucket {bucket!r} keeps failing on {where} ({why}); check the endpoint, try again")
    return StoreError(f"bucket {bucket!r} refuses {where} ({code or status}); see the server's documentation of it")


def no_bucket(bucket: str) -> StoreError:
    """The error for a bucket or container that is not there."""
    return StoreError(f"bucket {bucket!r} does not exist; create it, or correct the storage namespace or the account")
