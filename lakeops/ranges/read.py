"""Reading committed data: one path, a scan in order, a cursor for listings. Everything read is verified first."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from operator import attrgetter
from threading import Lock
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from lakeops.machine import cores
from lakeops.model.arrow import ENTRY_SCHEMA, RANGE_SCHEMA, to_numpy
from lakeops.model.caching import cached_property
from lakeops.model.errors import Corrupted
from lakeops.model.records import Entry, maker, maker_of_many
from lakeops.ranges.digest import Positions
from lakeops.ranges.metarange import Leaves, Metarange, RangeRow, SortedPaths, upper_bound
from lakeops.ranges.range_file import RangeFile, decode_metarange, fetch, fetch_leaf, fetch_range
from lakeops.store.base import ObjectStore
from lakeops.store.in_flight import IN_FLIGHT, in_flight, read_ahead
from lakeops.store.layout import metarange_key

_AT_ONCE = 64
"""Rows of a metarange that become plain data in one step."""

PATH = attrgetter("path")

_entry, _entries = maker(Entry), maker_of_many(Entry)
*_PLAIN, _METADATA = ENTRY_SCHEMA.names


def entries(table: pa.Table) -> list[Entry]:
    """Rows as records. For small slices only: a page, not a repository."""
    plain = (table.column(name).to_pylist() for name in _PLAIN)
    maps = chain.from_iterable(map(_maps, table.column(_METADATA).chunks))
    return _entries(*plain, maps)


def _maps(array: pa.MapArray) -> Iterator[dict[str, str]]:
    bounds: list[int] = array.offsets.to_pylist()
    first, size = bounds[0], bounds[-1] - bounds[0]
    if not size:
        yield from ({} for _ in range(len(array)))
        return
    keys, values = (column.slice(first, size).to_pylist() for column in (array.keys, array.items))
    for start, end in pairwise(bounds):
        here = slice(start - first, end - first)
        yield dict(zip(keys[here], values[here], strict=True)) if start < end else {}


Loaded = TypeVar("Loaded", Metarange, "DecodedRange")


@dataclass(eq=False)
class RangeCache:
    """The most recently used values up to a number of bytes. Safe to share between threads.

    A value that is larger than ``max_bytes`` by itself is not kept. All values together take ``nbytes``.
    """

    max_bytes: int = 256 << 20
    nbytes: int = field(default=0, init=False)
    _values: OrderedDict[Hashable, tuple[Any, int]] = field(default_factory=OrderedDict, init=False)
    _lock: Any = field(default_factory=Lock, init=False)

    def get(self, key: Hashable, make: Callable[[], Loaded]) -> Loaded:
        """The value of ``key``, made when it is not there. Two threads may make the same value. One is kept."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                kept: Loaded = found[0]
                return kept
        value = make()
        size = value.nbytes
        with self._lock:
            if size <= self.max_bytes and key not in self._values:
                self._values[key] = (value, size)
                self.nbytes += size
                while self.nbytes > self.max_bytes:
                    _, (_, dropped) = self._values.popitem(last=False)
                    self.nbytes -= dropped
        return value


S = TypeVar("S")
T = TypeVar("T")

_AHEAD_NEAR = min(cores(), 4)
"""Loads that are under way at once where only cores limit them. Each may hold a range of either side in memory."""


class _Pointer(Protocol):
    """A commit's reference to its metarange: the id of the content, the file's name, and its SHA-256 in hex."""

    @property
    def meta_range_id(self) -> str: ...

    @property
    def meta_range_file(self) -> str: ...  # empty for a commit without objects

    @property
    def meta_range_digest(self) -> str: ...


