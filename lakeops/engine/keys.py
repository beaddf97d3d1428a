"""Short keys for long addresses, so that millions of them can be sorted, sent and compared.

A key is 64 bits of an address and of a seed that is new for every run. Two addresses with one key count as one, and
whoever uses keys sees to it that this only ever keeps an object: a name in ten million among twenty million has such
a twin with a probability of one in 100,000, and another one, if any, in the next run.

An address is padded to whole words, each is multiplied with a factor that follows from the seed, and the products are
summed. Only the upper bits of such a sum know of the upper bytes of the words; so the upper half of every word is
multiplied with a factor of its own, too, and the upper half of the sum is mixed into the lower one. A block takes a few
numpy steps, no loop.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import shake_256

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.schema import arrow, numbers

Keys = npt.NDArray[np.uint64]

BUCKETS = 256
"""Pieces that keys are cut into by their first byte, each about as long as any other."""

BORDERS: Keys = np.arange(1, BUCKETS, dtype=np.uint64) << np.uint64(56)
"""The first key that may be in each bucket after the first."""

BLOCK = 8_192
"""Addresses that are worked on at a time: few enough to stay in the cache."""

_HALVED = 1_024
"""Addresses whose words are halved at a time: threads give longer pieces of memory back after each use."""

_WORD = 8
_STEP = 16
"""Bytes that addresses of different lengths are padded to a multiple of; those of one multiple are taken together."""
_HALF = np.uint64(32)
_LOW, _HIGH = _HALF, np.uint64(48)
_ONE = np.uint64(1)


def address_keys(addresses: pa.Array | pa.ChunkedArray, seed: bytes) -> Keys:
    """The key of each address, from its UTF-8 bytes: ``uint64``, as long as the column.

    Args:
        addresses: ``string`` or ``large_string`` without nulls, sliced or in chunks.
        seed: as random as it is secret; the same for all that is compared.
    """
    out = np.empty(len(addresses), np.uint64)
    done = 0
    for chunk in addresses.chunks if isinstance(addresses, pa.ChunkedArray) else [addresses]:
        for start in range(0, len(chunk), BLOCK):
            block = chunk.slice(start, BLOCK)
            out[done : done + len(block)] = _block_keys(block, seed)
            done += len(block)
    return out


def ascending(keys: Keys) -> Keys:
    """The keys in order."""
    # A stable sort of short numbers is a radix sort: two settle the upper half, and little is left to be done.
    for shift in (_LOW, _HIGH):
        keys = keys[np.argsort((keys >> shift).astype(np.uint16), kind="stable")]
    keys.sort(kind="stable")
    return keys


def order_of(keys: Keys) -> npt.NDArray[np.int64]:
    """The positions of the keys, in the order of the keys."""
    order = np.argsort((keys >> _LOW).astype(np.uint16), kind="stable")
    order = order[np.argsort((keys >> _HIGH).astype(np.uint16)[order], kind="stable")]
    return order[np.argsort(keys[order], kind="stable")]


def _block_keys(block: pa.Array, seed: bytes) -> Keys:
    lengths = numbers(pc.binary_length(block))
    longest = int(lengths.max())
    if int(lengths.min()) == longest:
        return _keys(block, lengths, max(-(-longest // _WORD), 1), seed)
    steps = np.maximum(-(-lengths // _STEP), 1)
    out = np.empty(len(block), np.uint64)
    for step in np.unique(steps):
        rows = np.flatnonzero(steps == step)
        out[rows] = _keys(block.take(arrow(rows)), lengths[rows], int(step) * (_STEP // _WORD), seed)
    return out


def _keys(block: pa.Array, lengths: npt.NDArray[np.signedinteger], count: int, seed: bytes) -> Keys:
    """The keys of addresses that all fit in so many words. Zeros add nothing, so it does not matter how many."""
    if lengths.min() < count * _WORD:
        block = pc.ascii_rpad(block, count * _WORD, "\0")  # counts bytes, whatever they spell
    offsets = np.int64 if pa.types.is_large_string(block.type) else np.int32
    begin = int(np.frombuffer(block.buffers()[1], offsets, block.offset + 1)[-1])
    words = np.frombuffer(block.buffers()[2], "<u8", len(block) * count, begin).reshape(len(block), -1)
    factors = _factors(seed, count)
    keys: Keys = (lengths.astype(np.uint64) + _ONE) * factors[0, 0]
    for start in range(0, len(words), _HALVED):
        some, of_some = words[start : start + _HALVED], keys[start : start + _HALVED]
        of_some += some @ factors[0, 1:]
        of_some += (some >> _HALF) @ factors[1, 1:]
    keys ^= keys >> _HALF
    return keys


@lru_cache(maxsize=64)
def _factors(seed: bytes, words: int) -> Keys:
    """Two rows of odd factors: one for the length, then one for each word; a longer row begins as a shorter one."""
    stream = shake_256(seed).digest(16 * (words + 1))
    return np.ascontiguousarray(np.frombuffer(stream, "<u8").reshape(-1, 2).T | _ONE)
