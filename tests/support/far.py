"""A local directory that answers like a bucket far away, and the chain of requests that a verb waits for.

Each request takes the same time, however large. Two requests belong to one chain when the second began after the first
had been answered, so the longest chain is what a verb costs in round trips.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from lakeops import Settings
from lakeops.catalog.open import open_catalog
from lakeops.lake import Lake
from lakeops.model.clock import SystemClock
from lakeops.store.base import ObjectStore, StoreSettings
from lakeops.store.local import LocalStore
from lakeops.store.open import Stores


@dataclass(frozen=True)
class Asked:
    """One request: what was asked of which key, and when it began and was answered, in seconds."""

    operation: str
    key: str
    began: float
    ended: float


@dataclass
class Requests:
    """The requests that were made, of all stores of a lake.

    Attributes:
        seconds: how long each of them takes.
    """

    seconds: float = 0.02
    made: list[Asked] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def one(self, operation: str, key: str) -> Iterator[None]:
        """Make a request."""
        began = time.perf_counter()
        time.sleep(self.seconds)
        try:
            yield
        finally:
            with self._lock:
                self.made.append(Asked(operation, key, began, time.perf_counter()))

    def forget(self) -> None:
        """Count anew."""
        self.made.clear()

    def chain(self) -> list[Asked]:
        """The longest chain of requests that waited for one another."""
        found: list[Asked] = []
        for asked in sorted(self.made, key=lambda one: one.ended):
            if not found or asked.began >= found[-1].ended:
                found.append(asked)
        return found

    def described(self) -> list[str]:
        """The longest chain, in words."""
        return [f"{asked.operation} {asked.key}" for asked in self.chain()]


class FarStore(LocalStore):
    """A directory behind a network."""

    remote = True

    def __init__(self, root: Path, requests: Requests) -> None:
        super().__init__(root, fsync=False)
        self.requests = requests

    def __reduce__(self):
        raise TypeError("stays in this process")

    def get(self, key):
        with self.requests.one("get", key):
            return super().get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self.requests.one("get", key):
            return super().get_ranges(key, [(start, length)])[0]

    def get_ranges(self, key: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.get_range(key, start, length) for start, length in spans]

    def put(self, key, data, **options):
        with self.requests.one("put", key):
            return super().put(key, data, **options)

    def head(self, key):
        with self.requests.one("head", key):
            return super().head(key)

    def list(self, prefix: str = "", after: str = ""):
        with self.requests.one("list", prefix):
            found = list(super().list(prefix, after))
        return iter(found)


def open_far(
    settings: Settings, requests: Requests, *, wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store
) -> Lake:
    """A lake in which nothing is remembered yet, as a new process has it. ``wrap`` is put around its stores."""

    def far(store: ObjectStore) -> ObjectStore:
        assert isinstance(store, LocalStore)
        return wrap(FarStore(store.root, requests))

    stores = Stores(StoreSettings(fsync=False), wrap=far)
    return Lake(open_catalog(settings.catalog_url, clock=SystemClock()), settings, stores=stores)
