"""Range and metarange files: fetched whole and verified before anything of them is used.

The chain of trust: the catalog's commit holds the SHA-256 of the metarange file, the metarange that of each range file.
So a damaged, cut short or swapped file is found out by a digest, and a row that points at the wrong file by the range
id, which the entry digests in the file must hash to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeops.model.arrow import from_numpy, in_one, to_numpy
from lakeops.model.errors import Corrupted, NotReplicated, ObjectNotFound
from lakeops.ranges.digest import Positions, digest_array, range_id
from lakeops.ranges.format import decode_rows, range_metadata, read_columns, stored_digests, stream_column
from lakeops.ranges.metarange import RangeRow, SortedPaths
from lakeops.store.base import ObjectStore
from lakeops.store.disk_cache import cache_of
from lakeops.store.in_flight import IN_FLIGHT, in_parallel


class RangeFile:
    """A range file whose bytes are in hand, verified. Rows are decoded when asked for. Threads may share it.

    Args:
        row: the metarange row that names it.
        data: what the file holds.
        ordered: whether paths that do not rise are an error. Searches need them to.

    Raises ``Corrupted``, naming the file, unless the bytes are what was written and hold what the row says.
    """

    def __init__(self, row: RangeRow, data: bytes, *, ordered: bool = True) -> None:
        if sha256(data).digest() != row.file_digest:
            raise damaged(row.key, f"{len(data):,} bytes were read")
        self.row = row
        self._data = data
        self._ordered = ordered
        # As files are written here the digests lie in them as they are, so nothing is decoded.
        stored = stored_digests(data, row.count)
        self._stored = stored if range_id(stored) == row.id else None
        if self._stored is None:
            self._decoded(["digest"])

    @cached_property
    def digests(self) -> pa.Array:
        """The entry digests of all rows, proved by the range's id."""
        return in_one(self.read(["digest"]).column(0)) if self._stored is None else digest_array(self._stored)

    @cached_property
    def paths(self) -> pa.Array:
        """The paths of all rows."""
        return in_one(self.read(["path"]).column(0))

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """All rows of some columns (all by default)."""
        return self._decoded(columns).combine_chunks()

    def read_carefully(self) -> pa.Table:
        """All rows, decoded in no more memory than they can take, of a file that somebody else wrote."""
        return self._checked(decode_rows(self._data, self.row.key, self._metadata))

    def addresses(self, rows: int) -> Iterator[pa.Array]:
        """The physical addresses of all rows, so many at a time: memory that is used again stays in the cache.

        They come as ``large_string``.
        """
        return stream_column(self._data, self._metadata, self.row.key, "physical_address", rows)

    def first_at(self, key: bytes) -> int:
        """The number of the first row at or after ``key``. ``row.count`` when there is none."""
        return SortedPaths(self.paths).first_at(key)

    def take(self, rows: Positions, columns: list[str] | None = None) -> pa.Table:
        """The rows with these numbers."""
        return self.read(columns).take(from_numpy(rows))

    def rows_at(self, paths: pa.Array, columns: list[str] | None = None) -> tuple[npt.NDArray[np.bool_], pa.Table]:
        """Which of these paths are here, and the rows of those."""
        found, places = self.find(paths)
        return found, self.take(places[found], columns)

    def find(self, paths: pa.Array) -> tuple[npt.NDArray[np.bool_], Positions]:
        """Which of these paths are here, and at which rows; -1 for those that are not."""
        here = self.paths
        places = to_numpy(pc.search_sorted(here, paths)).astype(np.int64)
        present = here.take(from_numpy(np.minimum(places, len(here) - 1)))
        # Past the end the last path is compared, which is smaller, so it is never equal.
        found: npt.NDArray[np.bool_] = to_numpy(pc.equal(present, paths))
        return found, np.where(found, places, -1)

    @cached_property
    def _metadata(self) -> pq.FileMetaData:
        return range_metadata(self._data, self.row.count, self.row.key)

    def _decoded(self, columns: list[str] | None) -> pa.Table:
        return self._checked(read_columns(self._data, self.row.key, columns, self._metadata))

    def _checked(self, table: pa.Table) -> pa.Table:
        """Decoded rows, which the id is of, and whose paths rise: what is searched for is found if it is there."""
        if "digest" in table.column_names and range_id(table.column("digest")) != self.row.id:
            raise Corrupted(
                f"{self.row.key} holds another range than its metarange says; "
                "run `lakeops fsck` to see what is affected"
            )
        if self._ordered and "path" in table.column_names:
            paths = in_one(table.column("path"))
            if (paths[0].as_py(), paths[-1].as_py()) != (self.row.first_path, self.row.last_path):
                raise self._unordered("it begins or ends elsewhere than its metarange says")
            if pc.any(pc.greater_equal(paths[:-1], paths[1:])).as_py():
                raise self._unordered("its paths do not rise")
        return table

    def _unordered(self, what: str) -> Corrupted:
        return Corrupted(f"{self.row.key} is out of order: {what}; run `lakeops fsck` to see what is affected")


