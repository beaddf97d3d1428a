"""A listing on its way through: kept on this machine's disk in chunks, while its keys are joined.

A listing comes once and may not fit in memory, and its rows are wanted again when it is known which of them nothing
refers to. Chunks are sorted by address, each in a file of its own, so that many can be worked on at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.keys import address_keys, ascending, order_of
from lakeops.engine.keyset import KeySet
from lakeops.engine.parts import Part, Place, write_part
from lakeops.model.errors import InvalidInput
from lakeops.model.schema import arrow
from lakeops.store.base import Listing, ObjectStore

LISTED_SCHEMA = pa.schema(
    [
        pa.field("physical_address", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("mtime", pa.int64(), nullable=False),
    ]
)
"""One object a row: its address relative to the namespace, its size, the time of its last write in Unix seconds."""

CHUNK = 131_072
"""Rows that are worked on at a time."""

CHUNK_BYTES = 1 << 25
"""The most text of one chunk; addresses may be long."""

_PIECES = 16


def listed(listings: Iterable[Listing], prefix: str = "") -> Iterator[pa.Table]:
    """What a store's scan gives as tables of ``LISTED_SCHEMA``: the objects under ``prefix``."""
    for listing in listings:
        table = pa.table([listing.keys, listing.sizes, listing.mtimes], schema=LISTED_SCHEMA)
        yield table.filter(pc.starts_with(table.column(0), prefix)) if prefix else table


@dataclass(frozen=True)
class ChunkTask:
    """Rows to keep on disk: the how many-th, the rows, prefixes and keys that need no join, where things go."""

    index: int
    rows: pa.Table
    prefixes: tuple[str, ...]
    known: KeySet
    seed: bytes
    place: Place
    folder: Path


@dataclass(frozen=True)
class Chunk:
    """Rows on disk, ascending and without repetition; those whose keys are known are only counted.

    Attributes:
        index: the how many-th of the listing.
        first: the first address, known or not.
        last: the last address, known or not.
        known: how many distinct rows there were beside those on disk.
        part: the sorted keys of all rows on disk.
        kept: the sorted keys of the rows that lie under a prefix.
        count: how many rows are on disk.
        folder: where the rows lie.
    """

    index: int
    first: str
    last: str
    known: int
    part: Part
    kept: Part | None
    count: int
    folder: Path

    def rows(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """The rows whose keys, in the order of the keys, are chosen; in the order of addresses."""
        order = np.fromfile(_order_file(self.folder, self.index), np.uint32)
        mask = np.zeros(self.count, np.bool_)
        mask[order[chosen]] = True
        with pa.memory_map(str(_rows_file(self.folder, self.index))) as file, pa.ipc.open_stream(file) as stream:
            return pa.Table.from_batches(list(stream), LISTED_SCHEMA).filter(arrow(mask))


def chunks(listing: Iterable[pa.Table | pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows of a listing in pieces that are worth a step. Raises ``InvalidInput`` for other columns."""
    held: list[pa.Table] = []
    count = size = 0
    for batch in listing:
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        for piece in _cut(_checked(table)):
            held.append(piece)
            count, size = count + piece.num_rows, size + piece.column(0).nbytes
            if count >= CHUNK or size >= CHUNK_BYTES:
                yield _together(held)
                held, count, size = [], 0, 0
    if count:
        yield _together(held)


def keep_chunk(task: ChunkTask, store: ObjectStore) -> Chunk:
    """Write the rows that may be unreferenced, and their sorted keys."""
    rows = _ascending(task.rows)
    addresses, total = rows.column(0), rows.num_rows
    first, last = addresses[0].as_py(), addresses[-1].as_py()
    keys = address_keys(addresses, task.seed)
    known = task.known.meet(keys)
    if known.any():
        rows, keys = rows.filter(arrow(~known)), keys[~known]
    with pa.OSFile(str(_rows_file(task.folder, task.index)), "wb") as file, pa.ipc.new_stream(file, rows.schema) as out:
        out.write_table(rows)
    order = order_of(keys).astype(np.uint32)
    order.tofile(_order_file(task.folder, task.index))
    kept = None
    if task.prefixes:
        beneath = under(rows.column(0), task.prefixes).to_numpy().astype(np.bool_)
        kept = write_part(store, task.place, ascending(keys[beneath]))
    part = write_part(store, task.place, keys[order])
    return Chunk(task.index, first, last, total - rows.num_rows, part, kept, rows.num_rows, task.folder)


def under(addresses: pa.ChunkedArray, prefixes: Sequence[str]) -> pa.ChunkedArray:
    """For each address whether it lies under one of the prefixes; prefixes of one length are looked for together."""
    by_size: dict[int, list[bytes]] = {}
    for prefix in prefixes:
        by_size.setdefault(len(prefix.encode()), []).append(prefix.encode())
    raw = addresses.cast(pa.binary())
    found = pc.less(pc.binary_length(raw), 0)
    for size, same in by_size.items():
        found = pc.or_(found, pc.is_in(pc.binary_slice(raw, 0, size), value_set=pa.array(same, pa.binary())))
    return found


def _checked(table: pa.Table) -> pa.Table:
    try:
        return table.select(LISTED_SCHEMA.names).cast(LISTED_SCHEMA)
    except (KeyError, ValueError) as error:
        raise InvalidInput(f"a listing has the columns {', '.join(LISTED_SCHEMA.names)}: {error}") from error


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, CHUNK):
        yield table.slice(start, CHUNK)


def _together(pieces: list[pa.Table]) -> pa.Table:
    """One table; copied only if it would come in many pieces, each of which costs as much as a long one."""
    table = pa.concat_tables(pieces)
    return table.combine_chunks() if table.column(0).num_chunks > _PIECES else table


def _ascending(rows: pa.Table) -> pa.Table:
    """The rows in order, without repetition."""
    if not _rises(rows.column(0)):
        rows = rows.sort_by(LISTED_SCHEMA.names[0]).combine_chunks()
        addresses = rows.column(0)
        fresh = pc.not_equal(addresses.slice(1), addresses.slice(0, len(addresses) - 1))
        rows = rows.filter(pa.concat_arrays([pa.array([True]), *fresh.chunks]))
    return rows


def _rises(addresses: pa.ChunkedArray) -> bool:
    rising = pc.less(addresses.slice(0, len(addresses) - 1), addresses.slice(1))
    return bool(pc.all(rising).as_py() is not False)


def _rows_file(folder: Path, index: int) -> Path:
    return folder / f"{index}.rows"


def _order_file(folder: Path, index: int) -> Path:
    return folder / f"{index}.order"
