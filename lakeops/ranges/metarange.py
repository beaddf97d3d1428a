"""Metaranges: the ranges that make up a commit, and which of them a path or prefix concerns. Their ids.

Immutable, and Arrow all the way: a repository of a thousand million objects has tens of thousands of rows here, and
every commit handles all of them, so nothing turns them into Python objects except the few that are opened.

Ids come from logical content. A *range id* (SHA-256) covers the digests of its rows, in order, and a *metarange id*
(SHA-256) its range ids. ``docs/format.md`` spells the bytes out.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from operator import attrgetter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import array, first_true, from_numpy, in_one, no_rows, scalar, to_numpy
from lakeops.model.caching import cached_property
from lakeops.model.errors import Corrupted, InvalidInput
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

LEAF_SCHEMA = METARANGE_SCHEMA.append(pa.field("ranges", pa.int64(), nullable=False))
"""One leaf a row, in order: as a range's row, of all its ranges together, and how many these are."""

LEAF_RANGES = 256
"""Ranges of a leaf, about; twice as many at most."""
MOST_INLINE, MOST_INLINE_NEAR = 4_096, 1_024
"""Ranges of a metarange that is one file, in a far store and on a local disk. A larger one is a root and leaves."""

ROW_LEAST = DIGEST_BYTES
"""Bytes that a row of a range takes in any file: its digest cannot be compressed."""
ROW_MOST = 16 << 10
"""Bytes that a row of a range takes in memory at most: all its texts have bounds."""
FILE_MOST = 1 << 31
"""Bytes of a range file at most: they are read in one request."""
OVERHEAD = 1 << 20
"""Bytes of a file that belong to no row, and more than there are of them."""
_RANGE_TAG, _LEAF_TAG, _METARANGE_TAG = b"lakeops range 2\n", b"lakeops leaf 1\n", b"lakeops metarange 2\n"
"""What the bytes that an id digests begin with. The id of a leaf, too, digests its range ids."""


def range_id(digests: pa.Array | pa.ChunkedArray) -> bytes:
    """The id of a range with these entry digests, in order: 32 raw bytes."""
    return sha256(_RANGE_TAG + fixed_bytes(in_one(digests))).digest()


