"""Objects: that they are there, as large as recorded, and hold what was written.

The listing tells of existence and size. What has a checksum that is a digest is read, once for all entries that share
the object: that the store shows the same mark (an ETag) as before says nothing of the bytes that it gives. The mark
settles only what nothing can be computed for: encrypted and imported objects, and stores whose marks are no digests.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from os.path import commonprefix

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.errors import Corrupted, LakeopsError, ObjectNotFound
from lakeops.model.ids import algorithm_of, etags_are_md5
from lakeops.model.text import excerpt
from lakeops.ops.context import Context
from lakeops.ops.fsck.inventory import Inventory, Rows
from lakeops.ops.fsck.ranges import CheckedRange
from lakeops.ops.view import relative
from lakeops.ranges.chunker import path_hashes
from lakeops.ranges.entry_validation import proper
from lakeops.store.base import ObjectStore, StoredObject
from lakeops.store.in_flight import read_ahead
from lakeops.store.layout import is_absolute
from lakeops.store.open import AddressPolicy, Stores, is_bucket

_PIECE = 1 << 20
_CHANGE_MARK = re.compile(r"mtime-(-?\d+)-\d+")
_MOST_REMEMBERED = 1_000_000
_WORTH_LISTING = 20
_LISTED_FOR_EACH = 50
"""Objects that a listing may pass over for each that is wanted: a page has a thousand."""


@dataclass(frozen=True, slots=True)
class ObjectFlaw:
    """What is wrong with an object, and one of the paths that lead to it."""

    kind: str
    path: str
    message: str


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An entry's object. ``listed`` is what the listing says of it, None when it was not listed."""

    path: str
    address: str
    checksum: str
    size_bytes: int
    listed: StoredObject | None


class ObjectCheck:
    """Checks objects against entries, each object once for equal entries.

    Args:
        stores: where addresses lead.
        policy: where they may lead.
        inventory: what lies in the namespace.
        etags: whether plain ETags of the namespace are MD5.
    """

    def __init__(self, stores: Stores, policy: AddressPolicy, inventory: Inventory, *, etags: bool) -> None:
        self.looked_at: int = 0
        self._etags = etags
        self._stores = stores
        self._policy = policy
        self._inventory = inventory
        self._settled = np.zeros(len(inventory), np.uint64)
        self._settled_elsewhere: set[tuple[str, int]] = set()

    def check(self, table: pa.Table, rows: Rows) -> Iterator[ObjectFlaw]:
        """What is wrong with the objects of some entries.

        Args:
            table: ``path``, ``physical_address`` (as stored), ``checksum``, ``size_bytes``.
            rows: where the inventory has them; -1 where it has not, for those of other places too.
        """
        hashes = path_hashes(table["checksum"])
        listed = rows >= 0
        todo = np.ones(len(rows), np.bool_)
        todo[listed] = self._settled[rows[listed]] != hashes[listed]
        picked = np.flatnonzero(todo)
        wanted = list(self._objects_to_check(table.take(pa.array(picked)), rows[picked], hashes[picked]))
        elsewhere = [item for item in wanted if item.listed is None and is_absolute(item.address)]
        known = listed_elsewhere(self._stores, self._policy, [item.address for item in elsewhere])
        wanted = [replace(item, listed=known.get(item.address, item.listed)) for item in wanted] if known else wanted
        self._settled[rows[listed]] = hashes[listed]
        for flaw in read_ahead(self._check, wanted):
            self.looked_at += 1
            if flaw is not None:
                yield flaw

    def _objects_to_check(
        self, table: pa.Table, rows: Rows, hashes: np.ndarray[tuple[int], np.dtype[np.uint64]]
    ) -> Iterator[_Wanted]:
        names = ("path", "physical_address", "checksum", "size_bytes")
        columns = [table[name].to_pylist() for name in names]
        for path, address, checksum, size, row, digest in zip(*columns, rows.tolist(), hashes.tolist(), strict=True):
            listed = self._inventory.stored(row) if row >= 0 else None
            item = _Wanted(path, address, checksum, size, listed)
            if item.listed is None:
                if (item.address, digest) in self._settled_elsewhere:
                    continue
                if len(self._settled_elsewhere) >= _MOST_REMEMBERED:
                    self._settled_elsewhere.clear()
                self._settled_elsewhere.add((item.address, digest))
            yield item

    def _check(self, wanted: _Wanted) -> ObjectFlaw | None:
        try:
            store, key = self._stores.locate(self._policy, wanted.address)
            digests = self._etags and not is_absolute(wanted.address)
            reason = _flaw(wanted, wanted.listed or store.head(key), store, key, digests=digests)
        except ObjectNotFound:
            reason = ("object_missing", "is not there")
        except LakeopsError as error:
            reason = ("object_unreadable", f"cannot be read: {error.message}")
        return (
            None if reason is None else ObjectFlaw(reason[0], wanted.path, f"its object {wanted.address} {reason[1]}")
        )


