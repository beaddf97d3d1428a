"""Putting one metarange in the place of a prefix of another: what an import does, whatever its size.

Both keep their ranges by reference. Rows are cut anew only at the two borders, from the last cut before each until a
cut falls on the end of a range that stands already; so a handful of ranges is opened, and the outcome has the ids
that building it from scratch would give.
"""

from __future__ import annotations

import pyarrow as pa

from lakeops.engine.apply import MetarangeBuilder
from lakeops.model.errors import InvalidInput
from lakeops.model.records import Split
from lakeops.ranges.file import read_range
from lakeops.ranges.metarange import Metarange, RangeRow, SortedPaths, upper_bound
from lakeops.ranges.write import Work
from lakeops.store.base import ObjectStore


def replace_prefix(
    base: Metarange, prefix: str, part: Metarange, *, store: ObjectStore, split: Split, attempt: str
) -> tuple[Metarange, Work]:
    """The metarange with ``part`` in place of everything under ``prefix``, and the work that the borders took.

    Args:
        base: what to change.
        prefix: what the paths of ``part`` begin with. The empty one means everything.
        part: built from scratch. Its ranges are in the namespace.
        store: the namespace.
        split: the repository's split.
        attempt: a fresh suffix for what is written here.
    """
    above = upper_bound(prefix)
    if above is None:
        return part, Work()
    _check_within(part, prefix.encode(), above)
    low, high = base.last_paths.first_at(prefix.encode()), base.last_paths.first_at(above)
    # A metarange's last range ends for want of more, not with a cut: it is open again when something follows.
    low = min(low, len(base) - 1) if len(base) and len(part) else low
    borders = base.at(sorted({low, high} - {len(base)}))
    building = MetarangeBuilder(store, split, attempt, borders)
    building.keep(base, 0, low)
    if low < len(base) and base.first_paths[low] < prefix.encode():
        rows = _read(building, store, base.row(low))
        building.open(rows.slice(0, SortedPaths(rows.column("path")).first_at(prefix.encode())))
    if len(part):
        building.keep(part, 0, len(part) - 1)
        _end(building, part, store, last=high == len(base))
    if high < len(base) and base.first_paths[high] < above:
        rows = _read(building, store, base.row(high))
        building.open(rows.slice(SortedPaths(rows.column("path")).first_at(above)))
        high += 1
    building.keep(base, high, len(base))
    building.finish()
    return building.metarange(), building.work


def _end(building: MetarangeBuilder, part: Metarange, store: ObjectStore, *, last: bool) -> None:
    """The part's last range follows, open unless it is the last of all."""
    if last:
        building.keep(part, len(part) - 1, len(part))
    else:
        building.open(_read(building, store, part.row(len(part) - 1)))


def _read(building: MetarangeBuilder, store: ObjectStore, row: RangeRow) -> pa.Table:
    building.work += Work(opened=1, bytes_read=row.file_bytes)
    return read_range(store, row)


def _check_within(part: Metarange, prefix: bytes, above: bytes) -> None:
    if len(part) and not (part.first_paths[0] >= prefix and part.last_paths[len(part) - 1] < above):
        raise InvalidInput(f"{part!r} holds paths that do not begin with {prefix.decode()!r}")
