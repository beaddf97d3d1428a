"""Cutting a stream of rows into ranges, and each range into row groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrays import first_true
from lakeops.model.errors import InvalidInput
from lakeops.model.records import Split
from lakeops.model.schema import ENTRY_SCHEMA, RANGE_SCHEMA
from lakeops.ranges.digest import entry_digests, group_digest, range_id
from lakeops.ranges.format import encode_range
from lakeops.ranges.metarange import RangeRow
from lakeops.ranges.split import Hashes, cut_ends, group_ends, path_hashes


@dataclass(frozen=True)
class Cut:
    """The rows of one whole range, and where its row groups end."""

    table: pa.Table
    ends: tuple[int, ...]
    hashed: Hashes | None = None

    @property
    def hashes(self) -> Hashes:
        """The boundary hash of each path."""
        return path_hashes(self.table.column("path")) if self.hashed is None else self.hashed

    @property
    def groups(self) -> list[pa.Table]:
        """The rows of each row group."""
        starts = (0, *self.ends[:-1])
        return [self.table.slice(start, end - start) for start, end in zip(starts, self.ends, strict=True)]

    @cached_property
    def digests(self) -> list[bytes]:
        """The digest of each row group, 32 raw bytes. The rows must have their digests (``RANGE_SCHEMA``)."""
        return [group_digest(group.column("digest")) for group in self.groups]

    def described(self) -> RangeRow:
        """The metarange row of these rows, not written yet: what tells of its file is empty."""
        paths = self.table.column("path")
        return RangeRow(
            id=range_id(self.digests),
            file="",
            first_path=paths[0].as_py(),
            last_path=paths[-1].as_py(),
            count=self.table.num_rows,
            size_bytes=int(pc.sum(self.table.column("size_bytes")).as_py()),
            file_bytes=0,
            footer_bytes=0,
            footer_digest=b"",
        )

    def encoded(self) -> tuple[bytes, int]:
        """The Parquet bytes of the file, and how many of them at the end are the footer."""
        return encode_range(self.groups, self.digests)


class Cutter:
    """Rows come in, in order, and go out as whole ranges. What is left is the range still open.

    Rows must start right after a cut, and have one schema with a ``path``.
    """

    def __init__(self, split: Split) -> None:
        self._split = split
        self._tables: list[pa.Table] = []
        self._hashes: list[Hashes] = []
        self._open = 0

    @property
    def open(self) -> int:
        """How many rows wait for the end of their range."""
        return self._open

    def add(self, table: pa.Table, hashes: Hashes | None = None) -> list[Cut]:
        """The ranges that these rows bring to an end. ``hashes`` of their paths, when the caller has them."""
        if hashes is None:
            hashes = path_hashes(table.column("path"))
        self._tables.append(table)
        self._hashes.append(hashes)
        self._open += table.num_rows
        if self._open < self._split.min_entries:
            return []
        waiting = np.concatenate(self._hashes)
        ends = cut_ends(waiting, self._split).tolist()
        if not ends:
            return []
        rows = pa.concat_tables(self._tables)
        starts = [0, *ends[:-1]]
        closed = [self._cut(rows, waiting, start, end) for start, end in zip(starts, ends, strict=True)]
        # No cut was due before these rows came, so what is left is theirs.
        rest = rows.slice(ends[-1])
        kept = hashes[len(hashes) - rest.num_rows :]
        # A slice of no rows would keep all rows in memory.
        self._tables, self._hashes, self._open = ([rest], [kept], rest.num_rows) if rest.num_rows else ([], [], 0)
        return closed

    def rest(self) -> Cut:
        """The open range as it is. It is open no more. Needs at least one row."""
        cut = self._cut(pa.concat_tables(self._tables), np.concatenate(self._hashes), 0, self._open)
        self._tables, self._hashes, self._open = [], [], 0
        return cut

    def carry(self) -> pa.Table:
        """Hand over the rows of the open range, so that another cutter continues it. Needs at least one row."""
        rows = pa.concat_tables(self._tables)
        self._tables, self._hashes, self._open = [], [], 0
        return rows

    def _cut(self, rows: pa.Table, hashes: Hashes, start: int, end: int) -> Cut:
        mine = hashes[start:end]
        return Cut(rows.slice(start, end - start), tuple(group_ends(mine, self._split).tolist()), mine)


_AT_ONCE = 100_000


def with_digests(table: pa.Table) -> pa.Table:
    """The rows with their digests: ``RANGE_SCHEMA``, from a table with at least ``ENTRY_SCHEMA``'s columns.

    A ``digest`` column that is there already is taken as it is. Raises ``InvalidInput`` for a null in any of them.
    """
    plain = complete(table)
    digests = table.column("digest") if "digest" in table.column_names else entry_digests(plain)
    return pa.table([*plain.columns, digests], schema=RANGE_SCHEMA)


def complete(table: pa.Table) -> pa.Table:
    """The columns of ``ENTRY_SCHEMA``. Raises ``InvalidInput`` for a null in any of them."""
    for name in ENTRY_SCHEMA.names:
        if table.column(name).null_count:
            raise InvalidInput(f"column {name!r} holds nulls; every entry needs a value there")
    plain = table.select(ENTRY_SCHEMA.names)
    return plain if plain.schema.equals(ENTRY_SCHEMA) else plain.cast(ENTRY_SCHEMA)


def check_ascending(paths: pa.Array | pa.ChunkedArray, after: str | None = None) -> None:
    """Raise ``InvalidInput`` unless paths ascend strictly by their bytes, all of them after ``after``."""
    chunks = paths.chunks if isinstance(paths, pa.ChunkedArray) else [paths]
    for chunk in chunks:
        if not len(chunk):
            continue
        at = first_true(pc.greater_equal(chunk.slice(0, len(chunk) - 1), chunk.slice(1)))
        if at is not None or (after is not None and chunk[0].as_py() <= after):
            wrong = chunk[0 if at is None else at + 1].as_py()
            raise InvalidInput(f"paths must be unique and sorted by their bytes; they are not at {wrong!r}")
        after = chunk[-1].as_py()


def cut(tables: Iterable[pa.Table], split: Split) -> Iterator[Cut]:
    """The rows of each range in turn, from nothing before to nothing after. Digests come along where there are any.

    Raises ``InvalidInput`` unless paths ascend strictly within and across the tables.
    """
    cutter = Cutter(split)
    last: str | None = None
    for table in tables:
        if not table.num_rows:
            continue
        check_ascending(table.column("path"), last)
        last = table.column("path")[-1].as_py()
        for start in range(0, table.num_rows, _AT_ONCE):
            rows = table.slice(start, _AT_ONCE)
            yield from cutter.add(with_digests(rows) if "digest" in rows.column_names else complete(rows))
    if cutter.open:
        yield cutter.rest()
