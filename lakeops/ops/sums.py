"""What differs between two commits, summed up by folder, with bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakeops.model.records import Change, ChangeType
from lakeops.ops.context import Context
from lakeops.ops.diff import since_merge_base_tables, two_way_tables
from lakeops.ranges.diff import changes

if TYPE_CHECKING:
    import pyarrow as pa

KINDS = tuple(kind.value for kind in ChangeType)


@dataclass
class Counts:
    """How many paths changed in which way, and the bytes of the objects that are there now, or were removed."""

    by_kind: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    bytes: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.by_kind.values())


@dataclass(frozen=True)
class Sums:
    """The differences under a prefix.

    Attributes:
        prefix: what their paths begin with.
        all: of every path.
        folders: by what follows the prefix up to a slash: prefixes that end with one, and objects.
        others: what more folders than were to be told hold.
        first: the first changes.
        exact: False when there were more changes than were to be counted.
    """

    prefix: str
    all: Counts
    folders: dict[str, Counts]
    others: Counts
    first: list[Change]
    exact: bool


def sums(
    ctx: Context, left: str, right: str, *, two_way: bool, prefix: str = "", most: int, folders: int, first: int
) -> Sums:
    """The sums of what differs between two refs' commits, or of what ``right`` changed since their merge base.

    Args:
        two_way: all that differs, from left to right.
        prefix: what the paths begin with.
        most: how many changes are counted.
        folders: how many folders are told of.
        first: how many changes are given as they are.
    """
    tables = (two_way_tables if two_way else since_merge_base_tables)(ctx, left, right, prefix=prefix)
    everything, others = Counts(), Counts()
    found: dict[str, Counts] = {}
    listed: list[Change] = []
    left_over = most
    for table in tables:
        some = table.slice(0, left_over)
        if len(listed) < first:
            listed += changes(some.slice(0, first - len(listed)))
        for kind, path, size in _rows(some):
            name = path[: path.find("/", len(prefix)) + 1] or path
            one = found.get(name)
            if one is None:
                one = others if len(found) >= folders else found.setdefault(name, Counts())
            one.by_kind[kind] += 1
            one.bytes += size
            everything.by_kind[kind] += 1
            everything.bytes += size
        left_over -= some.num_rows
        if not left_over:
            break
    return Sums(prefix, everything, found, others, listed, left_over > 0)


def _rows(table: pa.Table) -> Iterator[tuple[str, str, int]]:
    # Plain values: a record for each of fifty thousand changes would take most of the time.
    return zip(*(table.column(name).to_pylist() for name in ("type", "path", "size_bytes")), strict=True)
