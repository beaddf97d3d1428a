"""Cutting rows into ranges: content-defined ends from a hash of the path alone.

Because a cut depends on nothing but the paths since the previous cut, equal content is cut the same way whatever its
history, and an edit stops mattering at the next cut that both sides share. The hash is part of the format: it is
written here for whole columns at once and specified in ``docs/format.md`` in six lines of plain Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import first_true, in_one
from lakeops.model.errors import InvalidInput
from lakeops.model.records import Split
from lakeops.ranges.digest import Positions, complete, with_digests

Hashes = npt.NDArray[np.uint64]
"""The boundary hash of each of some paths."""

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
    """The boundary hash of each path, from its UTF-8 bytes. Takes any text or binary column without nulls."""
    if paths.null_count:
        raise InvalidInput("column 'path' holds nulls; every entry needs a path")
    if paths.type not in _OFFSETS:
        paths = paths.cast(pa.large_string())
    if isinstance(paths, pa.ChunkedArray) and paths.num_chunks > 1 and paths.nbytes < _COMBINED:
        # Rows that were put together come in many short chunks, each of which would cost as much as a long one.
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
    candidates = np.flatnonzero(hashes <= np.uint64((1 << 64) // split.target_entries - 1)) + 1
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


def check_split(split: Split) -> None:
    """Raise ``InvalidInput`` unless ranges of this split can exist."""
    if not (1 <= split.min_entries <= split.max_entries and split.target_entries >= 1):
        raise InvalidInput(f"{split} cannot cut ranges: it needs 1 <= min <= max and target >= 1")


@dataclass
class Chunker:
    """A cutter of rows, which come in order, into whole ranges. The range that is still open has ``open`` rows.

    Rows must start right after a cut, and have one schema with a ``path``.
    """

    split: Split
    open: int = 0
    _tables: list[pa.Table] = field(default_factory=list)
    _hashes: list[Hashes] = field(default_factory=list)

    def add(self, table: pa.Table, hashes: Hashes | None = None) -> list[pa.Table]:
        """The rows of each range that these rows bring to an end. ``hashes`` of their paths, if the caller has them."""
        if hashes is None:
            hashes = path_hashes(table.column("path"))
        self._tables.append(table)
        self._hashes.append(hashes)
        self.open += table.num_rows
        if self.open < self.split.min_entries:
            return []
        ends = cut_ends(np.concatenate(self._hashes), self.split).tolist()
        if not ends:
            return []
        rows = pa.concat_tables(self._tables)
        closed = [rows.slice(start, end - start) for start, end in pairwise([0, *ends])]
        # No cut was due before these rows came, so what is left is theirs.
        rest = rows.slice(ends[-1])
        kept = hashes[len(hashes) - rest.num_rows :]
        # A slice of no rows would keep all rows in memory.
        self._tables, self._hashes, self.open = ([rest], [kept], rest.num_rows) if rest.num_rows else ([], [], 0)
        return closed

    def rest(self) -> pa.Table:
        """The rows of the open range, which is open no more. Needs at least one row."""
        rows = pa.concat_tables(self._tables)
        self._tables, self._hashes, self.open = [], [], 0
        return rows


_AT_ONCE = 100_000


def chunks(tables: Iterable[pa.Table], split: Split) -> Iterator[pa.Table]:
    """Cut all rows of a metarange into ranges, and give the rows of each. Digests come along where there are any.

    Raises ``InvalidInput`` unless paths ascend strictly within and across the tables.
    """
    chunker = Chunker(split)
    last: str | None = None
    for table in tables:
        if not table.num_rows:
            continue
        check_ascending(table.column("path"), last)
        last = table.column("path")[-1].as_py()
        for start in range(0, table.num_rows, _AT_ONCE):
            rows = table.slice(start, _AT_ONCE)
            yield from chunker.add(with_digests(rows) if "digest" in rows.column_names else complete(rows))
    if chunker.open:
        yield chunker.rest()


def check_ascending(paths: pa.Array | pa.ChunkedArray, after: str | None = None) -> None:
    """Raise ``InvalidInput`` unless paths ascend strictly by their bytes, all of them after ``after``."""
    for chunk in paths.chunks if isinstance(paths, pa.ChunkedArray) else [paths]:
        if not len(chunk):
            continue
        at = first_true(pc.greater_equal(chunk.slice(0, len(chunk) - 1), chunk.slice(1)))
        if at is not None or (after is not None and chunk[0].as_py() <= after):
            wrong = chunk[0 if at is None else at + 1].as_py()
            raise InvalidInput(f"paths must be unique and sorted by their bytes; they are not at {wrong!r}")
        after = chunk[-1].as_py()


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
