"""Keys in memory, asked for by the block: who fits here needs no files of sorted keys.

A table with more places than keys. The upper half of a key says where it belongs; its lower half is what lies there,
or, when that place is taken, at the next one that was free. So a key that is not here may be taken for one that is,
when their lower halves are the same and their upper halves nearly so: whoever asks errs on the side of finding.
Keys are put in as they come and are then forgotten, a block in a few steps, never one by one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lakeops.engine.keys import Keys

_Places = npt.NDArray[np.int64]
_Halves = npt.NDArray[np.uint32]
_Mask = npt.NDArray[np.bool_]

_ROOM = 2
"""Places for each key that may be put in."""

_BLOCK = 32_768
"""Keys that are worked on at a time: few enough to stay in the cache."""

_HALF = np.uint64(32)


class KeySet:
    """A set of keys that remembers which of them were met.

    One thread at a time may put in; when all is in, threads may ask at the same time. Takes 8 bytes for each key that
    may be put in, and up to 2 when it is asked.

    Args:
        count: how many keys may be put in, fewer than 2**31; those that repeat do not count.
    """

    def __init__(self, count: int = 0) -> None:
        self._size = _ROOM * count + 1
        # What is never written to is never really there.
        self._table = np.zeros(self._size, np.uint32)
        self._met = np.zeros(self._size, np.bool_)

    def __len__(self) -> int:
        """How many distinct keys there are."""
        return int(np.count_nonzero(self._table))

    @property
    def met(self) -> int:
        """How many distinct ones ``meet`` was asked for."""
        return int(np.count_nonzero(self._met))

    def add(self, keys: Keys) -> None:
        """Put keys in, in any order, some of them perhaps not for the first time."""
        for start in range(0, len(keys), _BLOCK):
            places, halves = self._homes(keys[start : start + _BLOCK])
            while len(halves):
                there = self._table.take(places, mode="wrap")
                free = np.flatnonzero(there == 0)
                at = places.take(free)
                # Of several for one place one stays, and the others go on.
                self._table[at] = halves.take(free)
                there[free] = self._table.take(at, mode="wrap")
                behind = np.flatnonzero(there != halves)
                places, halves = self._next(places.take(behind)), halves.take(behind)

    def contains(self, keys: Keys) -> _Mask:
        """For each key whether it is in the set. Of 2**31 that are not, about one is said to be."""
        return self._find(keys)[0]

    def meet(self, keys: Keys) -> _Mask:
        """The same; the set remembers that it was asked for these."""
        found, places = self._find(keys)
        self._met[places[found]] = True
        return found

    def _find(self, keys: Keys) -> tuple[_Mask, _Places]:
        """For each key whether it is there, and where; a key that is there is always found at one place."""
        places, halves = self._homes(keys)
        there = self._table.take(places, mode="wrap")
        found = there == halves
        behind = np.flatnonzero((there != 0) & ~found)
        while len(behind):
            places[behind] = at = self._next(places.take(behind))
            there = self._table.take(at, mode="wrap")
            found[behind] = hit = there == halves.take(behind)
            behind = behind[(there != 0) & ~hit]
        return found, places

    def _homes(self, keys: Keys) -> tuple[_Places, _Halves]:
        """Where each key belongs, and what lies there for it; where nothing lies there is 0."""
        places = ((keys >> _HALF) * np.uint64(self._size) >> _HALF).view(np.int64)
        return places, np.maximum(keys.astype(np.uint32), 1)

    def _next(self, places: _Places) -> _Places:
        """The places behind; the first one comes after the last."""
        places = places + 1
        places[places == self._size] = 0
        return places
