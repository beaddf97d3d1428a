"""A metarange: which ranges make up a commit, and which of them a path or prefix concerns.

Immutable, and Arrow all the way: a repository of a thousand million objects has tens of thousands of rows here, and
every commit handles all of them, so nothing turns them into Python objects except the few that are opened.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import array, first_true, from_numpy, in_one, no_rows, to_numpy
from lakeops.model.errors import InvalidInput
from lakeops.model.sanitising import excerpt
from lakeops.ranges.changelist import ChangeList
from lakeops.ranges.digest import fixed_bytes, metarange_id
from lakeops.ranges.format import FILE_MOST, METARANGE_SCHEMA, OVERHEAD, ROW_LEAST, ROW_MOST
from lakeops.store.layout import range_key


def upper_bound(prefix: str) -> bytes | None:
    """Bytes above every path under ``prefix`` and below every path past it; None when all paths are under it."""
    # No UTF-8 text holds the byte 0xff.
    return prefix.encode() + b"\xff" if prefix else None


class SortedPaths:
    """A sorted text column as a sequence of bytes, made for single lookups: a few microseconds among thousands.

    Arrow's own search is quicker for many needles, but a call costs more than a whole bisection here.

    Args:
        column: ``string``, without nulls; sliced columns are fine.
    """

    def __init__(self, column: pa.Array | pa.ChunkedArray) -> None:
        column = in_one(column)
        _, offsets, values = column.buffers()
        self._size = len(column)
        self._bounds = memoryview(offsets).cast("i")[column.offset : column.offset + self._size + 1] if offsets else ()
        self._values = memoryview(values) if values is not None else memoryview(b"")

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> bytes:
        return bytes(self._values[self._bounds[index] : self._bounds[index + 1]])

    def first_at(self, key: bytes) -> int:
        """The position of the first path at or after ``key``; the length when there is none."""
        return bisect_left(self, key)


Rows = npt.NDArray[np.int64]


_FILE = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,254}")


@dataclass(frozen=True, slots=True)
class RangeRow:
    """One range of a metarange: plain data, cheap to send to a worker.

    ``id`` and ``file_digest`` are 32 raw bytes; ``size_bytes`` sums the objects' sizes (column ``bytes``),
    ``file_bytes`` and ``file_digest`` are the size and the SHA-256 of the file itself.
    """

    id: bytes
    file: str
    first_path: str
    last_path: str
    count: int
    size_bytes: int
    file_bytes: int
    file_digest: bytes

    @property
    def hex_id(self) -> str:
        """The range id as 64 hex characters."""
        return self.id.hex()

    @property
    def flaw(self) -> str | None:
        """What cannot be so of it, the file unseen; None when nothing is."""
        if not _FILE.fullmatch(self.file):
            return f"{excerpt(self.file)} is no file's name"
        if self.count < 1 or self.size_bytes < 0:
            return f"it tells of {self.count:,} rows and {self.size_bytes:,} bytes"
        if not self.count * ROW_LEAST <= self.file_bytes <= min(self.count * ROW_MOST + OVERHEAD, FILE_MOST):
            return f"it tells of {self.count:,} rows in a file of {self.file_bytes:,} bytes"
        return None

    @property
    def key(self) -> str:
        """The file's key in the storage namespace."""
        return range_key(self.file)


_VALUES = attrgetter(*(field.name for field in fields(RangeRow)))
"""What a row of ``METARANGE_SCHEMA`` has, of a ``RangeRow``."""