@dataclass(eq=False)
class RangeReader:
    """Reads the ranges of one storage namespace. Threads may share it. All readers of a process share a ``cache``."""

    store: ObjectStore
    cache: RangeCache = field(default_factory=RangeCache)

    def metarange(self, commit: _Pointer, *, ordered: bool = True) -> Metarange:
        """The commit's metarange, verified. Raises ``Corrupted`` or ``FileMissing``.

        Lookups need its ranges in order. Whoever looks for what is wrong with it takes it as it is, not ``ordered``.
        """
        file = commit.meta_range_file
        if file:
            key, digest = metarange_key(file), bytes.fromhex(commit.meta_range_digest)

            def load() -> Metarange:
                return decode_metarange(fetch(self.store, key, digest), key)

            metarange = self.cache.get((self.store.url, digest), load)
        else:
            metarange = Metarange.empty()
        if "ranges" in metarange.table.column_names:
            metarange = Metarange(Leaves(metarange, partial(self._leaves, file, ordered)), metarange.delta)
        if metarange.id != commit.meta_range_id:
            raise Corrupted(
                f"metarange {file!r} holds {metarange.id[:16]}, but the commit says "
                f"{commit.meta_range_id[:16]}; run `lakeops fsck`"
            )
        if ordered and metarange.disorder is not None:
            raise Corrupted(f"metarange {file!r}: {metarange.disorder}; run `lakeops fsck`")
        return metarange

    def _leaves(self, file: str, ordered: bool, rows: list[RangeRow]) -> Iterator[Metarange]:
        """Some leaves of the metarange in ``file``, verified. Raises ``Corrupted`` or ``FileMissing``."""

        def load(row: RangeRow) -> Metarange:
            leaf = self.cache.get((self.store.url, row), partial(fetch_leaf, self.store, row))
            if ordered and leaf.disorder is not None:
                raise Corrupted(f"metarange {file!r}: {leaf.disorder}; run `lakeops fsck`")
            return leaf

        return self._load_each(load, rows)

    def whole(self, commit: _Pointer, *, ordered: bool = True) -> Metarange:
        """The commit's metarange with all its leaves, which end where the rule ends them. Raises as ``metarange``."""
        metarange = self.metarange(commit, ordered=ordered)
        if Metarange(metarange.table).id != metarange.id:
            raise Corrupted(
                f"metarange {commit.meta_range_file!r} has leaves that end elsewhere than the rule ends them; "
                "run `lakeops fsck`"
            )
        return metarange

    def metaranges(self, commits: Sequence[_Pointer]) -> list[Metarange]:
        """The metaranges of some commits, all asked for at once where the store is far. Raises as ``metarange``."""
        return list(self._load_each(self.metarange, commits))

    def open(self, row: RangeRow) -> RangeFile:
        """A range file. It is not remembered. Raises ``Corrupted`` or ``FileMissing``."""
        return fetch_range(self.store, row)

    def open_each(self, ranges: Metarange, chosen: Positions) -> Iterator[RangeFile]:
        """Ranges of a metarange by their numbers, in turn. Far ones are asked for at once."""
        parts = np.split(chosen, range(_AT_ONCE, len(chosen), _AT_ONCE))
        return self._load_each(self.open, chain.from_iterable(map(ranges.at, parts)))

    def ahead(self, load: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """Load the items, in order, as far ahead as the store's distance makes worth while."""
        return self._load_each(load, items) if self.store.remote else read_ahead(load, items, most=_AHEAD_NEAR)

    def _load_each(self, load: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        return in_flight(load, items) if self.store.remote else map(load, items)

    def stat(self, metarange: Metarange, path: str) -> Entry | None:
        """The entry at a path, or None."""
        key = path.encode()
        metarange, index = metarange.at_hand(metarange.find(key))
        if index == len(metarange) or metarange.first_paths[index] > key:
            return None
        found = self.decoded(metarange, index)
        row = found.paths.first_at(key)
        return found.entry(row) if found.paths[row] == key else None

    def scan(
        self, metarange: Metarange, prefix: str = "", after: str = "", *, columns: list[str] | None = None
    ) -> Iterator[pa.Table]:
        """Entries under ``prefix`` and after ``after``, in order: tables of ``RANGE_SCHEMA``, none empty.

        With ``columns``, of which one is ``path``, the tables have these alone. Ranges before the start are not read,
        and a few are loaded ahead while the caller works.
        """
        start, stop = metarange.overlapping(prefix, after)
        low, above = max(prefix, after).encode(), upper_bound(prefix)
        if start < stop and low:
            # A page begins where the last one ended, so the range that holds the start is worth remembering.
            found = self.decoded(metarange, start)
            row = found.paths.first_at(low)
            if after and found.paths[row] == after.encode():
                row += 1
            yield from _below(found.table.select(columns or RANGE_SCHEMA.names).slice(row), above)
            start += 1
        # A page ends soon, so the first ones are not fetched all at once.
        most = IN_FLIGHT if self.store.remote else _AHEAD_NEAR
        rows = map(metarange.row, range(start, stop))
        for table in read_ahead(lambda row: self.open(row).read(columns), rows, most):
            yield from _below(table, above)

    def decoded(self, metarange: Metarange, index: int) -> DecodedRange:
        """All rows of one range of a metarange, decoded and remembered."""
        metarange, index = metarange.at_hand(index)
        # By name too: another file with the same bytes may be gone.
        key = (self.store.url, *(metarange.table.column(name)[index].as_py() for name in ("file", "file_digest")))
        return self.cache.get(key, lambda: DecodedRange(self.open(metarange.row(index)).read()))


_FIRST_RUN, _LONGEST_RUN = 25, 675
"""Rows that a cursor gives at a time: three times as many each time, so that four times make a page of a thousand.

Where a range ends sooner, the next one gives the rest.
"""


class DecodedRange:
    """A range's rows (``RANGE_SCHEMA``, in one chunk, at least one row), ready for lookups."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.nbytes: int = table.get_total_buffer_size()

    @cached_property
    def paths(self) -> SortedPaths:
        """The paths, for searching."""
        return SortedPaths(self.table.column("path"))

    def entry(self, row: int) -> Entry:
        """The record of a row: a few microseconds."""
        plain, metadata, bounds = self._columns
        pairs = dict(metadata[row].as_py()) if bounds[row] < bounds[row + 1] else {}
        return _entry(*[column[row].as_py() for column in plain], pairs)

    @cached_property
    def _columns(self) -> tuple[list[pa.Array], Any, Positions]:
        metadata: Any = self.table.column(_METADATA).chunk(0)
        return [self.table.column(name).chunk(0) for name in _PLAIN], metadata, to_numpy(metadata.offsets)


class EntryCursor:
    """A place among a commit's entries under a prefix. It moves on or jumps, and opens only the ranges it lands in.

    Records are made ahead of it, further the longer a listing goes on. It is at the end until it is told where to go.
    ``shown`` changes rows (``RANGE_SCHEMA``) before they become records.
    """

    def __init__(
        self,
        reader: RangeReader,
        metarange: Metarange,
        prefix: str = "",
        shown: Callable[[pa.Table], pa.Table] = lambda rows: rows,
    ) -> None:
        self._reader = reader
        self._metarange = metarange
        self._prefix = prefix
        self._above = upper_bound(prefix)
        self._shown = shown
        self._ahead: list[Entry] = []
        self._next = 0
        # The row behind those that are made: a range, which is opened when it is asked for, and a number there.
        self._index = len(metarange)
        self._range: DecodedRange | None = None
        self._row = 0
        self._run = self._owed = _FIRST_RUN

    @property
    def path(self) -> str | None:
        """The path here. None at the end."""
        if self._next < len(self._ahead):
            return self._ahead[self._next].path
        found = self._present()
        path = found.paths[self._row] if found is not None else None
        return path.decode() if path is not None and (self._above is None or path < self._above) else None

    def take(self, below: str | None = None) -> list[Entry]:
        """Entries from here on that are before ``below``: as many as are at hand."""
        if self._next == len(self._ahead):
            self._ahead, self._next = [], 0
            found = self._present()
            if found is not None:
                start, stop = self._row, min(self._row + self._owed, len(found.paths))
                if self._above is not None and found.paths[stop - 1] >= self._above:
                    stop = max(start, found.paths.first_at(self._above))
                self._row, self._owed = stop, self._owed - (stop - start)
                if not self._owed:
                    self._run = self._owed = min(3 * self._run, _LONGEST_RUN)
                self._ahead = entries(self._shown(found.table.slice(start, stop - start)))
        start, self._next = self._next, len(self._ahead)
        if below is not None:
            self._next = bisect_left(self._ahead, below, lo=start, key=PATH)
        return self._ahead[start : self._next]

    def advance(self) -> None:
        """Move the cursor behind this entry."""
        if self._next < len(self._ahead):
            self._next += 1
        elif self._present() is not None:
            self._row += 1

    def seek(self, after: str) -> None:
        """Go to the first path behind ``after``, forward or back."""
        self._ahead, self._next = [], 0
        self._run = self._owed = _FIRST_RUN
        # No path holds NUL, so this is the smallest key behind it.
        raw = (max(self._prefix, after + "\0") if after else self._prefix).encode()
        if self._range is None or not self._range.paths[0] <= raw <= self._range.paths[-1]:
            self._index, self._range = self._metarange.find(raw), None
        self._row = 0
        found = self._present()
        if found is not None:
            self._row = found.paths.first_at(raw)

    def skip(self, last: str) -> None:
        """Go to the first path behind ``last``, without a read where it is at hand."""
        if self._ahead and self._ahead[-1].path > last:
            self._next = bisect_right(self._ahead, last, key=PATH)
        else:
            self.seek(last)

    def _present(self) -> DecodedRange | None:
        """The range of the row behind those that are made. The next one is read only when it is asked for."""
        if self._range is not None and self._row == len(self._range.paths):
            self._index, self._range, self._row = self._index + 1, None, 0
        if self._range is None and self._index < len(self._metarange):
            self._range = self._reader.decoded(self._metarange, self._index)
        return self._range


def _below(table: pa.Table, above: bytes | None) -> Iterator[pa.Table]:
    if above is not None:
        table = table.slice(0, SortedPaths(table.column("path")).first_at(above))
    if table.num_rows:
        yield table
