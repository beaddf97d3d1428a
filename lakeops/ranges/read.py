"""Reading committed data: one path, a scan in order, a cursor for listings. Everything read is verified first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, pairwise
from threading import Lock
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from lakeops.machine import cores
from lakeops.model.arrow import ENTRY_SCHEMA, RANGE_SCHEMA, no_rows, to_numpy
from lakeops.model.errors import Corrupted
from lakeops.model.records import Entry, maker, maker_of_many
from lakeops.ranges.changelist import ChangeList
from lakeops.ranges.file import RangeFile, fetch, fetch_range
from lakeops.ranges.format import decode_metarange
from lakeops.ranges.metarange import Metarange, RangeRow, Rows, SortedPaths, upper_bound
from lakeops.store.base import ObjectStore
from lakeops.store.in_flight import IN_FLIGHT, in_flight, read_ahead
from lakeops.store.layout import metarange_key

_AT_ONCE = 64
"""Rows of a metarange that become plain data in one step."""


def _rows(metarange: Metarange, chosen: Rows) -> Iterator[RangeRow]:
    for start in range(0, len(chosen), _AT_ONCE):
        yield from metarange.at(chosen[start : start + _AT_ONCE])


_entry, _entries = maker(Entry), maker_of_many(Entry)
*_PLAIN, _METADATA = ENTRY_SCHEMA.names


def entries(table: pa.Table) -> list[Entry]:
    """Rows as records. For small slices only: a page, not a repository."""
    plain = (table.column(name).to_pylist() for name in _PLAIN)
    maps = chain.from_iterable(map(_maps, table.column(_METADATA).chunks))
    return _entries(*plain, maps)


class RowRecords:
    """The rows of a table as records, one at a time: a few microseconds each.

    Args:
        table: at least the columns of ``ENTRY_SCHEMA``, and at least one row.
    """

    def __init__(self, table: pa.Table) -> None:
        # A table of one chunk stays as it is. A column would be copied.
        rows = table.combine_chunks()
        self._plain: list[Any] = [rows.column(name).chunk(0) for name in _PLAIN]
        self._metadata: Any = rows.column(_METADATA).chunk(0)
        self._bounds = to_numpy(self._metadata.offsets)

    def __getitem__(self, row: int) -> Entry:
        metadata = dict(self._metadata[row].as_py()) if self._bounds[row] < self._bounds[row + 1] else {}
        return _entry(*(column[row].as_py() for column in self._plain), metadata)


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


class Sized(Protocol):
    """Anything that knows what it keeps in memory."""

    @property
    def nbytes(self) -> int:
        """Bytes."""
        ...


Loaded = TypeVar("Loaded", bound=Sized)


class RangeCache:
    """The most recently used values up to a number of bytes. Safe to share between threads.

    Args:
        max_bytes: what all values together may keep in memory. A larger single value is not kept.
    """

    def __init__(self, max_bytes: int = 256 * 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """What all values keep in memory."""
        return self._bytes

    def get(self, key: Hashable, make: Callable[[], Loaded]) -> Loaded:
        """The value of ``key``, made when it is not there. Two threads may make the same value. One is kept."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                value: Loaded = found[0]
                return value
        return self.put(key, make())

    def put(self, key: Hashable, value: Loaded) -> Loaded:
        """Remember a value and return it."""
        size = value.nbytes
        with self._lock:
            if size <= self._max_bytes and key not in self._values:
                self._values[key] = (value, size)
                self._bytes += size
                while self._bytes > self._max_bytes:
                    _, (_, dropped) = self._values.popitem(last=False)
                    self._bytes -= dropped
        return value

    def peek(self, key: Hashable) -> Any:  # noqa: ANN401 - what a key stands for is the caller's business
        """The value of ``key`` or None. Does not count as a use."""
        with self._lock:
            found = self._values.get(key)
        return found[0] if found is not None else None


S = TypeVar("S")
T = TypeVar("T")

_AHEAD_NEAR = min(cores(), 4)
"""Loads that are under way at once where only cores limit them. Each may hold a range of either side in memory."""

__all__ = ["DecodedRange", "EntryCursor", "MetarangePointer", "RangeCache", "RangeReader"]


