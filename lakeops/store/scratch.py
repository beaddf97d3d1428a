"""A namespace that is only read, with a directory of this machine for what one piece of work writes."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import cast

from lakeops.store.base import ObjectStore, PutResult
from lakeops.store.disk_cache import WrappedStore
from lakeops.store.local import LocalStore


def with_scratch(store: ObjectStore) -> ObjectStore:
    """Wrap a store for reading: what is put goes to a fresh directory of this machine, and is read from there.

    The directory is for files that one piece of work needs for itself, so a reader without the right to write can do
    the work too. It goes when nothing uses the store any more.
    """
    return cast("ObjectStore", _Scratch(store))


class _Scratch(WrappedStore):
    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._written: set[str] = set()
        self._making = Lock()

    @cached_property
    def _own_store(self) -> ObjectStore:
        folder = tempfile.mkdtemp(prefix="lakeops-scratch-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return LocalStore(Path(folder).resolve(), fsync=False)

    def put(self, key: str, data: bytes) -> PutResult:
        """See ``ObjectStore.put``. The namespace stays as it is."""
        with self._making:
            own = self._own_store
        result = own.put(key, data)
        self._written.add(key)
        return result

    def get(self, key: str) -> bytes:
        """See ``ObjectStore.get``."""
        return self._store_of(key).get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See ``ObjectStore.get_range``."""
        return self._store_of(key).get_range(key, start, length)

    def _store_of(self, key: str) -> ObjectStore:
        return self._own_store if key in self._written else self._store
