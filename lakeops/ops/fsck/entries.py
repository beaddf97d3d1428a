"""From entries to what they point at: addresses that lead where they may, and the files that are there.

What an entry needs is marked in the inventory. With ``data`` the objects themselves are checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.text import excerpt
from lakeops.ops.addresses import proper, relative
from lakeops.ops.context import Context
from lakeops.ops.fsck.inventory import Inventory
from lakeops.ops.fsck.objects import ObjectCheck
from lakeops.ops.fsck.ranges import CheckedRange

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
        self.columns = _OBJECTS if data else _ADDRESSES
        self._namespace = ctx.repository.storage_namespace
        self._inventory = inventory
        self._checked = checked
        self._objects = ObjectCheck(ctx.stores, self._namespace, inventory) if data else None

    def flaws_of_range(self, one: CheckedRange) -> Iterator[PlacedFlaw]:
        """What is wrong with a range, its file, its rows and what they point at."""
        for flaw in one.flaws:
            yield PlacedFlaw(flaw.kind, one.row.key, flaw.message, flaw.count)
        at = self._inventory.find(pa.array([one.row.key]))
        self._inventory.need(at)
        if at[0] >= 0 and one.table is not None:
            held = self._inventory.stored(int(at[0])).size_bytes
            if held != one.row.file_bytes:
                message = f"the file has {held:,} bytes, and {one.row.file_bytes:,} were written"
                yield PlacedFlaw("range_size_mismatch", one.row.key, message)
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
        """What is wrong with the objects of entries whose addresses are sound; marks those that lie here.

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
