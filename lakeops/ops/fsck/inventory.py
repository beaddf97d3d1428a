"""What lies in a storage namespace, listed once, to be looked up by key.

The listing goes to a file on the local disk and is mapped into memory from there, so a namespace of any size takes
little of it. It comes in the order of keys, which is what lookups rest on. Keys are compared whole, never by a hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.store.base import StoredObject

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("mtime", pa.int64()),
        pa.field("mark", pa.string()),
    ]
)
_BATCH = 65_536


class Inventory:
    """A listing that can be searched, and a mark on each object that something needs.

    Args:
        place: a directory of its own on the local disk.
        items: the listing, in byte order of keys.
        on_progress: told how many objects there are so far.
    """

    def __init__(self, place: Path, items: Iterable[StoredObject], on_progress: Callable[[int], None]) -> None:
        file = place / "listing.arrow"
        self._write(file, iter(items), on_progress)
        self._map = pa.memory_map(str(file))
        self.table: pa.Table = pa.ipc.open_file(self._map).read_all()
        self._keys: list[pa.Array] = self.table["key"].chunks
        self._starts = np.cumsum([0, *(len(chunk) for chunk in self._keys)])
        self._last = pa.array([chunk[-1].as_py() for chunk in self._keys], pa.string())
        self.needed: Mask = np.zeros(len(self), np.bool_)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()

    def find(self, keys: pa.Array | pa.ChunkedArray) -> Rows:
        """Where each key is; -1 for those that were not listed."""
        wanted = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
        found = np.full(len(wanted), -1, np.int64)
        if not len(wanted) or not self._keys:
            return found
        order = pc.sort_indices(wanted).to_numpy()
        ordered = wanted.take(pa.array(order))
        chunks = pc.search_sorted(self._last, ordered).to_numpy().astype(np.int64)
        edges = np.flatnonzero(np.diff(chunks, prepend=-1, append=len(self._keys) + 1))
        for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            chunk = int(chunks[start])
            if chunk == len(self._keys):
                break  # past the last key
            places = pc.search_sorted(self._keys[chunk], ordered[start:stop])
            same = pc.equal(self._keys[chunk].take(places), ordered[start:stop]).to_numpy(zero_copy_only=False)
            at = places.to_numpy().astype(np.int64) + int(self._starts[chunk])
            found[order[start:stop]] = np.where(same, at, -1)
        return found

    def need(self, rows: Rows) -> None:
        """Mark what is needed; rows of -1 are passed over."""
        self.needed[rows[rows >= 0]] = True

    def need_keys(self, keys: list[str]) -> None:
        """Mark what is needed, by name."""
        self.need(self.find(pa.array(keys, pa.string())))

    def stored(self, row: int) -> StoredObject:
        """What the listing says of one object."""
        key, size, mtime, mark = (column[row].as_py() for column in self.table.columns)
        return StoredObject(key, size, mtime, mark)

    def not_needed(self) -> Iterator[pa.RecordBatch]:
        """The objects that nothing was found to need."""
        at = 0
        for batch in self.table.to_batches():
            rows = np.flatnonzero(~self.needed[at : at + batch.num_rows])
            at += batch.num_rows
            if len(rows):
                yield batch.take(pa.array(rows))

    @staticmethod
    def _write(file: Path, items: Iterator[StoredObject], on_progress: Callable[[int], None]) -> None:
        count = 0
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            while some := list(islice(items, _BATCH)):
                columns = zip(*((item.key, item.size_bytes, item.mtime, item.etag) for item in some), strict=True)
                arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
                writer.write_batch(pa.record_batch(arrays, schema=SCHEMA))
                count += len(some)
                on_progress(count)
