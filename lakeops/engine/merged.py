"""Sorted tables as one sorted stream, with a few rows of each in memory.

The tables go to disk in short batches. The first value of every batch is remembered; among all of them, every so
many-th parts the stream into pieces of one size, and each piece is gathered from all tables and sorted at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

BATCH = 1_024
PIECE = 262_144


def merged(tables: Iterable[pa.Table], column: str, folder: Path) -> Iterator[pa.Table]:
    """The rows of all tables, sorted by a text column: tables, none empty.

    Args:
        tables: each sorted by the column.
        column: a ``string`` column without nulls.
        folder: for files, on this machine.
    """
    runs = [_Run(table, column, folder / f"{index}.run") for index, table in enumerate(tables)]
    firsts = sorted(first for run in runs for first in run.firsts)
    step = PIECE // BATCH
    for above in [*firsts[step::step], None]:
        rows = pa.concat_tables([run.below(above) for run in runs]) if runs else None
        if rows is not None and rows.num_rows:
            yield rows.sort_by(column)


class _Run:
    """One sorted table on disk, read from its start."""

    def __init__(self, table: pa.Table, column: str, path: Path) -> None:
        self._column = column
        self._path = path
        self._held = table.schema.empty_table()
        self._next = 0
        self.firsts: list[str] = table.column(column).take(pa.array(range(0, table.num_rows, BATCH))).to_pylist()
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
            out.write_table(table, max_chunksize=BATCH)

    def below(self, above: str | None) -> pa.Table:
        """The rows that were not given yet and come before ``above``; all of them for None."""
        stop = len(self.firsts) if above is None else bisect_left(self.firsts, above, self._next)
        if stop > self._next:
            with pa.OSFile(str(self._path)) as file, pa.ipc.open_file(file) as reader:
                batches = [reader.get_batch(index) for index in range(self._next, stop)]
            self._held = pa.concat_tables([self._held, pa.Table.from_batches(batches)])
            self._next = stop
        size = self._held.num_rows
        end = size if above is None else _first_at(self._held.column(self._column), above)
        rows, self._held = self._held.slice(0, end), self._held.slice(end)
        return rows


def _first_at(values: pa.ChunkedArray, value: str) -> int:
    """How many of some ascending values come before one."""
    return int(pc.sum(pc.less(values, value)).as_py() or 0)
