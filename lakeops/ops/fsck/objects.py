"""Objects: that they are there, as large as recorded, and hold what was written.

What has a checksum that is a digest is read, once for all entries that share the object: an unchanged ETag says nothing
of the bytes that a store gives. The ETag decides only where nothing can be computed: for encrypted and imported
objects, and stores whose ETags are no digests.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from lakeops.model.errors import Corrupted, LakeopsError, ObjectNotFound
from lakeops.model.ids import algorithm_of, etags_are_md5
from lakeops.ops.context import Context
from lakeops.ops.fsck.findings import Finding, found
from lakeops.ops.fsck.ranges import CheckedRange
from lakeops.ranges.chunker import path_hashes
from lakeops.ranges.validation import relative
from lakeops.store.base import ObjectStore, StoredObject
from lakeops.store.in_flight import read_ahead
from lakeops.store.layout import is_absolute
from lakeops.store.listing import present

_PIECE = 1 << 20
_CHANGE_MARK = re.compile(r"mtime-(-?\d+)-\d+")
_MOST_REMEMBERED = 1_000_000
_OBJECTS = ("path", "physical_address", "checksum", "size_bytes")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An entry's object. ``listed`` is what a listing says of it, None when there is none."""

    path: str
    address: str
    checksum: str
    size_bytes: int
    listed: StoredObject | None


class Entries:
    """Checks the objects that entries point to. Equal entries are checked once.

    Counts entries and objects in ``checked``. ``columns`` are needed of each entry: none without ``data``.
    """

    def __init__(self, ctx: Context, checked: Counter[str], *, data: bool) -> None:
        self.columns: tuple[str, ...] = _OBJECTS if data else ()
        self._namespace = ctx.repository.storage_namespace
        self._stores, self._policy = ctx.stores(), ctx.policy
        self._checked = checked
        self._data = data
        self._etags = etags_are_md5(ctx.repository.capabilities)
        self._settled: set[tuple[str, int]] = set()

    def flaws_of_range(self, one: CheckedRange) -> Iterator[Finding]:
        """Check a range, its file, its rows and the objects that they point at."""
        _, row, verified = one
        for flaw in verified.flaws:
            yield found(flaw.kind, row.key, flaw.message, count=flaw.count)
        self._checked["entries"] += verified.entries
        if verified.table is not None:
            yield from self.follow(verified.table, place="object ")

    def follow(self, table: pa.Table, *, place: str) -> Iterator[Finding]:
        """Check the objects of entries whose addresses are sound. ``place`` is put before a path to say where."""
        if not self._data:
            return
        self._checked["objects"] += 0
        for wanted, reason in read_ahead(self._look, self._unsettled(table)):
            self._checked["objects"] += 1
            if reason is not None:
                kind, why = reason
                yield found(kind, f"{place}{wanted.path}", f"its object {wanted.address} {why}")

    def _unsettled(self, table: pa.Table) -> list[_Wanted]:
        """The objects of entries, except those that were checked for an equal entry."""
        columns = [table[name].to_pylist() for name in _OBJECTS]
        columns[1] = relative(self._namespace, table["physical_address"]).to_pylist()
        wanted = []
        for path, address, checksum, size, digest in zip(
            *columns, path_hashes(table["checksum"]).tolist(), strict=True
        ):
            if (address, digest) not in self._settled:
                if len(self._settled) >= _MOST_REMEMBERED:
                    self._settled.clear()
                self._settled.add((address, digest))
                wanted.append(_Wanted(path, address, checksum, size, None))
        known = self._found(item.address for item in wanted)
        return [replace(item, listed=known.get(item.address)) for item in wanted]

    def _found(self, addresses: Iterable[str]) -> dict[str, StoredObject]:
        """List objects in buckets where that is cheaper. Callers ask the store for objects that are left out."""
        places: dict[str, tuple[ObjectStore, dict[str, str]]] = {}
        for address in addresses:
            with suppress(LakeopsError):  # told when it is asked for
                store, key = self._stores.locate(self._policy, address)
                if store.remote:
                    places.setdefault(store.url, (store, {}))[1][key] = address
        found: dict[str, StoredObject] = {}
        for store, keys in places.values():
            with suppress(LakeopsError):  # a reader who may not list may still read
                found |= {keys[key]: item for key, item in present(store, keys).items()}
        return found

    def _look(self, wanted: _Wanted) -> tuple[_Wanted, tuple[str, str] | None]:
        """Find an object and check it. Returns a kind of finding, and words that follow its address, if one is due."""
        try:
            store, key = self._stores.locate(self._policy, wanted.address)
            digests = self._etags and not is_absolute(wanted.address)
            return wanted, _flaw(wanted, wanted.listed or store.head(key), store, key, digests=digests)
        except ObjectNotFound:
            return wanted, ("object_missing", "is not there")
        except LakeopsError as error:
            return wanted, ("object_unreadable", f"cannot be read: {error.message}")


def _flaw(
    wanted: _Wanted, stored: StoredObject, store: ObjectStore, key: str, *, digests: bool
) -> tuple[str, str] | None:
    """Compare an object that is there with its entry. Returns a kind of finding, and words that follow its address.

    ``digests`` says whether the ETag of an object there is a digest, unless the object is encrypted.
    """
    if stored.size_bytes != wanted.size_bytes:
        return "object_size_mismatch", f"has {stored.size_bytes:,} bytes, and {wanted.size_bytes:,} were recorded"
    if stored.etag and stored.etag == wanted.checksum:
        return _flaw_of_contents(stored, store, key) if digests else None
    if algorithm := algorithm_of(wanted.checksum):
        held = _digest(store, key, algorithm)
        if held == wanted.checksum:
            return None
        return "object_checksum_mismatch", f"holds {held}, and {wanted.checksum} was recorded"
    if change := _CHANGE_MARK.fullmatch(wanted.checksum):
        if int(change[1]) // 1_000_000_000 == stored.mtime:
            return None
        return "object_changed", "was written after its import; its size is the same"
    if stored.etag:
        return "object_changed", f"has the ETag {stored.etag}, and {wanted.checksum} was recorded"
    return None


def _flaw_of_contents(stored: StoredObject, store: ObjectStore, key: str) -> tuple[str, str] | None:
    """How the contents of an object are not what its ETag says, where that can be told."""
    opened = store.open_checked(replace(stored, key=key))
    with closing(opened.file) as file:
        try:
            while opened.checked and file.read(_PIECE):
                pass
        except Corrupted:
            return "object_checksum_mismatch", f"holds other contents than those with the ETag {stored.etag}"
    return None


def _digest(store: ObjectStore, key: str, algorithm: str) -> str:
    state = hashlib.new(algorithm, usedforsecurity=False)
    with store.open(key) as file:
        while piece := file.read(_PIECE):
            state.update(piece)
    return state.hexdigest()
