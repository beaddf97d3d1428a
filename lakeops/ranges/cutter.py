"""Cutting a stream of rows into ranges."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lakeops.model.records import Split
from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.split import Hashes, cut_ends, path_hashes


class Cutter:
    """Rows come in, in order, and go out as whole ranges; what is left is the range still open.

    Rows must start right after a cut. Each range goes out as one table of ``RANGE_SCHEMA``.
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

    def add(self, table: pa.Table) -> list[pa.Table]:
        """The ranges that these rows bring to an end."""
        hashes = path_hashes(table.column("path"))
        self._tables.append(table)
        self._hashes.append(hashes)
        self._open += table.num_rows
        if self._open < self._split.min_entries:
            return []
        ends = cut_ends(np.concatenate(self._hashes), self._split).tolist()
        if not ends:
            return []
        rows = pa.concat_tables(self._tables)
        starts = [0, *ends[:-1]]
        closed = [rows.slice(start, end - start) for start, end in zip(starts, ends, strict=True)]
        # No cut was due before these rows came, so what is left is theirs.
        rest = rows.slice(ends[-1])
        kept = hashes[len(hashes) - rest.num_rows :]
        # A slice of no rows would keep all rows in memory.
        self._tables, self._hashes, self._open = ([rest], [kept], rest.num_rows) if rest.num_rows else ([], [], 0)
        return closed

    def rest(self) -> pa.Table:
        """The rows of the open range, which is none's any more."""
        rows = pa.concat_tables(self._tables) if self._tables else RANGE_SCHEMA.empty_table()
        self._tables, self._hashes, self._open = [], [], 0
        return rows