def fetch(store: ObjectStore, key: str, digest: bytes) -> bytes:
    """The bytes of a file whose SHA-256 is ``digest``. Raises ``Corrupted`` or ``ObjectNotFound``, naming it."""
    cache = cache_of(store)
    if cache is not None and (kept := cache.get(digest)) is not None:
        return kept
    with _needed_by_commit(store, key):
        data = store.get(key)
    if sha256(data).digest() != digest:
        raise damaged(key, f"{len(data):,} bytes were read")
    if cache is not None:
        cache.put(digest, data)
    return data


def fetch_range(store: ObjectStore, row: RangeRow, *, ordered: bool = True) -> RangeFile:
    """The range file that a metarange row names. Raises ``Corrupted`` or ``ObjectNotFound``, naming it.

    Whoever looks for what is wrong with its rows takes them as they are, not ``ordered``.
    """
    _check_row(row)
    return _kept_range(store, row, ordered=ordered) or _fetched_range(store, row, ordered=ordered)


def fetch_ranges(store: ObjectStore, rows: Sequence[RangeRow]) -> list[RangeFile]:
    """The files that some metarange rows name. A far store is asked for all at once. Raises as ``fetch_range``."""
    for row in rows:
        _check_row(row)
    if not store.remote:
        return [_fetched_range(store, row) for row in rows]
    kept = [_kept_range(store, row) for row in rows]
    missing = [row for row, file in zip(rows, kept, strict=True) if file is None]
    fetched: Iterator[RangeFile] = map(partial(_fetched_range, store), missing)
    if len(missing) > 1:
        fetched = iter(in_parallel(missing, partial(_fetched_range, store), parallelism=IN_FLIGHT))
    return [file or next(fetched) for file in kept]


def read_range(store: ObjectStore, row: RangeRow) -> pa.Table:
    """All rows of the range that a metarange row names. Raises as ``fetch_range``."""
    return fetch_range(store, row).read()


def prove_range(store: ObjectStore, row: RangeRow) -> tuple[RangeFile, pa.Table]:
    """A range file that somebody else brought, from the store itself and from no cache, and all its rows.

    They are decoded in no more memory than they can take. Raises as ``fetch_range``.
    """
    _check_row(row)
    file = _fetched_range(store, row, keep=False)
    return file, file.read_carefully()


def _check_row(row: RangeRow) -> None:
    """Refuse a row that no range can have. Raises ``Corrupted``."""
    if row.flaw is not None:
        raise Corrupted(f"range {row.hex_id[:16]}: {row.flaw}; run `lakeops fsck` to see what is affected")


def _kept_range(store: ObjectStore, row: RangeRow, *, ordered: bool = True) -> RangeFile | None:
    """The range from what this machine keeps, if it is there."""
    cache = cache_of(store)
    kept = cache.get(row.file_digest) if cache is not None else None
    return None if kept is None else RangeFile(row, kept, ordered=ordered)


def _fetched_range(store: ObjectStore, row: RangeRow, *, ordered: bool = True, keep: bool = True) -> RangeFile:
    """The range from the store."""
    with _needed_by_commit(store, row.key):
        data = store.get_range(row.key, 0, row.file_bytes + 1)  # a longer file is damaged, however long it is
    file = RangeFile(row, data, ordered=ordered)
    if keep and (cache := cache_of(store)) is not None:
        cache.put(row.file_digest, data)
    return file


@contextmanager
def _needed_by_commit(store: ObjectStore, key: str) -> Iterator[None]:
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
