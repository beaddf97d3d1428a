"""Differences between two refs' commits: two-way, and since the merge base."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import text
from lakeops.model.errors import CommitExpired
from lakeops.model.names import check_amount, check_asked, check_prefix
from lakeops.model.records import Change, ChangeType, Commit, Counts, Strategy, StrategyName, Summary
from lakeops.ops.ancestor import check_strategy, preview_tables, sides_of_merge
from lakeops.ops.context import Context, check_name, explain_expired, resolve_both, resolve_commit, watched
from lakeops.ops.read import as_table
from lakeops.ranges.diff import CHANGE_TYPES, changes, diff, each_change, staged_changes, summary, whole_ranges
from lakeops.ranges.metarange import Metarange, SortedPaths
from lakeops.ranges.range_merge import sides_behind


def two_way(ctx: Context, left: str, right: str, *, prefix: str = "", after: str = "") -> Iterator[Change]:
    """The changes from one ref's commit to another's, by path. They are read while you iterate.

    Args:
        prefix: only paths that begin with it.
        after: only paths after this one.
    """
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

    return each_change(watched(ctx, commits, behind(found(), after)))


def since_merge_base(
    ctx: Context,
    left: str,
    right: str,
    *,
    prefix: str = "",
    after: str = "",
    strategy: StrategyName | Strategy | None = None,
) -> Iterator[Change]:
    """The changes that merging ``right`` into ``left`` would make there, by path, with its conflicts.

    A path that both sides changed differently since their merge base is a conflict, unless ``strategy`` settles it. A
    path that ``left`` has the same way already is left out.

    Args:
        prefix: only paths that begin with it.
        after: only paths after this one.
        strategy: the side that settles conflicts.
    """
    return each_change(_tables_since_merge_base(ctx, left, right, prefix, after, strategy))


def _tables_since_merge_base(
    ctx: Context, left: str, right: str, prefix: str, after: str = "", strategy: str | None = None
) -> Iterator[pa.Table]:
    check_prefix(prefix)
    check_prefix(after)
    chosen = check_strategy(strategy)
    ours, theirs = resolve_both(ctx, left, right)
    sides = sides_of_merge(ctx, theirs, ours, (right, left))
    return behind(preview_tables(ctx, sides, chosen, prefix=prefix, after=after), after)


def behind(tables: Iterable[pa.Table], after: str) -> Iterator[pa.Table]:
    """The rows of tables whose paths come after a given path."""
    for table in tables:
        # Paths are compared by their bytes, as Arrow compares them.
        kept = table.filter(pc.greater(table.column("path"), text(after))) if after else table
        if kept.num_rows:
            yield kept


def summary_of(ctx: Context, commit: Commit) -> Summary:
    """The numbers of paths that a commit changed against its first parent. 0 when retention expired either."""
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
    """A difference in numbers.

    ``prefixes`` are the top-level folders (``flights/``) and objects that changed, the first ``limit`` of them in byte
    order. ``partitions`` are the values of one ``name=value`` folder level among the changed paths.
    """

    summary: Summary
    prefixes: tuple[str, ...]
    more_prefixes: bool
    partitions: tuple[str, ...]


def changed(ctx: Context, left: str, right: str, *, partition_by: str | None = None, limit: int = 100) -> DiffCounts:
    """The difference between two refs' commits in numbers: counts, top-level prefixes and partition values.

    The cost grows with the changes, and no record is made for each path.

    Args:
        partition_by: the name of a ``name=value`` folder level whose changed values are returned.
    """
    check_amount(limit, "the limit")
    commits = resolve_both(ctx, left, right)
    counts = Counts()
    found: dict[str, set[str]] = {"top": set(), "value": set()}
    patterns = {"top": "^(?P<top>[^/]*/?)"}
    if partition_by is not None:
        patterns["value"] = f"(?:^|/){re.escape(check_asked(partition_by, 'a folder level'))}=(?P<value>[^/]+)/"
    with explain_expired(ctx, commits):
        for batch in diff(ctx.reader, *ctx.metaranges(*commits)):
            _add(counts, batch)
            for name, pattern in patterns.items():
                values = pc.struct_field(pc.extract_regex(batch["path"], pattern), name)
                found[name].update(value for value in pc.unique(values).to_pylist() if value is not None)
    prefixes = sorted(found["top"], key=str.encode)
    return DiffCounts(
        Summary(*(counts.by_kind[kind] for kind in CHANGE_TYPES)),
        tuple(prefixes[:limit]),
        len(prefixes) > limit,
        tuple(sorted(found["value"], key=str.encode)),
    )


def uncommitted(ctx: Context, branch: str, prefix: str = "") -> Iterator[Change]:
    """The changes that a commit would make now, by path: one moment of the branch, read while you iterate."""
    check_prefix(prefix)
    found = ctx.catalog.staging.staged_table(ctx.repository_id, check_name(branch), prefix=prefix)
    return each_change(effective(ctx, found.head, found.staged))


_PAGES = 20
"""How many pages of staged rows one call reads at most, where few of them change anything."""


def uncommitted_page(
    ctx: Context, branch: str, prefix: str = "", *, after: str = "", amount: int = 100
) -> tuple[list[Change], str | None]:
    """A page of the changes that a commit would make now, and the path behind which the next page begins, if any does.

    It holds no more than a page in memory, however much is staged.

    Args:
        prefix: only paths that begin with it.
        after: the path that an earlier call gave.
        amount: how many staged paths are looked at at a time, at least one.
    """
    check_prefix(prefix)
    amount = check_amount(amount, "a page") or 1
    for _ in range(_PAGES):
        head, rows = ctx.catalog.staging.staged_page(
            ctx.repository_id, check_name(branch), prefix=prefix, after=after, limit=amount
        )
        found = list(each_change(effective(ctx, head, as_table(rows))))
        if len(rows) < amount:
            return found, None
        after = rows[-1].path
        if found:
            return found, after
    return [], after


def effective(ctx: Context, head: Commit, staged: pa.Table) -> Iterator[pa.Table]:
    """The staged rows that change something over a commit, in the columns of ``ranges.diff``.

    Equal contents put again, and deletions of absent paths, are no changes.
    """
    return staged_changes(ctx.reader, ctx.metarange(head), staged) if staged.num_rows else iter(())


MOST_CONFLICTS = 20


@dataclass(frozen=True)
class DiffStat:
    """The differences under a ``prefix``, in numbers.

    ``all`` counts every path, ``folders`` those of the first folders, and of objects directly under the prefix, by
    their paths, and ``others`` those of all further folders. ``first`` are the first changes, ``conflicts`` the first
    conflicts among the counted paths. ``exact`` is False when there were more changes than were to be read.
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
) -> DiffStat:
    """Count the changes between two refs' commits, or those that ``right`` made since their merge base, by folder.

    Args:
        two_way: all differences, from left to right.
        prefix: only paths that begin with it.
        most: how many changes are read and counted.
        folders: how many folders have counts of their own.
        first: how many changes are given as they are; of conflicts at most ``MOST_CONFLICTS``.
    """
    if not two_way:
        return _read(_tables_since_merge_base(ctx, left, right, prefix), prefix, most, folders, first)
    check_prefix(prefix)
    commits = resolve_both(ctx, left, right)
    before, after = ctx.metaranges(*commits)

    def differing(*pair: Metarange) -> Iterator[pa.Table]:
        return watched(ctx, commits, diff(ctx.reader, *pair, prefix=prefix))

    whole, rest = whole_ranges(before, after, prefix)
    read = _read(differing(*rest), prefix, most, folders, 0 if whole else first)
    if not whole:
        return read
    known: dict[str, Counts] = {}  # ranges that came or went as a whole are counted unread
    for one in whole:
        here = known.setdefault(one.folder, Counts())
        here.by_kind[one.type] += one.count
        here.bytes += one.size_bytes
    everything, others = Counts().plus(read.all, *known.values()), Counts().plus(read.others)
    found: dict[str, Counts] = {}
    for name in sorted({*read.folders, *known}, key=str.encode):
        both = [counts[name] for counts in (read.folders, known) if name in counts]
        (found.setdefault(name, Counts()) if len(found) < folders else others).plus(*both)
    listed = list(islice(each_change(differing(before, after)), first))
    return DiffStat(prefix, everything, found, others, listed, [], read.exact)


