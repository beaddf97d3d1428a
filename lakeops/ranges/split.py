"""Where ranges end: content-defined cuts from a hash of the path alone.

Because a cut depends on nothing but the paths since the previous cut, equal content is cut the same way whatever its
history, and an edit stops mattering at the next cut that both sides share. The hash is part of the format: it is
written here for whole columns at once and specified in ``docs/format.md`` in six lines of plain Python.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakeops.model.arrays import in_one
from lakeops.model.errors import InvalidInput
from lakeops.model.records import Split

Hashes = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]

VERSION = 1
"""The version of the format. The rule for row groups is a part of it."""

_BLOCK = 65_536
_COMBINED = 1 << 30
_SEED = np.uint64(0x9E3779B97F4A7C15)
_LENGTH = np.uint64(0xC2B2AE3D27D4EB4F)
_ROUND = np.uint64(0xFF51AFD7ED558CCD)
_FINAL = np.uint64(0xC4CEB9FE1A85EC53)
_HALF = np.uint64(32)
_LAST = np.uint64(29)
_TAIL_MASKS = np.array([(1 << (8 * size)) - 1 for size in range(8)], np.uint64)
_OFFSETS = {pa.string(): np.int32, pa.binary(): np.int32, pa.large_string(): np.int64, pa.large_binary(): np.int64}


def path_hashes(paths: pa.Array | pa.ChunkedArray) -> Hashes:
    """The boundary hash of each path, from its UTF-8 bytes: ``uint64``, as long as the column.

    Takes any text or binary column without nulls, sliced or in chunks.
    """
    if paths.null_count:
        raise InvalidInput("column 'path' holds nulls; every entry needs a path")
    if paths.type not in _OFFSETS:
        paths = paths.cast(pa.large_string())
    if isinstance(paths, pa.ChunkedArray) and paths.num_chunks > 1 and paths.nbytes < _COMBINED:
        # Rows that were spliced come in many short chunks, each of which would cost as much as a long one.
        paths = in_one(paths)
    chunks = paths.chunks if isinstance(paths, pa.ChunkedArray) else [paths]
    out = np.empty(len(paths), np.uint64)
    done = 0
    for chunk in chunks:
        for start in range(0, len(chunk), _BLOCK):
            block = chunk.slice(start, _BLOCK)
            out[done : done + len(block)] = _block_hashes(block)
            done += len(block)
    return out


def cut_ends(hashes: Hashes, split: Split) -> Positions:
    """Where ranges end in a run of rows that starts right after a cut: exclusive row numbers, ascending.

    A range ends after a path whose hash is below ``2**64 // target_entries`` once it has ``min_entries`` rows, and
    after ``max_entries`` rows in any case. Rows past the last end belong to a range that is still open.
    """
    check_split(split)
    candidates = possible_ends(hashes, split)
    ends: list[int] = []
    start, total = 0, len(hashes)
    while total - start >= split.min_entries:
        found = int(np.searchsorted(candidates, start + split.min_entries))
        end = int(candidates[found]) if found < len(candidates) else total + 1
        end = min(end, start + split.max_entries)
        if end > total:
            break
        ends.append(end)
        start = end
    return np.array(ends, np.int64)


def possible_ends(hashes: Hashes, split: Split) -> Positions:
    """The exclusive row numbers, ascending, at which the paths alone would let a range end."""
    limit = np.uint64((1 << 64) // split.target_entries - 1)
    return np.flatnonzero(hashes <= limit) + 1


def group_ends(hashes: Hashes, split: Split) -> Positions:
    """Where the row groups of one whole range end: exclusive row numbers, ascending, the last one the range's own.

    The rule of ranges, only finer. So an edit moves no row group but its own and, now and then, the
    next.
    """
    ends = cut_ends(hashes, finer(split))
    return ends if len(ends) and ends[-1] == len(hashes) else np.append(ends, len(hashes))


def finer(split: Split) -> Split:
    """The rule by which the ranges of a split are cut into row groups."""
    least = max(1, 5 * split.min_entries // (4 * split.row_groups))
    target, most = split.target_entries // split.row_groups, 5 * split.max_entries // (6 * split.row_groups)
    return Split(least, max(2, target), max(2 * least, most), 1)


def check_split(split: Split) -> None:
    """Raise ``InvalidInput`` unless ranges of this split can exist."""
    if not (1 <= split.min_entries <= split.max_entries and split.target_entries >= 1 and split.row_groups >= 1):
        raise InvalidInput(f"{split} cannot cut ranges: it needs 1 <= min <= max, target >= 1 and row groups >= 1")


def _block_hashes(block: pa.Array) -> Hashes:
    """Hashes of a short array: one numpy step for each word of eight bytes, over all rows that still have one."""
    width = _OFFSETS[block.type]
    _, offset_buffer, value_buffer = block.buffers()
    bounds = np.frombuffer(offset_buffer, width)[block.offset : block.offset + len(block) + 1].astype(np.int64)
    words = _words(value_buffer, int(bounds[0]), int(bounds[-1]))
    starts = bounds[:-1] - bounds[0]
    lengths = np.diff(bounds)
    hashes: Hashes = lengths.astype(np.uint64) * _LENGTH + _SEED
    whole = lengths >> 3
    shared = int(whole.min())
    for index in range(int(whole.max())):
        if index < shared:
            hashes = _mix_words(hashes, words[8 * index :][starts])
        else:
            alive = np.flatnonzero(whole > index)
            hashes[alive] = _mix_words(hashes[alive], words[8 * index :][starts[alive]])
    rest = lengths & 7
    alive = np.flatnonzero(rest)
    tails = words[starts[alive] + 8 * whole[alive]] & _TAIL_MASKS[rest[alive]]
    hashes[alive] = _mix_words(hashes[alive], tails)
    hashes *= _FINAL
    hashes ^= hashes >> _LAST
    return hashes


def _mix_words(hashes: Hashes, words: Hashes) -> Hashes:
    mixed: Hashes = hashes ^ words
    mixed *= _ROUND
    mixed ^= mixed >> _HALF
    return mixed


def _words(values: pa.Buffer | None, start: int, stop: int) -> npt.NDArray[np.uint64]:
    """The eight bytes from each byte position on, as little-endian numbers, without a copy where memory allows."""
    size = stop - start
    if values is None or stop + 8 > values.size:
        # The last row's word would reach past the buffer.
        padded = np.zeros(size + 8, np.uint8)
        if values is not None:
            padded[:size] = np.frombuffer(values, np.uint8)[start:stop]
        memory = padded.data
    else:
        memory = memoryview(values)[start : stop + 8]
    return np.ndarray((size + 1,), "<u8", memory, strides=(1,))
