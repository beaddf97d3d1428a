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
import pyarrow.parquet as pq

from lakeops.model.arrays import array, from_numpy, in_one, no_rows, to_numpy
from lakeops.model.errors import Corrupted, NotReplicated, ObjectNotFound
from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.digest import DIGEST_BYTES, Digests, digest_words, group_digest, range_id
from lakeops.ranges.format import (
    Footer,
    Pieces,
    RowGroup,
    decode_footer,
    not_decodable,
    read_columns,
    stream_column,
)
from lakeops.ranges.metarange import RangeRow, SortedPaths
from lakeops.store.base import ObjectStore
from lakeops.store.nearby import pieces_of

Rows = npt.NDArray[np.int64]

_FAR_GAP = 256 * 1024
_NEAR_GAP = 32 * 1024
"""Bytes that are read along, unused, rather than asked for in two requests: over a network, and from a disk."""


class RangeEnd:
    """The verified end of a range file: what there is to know without its rows. Small, and worth remembering.

    Args:
        row: the metarange row that names the file.
        tail: the bytes at its end that should be the footer. They stay at hand.
    """

    def __init__(self, row: RangeRow, tail: bytes) -> None:
        if sha256(tail).digest() != row.footer_digest:
            raise damaged(row.key, f"its last {len(tail)} bytes were read")
        self.row = row
        self.tail = tail
        self.footer: Footer = decode_footer(tail, row.key)
        self.marks: tuple[RowGroup, ...] = self.footer.groups
        self.starts: npt.NDArray[np.int64] = np.cumsum([0, *(group.rows for group in self.marks)])
        if self.marks and self.marks[-1].end != row.file_bytes - row.footer_bytes:
            raise not_decodable(row.key, "its row groups do not end where its footer begins")
        if self.starts[-1] != row.count or range_id(group.digest for group in self.marks) != row.id:
            raise Corrupted(
                f"{row.key} holds another range than its metarange says; run `lakeops fsck` to see what is affected"
            )

    @property
    def nbytes(self) -> int:
        """About what it keeps in memory: the bytes, and what they say."""
        return 2 * len(self.tail)

    def group_of(self, path: bytes) -> int:
        """The row group that ``path`` would be in: the last one that starts at or before it."""
        return max(bisect_right(self.first_paths, path) - 1, 0)

    @cached_property
    def first_paths(self) -> list[bytes]:
        """The first path of each row group."""
        return [group.first_path for group in self.marks]