class MetarangePointer(Protocol):
    """What a commit says of its metarange (``model.records.Commit`` is one)."""

    @property
    def meta_range_id(self) -> str:
        """The id of the content."""
        ...

    @property
    def meta_range_file(self) -> str:
        """The file's name, empty for a commit without objects."""
        ...

    @property
    def meta_range_digest(self) -> str:
        """The SHA-256 of the file's bytes, in hex."""
        ...


def read_metarange(data: bytes, key: str) -> Metarange:
    """The metarange of a file whose bytes were verified. Raises ``Corrupted``, naming ``key``."""
    table, attachment = decode_metarange(data, key)
    return Metarange(table, None if attachment is None else ChangeList.read(attachment, key))


class RangeReader:
    """Reads the ranges of one storage namespace. Threads may share it.

    Args:
        store: the namespace's store.
        cache: what the process remembers. Give the same one to every reader.
    """

    def __init__(self, store: ObjectStore, cache: RangeCache | None = None) -> None:
        self.store = store
        self._cache = cache or RangeCache()

    def metarange(self, commit: MetarangePointer, *, ordered: bool = True) -> Metarange:
        """The commit's metarange, verified. Raises ``Corrupted`` or ``ObjectNotFound``.

        Lookups need its ranges in order. Whoever looks for what is wrong with it takes it as it is, not ``ordered``.
        """
        if not commit.meta_range_file:
            metarange = Metarange.empty()
        else:
            digest = bytes.fromhex(commit.meta_range_digest)
            key = metarange_key(commit.meta_range_file)
            metarange = self._cache.get(
                (self.store.url, digest), lambda: read_metarange(fetch(self.store, key, digest), key)
            )
        if metarange.id != commit.meta_range_id:
            raise Corrupted(
                f"metarange {commit.meta_range_file!r} holds {metarange.id[:16]}, but the commit says "
                f"{commit.meta_range_id[:16]}; run `lakeops fsck`"
            )
        if ordered and metarange.disorder is not None:
            raise Corrupted(f"metarange {commit.meta_range_file!r}: {metarange.disorder}; run `lakeops fsck`")
        return metarange

    def metaranges(self, commits: Sequence[MetarangePointer]) -> list[Metarange]:
        """The metaranges of some commits, all asked for at once where the store is far. Raises as ``metarange``."""
        return list(self._load_each(self.metarange, commits))

    def open(self, row: RangeRow) -> RangeFile:
        """A range file. It is not remembered. Raises ``Corrupted`` or ``ObjectNotFound``."""
        return fetch_range(self.store, row)

    def open_each(self, ranges: Metarange, chosen: Rows) -> Iterator[RangeFile]:
        """Ranges of a metarange by their numbers, in turn. Far ones are asked for at once."""
        return self._load_each(self.open, _rows(ranges, chosen))

    def ahead(self, load: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """What ``load`` gives for each item, in order, as far ahead as the store's distance makes worth while."""
        return self._load_each(load, items) if self.store.remote else read_ahead(load, items, most=_AHEAD_NEAR)

    def _load_each(self, load: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        return in_flight(load, items) if self.store.remote else map(load, items)

    def table(self, row: RangeRow, *, columns: list[str] | None = None) -> pa.Table:
        """All rows of a range: ``RANGE_SCHEMA``, or some of its columns. They are not remembered."""
        return fetch_range(self.store, row).read(columns)

    def stat(self, metarange: Metarange, path: str) -> Entry | None:
        """The entry at a path, or None."""
        key = path.encode()
        index = metarange.find(key)
        if index == len(metarange) or metarange.first_paths[index] > key:
            return None
        found = self.decoded(metarange, index)
        row = found.paths.first_at(key)
        return found.rows[row] if found.paths[row] == key else None

    def first(self, metarange: Metarange, key: str) -> Entry | None:
        """The first entry whose path is ``key`` or comes after it, or None."""
        cursor = self.cursor(metarange)
        cursor.seek(key)
        return cursor.entry() if cursor.path is not None else None

    def cursor(self, metarange: Metarange) -> EntryCursor:
        """A cursor, for listings that skip. It goes where ``seek`` sends it."""
        return EntryCursor(self, metarange)

    def scan(
        self, metarange: Metarange, prefix: str = "", after: str = "", *, columns: list[str] | None = None
    ) -> Iterator[pa.Table]:
        """Entries under ``prefix`` and after ``after``, in order: tables of ``RANGE_SCHEMA``, none empty.

        With ``columns``, of which one is ``path``, the tables have these alone.

        Streams: ranges before the start are not read, and a few are loaded ahead while the caller works.
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
        rows = (metarange.row(index) for index in range(start, stop))
        # A page ends soon, so the first ones are not fetched all at once.
        load = partial(self.table, columns=columns)
        for table in read_ahead(load, rows, IN_FLIGHT if self.store.remote else _AHEAD_NEAR):
            yield from _below(table, above)

    def decoded(self, metarange: Metarange, index: int) -> DecodedRange:
        """All rows of one range of a metarange, decoded and remembered."""
        # By name too: another file with the same bytes may be gone.
        key = (self.store.url, metarange.file(index), metarange.file_digest(index))
        return self._cache.get(key, lambda: DecodedRange(self.open(metarange.row(index)).read()))


_FIRST_RUN, _LONGEST_RUN = 25, 675
"""Rows that a cursor gives at a time: three times as many each time, so that four times make a page of a thousand.

Where a range ends sooner, the next one gives the rest.
"""


class DecodedRange:
    """A range's rows, ready for lookups."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.nbytes: int = table.get_total_buffer_size()

    @cached_property
    def paths(self) -> SortedPaths:
        """The paths, for searching."""
        return SortedPaths(self.table.column("path"))

    @cached_property
    def rows(self) -> RowRecords:
        """The rows as records, by number."""
        return RowRecords(self.table)


class EntryCursor:
    """A position among a commit's entries that moves on or jumps, opening only the ranges it lands in.

    It is past the last entry until it is told where to go.
    """

    def __init__(self, reader: RangeReader, metarange: Metarange) -> None:
        self._reader = reader
        self._metarange = metarange
        self._index = 0
        self._range: DecodedRange | None = None
        self._row = 0
        self._run = self._owed = _FIRST_RUN

    @property
    def path(self) -> str | None:
        """The path of the present entry. None past the last."""
        found = self._present()
        return found.paths[self._row].decode() if found is not None else None

    def entry(self) -> Entry:
        """The present entry. The cursor must not be past the last."""
        found = self._present()
        if found is None:
            raise IndexError("the cursor is past the last entry")
        return found.rows[self._row]

    def seek(self, key: str) -> None:
        """Go to the first entry whose path is ``key`` or comes after it. Forward or back."""
        raw = key.encode()
        self._run = self._owed = _FIRST_RUN
        if self._range is None or not self._range.paths[0] <= raw <= self._range.paths[-1]:
            self._index = self._metarange.find(raw)
            self._load()
        if self._range is not None:
            self._row = self._range.paths.first_at(raw)

    def advance(self) -> None:
        """Go to the next entry."""
        if self._present() is not None:
            self._row += 1

    def take(self, below: bytes | None = None) -> pa.Table:
        """The rows from here on that are before ``below``, and go behind them: ``RANGE_SCHEMA``.

        The longer a listing goes on, the more rows it is given at a time. None where it has come to the end.
        """
        found = self._present()
        if found is None:
            return no_rows(RANGE_SCHEMA)
        start, stop = self._row, min(self._row + self._owed, len(found.paths))
        if below is not None and found.paths[stop - 1] >= below:
            stop = max(start, found.paths.first_at(below))
        self._row, self._owed = stop, self._owed - (stop - start)
        if not self._owed:
            self._run = self._owed = min(3 * self._run, _LONGEST_RUN)
        return found.table.slice(start, stop - start)

    def _present(self) -> DecodedRange | None:
        """The range that holds the present entry: the next one is read only when it is asked for."""
        if self._range is not None and self._row == len(self._range.paths):
            self._index += 1
            self._load()
        return self._range

    def _load(self) -> None:
        at_end = self._index == len(self._metarange)
        self._range, self._row = None if at_end else self._reader.decoded(self._metarange, self._index), 0


def _below(table: pa.Table, above: bytes | None) -> Iterator[pa.Table]:
    """The rows before ``above``, if there are any."""
    if above is not None:
        table = table.slice(0, SortedPaths(table.column("path")).first_at(above))
    if table.num_rows:
        yield table
