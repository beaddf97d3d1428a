"""Files that no live version needs: told by the kind, with counts and bytes. They are information, never damage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.records import Upload
from lakeops.model.clock import unix_seconds
from lakeops.model.findings import Finding, found
from lakeops.model.text import excerpt
from lakeops.ops.fsck.inventory import Inventory
from lakeops.store import layout

_PLACES = {
    layout.DATA: "unreferenced_objects",
    layout.RANGES: "unreferenced_ranges",
    layout.METARANGES: "unreferenced_metaranges",
    layout.TASKS: "unreferenced_tasks",
    layout.PROBE: "unreferenced_tasks",
}
_OWN = (layout.CLAIM, layout.OWNER, layout.GC)
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
            self.example = self.example or batch["key"][0].as_py()
            self.count += batch.num_rows
            self.size_bytes += int(pc.sum(batch["size_bytes"]).as_py())
            self.young += int(pc.sum(pc.greater_equal(batch["mtime"], since)).as_py())


def leftovers(inventory: Inventory, uploads: Sequence[Upload], overdue: datetime) -> Iterator[Finding]:
    """What nothing was found to need.

    Args:
        inventory: the listing, with everything marked that is needed.
        uploads: all on record; what is written below those that may still be linked is not counted.
        overdue: when an upload must have begun to be linked still.
    """
    flying = [upload.address for upload in uploads if upload.started >= overdue]
    sums: dict[str, _Sum] = {}
    since = unix_seconds(overdue)
    for batch in inventory.not_needed():
        rest = batch
        for prefix in (*_OWN, *flying):
            rest = rest.filter(pc.invert(pc.starts_with(rest["key"], prefix)))
        for prefix, kind in _PLACES.items():
            inside = pc.starts_with(rest["key"], prefix)
            sums.setdefault(kind, _Sum()).add(rest.filter(inside), since)
            rest = rest.filter(pc.invert(inside))
        sums.setdefault(_STRAY, _Sum()).add(rest, since)
    for kind, each in sums.items():
        if each.count:
            yield _told(kind, each)


def _told(kind: str, each: _Sum) -> Finding:
    files = "1 file" if each.count == 1 else f"{each.count:,} files"
    why = "that no repository wrote" if kind == _STRAY else "that no live version needs"
    message = f"{files} ({each.size_bytes:,} bytes) {why}, {excerpt(each.example)} for one"
    if each.young and kind != _STRAY:
        message += f"; {each.young:,} so young that something in flight may need them yet"
    place = "the storage namespace" if kind == _STRAY else _prefix(each.example)
    return found(kind, place, message, count=each.count, size_bytes=each.size_bytes)


def _prefix(key: str) -> str:
    return next(prefix for prefix in _PLACES if key.startswith(prefix))