def _read(tables: Iterable[pa.Table], prefix: str, most: int, folders: int, first: int) -> DiffStat:
    everything, others = Counts(), Counts()
    found: dict[str, Counts] = {}
    listed: list[Change] = []
    conflicts: list[Change] = []
    left_over, exact = most, True
    for table in tables:
        some = table.slice(0, left_over)
        if len(listed) < first:
            listed += changes(some.slice(0, first - len(listed)))
        _add(everything, some)
        if everything.by_kind[ChangeType.CONFLICT] and len(conflicts) < MOST_CONFLICTS:
            here = some.filter(pc.equal(some.column("type"), text(ChangeType.CONFLICT.value)))
            conflicts += changes(here.slice(0, MOST_CONFLICTS - len(conflicts)))
        for name, start, stop in _folders(some, prefix):
            if name not in found and len(found) == folders:
                _add(others, some.slice(start))  # paths ascend, so whatever follows is in no folder that is known
                break
            _add(found.setdefault(name, Counts()), some.slice(start, stop - start))
        left_over -= some.num_rows
        exact = some.num_rows == table.num_rows
        if not exact:
            break
    return DiffStat(prefix, everything, found, others, listed, conflicts, exact)


def _add(counts: Counts, rows: pa.Table) -> None:
    """Count the rows of a difference (``ranges.diff.DIFF_SCHEMA``)."""
    for kind in pc.value_counts(rows.column("type")).to_pylist():
        counts.by_kind[kind["values"]] += kind["counts"]
    counts.bytes += pc.sum(rows.column("size_bytes")).as_py() or 0


def _folders(table: pa.Table, prefix: str) -> Iterator[tuple[str, int, int]]:
    """The folders and objects directly under a prefix, with the rows of each: from one number up to another."""
    paths, start = SortedPaths(table.column("path")), 0
    while start < len(paths):
        path = paths[start].decode()
        name = path[: path.find("/", len(prefix)) + 1]
        stop = paths.first_at(name.encode() + b"\xff") if name else start + 1
        yield name or path, start, stop
        start = stop
