"""How a mirror's storage is read: what is missing there has not arrived yet, or was deleted at the source.

Heads are whole, so only readers of older commits ever meet it. Whether a repository is a mirror is asked only when
something is missing. Reading what is there costs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, cast

from lakeops.model.errors import LakeopsError, NotReplicated, ObjectNotFound
from lakeops.store.base import ObjectStore, StoredObject

if TYPE_CHECKING:
    from lakeops.catalog.open import Catalog


def as_replica(store: ObjectStore, catalog: Catalog, repository_id: str) -> ObjectStore:
    """The store of a read-only repository. If that is a mirror, what is missing raises ``NotReplicated``."""

    def follows() -> bool:
        try:
            return catalog.mirror(repository_id).promoted_writable is None
        except LakeopsError:
            return False

    return cast("ObjectStore", _Replica(store, repository_id, follows))


class _Replica:
    """A store whose reads explain what is missing. Everything else is the store's own."""

    def __init__(self, store: ObjectStore, repository_id: str, follows: Callable[[], bool]) -> None:
        self._store = store
        self._repository_id = repository_id
        self._follows = follows

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def get(self, key: str) -> bytes:
        """See ``ObjectStore.get``. Raises ``NotReplicated``."""
        with self._explaining(key):
            return self._store.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See ``ObjectStore.get_range``. Raises ``NotReplicated``."""
        with self._explaining(key):
            return self._store.get_range(key, start, length)

    def open(self, key: str) -> BinaryIO:
        """See ``ObjectStore.open``. Raises ``NotReplicated``."""
        with self._explaining(key):
            return self._store.open(key)

    def head(self, key: str) -> StoredObject:
        """See ``ObjectStore.head``. Raises ``NotReplicated``."""
        with self._explaining(key):
            return self._store.head(key)

    @contextmanager
    def _explaining(self, key: str) -> Iterator[None]:
        try:
            yield
        except ObjectNotFound as error:
            if not self._follows():
                raise
            raise NotReplicated(
                f"{key} is not at mirror {self._repository_id!r}: it has not been replicated yet, or the source has "
                "deleted it; a mirror promises the heads of its branches and tags, read one of those or try again later"
            ) from error
