"""The listing of a namespace, as garbage collection's anti-join takes it: sorted, in slices that fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrays import array, no_rows
from lakeops.model.errors import InvalidInput, Transient

LISTED_SCHEMA = pa.schema(
    [
        pa.field("physical_address", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("mtime", pa.int64(), nullable=False),
    ]
)
"""One object a row: its address relative to the namespace, its size, the time of its last write in Unix seconds."""

Listing = Callable[[], Iterable[pa.Table]]
"""Gives tables of ``LISTED_SCHEMA``, the same rows each time that it is called."""

SLICE = 196_608
"""Rows of a slice: some 20 MB of text, and 60 MB while it is joined."""

SLICE_BYTES = 32 << 20
"""The most text of a slice: addresses may be long."""

SLICES = 256
"""The most slices. Each has an open file while the references are read. A longer listing has longer slices."""

_BATCH = 65_536


class Listed:
    """A listing in slices.

    Attributes:
        count: how many rows there are.
        firsts: the first address of every slice, as ``large_string``.
        ascends: whether the addresses strictly ascend: then no row is in two slices, and none is repeated.
    """

    def __init__(self, listing: Listing) -> None:
        self.count: int = 0
        self.ascends: bool = True
        self._listing = listing
        firsts: list[str] = []
        last = ""
        for rows in _slices(listing()):
            names = rows.column(0)
            firsts.append(names[0].as_py())
            self.ascends = self.ascends and last < firsts[-1] and _ascends(names)
            self.count += rows.num_rows
            last = names[-1].as_py()
        self._together = max(1, -(-len(firsts) // SLICES))
        self.firsts: pa.Array = array(firsts[:: self._together], pa.large_string())

    def slices(self) -> Iterator[pa.Table]:
        """The rows of every slice: ``LISTED_SCHEMA``. Raises ``Transient`` when it is another listing by now."""
        parts = _slices(self._listing())
        for first in self.firsts.to_pylist():
            rows = pa.concat_tables([no_rows(LISTED_SCHEMA), *islice(parts, self._together)])
            if not rows.num_rows or rows.column(0)[0].as_py() != first:
                raise Transient("the listing changed while it was read; nothing was deleted; try again")
            yield rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in the order in which they are listed."""
        return (batch for rows in _slices(self._listing()) for batch in rows.to_batches())


def checked(table: pa.Table | pa.RecordBatch) -> pa.Table:
    """Rows of a listing as a table of ``LISTED_SCHEMA``. Raises ``InvalidInput`` for other columns."""
    table = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    try:
        return table.select(LISTED_SCHEMA.names).cast(LISTED_SCHEMA)
    except (KeyError, ValueError) as error:
        raise InvalidInput(f"a listing has the columns {', '.join(LISTED_SCHEMA.names)}: {error}") from error


def _slices(listing: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows in tables of a useful size, none empty. Where they are cut follows from the tables alone."""
    held: list[pa.Table] = []
    rows = size = 0
    for table in map(checked, listing):
        step = max(1, min(_BATCH, SLICE_BYTES * table.num_rows // (8 * max(1, table.nbytes))))
        for start in range(0, table.num_rows, step):
            piece = table.slice(start, step)
            held.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
            if rows >= SLICE or size >= SLICE_BYTES:
                yield pa.concat_tables(held)
                held, rows, size = [], 0, 0
    if held:
        yield pa.concat_tables(held)


def _ascends(names: pa.ChunkedArray) -> bool:
    return pc.all(pc.less(names.slice(0, len(names) - 1), names.slice(1))).as_py() is not False
