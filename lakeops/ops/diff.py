"""Differences between two refs' commits: two-way, and since the merge base."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.records import Staged
from lakeops.model.arrow import in_one, text
from lakeops.model.errors import CommitExpired
from lakeops.model.names import check_prefix
from lakeops.model.records import Change, ChangeType, Commit, Entry, Strategy, StrategyName, Summary, check_amount
from lakeops.ops.ancestor import check_strategy, foretold_tables, sides_of_merge
from lakeops.ops.context import Context, check_name, explain_expired, resolve_both, resolve_commit, watched
from lakeops.ranges.diff import changes, diff, each_change, staged_changes, summary, whole_ranges
from lakeops.ranges.metarange import Metarange, SortedPaths
from lakeops.ranges.range_merge import sides_behind

if TYPE_CHECKING:
    import pyarrow as pa


def two_way(ctx: Context, left: str, right: str, *, prefix: str = "", after: str = "") -> Iterator[Change]:
    """What differs between two refs' commits, from left to right, by path. It is read while you iterate.

    Args:
        prefix: what the paths begin with.
        after: only paths behind this one.
    """
    return each_change(two_way_tables(ctx, left, right, prefix=prefix, after=after))


def two_way_tables(ctx: Context, left: str, right: str, *, prefix: str = "", after: str = "") -> Iterator[pa.Table]:
    """What ``two_way`` yields, as tables of ``ranges.diff.DIFF_SCHEMA``."""
    check_prefix(prefix)
    check_prefix(after)
    commits = resolve_both(ctx, left, right)

    def found() -> Iterator[pa.Table]:
        one, other = ctx.metaranges(*commits)
        if after:
            one, other = sides_behind(one, other, after)
        seen = 0
        for batch in diff(ctx.reader, one, other, prefix=prefix):
            seen += batch.num_rows
            ctx.progress("comparing", seen, 0)
            yield batch

    return watched(ctx, commits, behind(found(), after))


def since_merge_base(
    ctx: Context,
    left: str,
    right: str,
    *,
    prefix: str = "",
    after: str = "",
    strategy: StrategyName | Strategy | None = None,
) -> Iterator[Change]:
    """What merging ``right`` into ``left`` would change there, by path, with its conflicts.

    A path that both sides changed differently since their merge base is a conflict, unless ``strategy`` settles it. A
    path that ``left`` has the same way already is left out.

    Args:
        prefix: what the paths begin with.
        after: only paths behind this one.
        strategy: the side that settles conflicts.
    """
    tables = since_merge_base_tables(ctx, left, right, prefix=prefix, after=after, strategy=strategy)
    return each_change(tables)


def since_merge_base_tables(
    ctx: Context,
    left: str,
    right: str,
    *,
    prefix: str = "",
    after: str = "",
    strategy: StrategyName | Strategy | None = None,
) -> Iterator[pa.Table]:
    """What ``since_merge_base`` yields, as tables of ``ranges.diff.DIFF_SCHEMA``."""
    check_prefix(prefix)
    check_prefix(after)
    settle = check_strategy(strategy)
    ours, theirs = resolve_both(ctx, left, right)
    sides = sides_of_merge(ctx, theirs, ours, (right, left))
    return behind(foretold_tables(ctx, sides, settle, prefix=prefix, after=after), after)


def behind(tables: Iterable[pa.Table], after: str) -> Iterator[pa.Table]:
    """The rows of tables whose paths are behind one."""
    for table in tables:
        # Paths are compared by their bytes, as Arrow compares them.
        kept = table.filter(pc.greater(table.column("path"), text(after))) if after else table
        if kept.num_rows:
            yield kept


def summary_of(ctx: Context, commit: Commit) -> Summary:
    """What a commit changed against its first parent. Nothing when retention expired either."""
    if not commit.parents:
        return Summary()
    parent = ctx.catalog.commits.get(ctx.repository_id, commit.parents[0])
    try:
        with explain_expired(ctx, (parent, commit)):
            return summary(ctx.reader, *ctx.metaranges(parent, commit))
    except CommitExpired:
        return Summary()


@dataclass(frozen=True)
class DiffCounts:
    """A difference in short.

    ``prefixes`` are the top-level folders (``flights/``) and objects that changed, the first ``limit`` of them in byte
    order. ``partitions`` are the values of one ``name=value`` folder level among the changed paths.
    """

    summary: Summary
    prefixes: tuple[str, ...]
    more_prefixes: bool
    partitions: tuple[str, ...]


def changed(ctx: Context, left: str, right: str, *, partition_by: str | None = None, limit: int = 100) -> DiffCounts:
    """What differs between two refs' commits, in short: counts, top-level prefixes and partition values.

    The cost grows with the changes, and no record is made for each path.

    Args:
        left: a ref.
        right: a ref.
        partition_by: the name of a ``name=value`` folder level whose changed values are returned.
        limit: how many prefixes are returned at most.
    """
    commits = resolve_both(ctx, left, right)
    with explain_expired(ctx, commits):
        return _changed(ctx, commits, partition_by, limit)


def _changed(ctx: Context, commits: tuple[Commit, Commit], partition_by: str | None, limit: int) -> DiffCounts:
    pair = ctx.metaranges(*commits)
    counts = dict.fromkeys(ChangeType, 0)
    found: dict[str, set[str]] = {"top": set(), "value": set()}
    patterns = {"top": "^(?P<top>[^/]*/?)"}
    if partition_by is not None:
        patterns["value"] = f"(?:^|/){re.escape(partition_by)}=(?P<value>[^/]+)/"
    for batch in diff(ctx.reader, *pair):
        for group in pc.value_counts(in_one(batch["type"])).to_pylist():
            counts[ChangeType(group["values"])] += group["counts"]
        for name, pattern in patterns.items():
            values = pc.struct_field(pc.extract_regex(batch["path"], pattern), name)
            found[name].update(value for value in pc.unique(values).to_pylist() if value is not None)
    prefixes = sorted(found["top"], key=str.encode)
    return DiffCounts(
        Summary(counts[ChangeType.ADDED], counts[ChangeType.REMOVED], counts[ChangeType.CHANGED]),
        tuple(prefixes[:limit]),
        len(prefixes) > limit,
        tuple(sorted(found["value"], key=str.encode)),
    )


def uncommitted(ctx: Context, branch: str, prefix: str = "") -> Iterator[Change]:
    """What a commit would change now, by path. It shows one moment of the branch, and is read while you iterate."""
    check_prefix(prefix)
    found, staged = ctx.catalog.staging.staged_table(ctx.repository_id, check_name(branch), prefix=prefix)
    return each_change(effective(ctx, found.head, staged))


_PAGES = 20
"""How many pages of staged rows one call reads at most, where few of them change anything."""


def uncommitted_page(
    ctx: Context, branch: str, prefix: str = "", *, after: str = "", amount: int = 100
) -> tuple[list[Change], str | None]:
    """Some of what a commit would change now, by path, and the path behind which the next page begins (None: no more).

    It holds no more than a page in memory, however much is staged.

    Args:
        prefix: what the paths begin with.
        after: what an earlier call gave.
        amount: how many staged paths are looked at at a time.
    """
    check_prefix(prefix)
    for _ in range(_PAGES):
        page = ctx.catalog.staging.staged_page(
            ctx.repository_id, check_name(branch), prefix=prefix, after=after, limit=check_amount(amount, "a page")
        )
        held = ctx.metarange(page.head)
        pairs = ((ctx.reader.stat(held, row.path), row) for row in page.rows)
        found = [change for before, row in pairs if (change := _staged_change(before, row)) is not None]
        if len(page.rows) < amount:
            return found, None
        after = page.rows[-1].path
        if found:
            return found, after
    return [], after


def _staged_change(before: Entry | None, row: Staged) -> Change | None:
    """What a staged row changes over the committed entry of its path. None when it changes nothing."""
    if row.entry is None:
        return None if before is None else Change(ChangeType.REMOVED, row.path, before.size_bytes)
    if before is None:
        return Change(ChangeType.ADDED, row.path, row.entry.size_bytes)
    if before.identity == row.entry.identity:
        return None
    return Change(ChangeType.CHANGED, row.path, row.entry.size_bytes)


def effective(ctx: Context, head: Commit, staged: pa.Table) -> Iterator[pa.Table]:
    """The staged rows that change something over a commit, in the columns of ``ranges.diff``.

    The same contents put again, and deletions of what is not there, are no changes.
    """
    return staged_changes(ctx.reader, ctx.metarange(head), staged) if staged.num_rows else iter(())


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
    """The size of a ref's commit, or of a commit, as its metarange tells it."""
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
    """The text that follows a prefix up to a slash, and the rows that have it."""
    paths, start = SortedPaths(table.column("path")), 0
    while start < len(paths):
        path = paths[start].decode()
        name = path[: path.find("/", len(prefix)) + 1]
        stop = paths.first_at(name.encode() + b"\xff") if name else start + 1
        yield name or path, start, stop
        start = stop
