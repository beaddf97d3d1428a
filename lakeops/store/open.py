"""From a URL to a store, and from a physical address to a store and a key.

The one place that knows which schemes exist. boto3 and obstore are imported when such a store is first used,
not here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lakeops.store.base import ObjectStore, StoreSettings
from lakeops.store.layout import is_absolute
from lakeops.store.location import Location, normalise_namespace, parse_location, split_address
from lakeops.store.policy import AddressPolicy

__all__ = ["StoreSettings", "Stores", "normalise_namespace", "open_store"]

_KEPT = 256
"""Opened stores that a resolver remembers. They are light, and opened again when forgotten."""


def open_store(url: str, settings: StoreSettings | None = None) -> ObjectStore:
    """The store at a storage namespace: ``file:///absolute/path``, ``s3://bucket/prefix``, ``gs://`` or ``az://``.

    Touches nothing yet.

    Raises ``InvalidInput`` for any other scheme or spelling.
    """
    return _open(parse_location(url), settings or StoreSettings())


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
        self._opened: dict[Location, ObjectStore] = {}

    def at(self, url: str) -> ObjectStore:
        """The store at a storage namespace. Raises ``InvalidInput``."""
        return self._store(parse_location(url))

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

    def _store(self, place: Location) -> ObjectStore:
        found = self._opened.get(place)
        if found is None:
            found = _open(place, self.settings)
            if self._wrap is not None:
                found = self._wrap(found)
            while len(self._opened) >= _KEPT:
                self._opened.pop(next(iter(self._opened)), None)
            self._opened[place] = found
        return found


def _open(place: Location, settings: StoreSettings) -> ObjectStore:
    if place.scheme == "file":
        from lakeops.store.local import LocalStore

        return LocalStore(Path(place.path), fsync=settings.fsync)
    if place.scheme != "s3":
        from lakeops.store.cloud import CloudStore

        return CloudStore(place.scheme, place.bucket, place.path, settings)
    from lakeops.store.s3 import S3Store

    return S3Store(place.bucket, place.path, settings)