def listed_elsewhere(stores: Stores, policy: AddressPolicy, addresses: Sequence[str]) -> dict[str, StoredObject]:
    """What listings of other buckets say of objects there, where they are cheaper than a question an object.

    Objects of one bucket that lie close together come on one page of a listing. What a listing does not have within
    its budget is left out: it has to be asked for, whatever the reason. Directories are not listed, because a question
    costs no more there.
    """
    places: dict[str, tuple[ObjectStore, dict[str, str]]] = {}
    for address in addresses:
        if is_bucket(address):
            try:
                store, key = stores.locate(policy, address)
            except LakeopsError:
                continue  # told when it is asked for
            places.setdefault(store.url, (store, {}))[1][key] = address
    found: dict[str, StoredObject] = {}
    for store, keys in places.values():
        if len(keys) >= _WORTH_LISTING:
            first, last = min(keys, key=str.encode), max(keys, key=str.encode)
            budget = _LISTED_FOR_EACH * len(keys)
            try:
                prefix = commonprefix([first, last])  # noqa: RUF071 - of keys, which are text
                for item in islice(store.list(prefix, first[:-1]), budget):
                    if item.key in keys:
                        found[keys[item.key]] = item
                    elif item.key.encode() > last.encode():
                        break
            except LakeopsError:
                continue  # a reader who may not list may still read
    return found


def _flaw(
    wanted: _Wanted, stored: StoredObject, store: ObjectStore, key: str, *, digests: bool
) -> tuple[str, str] | None:
    """What is wrong with an object that is there: a kind, and words that follow its address.

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
        return "object_changed", "was written to after it was imported; it is as large as it was"
    if stored.etag:
        return "object_changed", f"has the mark {stored.etag}, and {wanted.checksum} was recorded"
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


_ADDRESSES = ("path", "physical_address")
_OBJECTS = (*_ADDRESSES, "checksum", "size_bytes")
_MISSING = {"metarange_missing", "range_missing", "object_missing"}


@dataclass(frozen=True, slots=True)
class PlacedFlaw:
    """Something that is not as it must be, and where."""

    kind: str
    where: str
    message: str
    count: int = 1

    @property
    def missing(self) -> bool:
        """Whether a file is gone, which is right once no live commit needs it."""
        return self.kind in _MISSING


class Entries:
    """Looks at what entries point at.

    Args:
        ctx: the repository.
        inventory: what lies in its namespace.
        checked: the tally of entries and objects.
        data: whether to look at the objects too.

    Attributes:
        columns: what is needed of each entry.
    """

    def __init__(self, ctx: Context, inventory: Inventory, checked: Counter[str], *, data: bool) -> None:
        self.columns: tuple[str, ...] = _OBJECTS if data else _ADDRESSES
        self._namespace = ctx.repository.storage_namespace
        self._inventory = inventory
        self._checked = checked
        etags = etags_are_md5(ctx.repository.capabilities)
        self._objects = ObjectCheck(ctx.stores, ctx.policy, inventory, etags=etags) if data else None

    def flaws_of_range(self, one: CheckedRange) -> Iterator[PlacedFlaw]:
        """What is wrong with a range, its file, its rows and what they point at."""
        for flaw in one.flaws:
            yield PlacedFlaw(flaw.kind, one.row.key, flaw.message, flaw.count)
        self._inventory.need(self._inventory.find(pa.array([one.row.key])))
        if one.table is None:
            return
        self._checked["entries"] += one.table.num_rows
        keys = relative(self._namespace, one.table["physical_address"])
        whole, sound = pc.not_equal(keys, one.table["physical_address"]), proper(keys)
        rules = (
            (pc.invert(sound), "address_invalid", "which no object can have"),
            (whole, "address_not_relative", "a URL into the namespace itself"),
        )
        for bad, kind, why in rules:
            rows = one.table.filter(bad)
            if rows.num_rows:
                path, address = (excerpt(rows[name][0].as_py()) for name in _ADDRESSES)
                others = f", and {rows.num_rows - 1:,} more rows" if rows.num_rows > 1 else ""
                yield PlacedFlaw(kind, one.row.key, f"{path} has the address {address}, {why}{others}", rows.num_rows)
        yield from self.follow(one.table.filter(sound), place="object ")

    def follow(self, table: pa.Table, *, place: str) -> Iterator[PlacedFlaw]:
        """What is wrong with the objects of entries whose addresses are sound. Marks those that lie here.

        Args:
            table: ``columns`` of the entries.
            place: what is put before a path to say where.
        """
        keys = relative(self._namespace, table["physical_address"])
        rows = self._inventory.find(keys)
        self._inventory.need(rows)
        if self._objects is None:
            return
        stored = table.set_column(table.schema.get_field_index("physical_address"), "physical_address", keys)
        for flaw in self._objects.check(stored, rows):
            yield PlacedFlaw(flaw.kind, f"{place}{flaw.path}", flaw.message)
        self._checked["objects"] = self._objects.looked_at