def leaf_ends(ids: pa.ChunkedArray, *, all_of_them: bool) -> list[int]:
    """Where leaves end among these ranges: exclusive row numbers.

    What is behind the last one belongs to another leaf, or to a last one if these are ``all_of_them``.
    """
    first = np.frombuffer(fixed_bytes(in_one(ids)), ">u8")[::4]
    natural = (np.flatnonzero(first <= np.uint64((1 << 64) // LEAF_RANGES - 1)) + 1).tolist()
    ends: list[int] = []
    for start, end in pairwise([0, *natural, len(first) + 1]):
        ends += [*range(start + 2 * LEAF_RANGES, end, 2 * LEAF_RANGES), end]
    rest = [len(first)] if all_of_them and len(first) and len(first) not in ends else []
    return ends[:-1] + rest


def metarange_id(ids: pa.ChunkedArray) -> str:
    """The id of a metarange with these range ids (32 bytes each), in order: 64 hex characters."""
    raw, state = fixed_bytes(in_one(ids)), sha256(_METARANGE_TAG)
    for start, stop in pairwise([0, *leaf_ends(ids, all_of_them=True)]):
        state.update(sha256(_LEAF_TAG + raw[32 * start : 32 * stop]).digest())
    return state.hexdigest()


def fixed_bytes(array: pa.Array) -> memoryview:
    """The values of a fixed-size binary array without nulls, end to end, without a copy."""
    width = array.type.byte_width
    if len(array) == 0:
        return memoryview(b"")
    start = array.offset * width
    return memoryview(array.buffers()[1])[start : start + len(array) * width]


def without(mine: pa.Array, theirs: pa.Array) -> Positions:
    """The positions, ascending, of the ids or digests that ``theirs`` does not have.

    Both sides usually share almost all, at their starts and at their ends. Only what is between is looked up.
    """
    one, other = np.frombuffer(fixed_bytes(mine), np.uint64), np.frombuffer(fixed_bytes(theirs), np.uint64)
    most, width = min(len(one), len(other)), mine.type.byte_width // 8
    unequal = np.flatnonzero(one[:most] != other[:most])
    lead = (int(unequal[0]) if len(unequal) else most) // width
    most -= lead * width
    unequal = np.flatnonzero(one[len(one) - most :] != other[len(other) - most :])
    trail = (most - int(unequal[-1]) - 1 if len(unequal) else most) // width
    size = len(mine) - lead - trail
    if not size or lead + trail == len(theirs):
        return np.arange(lead, lead + size)
    known = pc.is_in(mine.slice(lead, size), value_set=theirs.slice(lead, len(theirs) - lead - trail))
    unknown: Positions = np.flatnonzero(~to_numpy(known)) + lead
    return unknown


EMPTY_METARANGE_ID = metarange_id(pa.chunked_array([], pa.binary(32)))
"""The id of the metarange without ranges: what a repository starts with."""


def upper_bound(prefix: str) -> bytes | None:
    """Bytes above every path under ``prefix`` and below every path past it; None when all paths are under it."""
    # No UTF-8 text holds the byte 0xff.
    return prefix.encode() + b"\xff" if prefix else None


class SortedPaths:
    """A sorted text column without nulls as a sequence of bytes, for single lookups: a few microseconds each.

    Arrow's own search is quicker for many needles, but a call costs more than a whole bisection here.
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
_ROW_VALUES = attrgetter("id", "file", "first_path", "last_path", "count", "size_bytes", "file_bytes", "file_digest")


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

    @classmethod
    def all_of(cls, table: pa.Table) -> list[RangeRow]:
        """The rows of a table of ``METARANGE_SCHEMA`` or ``LEAF_SCHEMA``."""
        return list(map(cls, *map(pa.ChunkedArray.to_pylist, table.columns[: len(METARANGE_SCHEMA)])))

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
"""Rows that were removed or replaced, and rows that were added or replaced others: ``RANGE_SCHEMA``, in path order."""


@dataclass(frozen=True)
class Delta:
    """The rows at all paths whose identities differ between two metaranges, as a list.

    A commit of few changes keeps the rows that it changed, and a diff or a merge reads those instead of comparing the
    ranges. The list is in the metarange file and is verified with it. It is no part of any id.

    ``since`` is the id of the metarange that was changed. ``load`` gives ``rows``, once they are asked for. ``encoded``
    is how many rows were removed or replaced, and the list as a file has it: no bytes where it is in no file yet.
    """

    since: str
    load: Callable[[], DeltaRows]
    encoded: tuple[int, bytes] = (0, b"")

    @cached_property
    def rows(self) -> DeltaRows:
        """The rows before and after. Raises ``Corrupted`` where the file does not hold what it should."""
        before, after = self.load()
        return before.combine_chunks(), after.combine_chunks()

    def about(self, since: str) -> Delta:
        """A delta from another metarange, with the id ``since``, whose changes are equal to these."""
        return Delta(since, lambda: self.rows, self.encoded)

    def inverse(self, since: str) -> Delta:
        """The inverse delta, which leads back from the metarange with the id ``since``."""
        return Delta(since, lambda: self.rows[::-1])


class Metarange:
    """The ranges of one commit, in order.

    Paths ascend, and ranges are disjoint. Those of a large repository lie in *leaves*, which are loaded when they are
    looked at. ``table`` is all of it. ``delta`` is what it changes in some other metarange, where that is known.
    """

    def __init__(self, ranges: pa.Table | Leaves, delta: Delta | None = None) -> None:
        self.leaves: Leaves | None = ranges if isinstance(ranges, Leaves) else None
        if not isinstance(ranges, Leaves):
            self.table = ranges.combine_chunks()
        # The table has a row for each leaf, or a row for each range.
        self._held: pa.Table = self.table if self.leaves is None else self.leaves.root.table
        self.delta: Delta | None = delta

    @classmethod
    def empty(cls) -> Metarange:
        """The metarange of a commit without objects."""
        return cls(no_rows(METARANGE_SCHEMA))

    @classmethod
    def from_rows(cls, rows: Iterable[RangeRow]) -> Metarange:
        """The metarange of these ranges."""
        columns = [*zip(*map(_ROW_VALUES, rows), strict=True)] or [()] * len(METARANGE_SCHEMA)
        return cls(pa.table([*map(array, columns, METARANGE_SCHEMA.types)], schema=METARANGE_SCHEMA))

    def __len__(self) -> int:
        return int(self.table.num_rows if self.leaves is None else self.leaves.starts[-1])

    @cached_property
    def table(self) -> pa.Table:
        """All ranges: ``METARANGE_SCHEMA``. Loads every leaf."""
        return self._of(None)[0].combine_chunks()

    @property
    def leaf_files(self) -> list[str]:
        """The names of the files of its leaves, under ``_lakefs/ranges/``."""
        files: list[str] = [] if self.leaves is None else self._held.column("file").to_pylist()
        return files

    @cached_property
    def id(self) -> str:
        """The id: it follows from the ids of the ranges, in order."""
        if self.leaves is None:
            return metarange_id(self.table.column("id"))
        return sha256(_METARANGE_TAG + fixed_bytes(in_one(self._held.column("id")))).hexdigest()

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the metarange takes, without its leaves."""
        return int(self._held.get_total_buffer_size()) + (len(self.delta.encoded[1]) if self.delta else 0)

    @cached_property
    def count(self) -> int:
        """The number of objects in the commit."""
        return int(pc.sum(self._held.column("count")).as_py() or 0)

    @cached_property
    def size_bytes(self) -> int:
        """The sum of the objects' sizes."""
        return int(pc.sum(self._held.column("bytes")).as_py() or 0)

    @cached_property
    def first_paths(self) -> SortedPaths:
        """The first path of every range."""
        return SortedPaths(self.table.column("first_path"))

    @cached_property
    def last_paths(self) -> SortedPaths:
        """The last path of every range."""
        return SortedPaths(self.table.column("last_path"))

    def at_hand(self, index: int) -> tuple[Metarange, int]:
        """The leaf that holds a range (itself where it has no leaves), and the range's number there."""
        if self.leaves is None:
            return self, index
        number = min(int(self.leaves.holding(index)), len(self.leaves.root) - 1)  # the number may be past all
        return self.leaves.get([number])[0], index - int(self.leaves.starts[number])

    def row(self, index: int) -> RangeRow:
        """One range as plain data."""
        return self.rows(index, index + 1)[0]

    def rows(self, start: int, stop: int) -> list[RangeRow]:
        """Ranges ``[start, stop)`` as plain data."""
        return RangeRow.all_of(self.between(start, stop))

    def at(self, indices: Iterable[int]) -> list[RangeRow]:
        """The ranges with these row numbers as plain data."""
        return RangeRow.all_of(self.take(np.fromiter(indices, np.int64)))

    def between(self, start: int, stop: int) -> pa.Table:
        """Ranges ``[start, stop)``: ``METARANGE_SCHEMA``."""
        if self.leaves is None:
            return self.table.slice(start, stop - start)
        if start == stop:
            return no_rows(METARANGE_SCHEMA)
        first, last = (int(self.leaves.holding(index)) for index in (start, stop - 1))
        table, numbers = self._of(np.arange(first, last + 1))
        return table.slice(start - numbers[0], stop - start)

    def take(self, rows: Positions) -> pa.Table:
        """The ranges with these row numbers: ``METARANGE_SCHEMA``."""
        if self.leaves is None:
            return self.table.take(from_numpy(rows))
        table, numbers = self._of(np.unique(self.leaves.holding(rows)))
        return table.take(from_numpy(np.searchsorted(numbers, rows)))

    def column(self, name: str, rows: Positions, lacking: npt.NDArray[np.bool_] | None = None) -> pa.ChunkedArray:
        """A column of the ranges with these row numbers. Nulls where they are ``lacking``."""
        if self.leaves is None:
            return self.table.column(name).take(from_numpy(rows, lacking))
        table, numbers = self._of(np.unique(self.leaves.holding(rows if lacking is None else rows[~lacking])))
        return table.column(name).take(from_numpy(np.searchsorted(numbers, rows), lacking))

    @cached_property
    def disorder(self) -> str | None:
        """Where its ranges are out of order or overlap, by what it tells of them; None where they are not."""
        if self.leaves is not None:
            return self.leaves.root.disorder
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
        if not key:
            return 0
        if self.leaves is None:
            return self.last_paths.first_at(key)
        number = self.leaves.root.find(key)
        start = int(self.leaves.starts[number])
        return start if number == len(self.leaves.root) else start + self.leaves.get([number])[0].find(key)

    def search(self, paths: pa.Array | pa.ChunkedArray) -> Positions:
        """For each path the first range that ends at or after it: ``len(self)`` past them all."""
        if self.leaves is None:
            found: Positions = to_numpy(pc.search_sorted(self.table.column("last_path"), paths)).astype(np.int64)
            return found
        numbers = np.unique(self.leaves.root.search(paths))
        table, rows = self._of(numbers[numbers < len(self.leaves.root)])
        return np.append(rows, len(self))[Metarange(table).search(paths)]

    def route(self, paths: pa.Array | pa.ChunkedArray) -> Positions:
        """The range that a change of each path concerns: row numbers, as long as ``paths``.

        A path between two ranges belongs to the later one, a path past them all to the last. Needs one range.
        """
        if not len(self):
            raise InvalidInput("an empty metarange has no range to route a path to")
        return np.minimum(self.search(paths), len(self) - 1)

    def overlapping(self, prefix: str = "", after: str = "") -> tuple[int, int]:
        """Rows ``[start, stop)`` that may hold paths under ``prefix`` and after ``after``."""
        start, above = self.find(max(prefix.encode(), after.encode())), upper_bound(prefix)
        stop = len(self) if above is None else self.find(above)
        if above is not None and stop < len(self) and self.row(stop).first_path.encode() < above:
            stop += 1  # it begins under the prefix
        return start, max(start, stop)

    def without(self, other: Metarange) -> Positions:
        """Row numbers of the ranges whose id ``other`` does not have, ascending."""
        if self.leaves is not None or other.leaves is not None:
            (mine, numbers), (theirs, _) = self._beside(other), other._beside(self)
            lacking = numbers[Metarange(mine).without(Metarange(theirs))]
            if other.leaves is not None:
                return lacking
            # The other one has nothing in the place of leaves that were not looked at.
            return np.delete(np.arange(len(self)), np.setdiff1d(numbers, lacking))
        return without(in_one(self.table.column("id")), in_one(other.table.column("id")))

    def _beside(self, other: Metarange) -> tuple[pa.Table, Positions]:
        """The ranges that have to be compared with those of another metarange, and their row numbers.

        Leaves that both have are left out unread, and those that hold none of the other's paths.
        """
        if self.leaves is None:
            return self.table, np.arange(len(self))
        root = self.leaves.root
        return self._of(np.flatnonzero(root.meets(other)) if other.leaves is None else root.without(other.leaves.root))

    def meets(self, others: Metarange) -> npt.NDArray[np.bool_]:
        """For each range whether its paths overlap one of the others."""
        overlaps: npt.NDArray[np.bool_] = np.zeros(len(self), np.bool_)
        if not len(self) or not len(others):
            return overlaps
        if self.leaves is not None:
            table, numbers = self._of(np.flatnonzero(self.leaves.root.meets(others)))
            overlaps[numbers] = Metarange(table).meets(others)
            return overlaps
        first = others.search(self.table.column("first_path"))
        begins = others.column("first_path", np.minimum(first, len(others) - 1))
        # Past the last of the others nothing overlaps, whatever range was looked at in its place.
        overlaps = to_numpy(pc.less_equal(begins, self.table.column("last_path")))
        return overlaps & (first < len(others))

    def holding(self, paths: pa.Array | pa.ChunkedArray) -> Positions:
        """For each path the range between whose ends it is: row numbers, -1 for none."""
        owners = self.search(paths)
        begins = self.column("first_path", owners, owners == len(self))
        inside = pc.fill_null(pc.less_equal(begins, paths), scalar(False, pa.bool_()))
        return np.where(to_numpy(inside), owners, -1)

    def behind(self, after: str) -> Metarange:
        """The ranges that may hold paths after a path; all of them for an empty path."""
        return joined([(self, *self.overlapping(after=after))]) if after else self

    def only(self, which: Positions) -> Metarange:
        """Some of the ranges, by ascending row numbers."""
        return self if len(which) == len(self) else Metarange(self.take(which))

    def with_delta(self, delta: Delta | None) -> Metarange:
        """A metarange of these ranges, with a list of what they change."""
        return Metarange(self.table if self.leaves is None else self.leaves, delta)

    def delta_since(self, other: Metarange) -> Delta | None:
        """The delta from ``other``, where either of the two has a list of it."""
        if self.delta is not None and self.delta.since == other.id:
            return self.delta
        if other.delta is not None and other.delta.since == self.id:
            return other.delta.inverse(other.id)
        return None

    def _of(self, numbers: Positions | None) -> tuple[pa.Table, Positions]:
        """The ranges of some leaves, by ascending numbers (None: of all), and the ranges' row numbers."""
        if self.leaves is None:
            return self.table, np.arange(len(self))
        numbers = np.arange(len(self.leaves.root)) if numbers is None else numbers
        tables, starts = [one.table for one in self.leaves.get(numbers.tolist())], self.leaves.starts
        rows = [np.arange(starts[number], starts[number + 1]) for number in numbers]
        if len(numbers) == 1:
            return tables[0], rows[0]
        return pa.concat_tables([no_rows(METARANGE_SCHEMA), *tables]), np.concatenate([np.zeros(0, np.int64), *rows])


class Leaves:
    """The leaves of a metarange: parts of it that ``load`` gives when they are looked at, by their rows in ``root``.

    ``fresh`` are by id those that are in no file yet.
    """

    def __init__(
        self,
        root: Metarange,
        load: Callable[[list[RangeRow]], Iterable[Metarange]],
        fresh: Mapping[bytes, Metarange] | None = None,
    ) -> None:
        self.root = root
        self.load = load
        self.fresh: Mapping[bytes, Metarange] = fresh or {}
        self._recent: dict[int, Metarange] = {}

    @cached_property
    def starts(self) -> Positions:
        """The number of the first range of each leaf, and at the end the number of ranges."""
        return np.append(0, np.cumsum(to_numpy(self.root.table.column("ranges"))))

    def holding(self, rows: Positions | int) -> Positions:
        """The leaves that have the ranges with these row numbers."""
        found: Positions = np.searchsorted(self.starts, rows, side="right") - 1
        return found

    def get(self, numbers: Sequence[int]) -> list[Metarange]:
        """Some of the leaves. They are remembered for whoever goes on in them, until others are asked for."""
        found = dict(self._recent)
        if missing := [number for number in numbers if number not in found]:
            rows = self.root.at(missing)
            loaded = iter(self.load([row for row in rows if row.id not in self.fresh]))
            for number, row in zip(missing, rows, strict=True):
                found[number] = leaf = self.fresh.get(row.id) or next(loaded)
                if len(leaf) != self.starts[number + 1] - self.starts[number]:
                    raise Corrupted(f"{row.key} has {len(leaf)} ranges, not as many as its metarange says")
            self._recent = {number: found[number] for number in numbers}
        return [found[number] for number in numbers]


Piece: TypeAlias = tuple[Metarange, int, int]
"""The rows ``[start, stop)`` of a metarange."""


def joined(pieces: Iterable[Piece]) -> Metarange:
    """The metarange of some ranges, one piece after the other. Leaves that stay as they are need no loading.

    It has leaves where a piece is of a metarange that has some.
    """
    cutter, load = _LeafCutter([no_rows(METARANGE_SCHEMA)]), None
    pieces = [*pieces]
    while pieces and pieces[-1][1] >= pieces[-1][2]:
        pieces.pop()
    for number, (ranges, start, stop) in enumerate(pieces, 1):
        if start >= stop:
            continue
        if ranges.leaves is None:
            cutter.open.append(ranges.between(start, stop))
        else:
            load = ranges.leaves.load
            cutter.keep(ranges.leaves, start, stop, last=number == len(pieces))
    return Metarange(pa.concat_tables(cutter.open) if load is None else cutter.finish(load))


def in_leaves(metarange: Metarange) -> Leaves:
    """The leaves of a metarange, made where it has none."""
    if metarange.leaves is not None:
        return metarange.leaves
    return _LeafCutter([metarange.table]).finish(lambda _: ())


@dataclass
class _LeafCutter:
    """Leaves in the making. ``open`` are ranges behind them that are in no leaf yet."""

    open: list[pa.Table]
    rows: list[pa.Table] = field(default_factory=list)
    fresh: dict[bytes, Metarange] = field(default_factory=dict)

    def keep(self, leaves: Leaves, start: int, stop: int, *, last: bool) -> None:
        """Ranges ``[start, stop)`` follow. ``last`` says that nothing follows these."""
        starts, root = leaves.starts, leaves.root
        self.fresh.update(leaves.fresh)
        whole = int(leaves.holding(stop))
        # The last leaf ends for want of more, so what follows may belong to it.
        whole -= whole == len(root) and not last
        while start < stop:
            number = int(leaves.holding(start))
            if start == starts[number] and number < whole and self.close():
                self.rows.append(root.table.slice(number, whole - number))
                start = int(starts[whole])
                continue
            end = min(stop, int(starts[number + 1]))
            table = leaves.get([number])[0].table
            self.open.append(table.slice(start - starts[number], end - start))
            start = end

    def finish(self, load: Callable[[list[RangeRow]], Iterable[Metarange]]) -> Leaves:
        """All the leaves. Nothing follows."""
        self.close(end=True)
        return Leaves(Metarange(pa.concat_tables([no_rows(LEAF_SCHEMA), *self.rows])), load, self.fresh)

    def close(self, *, end: bool = False) -> bool:
        """Make leaves of the open ranges, at the ``end`` of all of them. Returns whether none is open any more."""
        if self.open:
            ranges = Metarange(pa.concat_tables(self.open))
            ends = leaf_ends(ranges.table.column("id"), all_of_them=end)
            for start, stop in pairwise([0, *ends]):
                leaf = Metarange(ranges.between(start, stop))
                row = described_leaf(leaf)
                self.rows.append(root_row(leaf, row))
                self.fresh[row.id] = leaf
            rest = ranges.table.slice(ends[-1] if ends else 0)
            self.open = [rest] if rest.num_rows else []
        return not self.open


def described_leaf(leaf: Metarange, file: str = "", file_bytes: int = 0, file_digest: bytes = bytes(32)) -> RangeRow:
    """The description of a leaf that its root holds, beside the number of its ranges."""
    first, last = leaf.table.column("first_path")[0].as_py(), leaf.table.column("last_path")[-1].as_py()
    key = sha256(_LEAF_TAG + fixed_bytes(in_one(leaf.table.column("id")))).digest()
    return RangeRow(key, file, first, last, leaf.count, leaf.size_bytes, file_bytes, file_digest)


def root_row(leaf: Metarange, described: RangeRow) -> pa.Table:
    """The row of a leaf in the root: ``LEAF_SCHEMA``."""
    ranges = array([len(leaf)], pa.int64())
    return Metarange.from_rows([described]).table.append_column(LEAF_SCHEMA.field("ranges"), ranges)


def root_flaw(table: pa.Table) -> str | None:
    """Why no metarange can have this root (``LEAF_SCHEMA``), its leaves unseen; None for one that makes sense."""
    ranges = to_numpy(table.column("ranges"))
    if ((ranges < 1) | (ranges > 2 * LEAF_RANGES)).any():
        return "a leaf would have no ranges, or more than any has"
    for row in RangeRow.all_of(table):
        if not row.file.startswith(f"{row.id.hex()}-") or not _FILE.fullmatch(row.file) or row.file_bytes > FILE_MOST:
            return f"{excerpt(row.file)} of {row.file_bytes:,} bytes is no file of leaf {row.id.hex()[:16]}"
    return None


def ranges_for(objects: int, tables: Sequence[pa.Table]) -> int:
    """The number of ranges that hold so many objects, by the average of those in these tables. At least one."""
    ranges: int = sum(table.num_rows for table in tables)
    held = sum(int(pc.sum(table.column("count")).as_py() or 0) for table in tables)
    return max(1, objects * ranges // max(held, 1))
