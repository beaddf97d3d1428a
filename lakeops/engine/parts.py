"""Sorted keys in files, cut into buckets: how two sides that no memory holds are joined piece by piece.

A part is one object with the keys of one task, ascending. The bucket of a key is its first byte, so a bucket of all
parts together is a small piece of both sides, and a read of one stretch gets it from each part. Parts lie in a
directory of this machine when the work runs in this process, else in the namespace, where every worker sees them;
either way a stretch is used only if its digests are those that the writer gave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from lakeops.engine.keys import BORDERS, Keys
from lakeops.model.clock import Ids
from lakeops.model.errors import Corrupted
from lakeops.store.base import ObjectStore
from lakeops.store.layout import TASKS
from lakeops.store.local import LocalStore

_KEY = 8
_DIGEST = 32


@dataclass(frozen=True, slots=True)
class Place:
    """Where the parts of one run lie: below ``prefix`` of a directory of this machine, or of the namespace."""

    prefix: str
    folder: str | None = None

    @classmethod
    def fresh(cls, folder: Path | None) -> Place:
        """A place that nothing lies at yet."""
        return cls(f"{TASKS}{Ids().new()}/", str(folder) if folder else None)

    def store(self, namespace: ObjectStore) -> ObjectStore:
        """The store that parts lie in."""
        return LocalStore(Path(self.folder), fsync=False) if self.folder else namespace

    def clear(self, namespace: ObjectStore) -> None:
        """Remove all parts, those of tasks that ran twice too."""
        store = self.store(namespace)
        store.delete([item.key for item in store.list(self.prefix)])


@dataclass(frozen=True, slots=True)
class Part:
    """One object of sorted keys.

    Attributes:
        key: where it lies.
        bounds: where buckets begin, and the end: ``keys.BUCKETS + 1`` numbers of keys, as little-endian ``uint64``.
        digests: the SHA-256 of each bucket's bytes, one after another.
    """

    key: str
    bounds: bytes
    digests: bytes

    def __len__(self) -> int:
        """How many keys there are."""
        return int(np.frombuffer(self.bounds, "<u8")[-1])

    def stretch(self, start: int, stop: int) -> Stretch:
        """Buckets ``[start, stop)``."""
        bounds = np.frombuffer(self.bounds, "<u8")[start : stop + 1]
        sizes = tuple((np.diff(bounds) * _KEY).tolist())
        return Stretch(self.key, int(bounds[0]) * _KEY, sizes, self.digests[start * _DIGEST : stop * _DIGEST])


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some neighbouring buckets of a part: the first byte, the size of each in bytes, their digests."""

    key: str
    start: int
    sizes: tuple[int, ...]
    digests: bytes

    def __len__(self) -> int:
        """How many keys there are."""
        return sum(self.sizes) // _KEY

    def read(self, store: ObjectStore) -> Keys:
        """The keys, ascending. Raises ``Corrupted`` or ``ObjectNotFound``."""
        size = sum(self.sizes)
        data = store.get_range(self.key, self.start, size) if size else b""
        if b"".join(_digests(data, self.sizes)) != self.digests or len(data) != size:
            raise Corrupted(f"{store.url}/{self.key} is not what a task wrote there; nothing was deleted; try again")
        return np.frombuffer(data, "<u8")


def write_part(store: ObjectStore, place: Place, keys: Keys) -> Part:
    """Write ascending keys under a fresh name."""
    bounds = np.concatenate([[0], np.searchsorted(keys, BORDERS), [len(keys)]]).astype("<u8")
    data = np.ascontiguousarray(keys, "<u8").tobytes()
    sizes = (np.diff(bounds) * _KEY).tolist()
    part = Part(f"{place.prefix}{Ids().new()}.keys", bounds.tobytes(), b"".join(_digests(data, sizes)))
    place.store(store).put(part.key, data)
    return part


def _digests(data: bytes, sizes: Iterable[int]) -> Iterator[bytes]:
    view, start = memoryview(data), 0
    for size in sizes:
        yield sha256(view[start : start + size]).digest()
        start += size
