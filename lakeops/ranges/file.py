"""One range file in hand: its footer and the row groups that were asked for, verified before anything is decoded.

The chain of trust: the catalog's commit holds the SHA-256 of the metarange file, the metarange that of each range
file's footer, the footer that of each row group. So a damaged, cut short or swapped file is found out by a digest, and
a row that points at the wrong file by the range id, which the footer's group digests must add up to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.errors import Corrupted, NotReplicated, ObjectNotFound
from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.digest import group_digest, range_id
from lakeops.ranges.format import RowGroup, decode_footer, read_columns, stream_column
from lakeops.ranges.metarange import RangeRow
from lakeops.ranges.order import SortedPaths
from lakeops.store.base import ObjectStore

Rows = npt.NDArray[np.int64]

_GAP = 256 * 1024
"""Bytes that are read along, unused, rather than asked for in two requests."""


def fetch(store: ObjectStore, key: str, digest: bytes) -> bytes:
    """The whole file, verified: its SHA-256 is ``digest``. Raises ``Corrupted`` or ``ObjectNotFound``, naming it."""
    with _needed(store, key):
        data = store.get(key)
    if sha256(data).digest() != digest:
        raise _damaged(key, f"{len(data)} bytes were read")
    return data


def open_range(store: ObjectStore, row: RangeRow) -> RangeFile:
    """The range that a metarange row names; only its footer is read. Raises ``Corrupted`` or ``ObjectNotFound``."""
    start = row.file_bytes - row.footer_bytes
    return RangeFile(store, row, _read(store, row.key, start, row.footer_bytes))


def read_range(store: ObjectStore, row: RangeRow) -> pa.Table:
    """All rows of the range that a metarange row names, in one request; raises as ``open_range``."""
    return fetch_range(store, row).read()


def fetch_range(store: ObjectStore, row: RangeRow) -> RangeFile:
    """The range that a metarange row names, all of it read and verified in one request; raises as ``open_range``."""
    data = _read(store, row.key, 0, row.file_bytes)
    file = RangeFile(store, row, data[row.file_bytes - row.footer_bytes :])
    file.take_over(data)
    return file


class RangeFile:
    """A range file; row groups are fetched, verified and decoded when asked for. Threads may share it.

    Args:
        store: the namespace.
        row: the metarange row that names it.
        tail: the bytes at its end that should be the footer; they stay at hand.
    """

    def __init__(self, store: ObjectStore, row: RangeRow, tail: bytes) -> None:
        if sha256(tail).digest() != row.footer_digest:
            raise _damaged(row.key, f"its last {len(tail)} bytes were read")
        self.row = row
        self.tail = tail
        self._store = store
        self._footer = decode_footer(tail, row.key)
        self._starts = np.asarray(self._footer.starts)
        if self._starts[-1] != row.count or range_id(group.digest for group in self.marks) != row.id:
            raise Corrupted(
                f"{row.key} holds another range than its metarange says; run `lakeops fsck` to see what is affected"
            )
        self._loading = Lock()
        self._loaded = np.zeros(self.groups, np.bool_)
        self._data = memoryview(b"")

    @property
    def nbytes(self) -> int:
        """What it may come to keep in memory: the file."""
        return self.row.file_bytes

    @property
    def marks(self) -> tuple[RowGroup, ...]:
        """What the footer says of each row group."""
        return self._footer.groups

    @property
    def groups(self) -> int:
        """How many row groups there are."""
        return len(self._footer.groups)

    @property
    def starts(self) -> Rows:
        """The number of each row group's first row, and one past the last row."""
        return self._starts

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """All rows of some columns (all by default)."""
        return self._columns(columns, range(self.groups))

    def addresses(self, rows: int) -> Iterator[pa.Array]:
        """The physical addresses of all rows, so many at a time: memory that is used again stays in the cache."""
        self.load(range(self.groups))
        return stream_column(self._data, self._footer.metadata, self.row.key, "physical_address", rows)

    def group(self, index: int, columns: list[str] | None = None) -> pa.Table:
        """One row group, in one chunk."""
        return self._columns(columns, [index]).combine_chunks()

    def raw(self, index: int) -> memoryview:
        """The bytes of one row group."""
        self.load([index])
        return self._data[self.marks[index].start : self.marks[index].end]

    def group_of(self, path: bytes) -> int:
        """The row group that ``path`` would be in: the last one that starts at or before it."""
        return max(bisect_right(self.first_paths, path) - 1, 0)

    def groups_of(self, paths: pa.Array | pa.ChunkedArray) -> Rows:
        """The same for ascending paths."""
        firsts = pa.array([path.decode() for path in self.first_paths], pa.string())
        owners: Rows = pc.search_sorted(firsts, paths, side="right").to_numpy().astype(np.int64) - 1
        return np.maximum(owners, 0)

    def first_at(self, key: bytes) -> int:
        """The number of the first row at or after ``key``; ``row.count`` when there is none."""
        index = self.group_of(key)
        return int(self._starts[index]) + SortedPaths(self.group(index, ["path"]).column(0)).first_at(key)

    def take(self, rows: Rows, columns: list[str] | None = None) -> pa.Table:
        """The rows with these ascending numbers; only the row groups that hold them are read."""
        if not len(rows):
            return RANGE_SCHEMA.empty_table().select(columns or RANGE_SCHEMA.names)
        owner = np.searchsorted(self._starts, rows, side="right") - 1
        groups, which = np.unique(owner, return_inverse=True)
        # Positions shift by the row groups that were left out.
        sizes = np.diff(self._starts)[groups]
        shift = self._starts[groups] - (np.cumsum(sizes) - sizes)
        return self._columns(columns, groups.tolist()).take(pa.array(rows - shift[which]))

    def read_groups(self, groups: Sequence[int], columns: list[str]) -> tuple[Rows, pa.Table]:
        """The rows of some row groups (ascending): their numbers, and some of their columns."""
        numbers = [np.arange(self.starts[index], self.starts[index + 1]) for index in groups]
        return np.concatenate([np.zeros(0, np.int64), *numbers]), self._columns(columns, groups)

    def rows_at(self, paths: pa.Array, columns: list[str] | None = None) -> tuple[npt.NDArray[np.bool_], pa.Table]:
        """Which of these ascending paths are here, and the rows of those."""
        found, places = self.find(paths)
        return found, self.take(places[found], columns)

    def find(self, paths: pa.Array) -> tuple[npt.NDArray[np.bool_], Rows]:
        """Which of these ascending paths are here, and at which rows; -1 for those that are not."""
        numbers, table = self.read_groups(np.unique(self.groups_of(paths)).tolist(), ["path"])
        here = table.column(0).combine_chunks()
        places = pc.search_sorted(here, paths).to_numpy().astype(np.int64)
        present = here.take(pa.array(np.minimum(places, len(here) - 1)))
        # Past the end the last path is compared, which is smaller, so it is never equal.
        found: npt.NDArray[np.bool_] = pc.equal(present, paths).to_numpy(zero_copy_only=False)
        return found, np.where(found, numbers[np.minimum(places, len(here) - 1)], -1)

    def take_over(self, data: bytes) -> None:
        """All bytes of the file are at hand: verify them, instead of fetching row groups one by one."""
        for index in range(self.groups):
            self._verify(index, memoryview(data)[self.marks[index].start : self.marks[index].end])
        self._data, self._loaded = memoryview(data), np.ones(self.groups, np.bool_)

    def load(self, groups: Iterable[int]) -> None:
        """Fetch and verify row groups that are not at hand yet, neighbours in one request."""
        with self._loading:
            missing = [index for index in groups if not self._loaded[index]]
            if missing and not len(self._data):
                # Memory that nothing is written to is never really there: only loaded row groups take room.
                self._data = np.empty(self.row.file_bytes, np.uint8).data
            for run in self._runs(missing):
                first, last = self.marks[run[0]], self.marks[run[-1]]
                data = memoryview(_read(self._store, self.row.key, first.start, last.end - first.start))
                for index in run:
                    mark = self.marks[index]
                    part = data[mark.start - first.start : mark.end - first.start]
                    self._verify(index, part)
                    self._data[mark.start : mark.end] = part
                    self._loaded[index] = True

    def _columns(self, columns: list[str] | None, groups: Iterable[int]) -> pa.Table:
        """Some columns of some row groups (ascending)."""
        groups = list(groups)
        self.load(groups)
        table = read_columns(self._data, self._footer.metadata, self.row.key, columns, groups)
        if "digest" in table.column_names:
            self._check_digests(table.column("digest"), groups)
        return table

    def _check_digests(self, digests: pa.ChunkedArray, groups: list[int]) -> None:
        """Whatever is told by its entry digest is really called so by the range's id."""
        done = 0
        for index in groups:
            count = int(self._starts[index + 1] - self._starts[index])
            if group_digest(digests.slice(done, count)) != self.marks[index].digest:
                raise Corrupted(
                    f"{self.row.key} holds other rows in row group {index} than its footer says; "
                    "run `lakeops fsck` to see what is affected"
                )
            done += count

    def _runs(self, groups: list[int]) -> Iterator[list[int]]:
        """Ascending row groups, together where little lies between them."""
        run: list[int] = []
        for index in groups:
            if run and self.marks[index].start - self.marks[run[-1]].end > _GAP:
                yield run
                run = []
            run.append(index)
        if run:
            yield run

    def _verify(self, index: int, data: memoryview) -> None:
        if sha256(data).digest() != self.marks[index].file_digest:
            raise _damaged(self.row.key, f"row group {index}, {len(data)} bytes")

    @cached_property
    def first_paths(self) -> list[bytes]:
        """The first path of each row group."""
        # Statistics of text are exact here: paths are far below the length at which writers shorten them.
        column = RANGE_SCHEMA.get_field_index("path")
        groups = (self._footer.metadata.row_group(group) for group in range(self.groups))
        return [group.column(column).statistics.min.encode() for group in groups]


def _read(store: ObjectStore, key: str, start: int, size: int) -> bytes:
    """Some bytes of a file, all of them where they begin it; a shorter file gives fewer."""
    with _needed(store, key):
        return store.get_range(key, start, size)


@contextmanager
def _needed(store: ObjectStore, key: str) -> Iterator[None]:
    """Says of a file that is missing that a commit needs it; at a mirror the store has said what that means there."""
    try:
        yield
    except NotReplicated:
        raise
    except ObjectNotFound as error:
        raise ObjectNotFound(
            f"{key} is missing from {store.url}, though a commit needs it; run `lakeops fsck` to see what is affected"
        ) from error


def _damaged(key: str, what: str) -> Corrupted:
    return Corrupted(
        f"{key} does not match its digest ({what}); nothing of it was used; "
        "restore it from a copy of the bucket, and run `lakeops fsck` to see what is affected"
    )
