"""What differs between two commits, summed up by folder, with bytes.

What is read is bounded. Ranges that came or went as a whole, and lie in one folder, are counted unread, so the sums of
a first load are exact however large it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrays import text
from lakeops.model.changes import Change, ChangeType
from lakeops.model.names import check_prefix
from lakeops.model.records import Commit
from lakeops.ops.context import Context
from lakeops.ops.diff import since_merge_base_tables
from lakeops.ops.resolve import explain_expired, resolve_both, resolve_commit, watched
from lakeops.ranges.diff import changes, diff, each_change, whole_ranges
from lakeops.ranges.metarange import Metarange, SortedPaths

MOST_CONFLICTS = 20
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

    def add(self, rows: pa.Table) -> None:
        """Count the rows of a difference (``ranges.diff.DIFF_SCHEMA``)."""
        for kind in pc.value_counts(rows.column("type")).to_pylist():
            self.by_kind[kind["values"]] += kind["counts"]
        self.bytes += pc.sum(rows.column("size_bytes")).as_py() or 0

    def count(self, kind: str, many: int, size_bytes: int) -> None:
        """Count so many paths of one kind."""
        self.by_kind[kind] += many
        self.bytes += size_bytes

    def plus(self, *others: Counts) -> Counts:
        """Count what others counted, and return itself."""
        for other in others:
            for kind, many in other.by_kind.items():
                self.by_kind[kind] += many
            self.bytes += other.bytes
        return self


@dataclass(frozen=True)
class Sums:
    """The differences under a prefix.

    Attributes:
        prefix: what their paths begin with.
        all: of every path.
        folders: by what follows the prefix up to a slash: prefixes that end with one, and objects.
        others: what more folders than were to be told hold.
        first: the first changes.
        conflicts: the first conflicts among all that was counted.
        exact: False when there were more changes than were to be read.
    """

    prefix: str
    all: Counts
    folders: dict[str, Counts]
    others: Counts
    first: list[Change]
    conflicts: list[Change]
    exact: bool


class Size(NamedTuple):
    """How many objects a commit holds, and the sum of their sizes."""

    objects: int
    bytes: int


def size(ctx: Context, at: str | Commit) -> Size:
    """The size of a ref's commit, or of a commit. Its metarange tells it: no range is read."""
    commit = at if isinstance(at, Commit) else resolve_commit(ctx, at)
    with explain_expired(ctx, (commit,)):
        metarange = ctx.metarange(commit)
    return Size(metarange.count, metarange.size_bytes)


def sums(
    ctx: Context, left: str, right: str, *, two_way: bool, prefix: str = "", most: int, folders: int, first: int
) -> Sums:
    """The sums of what differs between two refs' commits, or of what ``right`` changed since their merge base.

    Args:
        two_way: all that differs, from left to right.
        prefix: what the paths begin with.
        most: how many changes are read and counted.
        folders: how many folders are told of.
        first: how many changes are given as they are; of conflicts at most ``MOST_CONFLICTS``.
    """
    if not two_way:
        return _read(since_merge_base_tables(ctx, left, right, prefix=prefix), prefix, most, folders, first)
    check_prefix(prefix)
    commits = resolve_both(ctx, left, right)
    before, after = ctx.metaranges(*commits)

    def differing(*pair: Metarange) -> Iterator[pa.Table]:
        return watched(ctx, commits, diff(ctx.reader, *pair, prefix=prefix))

    whole, rest = whole_ranges(before, after, prefix)
    found = _read(differing(*rest), prefix, most, folders, 0 if whole else first)
    if not whole:
        return found
    known: dict[str, Counts] = {}
    for one in whole:
        known.setdefault(one.folder, Counts()).count(one.type, one.count, one.size_bytes)
    return _add_sums(found, known, list(islice(each_change(differing(before, after)), first)), folders)


def _read(tables: Iterable[pa.Table], prefix: str, most: int, folders: int, first: int) -> Sums:
    """The sums of a difference's tables."""
    everything, others = Counts(), Counts()
    found: dict[str, Counts] = {}
    listed: list[Change] = []
    conflicts: list[Change] = []
    left_over = most
    for table in tables:
        some = table.slice(0, left_over)
        if len(listed) < first:
            listed += changes(some.slice(0, first - len(listed)))
        everything.add(some)
        if everything.by_kind[ChangeType.CONFLICT] and len(conflicts) < MOST_CONFLICTS:
            here = some.filter(pc.equal(some.column("type"), text(ChangeType.CONFLICT.value)))
            conflicts += changes(here.slice(0, MOST_CONFLICTS - len(conflicts)))
        for name, start, stop in _folders(some, prefix):
            if name not in found and len(found) == folders:
                others.add(some.slice(start))  # paths ascend, so whatever follows is in no folder that is known
                break
            found.setdefault(name, Counts()).add(some.slice(start, stop - start))
        left_over -= some.num_rows
        if not left_over:
            break
    return Sums(prefix, everything, found, others, listed, conflicts, left_over > 0)


def _add_sums(read: Sums, known: dict[str, Counts], listed: list[Change], folders: int) -> Sums:
    """The sums of what was read and of what is known unread."""
    everything, others = Counts().plus(read.all, *known.values()), Counts().plus(read.others)
    found: dict[str, Counts] = {}
    for name in sorted({*read.folders, *known}, key=str.encode):
        here = [sums[name] for sums in (read.folders, known) if name in sums]
        (found.setdefault(name, Counts()) if len(found) < folders else others).plus(*here)
    return Sums(read.prefix, everything, found, others, listed, [], read.exact)


def _folders(table: pa.Table, prefix: str) -> Iterator[tuple[str, int, int]]:
    """What follows a prefix up to a slash, and which rows have it. They are searched for, not passed one by one."""
    paths, start = SortedPaths(table.column("path")), 0
    while start < len(paths):
        path = paths[start].decode()
        name = path[: path.find("/", len(prefix)) + 1]
        stop = paths.first_at(name.encode() + b"\xff") if name else start + 1
        yield name or path, start, stop
        start = stop
