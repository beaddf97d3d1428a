"""Metaranges: the ranges that make up a commit, and which of them a path or prefix concerns. Their ids.

Immutable, and Arrow all the way: a repository of a thousand million objects has tens of thousands of rows here, and
every commit handles all of them, so nothing turns them into Python objects except the few that are opened.

Ids come from logical content. A *range id* (SHA-256) covers the digests of its rows, in order, and a *metarange id*
(SHA-256) its range ids. ``docs/format.md`` spells the bytes out.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import sha256
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import RANGE_SCHEMA, array, first_true, from_numpy, in_one, no_rows, to_numpy
from lakeops.model.errors import InvalidInput
from lakeops.model.sanitising import excerpt
from lakeops.ranges.digest import DIGEST_BYTES, Positions
from lakeops.store.layout import range_key

METARANGE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.binary(32), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("first_path", pa.string(), nullable=False),
        pa.field("last_path", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("file_bytes", pa.int64(), nullable=False),
        pa.field("file_digest", pa.binary(32), nullable=False),
    ]
)
"""One range a row, in order: its id and file name, first and last path, how many objects and their sizes' sum; then
the size and the SHA-256 of the file, which belong to this copy and are not part of any id."""

ROW_LEAST = DIGEST_BYTES
"""Bytes that a row of a range takes in any file: its digest cannot be compressed."""
ROW_MOST = 16 << 10
"""Bytes that a row of a range takes in memory at most: all its texts have bounds."""
FILE_MOST = 1 << 31
"""Bytes of a range file at most: they are read in one request."""
OVERHEAD = 1 << 20
"""Bytes of a file that belong to no row, and more than there are of them."""


def range_id(digests: pa.Array | pa.ChunkedArray | memoryview) -> bytes:
    """The id of a range with these entry digests, in order: 32 raw bytes."""
    state = sha256(b"lakeops range 2\n")
    if isinstance(digests, memoryview):
        state.update(digests)
    else:
        for chunk in digests.chunks if isinstance(digests, pa.ChunkedArray) else [digests]:
            state.update(fixed_bytes(chunk))
    return state.digest()


def metarange_id(ids: pa.ChunkedArray) -> str:
    """The id of a metarange with these range ids (32 bytes each), in order: 64 hex characters."""
    state = sha256(b"lakeops metarange 1\n")
    for chunk in ids.chunks:
        state.update(fixed_bytes(chunk))
    return state.hexdigest()


EMPTY_METARANGE_ID = metarange_id(pa.chunked_array([], pa.binary(32)))
"""The id of the metarange without ranges: what a repository starts with."""


def fixed_bytes(array: pa.Array) -> memoryview:
    """The values of a fixed-size binary array without nulls, end to end, without a copy."""
    width = array.type.byte_width
    if len(array) == 0:
        return memoryview(b"")
    start = array.offset * width
    return memoryview(array.buffers()[1])[start : start + len(array) * width]


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
        """Why no range can be like this row, the file unseen; None for a row that makes sense."""
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


DeltaRows = tuple[pa.Table, pa.Table]


@dataclass(frozen=True)
class Delta:
    """The rows at all paths whose identities differ between two metaranges, as a list.

    A thousand changes all over a repository are in nearly a thousand ranges. Who compares these ranges to find the
    changes again opens each of them twice. So a commit that rewrites many ranges for few changes keeps the rows that it
    changed, and a diff or a merge reads those instead. The list is in the metarange file, so it needs no request of its
    own and is verified with that file. It is no part of any id: without it the ranges are compared.

    Attributes:
        since: the id of the metarange that was changed.
        load: gives ``before`` and ``after``, once they are asked for.
        nbytes: bytes of memory that it takes before anybody looks at its rows.
    """

    since: str
    load: Callable[[], DeltaRows]
    nbytes: int = 0

    @classmethod
    def of(cls, since: str, before: pa.Table, after: pa.Table) -> Delta:
        """The delta of these rows, changed in the metarange with the id ``since``."""
        return cls(since, lambda: (before, after))

    @classmethod
    def empty(cls, since: str) -> Delta:
        """The delta of no changes."""
        return cls.of(since, no_rows(RANGE_SCHEMA), no_rows(RANGE_SCHEMA))

    @cached_property
    def rows(self) -> DeltaRows:
        """``before`` and ``after``. Raises ``Corrupted`` where its file does not hold what it should."""
        before, after = self.load()
        return before.combine_chunks(), after.combine_chunks()

    @property
    def before(self) -> pa.Table:
        """The rows that were removed or replaced: ``RANGE_SCHEMA``, in path order."""
        return self.rows[0]

    @property
    def after(self) -> pa.Table:
        """The rows that were added or replaced others: ``RANGE_SCHEMA``, in path order."""
        return self.rows[1]

    def rebase_to(self, since: str) -> Delta:
        """These changes, made to the metarange with the id ``since``."""
        return Delta(since, lambda: self.rows)

    def inverse(self, since: str) -> Delta:
        """The changes that lead back from the metarange with the id ``since``."""
        return Delta(since, lambda: (self.after, self.before))

    def only(self, chosen: Callable[[pa.ChunkedArray], pa.Array]) -> Delta:
        """The changes at some paths. ``chosen`` gives a mask of those."""

        def load() -> DeltaRows:
            before, after = (side.filter(chosen(side.column("path"))) for side in self.rows)
            return before, after

        return Delta(self.since, load)

    def then(self, other: Delta) -> Delta:
        """The changes of both, one after the other. They have no path in common."""
        before, after = (pa.concat_tables(sides).sort_by("path") for sides in zip(self.rows, other.rows, strict=True))
        return Delta.of(self.since, before, after)


_ROW_VALUES = attrgetter(*(field.name for field in fields(RangeRow)))


class Metarange:
    """The ranges of one commit, in order.

    Args:
        table: ``METARANGE_SCHEMA``, paths ascending and ranges disjoint.
        delta: what it changes in some other metarange, where that is known.
    """

    def __init__(self, table: pa.Table, delta: Delta | None = None) -> None:
        self.table: pa.Table = table.combine_chunks()
        self.id: str = metarange_id(self.table.column("id"))
        self.delta: Delta | None = delta

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
        return int(self.table.get_total_buffer_size()) + (self.delta.nbytes if self.delta is not None else 0)

    @cached_property
    def count(self) -> int:
        """The number of objects in the commit."""
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
        return self.rows(index, index + 1)[0]

    def rows(self, start: int, stop: int) -> list[RangeRow]:
        """Ranges ``[start, stop)`` as plain data."""
        columns = [column.to_pylist() for column in self.table.slice(start, stop - start).columns]
        return list(map(RangeRow, *columns))

    def at(self, indices: Iterable[int]) -> list[RangeRow]:
        """The ranges with these row numbers as plain data."""
        rows = from_numpy(np.fromiter(indices, np.int64))
        columns = [column.to_pylist() for column in self.table.take(rows).columns]
        return list(map(RangeRow, *columns))

    def file_digest(self, index: int) -> bytes:
        """The SHA-256 of one range's file: 32 raw bytes."""
        return bytes(self._file_digests[32 * index : 32 * index + 32])

    @cached_property
    def disorder(self) -> str | None:
        """Where its ranges are out of order or overlap, by what it tells of them; None where they are not."""
        if not len(self):
            return None
        # A look at an array takes less time than one at chunks.
        first, last = self.table.column("first_path").chunk(0), self.table.column("last_path").chunk(0)
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

    def route(self, paths: pa.Array | pa.ChunkedArray) -> Positions:
        """The range that a change of each path concerns: row numbers, as long as ``paths``.

        A path between two ranges belongs to the later one, a path past them all to the last. Needs one range.
        """
        if not len(self):
            raise InvalidInput("an empty metarange has no range to route a path to")
        found: Positions = to_numpy(pc.search_sorted(self.table.column("last_path"), paths)).astype(np.int64)
        return np.minimum(found, len(self) - 1)

    def overlapping(self, prefix: str = "", after: str = "") -> tuple[int, int]:
        """Rows ``[start, stop)`` that may hold paths under ``prefix`` and after ``after``."""
        low, above = max(prefix.encode(), after.encode()), upper_bound(prefix)
        start = self.last_paths.first_at(low)
        stop = len(self) if above is None else self.first_paths.first_at(above)
        return start, max(start, stop)

    def without(self, other: Metarange) -> Positions:
        """Row numbers of the ranges whose id ``other`` does not have, ascending."""
        # Two metaranges usually share almost all ranges, at their starts and at their ends.
        most = min(len(self), len(other))
        unequal = np.flatnonzero((self._words[:most] != other._words[:most]).any(axis=1))
        lead = int(unequal[0]) if len(unequal) else most
        most -= lead
        left, right = self._words[len(self) - most :], other._words[len(other) - most :]
        unequal = np.flatnonzero((left != right).any(axis=1))
        trail = most - int(unequal[-1]) - 1 if len(unequal) else most
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

    def only(self, which: Positions) -> Metarange:
        """Some of the ranges, by ascending row numbers."""
        return self if len(which) == len(self) else Metarange(self.table.take(from_numpy(which)))

    def shared(self, other: Metarange) -> npt.NDArray[np.bool_]:
        """For each range whether ``other`` has it too."""
        shared = np.ones(len(self), np.bool_)
        shared[self.without(other)] = False
        return shared

    def with_delta(self, delta: Delta | None) -> Metarange:
        """A metarange of these ranges, with a list of what they change."""
        return Metarange(self.table, delta)

    def delta_since(self, other: Metarange) -> Delta | None:
        """The delta from ``other``, where either of the two has a list of it."""
        if self.delta is not None and self.delta.since == other.id:
            return self.delta
        if other.delta is not None and other.delta.since == self.id:
            return other.delta.inverse(other.id)
        return None

    @cached_property
    def _file_digests(self) -> memoryview:
        return fixed_bytes(in_one(self.table.column("file_digest")))

    @cached_property
    def _words(self) -> npt.NDArray[np.uint64]:
        raw = fixed_bytes(in_one(self.table.column("id")))
        return np.frombuffer(raw, np.uint64).reshape(-1, 4)


def rows_table(rows: Sequence[RangeRow]) -> pa.Table:
    """Ranges as Arrow: ``METARANGE_SCHEMA``."""
    columns = zip(*map(_ROW_VALUES, rows), strict=True) if rows else [()] * len(METARANGE_SCHEMA)
    arrays = [array(values, field.type) for values, field in zip(columns, METARANGE_SCHEMA, strict=True)]
    return pa.table(arrays, schema=METARANGE_SCHEMA)


def ranges_for(objects: int, tables: Sequence[pa.Table]) -> int:
    """The number of ranges that hold so many objects, by the average of those in these tables. At least one.

    Args:
        objects: how many.
        tables: ``METARANGE_SCHEMA``.
    """
    ranges: int = sum(table.num_rows for table in tables)
    held = sum(int(pc.sum(table.column("count")).as_py() or 0) for table in tables)
    return max(1, objects * ranges // max(held, 1))
