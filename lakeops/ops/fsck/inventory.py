"""The listing of a storage namespace, made once, to be looked up by key.

The listing goes to a file on the local disk and is mapped into memory from there, so a namespace of any size takes
little of it. It comes in the order of keys, which is what lookups rest on. Keys are compared whole, never by a hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.audit import Upload
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import LakeopsError
from lakeops.model.records import RepositoryRecord
from lakeops.model.sanitising import excerpt, safe
from lakeops.ops.context import Context
from lakeops.ops.fsck.findings import Finding, found
from lakeops.ops.gc.unreferenced import LISTED_SCHEMA
from lakeops.ops.overlap import claim_of, is_claim_of, read_claim
from lakeops.ops.owner import find_owner
from lakeops.store import layout
from lakeops.store.base import ObjectStore, StoredObject
from lakeops.store.layout import CLAIM, owner_key

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

WITH_ETAGS = LISTED_SCHEMA.append(pa.field("etag", pa.string()))


class Inventory:
    """A listing that can be searched, and a mark on each object that something needs.

    ``tables`` of ``schema`` come in byte order of keys. They are kept in ``place``, a local directory of its own.
    """

    def __init__(self, place: Path, tables: Iterable[pa.Table], schema: pa.Schema) -> None:
        file = place / "listing.arrow"
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for some in tables:
                writer.write_table(some)
        self._map = pa.memory_map(str(file))
        self.table: pa.Table = pa.ipc.open_file(self._map).read_all()
        self._keys: list[pa.Array] = self.table["physical_address"].chunks
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
        order = np.arange(len(wanted))
        if not pc.all(pc.less_equal(wanted[:-1], wanted[1:]), min_count=0).as_py():
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
        """Mark what is needed. Rows of -1 are passed over."""
        self.needed[rows[rows >= 0]] = True

    def need_keys(self, keys: list[str] | pa.Array) -> None:
        """Mark what is needed, by name."""
        self.need(self.find(pa.array(keys, pa.string())))

    def stored(self, row: int) -> StoredObject:
        """One object of the listing."""
        return StoredObject(*(column[row].as_py() for column in self.table.columns))

    def not_needed(self) -> Iterator[pa.RecordBatch]:
        """The objects that nothing was found to need."""
        at = 0
        for batch in self.table.to_batches():
            rows = np.flatnonzero(~self.needed[at : at + batch.num_rows])
            at += batch.num_rows
            if len(rows):
                yield batch.take(pa.array(rows))


_PLACES = {
    layout.DATA: "unreferenced_objects",
    layout.RANGES: "unreferenced_ranges",
    layout.METARANGES: "unreferenced_metaranges",
    layout.TASKS: "unreferenced_tasks",
    layout.PROBE: "unreferenced_tasks",
}
_OWN = (layout.CLAIM, layout.OWNER, layout.REFS, layout.GC)
"""What a namespace holds beside what commits need."""
_STRAY = "stray_files"


@dataclass
class _Sum:
    count: int = 0
    size_bytes: int = 0
    young: int = 0
    example: str = ""

    def add(self, batch: pa.RecordBatch, since: int) -> None:
        if batch.num_rows:
            self.example = self.example or batch["physical_address"][0].as_py()
            self.count += batch.num_rows
            self.size_bytes += int(pc.sum(batch["size_bytes"]).as_py())
            self.young += int(pc.sum(pc.greater_equal(batch["mtime"], since)).as_py())


def leftovers(inventory: Inventory, uploads: Sequence[Upload], overdue: datetime) -> Iterator[Finding]:
    """Count the files that nothing was found to need, once everything that is needed was marked in the inventory.

    Uploads that began since ``overdue`` may still be linked: what is written below them is not counted.
    """
    flying = [upload.address for upload in uploads if upload.started >= overdue]
    sums: dict[str, _Sum] = {}
    since = unix_seconds(overdue)
    for batch in inventory.not_needed():
        rest = batch
        for prefix in (*_OWN, *flying):
            rest = rest.filter(pc.invert(pc.starts_with(rest["physical_address"], prefix)))
        for prefix, kind in _PLACES.items():
            inside = pc.starts_with(rest["physical_address"], prefix)
            sums.setdefault(kind, _Sum()).add(rest.filter(inside), since)
            rest = rest.filter(pc.invert(inside))
        sums.setdefault(_STRAY, _Sum()).add(rest, since)
    for kind, each in sums.items():
        if not each.count:
            continue
        files = "1 file" if each.count == 1 else f"{each.count:,} files"
        why = "that no repository wrote" if kind == _STRAY else "that no live version needs"
        message = f"{files} ({each.size_bytes:,} bytes) {why}, for example {excerpt(each.example)}"
        if each.young and kind != _STRAY:
            message += f"; {each.young:,} of them are so new that an operation under way may need them"
        place = next((prefix for prefix in _PLACES if each.example.startswith(prefix)), "the storage namespace")
        yield found(kind, place, message, count=each.count, size_bytes=each.size_bytes)


def check_claim(store: ObjectStore, repository: RepositoryRecord) -> Iterator[Finding]:
    """Whether the namespace says that it is this repository's, with the ranges cut as the catalog says."""
    try:
        claim = read_claim(store)
    except LakeopsError as error:
        yield found("claim_mismatch", CLAIM, f"the file cannot be read: {' '.join(str(error).split())}")
        return
    if claim is None:
        yield found("claim_missing", CLAIM, "the file is not there")
    elif not claim:
        yield found("claim_mismatch", CLAIM, "the file does not hold a claim of lakeops")
    elif not is_claim_of(claim, repository):
        whose = excerpt(claim.get("repository"))
        yield found("claim_mismatch", CLAIM, f"it says that the namespace belongs to {whose}")
    elif claim.get("split") != claim_of(repository)["split"]:
        yield found("claim_mismatch", CLAIM, "it says that ranges are cut in another way than the catalog says")


def check_owner(ctx: Context, *, follows: bool) -> Iterator[Finding]:
    """Whether garbage collection of this catalog may run. A mirror has nobody who deletes."""
    key = owner_key(ctx.store.url)
    try:
        owner, ours = find_owner(ctx)
    except LakeopsError as error:
        yield found("owner_missing", key, f"the record cannot be read: {' '.join(error.message.split())}")
        return
    if owner is None and not follows:
        yield found("owner_missing", key, "no catalog may delete here: the record is not there, or cannot be read")
    elif owner is not None and not ours:
        whose = f"the catalog at {safe(owner.identity.shown)} (epoch {owner.epoch})"
        yield found("owner_mismatch", key, f"{whose} may delete here, and this one may not")
