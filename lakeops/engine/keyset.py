"""Keys in memory, asked for by the block: who fits here needs no files of sorted keys.

A key's place follows from its upper half; the keys ascend, each as near behind its place as those before it let it,
and a gap holds the key that comes next. So a search begins at the place and goes on while what lies there is less,
which is seldom more than a step: half of the table is gaps. Nothing is put in one by one, neither when the table is
made nor when it is asked.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from lakeops.engine.keys import BUCKETS, Keys, ascending

_Places = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]

_ROOM = 2
_HALF = np.uint64(32)
_BUCKET = np.uint64(56)


class KeySet:
    """A set of keys that remembers which of them were met. Threads may ask at the same time.

    Takes 26 bytes a key while it is made, 18 afterwards.

    Args:
        runs: keys in any order, repeated at will, fewer than 2**31 in all.
    """

    def __init__(self, runs: Iterable[Keys] = ()) -> None:
        buckets = _distinct(runs)
        self._count = sum(len(keys) for keys in buckets)
        self._size = np.uint64(_ROOM * self._count)
        self._table = self._spread(buckets)
        self._met = np.zeros(len(self._table), np.bool_)

    def __len__(self) -> int:
        """How many distinct keys there are."""
        return self._count

    @property
    def met(self) -> int:
        """How many distinct ones ``meet`` was asked for."""
        return int(np.count_nonzero(self._met))

    def contains(self, keys: Keys) -> _Mask:
        """For each key whether it is in the set."""
        return self._find(keys)[0]

    def meet(self, keys: Keys) -> _Mask:
        """For each key whether it is in the set, which remembers that it was asked for."""
        found, places = self._find(keys)
        self._met[places[found]] = True
        return found

    def _find(self, keys: Keys) -> tuple[_Mask, _Places]:
        """For each key whether it is there, and where; a key that is there is always found at one place."""
        if not self._count:
            return np.zeros(len(keys), np.bool_), np.zeros(len(keys), np.int64)
        last = len(self._table) - 1
        places = np.minimum(self._home(keys), last)
        there = self._table[places]
        found = there == keys
        behind = np.flatnonzero(there < keys)
        while len(behind):
            behind = behind[places[behind] < last]
            at = places[behind] + 1
            places[behind] = at
            there, wanted = self._table[at], keys[behind]
            found[behind] = there == wanted
            behind = behind[there < wanted]
        return found, places

    def _home(self, keys: Keys) -> _Places:
        return ((keys >> _HALF) * self._size >> _HALF).view(np.int64)

    def _spread(self, buckets: list[Keys]) -> Keys:
        """The table of ascending distinct keys; each bucket is let go when it is in."""
        # What is never written to is never really there, and no key is further from its place than there are keys.
        table = np.empty((_ROOM + 1) * self._count + 1, np.uint64)
        end = 0
        buckets.reverse()
        while buckets:
            keys = buckets.pop()
            ahead = np.arange(len(keys))
            places = np.maximum.accumulate(np.maximum(self._home(keys) - ahead, end)) + ahead
            stop = int(places[-1]) + 1
            table[end:stop] = np.repeat(keys, np.diff(places, prepend=end - 1))
            end = stop
        return table[:end]


def _distinct(runs: Iterable[Keys]) -> list[Keys]:
    """The keys of all runs in order, each once, in buckets of which none is empty."""
    cut = [_cut(keys) for keys in runs]
    return [_once_each(np.concatenate(pieces)) for pieces in zip(*cut, strict=True) if any(map(len, pieces))]


def _cut(keys: Keys) -> list[Keys]:
    """The keys of each bucket. Sorting them later, in the cache, is quicker than sorting all of them now."""
    owners = (keys >> _BUCKET).astype(np.uint8)
    ends = np.cumsum(np.bincount(owners, minlength=BUCKETS))
    return np.split(keys[np.argsort(owners, kind="stable")], ends[:-1])


def _once_each(keys: Keys) -> Keys:
    """The keys in order, each once."""
    keys = ascending(keys)
    fresh = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=fresh[1:])
    return keys[fresh]
