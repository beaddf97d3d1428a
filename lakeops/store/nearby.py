"""A far store as the work of one process sees it: pieces of its files are kept here, and requests travel together.

``nearby`` adds the pieces that this machine keeps (``store.pieces``). ``together`` lets puts travel in the background
until the work ends. ``giving_way`` lets a thread that waits for an answer give its core to another one. A near store
needs none of this and stays as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from threading import Condition, Lock
from typing import Any, BinaryIO, cast

from lakeops.store.base import ObjectStore, PutResult
from lakeops.store.in_flight import IN_FLIGHT
from lakeops.store.pieces import Pieces
from lakeops.store.slots import Slots

MOST_HELD = 64 * 1024 * 1024
"""Bytes of files that wait to be written, at most. A larger file travels alone."""


def nearby(store: ObjectStore, pieces: Pieces | None) -> ObjectStore:
    """The store, with the pieces that this machine keeps of its files."""
    return cast("ObjectStore", _Nearby(store, pieces)) if store.remote and pieces is not None else store


def pieces_of(store: ObjectStore) -> Pieces | None:
    """The pieces that this machine keeps of a store's files, where it keeps any."""
    found: Pieces | None = getattr(store, "pieces", None)
    return found


def together(store: ObjectStore) -> AbstractContextManager[ObjectStore]:
    """Put in the background for a ``with``. All is written when the ``with`` ends.

    The end raises what the first put that failed raised. A put of bytes returns at once. Reads see what was put.
    """
    return _in_background(store) if store.remote else nullcontext(store)


def giving_way(store: ObjectStore, slots: Slots) -> ObjectStore:
    """Wrap a store for threads that hold one of ``slots`` while they work, and leave it while they wait."""
    return cast("ObjectStore", _GivingWay(store, slots))


def slot_left(store: ObjectStore) -> AbstractContextManager[None]:
    """Leave the slot that this thread holds for a ``with``: it waits for threads that ask the store for it."""
    slots: Slots | None = getattr(store, "slots", None)
    return slots.left() if slots is not None else nullcontext()


class _Wrapped:
    """Everything is the inner store's own. Elsewhere it is the inner store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the inner store has
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._store, name)

    def __reduce__(self) -> tuple[Callable[[ObjectStore], ObjectStore], tuple[ObjectStore]]:
        return _same_store, (self._store,)


def _same_store(store: ObjectStore) -> ObjectStore:
    return store


class _Nearby(_Wrapped):
    def __init__(self, store: ObjectStore, pieces: Pieces) -> None:
        super().__init__(store)
        self.pieces = pieces


_REQUESTS = frozenset({"get", "get_range", "put", "head", "delete", "open"})


class _GivingWay(_Wrapped):
    def __init__(self, store: ObjectStore, slots: Slots) -> None:
        super().__init__(store)
        self.slots = slots
        self._waited_for = _REQUESTS - getattr(store, "in_background", frozenset())

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the inner store has
        found = super().__getattr__(name)
        return self._waiting(found) if name in self._waited_for else found

    def _waiting(self, request: Callable[..., object]) -> Callable[..., object]:
        @wraps(request)
        def asked(*args: object, **options: object) -> object:
            with self.slots.left():
                return request(*args, **options)

        return asked


@contextmanager
def _in_background(store: ObjectStore) -> Iterator[ObjectStore]:
    found = Travelling(store)
    try:
        yield as_store(found)
    finally:
        found.close()
    for file in found.taken():
        file.result()


def as_store(found: Travelling) -> ObjectStore:
    """Type a store whose puts travel in the background as a store."""
    return cast("ObjectStore", found)


class Travelling(_Wrapped):
    """A store whose puts of bytes return at once and travel in the background. Reads see what was put."""

    in_background = frozenset({"put"})
    """Requests that nobody waits for."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="put")
        self._room = Condition(Lock())
        self._held = 0
        self._written: dict[str, Future[PutResult]] = {}
        self._new: list[Future[Any]] = []

    def taken(self) -> list[Future[Any]]:
        """The puts since the last call. Each raises what its write raised."""
        with self._room:
            new, self._new = self._new, []
            self._written = {key: put for key, put in self._written.items() if not put.done() or put.exception()}
        return new

    def close(self) -> None:
        """Wait for all puts."""
        self._pool.shutdown(wait=True)

    def put(self, key: str, data: bytes | BinaryIO, *, if_absent: bool = False, content_type: str = "") -> PutResult:
        """See ``ObjectStore.put``."""
        if not isinstance(data, bytes) or if_absent:
            return self._store.put(key, data, if_absent=if_absent, content_type=content_type)
        with self._room:
            self._room.wait_for(lambda: not self._held or self._held + len(data) <= MOST_HELD)
            self._held += len(data)
            self._written[key] = self._pool.submit(self._put, key, data, content_type)
            self._new.append(self._written[key])
        return PutResult(len(data), hashlib.sha256(data).hexdigest())

    def get(self, key: str) -> bytes:
        """See ``ObjectStore.get``."""
        self._settle(key)
        return self._store.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See ``ObjectStore.get_range``."""
        self._settle(key)
        return self._store.get_range(key, start, length)

    def _settle(self, key: str) -> None:
        put = self._written.get(key)
        if put is not None:
            put.result()

    def _put(self, key: str, data: bytes, content_type: str) -> PutResult:
        try:
            return self._store.put(key, data, content_type=content_type)
        finally:
            with self._room:
                self._held -= len(data)
                self._room.notify_all()
