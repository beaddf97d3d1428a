"""The objects of a listing that nothing refers to: garbage collection's anti-join.

Both sides may be larger than memory, so they become sorted keys in files (``parts``) and are joined bucket by bucket.
Reading ranges and joining buckets are plain tasks for any engine; the listing itself stays with the driver. When the
work runs in this process and the references are few enough (``HELD``), their keys stay in memory (``keyset``) and the
listing passes by them: what is referred to is counted and let go, and only the rest takes the way over files. An
object is only ever found to be unreferenced when no reference has its key, so two addresses with one key keep an
object and never lose one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from lakeops.engine.addresses import managed
from lakeops.engine.antijoin import (
    HeldResult,
    JoinResult,
    JoinTask,
    Mask,
    ReadResult,
    ReadTask,
    hold_ranges,
    join,
    keys_made,
    read_ranges,
)
from lakeops.engine.base import Engine, once_each
from lakeops.engine.keys import BUCKETS, address_keys, ascending
from lakeops.engine.keyset import KeySet
from lakeops.engine.listed import LISTED_SCHEMA, Chunk, ChunkTask, chunks, keep_chunk
from lakeops.engine.local import LocalEngine
from lakeops.engine.merged import merged
from lakeops.engine.parts import Part, Place, write_part
from lakeops.model.clock import Ids
from lakeops.model.errors import LakeopsError, Transient, Unsupported
from lakeops.model.schema import arrow, numbers
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import prefetched
from lakeops.store.base import ObjectStore

OnProgress = Callable[[int, int], None]
R = TypeVar("R", ReadResult, HeldResult)

HELD = 100_000_000
"""References whose keys are held in memory when the work runs in this process: some 10 bytes each, 1 GB at the most."""

JOINED = 2_000_000
"""Keys of both sides that one task joins."""

_READING = 2
"""Ranges whose addresses are read in the time that one is rewritten, which is what engines are chosen by."""

_COMPACT = 1_000_000
"""Ranges of many metaranges after which those that repeat are dropped."""


@contextmanager
def unreferenced(
    store: ObjectStore,
    listing: Iterable[pa.Table | pa.RecordBatch],
    ranges: pa.Table,
    *,
    engine: Engine,
    addresses: Iterable[pa.Array | pa.ChunkedArray] = (),
    prefixes: Iterable[str] = (),
    folder: Path | None = None,
    seed: bytes | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[Unreferenced]:
    """The objects of a listing that nothing refers to, usable inside the block.

    Args:
        store: the namespace.
        listing: tables of ``LISTED_SCHEMA``, in any order, names possibly repeated, taken before it was decided what
            is live. It is read once, before or after the ranges, which never change.
        ranges: what is live: ``METARANGE_SCHEMA``, in any order (see ``distinct_ranges``). Each file is opened once.
        engine: where ranges are read and buckets are joined.
        addresses: what else is referred to: ``string`` columns, relative or absolute.
        prefixes: everything under these is kept: places that somebody writes to.
        folder: where on this machine to keep about 130 bytes for each listed object that may be unreferenced; the
            system's place by default.
        seed: what keys follow from; fresh by default.
        on_progress: called with (ranges read, ranges in all).

    Raises:
        InvalidInput: the listing has other columns.
        Corrupted: a range, or what a worker wrote, is not what it was; ``ObjectNotFound``: it is gone.
        Unsupported: workers run another version of this code.
    """
    with tempfile.TemporaryDirectory(prefix="lakeops-", dir=folder) as name:
        engine = engine.for_work(-(-ranges.num_rows // _READING))
        place = Place.fresh(Path(name) if engine.in_process else None)
        search = _Search(store, engine, place, Path(name), seed or sha256(Ids().new().encode()).digest())
        try:
            metarange = Metarange(_one_each([ranges]))
            held = engine.in_process and metarange.count <= HELD
            known = search.held(metarange, on_progress) if held else KeySet()
            listed = search.listed(listing, tuple(prefixes), known)
            parts = [chunk.kept for chunk in listed if chunk.kept is not None]
            parts += [] if held else search.read(metarange, on_progress)
            parts += search.given(addresses, known)
            yield Unreferenced(listed, search.joined(listed, parts), known, Path(name))
        finally:
            with suppress(LakeopsError):
                place.clear(store)


def distinct_ranges(metaranges: Iterable[Metarange]) -> pa.Table:
    """Every range of some metaranges, one row an id: ``METARANGE_SCHEMA``.

    Costs what each differs in from the one before, and the memory of the distinct ones.
    """
    last = Metarange.empty()
    tables, count = [last.table], 0
    for metarange in metaranges:
        fresh = metarange.table.take(arrow(metarange.without(last)))
        tables, count, last = [*tables, fresh], count + fresh.num_rows, metarange
        if count > _COMPACT:
            tables, count = [_one_each(tables)], 0
    return _one_each(tables)


class Unreferenced:
    """What nothing refers to.

    Attributes:
        listed: how many distinct objects the listing named.
        referenced: how many distinct addresses in the namespace something refers to, listed or not, or a prefix keeps.
        kept: how many listed objects are among those.
        count: how many listed objects nothing refers to.
    """

    def __init__(self, listed: Sequence[Chunk], joins: Sequence[JoinResult], known: KeySet, folder: Path) -> None:
        self._chunks = listed
        self._joins = joins
        self._folder = folder
        self._in_order = _in_order(listed)
        self.referenced = len(known) + sum(found.referenced for found in joins)
        met = sum(chunk.known for chunk in listed) if self._in_order else known.met
        self.listed = met + sum(chunk.count for chunk in listed) - sum(found.repeated for found in joins)
        packed = (np.frombuffer(bits, np.uint8) for found in joins for bits in found.unreferenced)
        self.count = sum(int(np.bitwise_count(bits).sum()) for bits in packed)
        self.kept = self.listed - self.count

    def batches(self) -> Iterator[pa.Table]:
        """The objects, sorted by address: tables of ``LISTED_SCHEMA``, none empty. Can be asked for again."""
        found = (rows for rows in prefetched(self._rows, range(len(self._chunks)), window=2) if rows.num_rows)
        return found if self._in_order else merged(found, LISTED_SCHEMA.names[0], self._folder)

    def _rows(self, index: int) -> pa.Table:
        """The unreferenced rows of one chunk."""
        chunk, step = self._chunks[index], BUCKETS // len(self._joins)
        sizes = [len(chunk.part.stretch(start, start + step)) for start in range(0, BUCKETS, step)]
        packed = (np.frombuffer(found.unreferenced[index], np.uint8) for found in self._joins)
        bits = [np.unpackbits(some, count=size) for some, size in zip(packed, sizes, strict=True)]
        chosen: Mask = np.concatenate(bits).astype(np.bool_)
        return chunk.rows(chosen) if chosen.any() else pa.Table.from_batches([], LISTED_SCHEMA)


@dataclass(frozen=True)
class _Search:
    """The steps of one search."""

    store: ObjectStore
    engine: Engine
    place: Place
    folder: Path
    seed: bytes

    def held(self, metarange: Metarange, on_progress: OnProgress | None) -> KeySet:
        """What ranges refer to, in memory."""
        known = KeySet(metarange.count)
        for result in self._read(hold_ranges, metarange, on_progress):
            known.add(result.keys)
        return known

    def read(self, metarange: Metarange, on_progress: OnProgress | None) -> Iterator[Part]:
        """What ranges refer to, in files."""
        expected = keys_made(self.seed)
        for result in self._read(read_ranges, metarange, on_progress):
            # Nothing that is referred to would be known by other keys.
            if result.keys_made != expected:
                raise Unsupported(
                    f"the engine's workers ({self.engine.name}) run another version of lakeops than this process; "
                    "nothing was deleted; install the same one on both sides, or set engine=local"
                )
            yield result.part

    def listed(
        self, listing: Iterable[pa.Table | pa.RecordBatch], prefixes: tuple[str, ...], known: KeySet
    ) -> list[Chunk]:
        """What of the listing is not known, on this machine's disk, in the order of its chunks' first addresses."""
        tasks = (
            ChunkTask(index, rows, prefixes, known, self.seed, self.place, self.folder)
            for index, rows in enumerate(chunks(listing))
        )
        found = sorted(LocalEngine().run(keep_chunk, tasks, self.store), key=lambda chunk: chunk.first)
        # The threads that worked on chunks are gone, and what they had freed would stay with them.
        pa.default_memory_pool().release_unused()
        return found

    def given(self, addresses: Iterable[pa.Array | pa.ChunkedArray], known: KeySet) -> Iterator[Part]:
        """The keys of other addresses that are not known."""
        for some in addresses:
            keys = address_keys(managed(self.store.url, some), self.seed)
            yield write_part(self.store, self.place, ascending(keys[~known.contains(keys)]))

    def _read(
        self, work: Callable[[ReadTask, ObjectStore], R], metarange: Metarange, on_progress: OnProgress | None
    ) -> Iterator[R]:
        """The result of each task that reads some of the ranges."""
        count = len(metarange)
        group = self.engine.group(count)
        tasks = (
            ReadTask(index, tuple(metarange.rows(start, min(start + group, count))), self.seed, self.place)
            for index, start in enumerate(range(0, count, group))
        )
        done = 0
        for result in once_each(self.engine.run(work, tasks, self.store)):
            done += result.ranges
            if on_progress:
                on_progress(done, count)
            yield result
        if done != count:
            raise self._lost("ranges", done, count)

    def joined(self, listed: Sequence[Chunk], parts: Sequence[Part]) -> list[JoinResult]:
        """What each group of buckets holds, in order."""
        total = sum(chunk.count for chunk in listed) + sum(len(part) for part in parts)
        groups = 1
        while groups < BUCKETS and groups * JOINED < total:
            groups *= 2
        step, once = BUCKETS // groups, _in_order(listed)
        tasks = (
            JoinTask(
                index,
                tuple(chunk.part.stretch(start, start + step) for chunk in listed),
                tuple(part.stretch(start, start + step) for part in parts),
                self.place,
                once,
            )
            for index, start in enumerate(range(0, BUCKETS, step))
        )
        results = sorted(once_each(self.engine.run(join, tasks, self.store)), key=lambda result: result.index)
        if len(results) != groups:
            raise self._lost("groups of keys", len(results), groups)
        return results

    def _lost(self, what: str, done: int, total: int) -> Transient:
        return Transient(f"the engine ({self.engine.name}) gave back {done} of {total} {what}; try again")


def _in_order(listed: Sequence[Chunk]) -> bool:
    """Whether each chunk ends before the next one begins, so that no address is in two of them."""
    return all(one.last < other.first for one, other in pairwise(listed))


def _one_each(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all tables, one an id: the first."""
    table = pa.concat_tables(tables).combine_chunks()
    codes = numbers(table.column("id").combine_chunks().dictionary_encode().indices)
    return table.take(arrow(np.unique(codes, return_index=True)[1]))