class RangeFile:
    """A range file. Row groups are fetched, verified and decoded when asked for. Threads may share it.

    It keeps the bytes that it fetched until they are released, so it is for one piece of work and never remembered.

    Args:
        store: the namespace.
        end: its verified end.
        ordered: whether paths that do not rise are an error. Searches need them to.
    """

    def __init__(self, store: ObjectStore, end: RangeEnd, *, ordered: bool = True) -> None:
        self.end = end
        self._ordered = ordered
        self._store = store
        self._loading = Lock()
        self._held: dict[int, _Held] = {}
        self._whole: bytes | None = None

    @property
    def row(self) -> RangeRow:
        """The metarange row that names it."""
        return self.end.row

    @property
    def marks(self) -> tuple[RowGroup, ...]:
        """What the footer says of each row group."""
        return self.end.marks

    @property
    def tail(self) -> bytes:
        """The bytes of its end."""
        return self.end.tail

    @property
    def groups(self) -> int:
        """How many row groups there are."""
        return len(self.end.marks)

    @property
    def starts(self) -> Rows:
        """The number of each row group's first row, and one past the last row."""
        return self.end.starts

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """All rows of some columns (all by default)."""
        return self._columns(columns, range(self.groups))

    def addresses(self, rows: int) -> Iterator[pa.Array]:
        """The physical addresses of all rows, so many at a time: memory that is used again stays in the cache.

        They come as ``large_string``.
        """
        source = self._source(range(self.groups))
        return stream_column(source, self._metadata, self.row.key, "physical_address", rows)

    def group(self, index: int, columns: list[str] | None = None) -> pa.Table:
        """One row group, in one chunk."""
        return self._columns(columns, [index]).combine_chunks()

    def raw(self, index: int) -> memoryview:
        """The bytes of one row group, verified."""
        return self._verified_groups([index])[index].data

    def groups_of(self, paths: pa.Array | pa.ChunkedArray) -> Rows:
        """For each path the row group that it would be in."""
        firsts = array([path.decode() for path in self.first_paths], pa.string())
        found: Rows = to_numpy(pc.search_sorted(firsts, paths, side="right")).astype(np.int64)
        return np.maximum(found - 1, 0)

    @property
    def first_paths(self) -> list[bytes]:
        """The first path of each row group."""
        return self.end.first_paths

    def first_at(self, key: bytes) -> int:
        """The number of the first row at or after ``key``. ``row.count`` when there is none."""
        index = self.end.group_of(key)
        return int(self.starts[index]) + SortedPaths(self.group(index, ["path"]).column(0)).first_at(key)

    def take(self, rows: Rows, columns: list[str] | None = None) -> pa.Table:
        """The rows with these ascending numbers; only the row groups that hold them are read."""
        if not len(rows):
            return no_rows(RANGE_SCHEMA).select(columns or RANGE_SCHEMA.names)
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        groups, which = np.unique(owner, return_inverse=True)
        # Positions shift by the row groups that were left out.
        sizes = np.diff(self.starts)[groups]
        shift = self.starts[groups] - (np.cumsum(sizes) - sizes)
        return self._columns(columns, groups.tolist()).take(from_numpy(rows - shift[which]))

    def read_groups(self, groups: Sequence[int], columns: list[str]) -> tuple[Rows, pa.Table]:
        """The rows of some row groups (ascending): their numbers, and some of their columns."""
        return self.numbers(groups), self._columns(columns, groups)

    def numbers(self, groups: Sequence[int]) -> Rows:
        """The numbers of the rows of some row groups (ascending)."""
        numbers = [np.arange(self.starts[index], self.starts[index + 1]) for index in groups]
        return np.concatenate([np.zeros(0, np.int64), *numbers])

    def digests(self, groups: Sequence[int]) -> Digests:
        """The entry digests of all rows of some row groups (ascending), proved by the range's id.

        As files are written here they are the last bytes of a row group, as they are, so nothing is decoded.
        """
        held = self.load(groups)
        words = [self._words(index, held[index].data) for index in groups]
        return np.concatenate([np.zeros((0, 2), np.uint64), *words])

    def rows_at(self, paths: pa.Array, columns: list[str] | None = None) -> tuple[npt.NDArray[np.bool_], pa.Table]:
        """Which of these ascending paths are here, and the rows of those."""
        found, places = self.find(paths)
        return found, self.take(places[found], columns)

    def find(self, paths: pa.Array) -> tuple[npt.NDArray[np.bool_], Rows]:
        """Which of these ascending paths are here, and at which rows; -1 for those that are not."""
        numbers, table = self.read_groups(np.unique(self.groups_of(paths)).tolist(), ["path"])
        here = in_one(table.column(0))
        places = to_numpy(pc.search_sorted(here, paths)).astype(np.int64)
        present = here.take(from_numpy(np.minimum(places, len(here) - 1)))
        # Past the end the last path is compared, which is smaller, so it is never equal.
        found: npt.NDArray[np.bool_] = to_numpy(pc.equal(present, paths))
        return found, np.where(found, numbers[np.minimum(places, len(here) - 1)], -1)

    def take_over(self, data: bytes) -> None:
        """All bytes of the file are at hand: verify them, instead of fetching row groups one by one."""
        whole = memoryview(data)
        self._held = {index: _Held(whole[mark.start : mark.end]) for index, mark in enumerate(self.marks)}
        self._verified_groups(range(self.groups))
        self._whole = data

    def load(self, groups: Iterable[int]) -> dict[int, _Held]:
        """Row groups as they are in the file; those that are not at hand yet are fetched, neighbours in one request."""
        with self._loading:
            wanted = list(groups)
            missing = [index for index in wanted if index not in self._held and not self._kept(index)]
            runs = list(self._runs(missing))
            spans = [(self.marks[run[0]].start, self.marks[run[-1]].end) for run in runs]
            for run, (first, _), data in zip(runs, spans, self._read(spans), strict=True):
                for index in run:
                    mark = self.marks[index]
                    self._held[index] = _Held(memoryview(data)[mark.start - first : mark.end - first])
            self._keep(missing)
            return {index: self._held[index] for index in wanted}

    def release(self, groups: int) -> None:
        """Forget the bytes of the first row groups. They are fetched again should anybody want them."""
        with self._loading:
            self._held = {index: held for index, held in self._held.items() if index >= groups}
            self._whole = None

    def _kept(self, index: int) -> bool:
        """Take a row group from the pieces that this machine keeps, if it is there and as it should be."""
        pieces, mark = pieces_of(self._store), self.marks[index]
        if pieces is None:
            return False
        data = pieces.part(self.row.footer_digest, mark.start, mark.size)
        if data is None or sha256(data).digest() != mark.file_digest:
            data = pieces.get(mark.file_digest)
        if data is not None:
            self._held[index] = _Held(memoryview(data), verified=True)
        return data is not None

    def _keep(self, fetched: list[int]) -> None:
        """Let this machine keep row groups, each of which is verified first."""
        pieces = pieces_of(self._store)
        if pieces is not None:
            for index in fetched:
                one = self._held[index]
                self._verify(index, one.data)
                one.verified = True
                pieces.put(self.marks[index].file_digest, one.data)

    def _read(self, spans: list[tuple[int, int]]) -> list[bytes]:
        """Bytes of the file from each place to another."""
        if not spans:
            return []
        with needed_by_commit(self._store, self.row.key):
            return self._store.get_ranges(self.row.key, [(start, end - start) for start, end in spans])

    @cached_property
    def _metadata(self) -> pq.FileMetaData:
        """What Parquet says of the file. Not kept with the end, of which hundreds stay in memory."""
        return self.end.footer.parse()

    def _columns(self, columns: list[str] | None, groups: Sequence[int]) -> pa.Table:
        """Some columns of some row groups (ascending)."""
        source = self._source(groups)
        table = read_columns(source, self.row.key, columns, self._metadata, list(groups))
        self.check_rows(table, groups)
        return table

    def _source(self, groups: Sequence[int]) -> pa.NativeFile:
        """The file as far as these row groups go, or as a whole where all of it is at hand.

        Arrow reads that by itself. For each column of pieces it would wait for Python, and for its other threads.
        """
        held = self._verified_groups(groups)
        whole = self._whole
        if whole is not None:
            return pa.BufferReader(whole)
        pieces = [(self.marks[index].start, held[index].data) for index in groups]
        return pa.PythonFile(Pieces(self.row.file_bytes, pieces), mode="r")

    def _verified_groups(self, groups: Iterable[int]) -> dict[int, _Held]:
        """Row groups as they are in the file, which is as the footer says."""
        held = self.load(groups)
        for index, one in held.items():
            if not one.verified:
                self._verify(index, one.data)
                one.verified = True
        return held

    def _verify(self, index: int, data: memoryview) -> None:
        if sha256(data).digest() != self.marks[index].file_digest:
            raise damaged(self.row.key, f"row group {index}, {len(data)} bytes")

    def _words(self, index: int, data: memoryview) -> Digests:
        """The entry digests of one row group."""
        last = data[-DIGEST_BYTES * int(self.starts[index + 1] - self.starts[index]) :]
        if sha256(last).digest() == self.marks[index].digest:
            return np.frombuffer(last, np.uint64).reshape(-1, 2)
        # It is damaged, or another writer encoded the column otherwise.
        return digest_words(self._columns(["digest"], [index]).column(0))

    def check_rows(self, table: pa.Table, groups: Sequence[int]) -> None:
        """Check decoded rows of some row groups, as far as they have the columns. Raises ``Corrupted``."""
        if "digest" in table.column_names:
            self._check_digests(table.column("digest"), groups)
        if self._ordered and "path" in table.column_names and table.num_rows:
            self._check_order(table.column("path"), groups)

    def _check_order(self, paths: pa.ChunkedArray, groups: Sequence[int]) -> None:
        """Paths rise, and begin where the footer says: whatever is searched for is found if it is there."""
        whole = _plain(paths)
        done = 0
        for index in groups:
            if whole[done].as_py().encode() != self.first_paths[index]:
                raise self._unordered(f"row group {index} begins elsewhere than its footer says")
            done += self.marks[index].rows
        if len(whole) > 1 and not pc.all(pc.less(whole[:-1], whole[1:])).as_py():
            raise self._unordered("its paths do not rise")

    def _unordered(self, what: str) -> Corrupted:
        return Corrupted(f"{self.row.key} is out of order: {what}; run `lakeops fsck` to see what is affected")

    def _check_digests(self, digests: pa.ChunkedArray, groups: Sequence[int]) -> None:
        """Whatever is told by its entry digest is really called so by the range's id."""
        whole = _plain(digests)
        done = 0
        for index in groups:
            count = self.marks[index].rows
            if group_digest(whole.slice(done, count)) != self.marks[index].digest:
                raise Corrupted(
                    f"{self.row.key} holds other rows in row group {index} than its footer says; "
                    "run `lakeops fsck` to see what is affected"
                )
            done += count

    def _runs(self, groups: list[int]) -> Iterator[list[int]]:
        """Ascending row groups, together where little lies between them."""
        gap = _FAR_GAP if self._store.remote else _NEAR_GAP
        run: list[int] = []
        for index in groups:
            if run and self.marks[index].start - self.marks[run[-1]].end > gap:
                yield run
                run = []
            run.append(index)
        if run:
            yield run


def _plain(column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The column, without its chunks where it has one alone: slices of an array take less than those of chunks."""
    return column.chunk(0) if column.num_chunks == 1 else column


class _Held:
    """The bytes of a row group, and whether they were verified."""

    __slots__ = ("data", "verified")

    def __init__(self, data: memoryview, *, verified: bool = False) -> None:
        self.data = data
        self.verified = verified


@contextmanager
def needed_by_commit(store: ObjectStore, key: str) -> Iterator[None]:
    """Says of a file that is missing that a commit needs it. At a mirror the store has said what that means there."""
    try:
        yield
    except NotReplicated:
        raise
    except ObjectNotFound as error:
        raise ObjectNotFound(
            f"{key} is missing from {store.url}, though a commit needs it; run `lakeops fsck` to see what is affected"
        ) from error


def damaged(key: str, what: str) -> Corrupted:
    """The error for a file whose bytes are not what was written."""
    return Corrupted(
        f"{key} does not match its digest ({what}); nothing of it was used; "
        "restore it from a copy of the bucket, and run `lakeops fsck` to see what is affected"
    )
