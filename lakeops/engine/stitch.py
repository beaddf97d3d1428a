"""Putting a metarange together from the base's ranges and what the tasks gave back.

A task that could not re-synchronise before its border hands over carry: rows whose range is still open. The driver
goes on from there, over whatever follows (base ranges or other tasks' output), until a cut falls on a range's end.
No change is applied again. Rows are only cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from lakeops.model.records import Split
from lakeops.ranges.chunker import Chunker
from lakeops.ranges.file import read_range
from lakeops.ranges.metarange import Metarange, RangeRow, rows_table
from lakeops.ranges.task import Piece, from_ipc
from lakeops.ranges.write import RangeWriter, Work
from lakeops.store.base import ObjectStore


def stitch(
    base: Metarange, pieces: Iterable[Piece], *, store: ObjectStore, split: Split, attempt: str
) -> tuple[Metarange, Work]:
    """The metarange with the pieces in place of the base's rows, and the work that repairing borders took.

    Args:
        base: what the pieces were planned on.
        pieces: those of all tasks, ascending, none twice.
        store: the namespace.
        split: the repository's split.
        attempt: a fresh suffix for what is written here.
    """
    stitching = Stitching(store, split, attempt)
    done = 0
    for piece in pieces:
        stitching.keep(base, done, piece.start)
        stitching.put(piece.rows)
        if piece.carry:
            stitching.open(from_ipc(piece.carry))
        done = piece.stop
    stitching.keep(base, done, len(base))
    stitching.finish()
    return stitching.metarange(), stitching.work


class Stitching:
    """A metarange in the making: what follows is told in order, ranges by reference wherever cuts allow it.

    ``work`` is what cutting took so far.

    Args:
        store: the namespace.
        split: the repository's split.
        attempt: a fresh suffix for what is written here.
        known: ranges that may be referred to where the outcome equals them.
    """

    def __init__(self, store: ObjectStore, split: Split, attempt: str, known: Iterable[RangeRow] = ()) -> None:
        self.work: Work = Work()
        self._store = store
        self._attempt = attempt
        self._known = tuple(known)
        self._chunker = Chunker(split)
        self._parts: list[pa.Table | Sequence[RangeRow]] = []

    def keep(self, ranges: Metarange, start: int, stop: int) -> None:
        """Ranges ``[start, stop)`` of a metarange follow: by reference, once no range is open.

        Each of them ends with a cut, but for a last one that nothing follows.
        """
        while start < stop and self._chunker.open:
            self._cut_anew(ranges.row(start))
            start += 1
        if start < stop:
            self._parts.append(ranges.table.slice(start, stop - start))

    def put(self, rows: tuple[RangeRow, ...]) -> None:
        """Ranges that a task wrote follow."""
        done = 0
        while done < len(rows) and self._chunker.open:
            self._cut_anew(rows[done])
            done += 1
        self._parts.append(rows[done:])

    def open(self, carry: pa.Table) -> None:
        """Rows follow whose range is open."""
        self._write(self._chunker.add(carry), ())

    def finish(self) -> None:
        """Nothing follows: what is open is the last range."""
        if self._chunker.open:
            self._write([self._chunker.rest()], ())

    def metarange(self) -> Metarange:
        """What came together."""
        # One table of all new rows: each one by itself would take a quarter of a millisecond.
        new = rows_table([row for part in self._parts if not isinstance(part, pa.Table) for row in part])
        parts, done = [], 0
        for part in self._parts:
            if isinstance(part, pa.Table):
                parts.append(part)
            else:
                parts.append(new.slice(done, len(part)))
                done += len(part)
        return Metarange.splice(parts)

    def _cut_anew(self, row: RangeRow) -> None:
        """A whole range follows while another is open: its rows are cut anew."""
        self.work += Work(opened=1, bytes_read=row.file_bytes)
        self._write(self._chunker.add(read_range(self._store, row)), (row,))

    def _write(self, closed: list[pa.Table], known: tuple[RangeRow, ...]) -> None:
        writer = RangeWriter(self._store, self._attempt, (*self._known, *known))
        self._parts.append([writer.write(rows) for rows in closed])
        self.work += writer.work
