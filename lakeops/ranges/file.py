"""One range file in hand: fetched whole, verified before anything is decoded, then decoded as far as asked.

The chain of trust: the catalog's commit holds the SHA-256 of the metarange file, the metarange holds the SHA-256 of
each range file. So a damaged, cut short or swapped file is found out by its digest, and a row that points at the
wrong file by the range id, which the digest column must add up to.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from hashlib import sha256
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.errors import Corrupted, ObjectNotFound
from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.digest import fixed_bytes, range_id
from lakeops.ranges.format import footer, not_decodable, read_columns
from lakeops.ranges.metarange import RangeRow
from lakeops.store.base import ObjectStore

Digests = npt.NDArray[np.uint64]


def fetch(store: ObjectStore, key: str, digest: bytes) -> bytes:
    """The whole file, verified: its SHA-256 is ``digest``. Raises ``Corrupted`` or ``ObjectNotFound``, naming it."""
    try:
        data = store.get(key)
    except ObjectNotFound as error:
        raise ObjectNotFound(
            f"{key} is missing from {store.url}, though a commit needs it; run `lakeops fsck` to see what is affected"
        ) from error
    if sha256(data).digest() != digest:
        raise Corrupted(
            f"{key} does not match its digest ({len(data)} bytes were read); nothing of it was used; "
            "restore it from a copy of the bucket, and run `lakeops fsck` to see what is affected"
        )
    return data


def open_range(store: ObjectStore, row: RangeRow) -> RangeFile:
    """The range that a metarange row names, verified. Raises ``Corrupted`` or ``ObjectNotFound``."""
    return RangeFile(row, fetch(store, row.key, row.file_digest))


class RangeFile:
    """A verified range file; columns and row groups are decoded when asked for. Threads may share it.

    Args:
        row: the metarange row that names it.
        data: the file's bytes, whose digest was checked.
    """

    def __init__(self, row: RangeRow, data: bytes) -> None:
        self.row = row
        self._data = data
        self._footer = footer(data, row.key)
        if not self._footer.schema.to_arrow_schema().equals(RANGE_SCHEMA):
            raise not_decodable(row.key, "its columns are not a range's")
        groups = range(self._footer.num_row_groups)
        self._starts = [0, *accumulate(self._footer.row_group(group).num_rows for group in groups)]
        column = self.read(["digest"]).column(0).combine_chunks()
        if len(column) != row.count or range_id(column) != row.hex_id:
            raise Corrupted(
                f"{row.key} holds another range than its metarange says; run `lakeops fsck` to see what is affected"
            )
        self.digests: Digests = np.frombuffer(fixed_bytes(column), np.uint64).reshape(-1, 2)

    @property
    def nbytes(self) -> int:
        """What it keeps in memory: the file, the digest column, and the path column as far as can be told before."""
        path = (len(self.row.first_path) + len(self.row.last_path)) // 2 + 4
        return len(self._data) + self.digests.nbytes + path * self.row.count

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """All rows of some columns (all by default)."""
        return read_columns(self._data, self._footer, self.row.key, columns)

    @property
    def groups(self) -> int:
        """How many row groups there are."""
        return len(self._starts) - 1

    def group(self, index: int, columns: list[str] | None = None) -> pa.Table:
        """One row group, in one chunk."""
        return read_columns(self._data, self._footer, self.row.key, columns, [index]).combine_chunks()

    def group_of(self, path: bytes) -> int:
        """The row group that ``path`` would be in: the last one that starts at or before it."""
        return max(bisect_right(self._first_paths, path) - 1, 0)

    def take(self, rows: npt.NDArray[np.int64], columns: list[str] | None = None) -> pa.Table:
        """The rows with these ascending numbers; only the row groups that hold them are decoded."""
        if not len(rows):
            return RANGE_SCHEMA.empty_table().select(columns or RANGE_SCHEMA.names)
        wanted = np.unique(np.searchsorted(self._starts, rows, side="right") - 1)
        table = read_columns(self._data, self._footer, self.row.key, columns, wanted.tolist())
        # Positions shift by the row groups that were left out.
        starts = np.asarray(self._starts)
        sizes = np.diff(starts)[wanted]
        shift = starts[wanted] - (np.cumsum(sizes) - sizes)
        owner = np.searchsorted(starts[wanted], rows, side="right") - 1
        return table.take(pa.array(rows - shift[owner]))

    def rows_at(self, paths: pa.Array, columns: list[str] | None = None) -> tuple[npt.NDArray[np.bool_], pa.Table]:
        """Which of these ascending paths are here, and the rows of those."""
        found, places = self.find(paths)
        return found, self.take(places[found], columns)

    def find(self, paths: pa.Array) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Which of these ascending paths are here, and at which rows they are or would be."""
        places: npt.NDArray[np.int64] = pc.search_sorted(self.paths, paths).to_numpy().astype(np.int64)
        present = self.paths.take(pa.array(np.minimum(places, len(self.paths) - 1)))
        # Past the end the last path is compared, which is smaller, so it is never equal.
        found: npt.NDArray[np.bool_] = pc.equal(present, paths).to_numpy(zero_copy_only=False)
        return found, places

    @cached_property
    def paths(self) -> pa.Array:
        """The path column, in one chunk."""
        return self.read(["path"]).column(0).combine_chunks()

    @cached_property
    def _first_paths(self) -> list[bytes]:
        # Statistics of text are exact here: paths are far below the length at which writers shorten them.
        column = RANGE_SCHEMA.get_field_index("path")
        firsts = (self._footer.row_group(group).column(column).statistics.min for group in range(self.groups))
        return [first.encode() for first in firsts]