class Metarange:
    """The ranges of one commit, in order.

    Args:
        table: ``METARANGE_SCHEMA``, paths ascending and ranges disjoint.
        changes: what it changes in some other metarange, where that is known.
    """

    def __init__(self, table: pa.Table, changes: ChangeList | None = None) -> None:
        self.table: pa.Table = table.combine_chunks()
        self.id: str = metarange_id(self.table.column("id"))
        self.changes: ChangeList | None = changes

    @classmethod
    def empty(cls) -> Metarange:
        """The metarange of a commit without objects."""
        return cls(no_rows(METARANGE_SCHEMA))

    @classmethod
    def from_rows(cls, rows: Iterable[RangeRow]) -> Metarange:
        """The metarange of these ranges."""
        return cls(rows_table(list(rows)))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        return f"Metarange({self.id[:12]}, {len(self)} ranges, {self.count} objects)"

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the metarange takes."""
        return int(self.table.get_total_buffer_size()) + (self.changes.nbytes if self.changes is not None else 0)

    @cached_property
    def count(self) -> int:
        """How many objects the commit holds."""
        return int(pc.sum(self.table.column("count")).as_py() or 0)

    @cached_property
    def size_bytes(self) -> int:
        """The sum of the objects' sizes."""
        return int(pc.sum(self.table.column("bytes")).as_py() or 0)

    @cached_property
    def first_paths(self) -> SortedPaths:
        """The first path of every range."""
        return SortedPaths(self.table.column("first_path"))

    @cached_property
    def last_paths(self) -> SortedPaths:
        """The last path of every range."""
        return SortedPaths(self.table.column("last_path"))

    def row(self, index: int) -> RangeRow:
        """One range as plain data."""
        return RangeRow(*(self._array(name)[index].as_py() for name in METARANGE_SCHEMA.names))

    def rows(self, start: int, stop: int) -> list[RangeRow]:
        """Ranges ``[start, stop)`` as plain data."""
        columns = [column.to_pylist() for column in self.table.slice(start, stop - start).columns]
        return [RangeRow(*values) for values in zip(*columns, strict=True)]

    def at(self, indices: Iterable[int]) -> list[RangeRow]:
        """The ranges with these row numbers as plain data."""
        rows = from_numpy(np.fromiter(indices, np.int64))
        columns = [column.to_pylist() for column in self.table.take(rows).columns]
        return [RangeRow(*values) for values in zip(*columns, strict=True)]

    def file(self, index: int) -> str:
        """The name of one range's file."""
        name: str = self.table.column("file")[index].as_py()
        return name

    def file_digest(self, index: int) -> bytes:
        """The SHA-256 of one range's file: 32 raw bytes."""
        return bytes(self._file_digests[32 * index : 32 * index + 32])

    @cached_property
    def disorder(self) -> str | None:
        """Where its ranges are out of order or overlap, by what it tells of them; None where they are not."""
        if not len(self):
            return None
        first, last = self._array("first_path"), self._array("last_path")
        at = first_true(pc.greater(first, last))
        if at is not None:
            return f"range {at} ends at {excerpt(last[at].as_py())}, before it begins"
        at = first_true(pc.greater_equal(last[:-1], first[1:]))
        if at is not None:
            ends, begins = excerpt(last[at].as_py()), excerpt(first[at + 1].as_py())
            return f"range {at} ends at {ends}, but the next one begins at {begins}"
        return None

    def find(self, key: bytes) -> int:
        """The first range that ends at or after ``key``: ``len(self)`` when ``key`` is past them all."""
        return self.last_paths.first_at(key)

    def route(self, paths: pa.Array | pa.ChunkedArray) -> Rows:
        """The range that a change of each path concerns: row numbers, as long as ``paths``.

        A path between two ranges belongs to the later one, a path past them all to the last. Needs one range.
        """
        if not len(self):
            raise InvalidInput("an empty metarange has no range to route a path to")
        found: Rows = to_numpy(pc.search_sorted(self.table.column("last_path"), paths)).astype(np.int64)
        return np.minimum(found, len(self) - 1)

    def overlapping(self, prefix: str = "", after: str = "") -> tuple[int, int]:
        """Rows ``[start, stop)`` that may hold paths under ``prefix`` and after ``after``."""
        low, above = max(prefix.encode(), after.encode()), upper_bound(prefix)
        start = self.last_paths.first_at(low)
        stop = len(self) if above is None else self.first_paths.first_at(above)
        return start, max(start, stop)

    def without(self, other: Metarange) -> Rows:
        """Row numbers of the ranges whose id ``other`` does not have, ascending."""
        lead, trail = self._shared_ends(other)
        size = len(self) - lead - trail
        if not size or lead + trail == len(other):
            return np.arange(lead, lead + size)
        middle = self.table.column("id").slice(lead, size)
        known = pc.is_in(middle, value_set=other.table.column("id").slice(lead, len(other) - lead - trail))
        return np.flatnonzero(~to_numpy(known)) + lead

    def meets(self, others: Metarange) -> npt.NDArray[np.bool_]:
        """For each range whether its paths overlap one of the others."""
        if not len(self) or not len(others):
            return np.zeros(len(self), np.bool_)
        first = to_numpy(pc.search_sorted(others.table.column("last_path"), self.table.column("first_path")))
        begins = others.table.column("first_path").take(from_numpy(np.minimum(first, len(others) - 1)))
        # Past the last of the others nothing overlaps, whatever range was looked at in its place.
        overlaps: npt.NDArray[np.bool_] = to_numpy(pc.less_equal(begins, self.table.column("last_path")))
        return overlaps & (first < len(others))

    def covers(self, paths: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        """For each path whether it is between the ends of a range."""
        inside: npt.NDArray[np.bool_] = np.zeros(len(paths), np.bool_)
        if len(self):
            owners = self.route(paths)
            first, last = (self.table.column(name).take(from_numpy(owners)) for name in ("first_path", "last_path"))
            inside = to_numpy(pc.and_(pc.less_equal(first, paths), pc.less_equal(paths, last)))
        return inside

    def behind(self, after: str) -> Metarange:
        """The ranges that may hold paths behind one; all of them for an empty path."""
        return self.only(np.arange(*self.overlapping(after=after))) if after else self

    def only(self, which: Rows) -> Metarange:
        """Some of the ranges, by ascending row numbers."""
        return self if len(which) == len(self) else Metarange(self.table.take(from_numpy(which)))

    def shared(self, other: Metarange) -> npt.NDArray[np.bool_]:
        """For each range whether ``other`` has it too."""
        shared = np.ones(len(self), np.bool_)
        shared[self.without(other)] = False
        return shared

    def telling(self, changes: ChangeList | None) -> Metarange:
        """A metarange of these ranges, with a list of what they change."""
        return Metarange(self.table, changes)

    def changes_since(self, other: Metarange) -> ChangeList | None:
        """What differs from ``other``, where either of the two has a list of that."""
        if self.changes is not None and self.changes.since == other.id:
            return self.changes
        if other.changes is not None and other.changes.since == self.id:
            return other.changes.undone(other.id)
        return None

    @classmethod
    def splice(cls, parts: Iterable[pa.Table]) -> Metarange:
        """The metarange of these runs of rows, in order: slices of other metaranges' tables, and new rows."""
        return cls(pa.concat_tables([no_rows(METARANGE_SCHEMA), *parts]))

    def _array(self, name: str) -> pa.Array:
        """A column in its one chunk: a look at an array takes less than one at chunks."""
        return self.table.column(name).chunk(0)

    @cached_property
    def _file_digests(self) -> memoryview:
        return fixed_bytes(in_one(self.table.column("file_digest")))

    @cached_property
    def _words(self) -> npt.NDArray[np.uint64]:
        raw = fixed_bytes(in_one(self.table.column("id")))
        return np.frombuffer(raw, np.uint64).reshape(-1, 4)

    def _shared_ends(self, other: Metarange) -> tuple[int, int]:
        """How many ranges two metaranges share at their start and at their end: usually almost all."""
        size = min(len(self), len(other))
        unequal = np.flatnonzero((self._words[:size] != other._words[:size]).any(axis=1))
        lead = int(unequal[0]) if len(unequal) else size
        size -= lead
        left, right = self._words[len(self) - size :], other._words[len(other) - size :]
        unequal = np.flatnonzero((left != right).any(axis=1))
        return lead, size - int(unequal[-1]) - 1 if len(unequal) else size


def rows_table(rows: Sequence[RangeRow]) -> pa.Table:
    """Ranges as Arrow: ``METARANGE_SCHEMA``."""
    columns = zip(*map(_VALUES, rows), strict=True) if rows else [()] * len(METARANGE_SCHEMA)
    arrays = [array(values, field.type) for values, field in zip(columns, METARANGE_SCHEMA, strict=True)]
    return pa.table(arrays, schema=METARANGE_SCHEMA)


def ranges_for(objects: int, tables: Sequence[pa.Table]) -> int:
    """How many of the ranges in these tables hold so many objects, on average. At least one.

    Args:
        objects: how many.
        tables: ``METARANGE_SCHEMA``.
    """
    ranges: int = sum(table.num_rows for table in tables)
    held = sum(int(pc.sum(table.column("count")).as_py() or 0) for table in tables)
    return max(1, objects * ranges // max(held, 1))
