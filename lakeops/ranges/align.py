"""Finding the rows that two runs of entry digests do not share, by skipping along what they do.

Both runs are in path order and a digest covers its path, so what they share comes in one order on both sides. Most
of two differing ranges is equal: comparing whole stretches at a time costs next to nothing, and only the places where
they part are looked at closely. When there are too many of those, a hash table over both runs is quicker.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrays import from_numpy, to_numpy
from lakeops.ranges.digest import Digests

Positions = npt.NDArray[np.int64]

_STEP = 150
"""So many rows of both sides are hashed in the time of about two steps of the walk."""

_LOOK = 8
"""Steps of the walk in the time of a look through a window."""

_FIRST_STEP = 4_096
_NEAR_STEP = 256
_LAST_STEP = 65_536
_WINDOWS = (8, 64, 1_024)
_TWO_BYTES = np.uint64(0xFFFF)


def unshared(left: Digests, right: Digests) -> tuple[Positions, Positions]:
    """Rows of ``left`` and of ``right`` (numbers, ascending) that were not matched with an equal row.

    Rows that are matched are equal. An equal pair may be missed where the runs part, never the other way round. The
    caller compares paths and contents of what is returned anyway.

    Args:
        left: digests as pairs of 64-bit words, shape ``(n, 2)``.
        right: the same, shape ``(m, 2)``.
    """
    walk = _Alignment(left, right)
    i, j, trail = walk.go()
    rest = _by_hash(left[i : len(left) - trail], right[j : len(right) - trail])
    passed = np.array(walk.only_left, np.int64), np.array(walk.only_right, np.int64)
    return np.concatenate([passed[0], rest[0] + i]), np.concatenate([passed[1], rest[1] + j])


def among(some: Digests, many: Digests) -> npt.NDArray[np.bool_]:
    """Which of a few digests are among many others.

    Those that are told to be there are. One may be missed if another one of the few begins with the same word.
    """
    found = np.zeros(len(some), np.bool_)
    if not len(some):
        return found
    # Two bytes of a digest leave few of the many to be searched for.
    likely = np.zeros(1 << 16, np.bool_)
    likely[some[:, 0] & _TWO_BYTES] = True
    many = many[likely[many[:, 0] & _TWO_BYTES]]
    order = np.argsort(some[:, 0])
    firsts = some[order, 0]
    places = np.minimum(np.searchsorted(firsts, many[:, 0]), len(some) - 1)
    hits = np.flatnonzero(firsts[places] == many[:, 0])
    which = order[places[hits]]
    found[which[some[which, 1] == many[hits, 1]]] = True
    return found


class _Alignment:
    """A position in both runs, and what was passed on the way."""

    def __init__(self, left: Digests, right: Digests) -> None:
        self.only_left: list[int] = []
        self.only_right: list[int] = []
        self._left = left
        self._right = right
        # Both words of a digest side by side, without a copy: comparing them is one pass over memory.
        self._words = [np.ascontiguousarray(side).reshape(-1) for side in (left, right)]
        self._budget = 10 + (len(left) + len(right)) // _STEP

    def go(self) -> tuple[int, int, int]:
        """Walk to the end of a run, or as long as the runs do not part too often.

        Gives how far it came on both sides, and how many of the rows after that are the same at the ends.
        """
        i, j, step = 0, 0, _FIRST_STEP
        left_size, right_size = len(self._left), len(self._right)
        while i < left_size and j < right_size:
            size = min(step, left_size - i, right_size - j)
            equal = self._equal_run(i, j, size)
            i, j = i + equal, j + equal
            if equal == size:
                step = min(4 * step, _LAST_STEP)
                continue
            step = _NEAR_STEP
            self._budget -= 1
            if self._budget < 0:
                return i, j, self._equal_ends(i, j)
            past_left, past_right = self._rows_to_pass(i, j)
            self.only_left += range(i, i + past_left)
            self.only_right += range(j, j + past_right)
            i, j = i + past_left, j + past_right
        return i, j, 0

    def _equal_ends(self, i: int, j: int) -> int:
        """How many rows at the ends are equal, without the first ones."""
        size = min(len(self._left) - i, len(self._right) - j)
        left, right = (words[len(words) - 2 * size :][::-1] for words in self._words)
        return _first_true(left != right) // 2

    def _equal_run(self, i: int, j: int, size: int) -> int:
        """How many rows from ``(i, j)`` on are equal, up to ``size``."""
        left, right = self._words
        return _first_true(left[2 * i : 2 * (i + size)] != right[2 * j : 2 * (j + size)]) // 2

    def _rows_to_pass(self, i: int, j: int) -> tuple[int, int]:
        """From the unequal rows ``(i, j)``: how many rows to pass on each side until equal rows meet again."""
        for past in ((1, 1), (0, 1), (1, 0)):
            if self._rows_meet(i + past[0], j + past[1]):
                return past
        for window in (*_WINDOWS, max(len(self._left) - i, len(self._right) - j)):
            self._budget -= _LOOK
            left, right = self._left[i : i + window, 0], self._right[j : j + window, 0]
            found = pc.index_in(from_numpy(left), value_set=from_numpy(right))
            hits = np.flatnonzero(to_numpy(pc.is_valid(found)))
            if len(hits):
                hit, place = int(hits[0]), int(found[int(hits[0])].as_py())
                if self._rows_meet(i + hit, j + place):
                    return hit, place
        return len(self._left) - i, len(self._right) - j

    def _rows_meet(self, i: int, j: int) -> bool:
        if i >= len(self._left) or j >= len(self._right):
            return False
        left, right = self._words
        return bool(left[2 * i] == right[2 * j] and left[2 * i + 1] == right[2 * j + 1])


def _first_true(true: npt.NDArray[np.bool_]) -> int:
    """The first place that is true. The length when there is none."""
    first = int(true.argmax()) if len(true) else 0
    return first if len(true) and true[first] else len(true)


def _by_hash(left: Digests, right: Digests) -> tuple[Positions, Positions]:
    """The same answer from a hash table over each run."""
    if not len(left) or not len(right):
        return np.arange(len(left)), np.arange(len(right))
    arrays = [_binary(side) for side in (left, right)]
    known = [to_numpy(pc.is_in(one, value_set=other)) for one, other in (arrays, arrays[::-1])]
    return np.flatnonzero(~known[0]), np.flatnonzero(~known[1])


def _binary(digests: Digests) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(digests))
    return pa.Array.from_buffers(pa.binary(16), len(digests), [None, data])
