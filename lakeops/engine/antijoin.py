"""The tasks of an anti-join: ranges to sorted keys, and buckets of two sides to what one of them lacks.

Plain data in, plain data out, fresh names for whatever is written; so any engine runs them, twice if it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakeops.engine.addresses import managed
from lakeops.engine.keys import BLOCK, Keys, address_keys, ascending
from lakeops.engine.parts import Part, Place, Stretch, write_part
from lakeops.ranges.file import fetch_range
from lakeops.ranges.metarange import RangeRow
from lakeops.store.base import ObjectStore

Mask = npt.NDArray[np.bool_]

_KNOWN_TEXTS = ["", "data/1", "data/2026010112/0123456789abcdefghij", "data/2026010112/" + "0123456789abcdef-" * 5]


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Ranges whose addresses become keys."""

    index: int
    rows: tuple[RangeRow, ...]
    seed: bytes
    place: Place


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The keys of a task's addresses, how many ranges it read, and what tells how it makes keys."""

    index: int
    part: Part
    ranges: int
    keys_made: bytes


@dataclass(frozen=True, slots=True, eq=False)
class HeldResult:
    """The same in memory, in any order: for work in this process."""

    index: int
    keys: Keys
    ranges: int


@dataclass(frozen=True, slots=True)
class JoinTask:
    """Some buckets of all parts; ``distinct`` says that no listed address is in two parts."""

    index: int
    listed: tuple[Stretch, ...]
    referenced: tuple[Stretch, ...]
    place: Place
    distinct: bool


@dataclass(frozen=True, slots=True)
class JoinResult:
    """What a join found.

    Attributes:
        index: the number of the task.
        referenced: how many distinct references there are.
        repeated: how many listed keys repeat one of an earlier part.
        unreferenced: for each listed stretch a bit for each of its keys, packed: set where nothing refers to it. Of
            keys that repeat only the first has it set.
    """

    index: int
    referenced: int
    repeated: int
    unreferenced: tuple[bytes, ...]


def read_ranges(task: ReadTask, store: ObjectStore) -> ReadResult:
    """Write the sorted keys of what some ranges refer to. Raises ``Corrupted`` or ``ObjectNotFound``."""
    held = hold_ranges(task, store)
    part = write_part(store, task.place, ascending(held.keys))
    return ReadResult(task.index, part, held.ranges, keys_made(task.seed))


def keys_made(seed: bytes) -> bytes:
    """The keys that this version of the code makes of some texts: they tell whether another one makes the same."""
    return address_keys(pa.array(_KNOWN_TEXTS, pa.string()), seed).tobytes()


def hold_ranges(task: ReadTask, store: ObjectStore) -> HeldResult:
    """The keys of what some ranges refer to. Raises ``Corrupted`` or ``ObjectNotFound``."""
    read = (addresses for row in task.rows for addresses in fetch_range(store, row).addresses(BLOCK))
    keys = [address_keys(managed(store.url, addresses), task.seed) for addresses in read]
    return HeldResult(task.index, np.concatenate([np.zeros(0, np.uint64), *keys]), len(task.rows))


def join(task: JoinTask, store: ObjectStore) -> JoinResult:
    """Find the listed keys that are no reference's."""
    place = task.place.store(store)
    referenced = _merged([stretch.read(place) for stretch in task.referenced])
    listed = [stretch.read(place) for stretch in task.listed]
    repeats = [np.zeros(len(keys), np.bool_) for keys in listed] if task.distinct else _repeats(listed)
    missing = [~_contained(keys, referenced) & ~again for keys, again in zip(listed, repeats, strict=True)]
    repeated = sum(int(again.sum()) for again in repeats)
    known = min(len(referenced), 1) + np.count_nonzero(referenced[1:] != referenced[:-1])
    return JoinResult(task.index, int(known), repeated, tuple(np.packbits(one).tobytes() for one in missing))


def _merged(runs: Sequence[Keys]) -> Keys:
    """The keys of some runs that ascend, in order."""
    together = np.concatenate([np.zeros(0, np.uint64), *runs])
    together.sort(kind="stable")
    return together


def _contained(keys: Keys, among: Keys) -> Mask:
    """For each of some ascending keys whether it is among others, which ascend too."""
    if not len(among):
        return np.zeros(len(keys), np.bool_)
    places = np.minimum(np.searchsorted(among, keys), len(among) - 1)
    found: Mask = among[places] == keys
    return found


def _repeats(listed: Sequence[Keys]) -> list[Mask]:
    """For each key whether an earlier one is the same."""
    together = np.concatenate([np.zeros(0, np.uint64), *listed])
    order = np.argsort(together, kind="stable")
    again = np.zeros(len(together), np.bool_)
    again[order[1:]] = together[order[1:]] == together[order[:-1]]
    return np.split(again, np.cumsum([len(keys) for keys in listed])[:-1])
