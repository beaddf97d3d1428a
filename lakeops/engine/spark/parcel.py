"""How tasks travel: small ones whole, big ones with their Arrow streams parked in the store.

Spark keeps what a job carries in the driver's heap and sends it again with every try of a task. A parked stream is
written once, where workers read and write ranges anyway, and a worker uses it only if it has the digest that the
driver computed. Nothing but data is ever parked: whoever may write to the bucket cannot make a worker run code.
What a killed driver leaves behind lies under a prefix of its own, for garbage collection.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import Any, Generic

from lakeops.engine.base import T
from lakeops.model.clock import Ids
from lakeops.model.errors import Corrupted, LakeopsError, ObjectNotFound, Unsupported
from lakeops.ranges.task import Travelling
from lakeops.store.base import ObjectStore
from lakeops.store.layout import TASKS

PARK_ABOVE = 256 * 1024
"""Bytes from which on a stream is parked."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A field of a task that lies in the store: which, where, the SHA-256 of its bytes in hex, whether it is rows."""

    field: str
    key: str
    digest: str
    rows: bool


@dataclass(frozen=True, slots=True)
class Parcel(Generic[T]):
    """A task on its way; parked fields are empty in it."""

    task: T
    parked: tuple[Parked, ...] = ()


class Parking:
    """Parks the big fields of one run's tasks.

    Args:
        store: the namespace that workers read from.
        above: size in bytes from which on a field is parked; 0 parks every one.
    """

    def __init__(self, store: ObjectStore, above: int = PARK_ABOVE) -> None:
        self._store = store
        self._above = above
        self._prefix = f"{TASKS}{Ids().new()}/"
        self._keys: list[str] = []

    def pack(self, task: T) -> Parcel[T]:
        """The task, ready to travel."""
        if not hasattr(task, "__dataclass_fields__"):
            return Parcel(task)
        plain: Any = task
        values = {field.name: getattr(plain, field.name) for field in fields(plain)}
        parked = tuple(self._parked(values))
        return Parcel(replace(plain, **{one.field: b"" for one in parked}), parked)

    def clear(self) -> None:
        """Remove what was parked, once no worker needs it; what cannot be removed is left to garbage collection."""
        with contextlib.suppress(LakeopsError):
            self._store.delete(self._keys)
        self._keys.clear()

    def _parked(self, values: dict[str, Any]) -> Iterator[Parked]:
        """What became of the big ones among a task's fields."""
        for name, value in values.items():
            rows = isinstance(value, Travelling)
            data = value.to_bytes() if rows else value
            if isinstance(data, bytes) and len(data) > self._above:
                key = f"{self._prefix}{len(self._keys)}.arrow"
                self._keys.append(key)
                self._store.put(key, data)
                yield Parked(name, key, sha256(data).hexdigest(), rows)


def unpack(parcel: Parcel[T], store: ObjectStore) -> T:
    """The task as it was packed.

    Raises:
        Unsupported: this machine does not see the store that the driver wrote to.
        Corrupted: what lies there is not what the driver wrote.
    """
    found = {parked.field: _fetch(parked, store) for parked in parcel.parked}
    plain: Any = parcel.task
    task: T = replace(plain, **found) if found else plain
    return task


def _fetch(parked: Parked, store: ObjectStore) -> bytes | Travelling:
    try:
        data = store.get(parked.key)
    except ObjectNotFound:
        raise Unsupported(
            f"a Spark worker does not find what the driver wrote to {store.url}/{parked.key}: workers and driver need "
            "the same storage, a bucket or a directory that all machines mount; or set engine=local"
        ) from None
    if sha256(data).hexdigest() != parked.digest:
        raise Corrupted(f"{store.url}/{parked.key} is not what the driver wrote there; nothing of it was used")
    return Travelling.from_bytes(data) if parked.rows else data
