"""Blame, the commit that wrote each object of a ref, and history, every commit that wrote one object.

Both walk from child to parent and follow merges as git does: at a merge, the first parent that has the same object is
followed. Ranges that a commit shares with its parent are left unread, so the cost grows with the changes of commits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.errors import CommitExpired, ObjectNotFound
from lakeops.model.graph import CommitSource, Walk
from lakeops.model.names import check_amount, check_path, check_prefix
from lakeops.model.records import ChangeType, Commit, Entry, Version, Written, maker
from lakeops.ops.context import Context, explain_expired, history_of, resolve_commit, watched
from lakeops.ranges.diff import written
from lakeops.ranges.digest import Positions

Sets: TypeAlias = npt.NDArray[np.int32]

PAGE = 1_000_000
"""At most about so many objects are traced in one walk over the history. Memory holds their paths and sizes."""

PAGE_BYTES = 64 * 1024 * 1024
"""About so many bytes of their paths are held at most."""

_AT_ONCE = 10_000
"""Objects that become records in one step."""

_COLUMNS = ["path", "size_bytes"]
_written = maker(Written)


def blame(
    ctx: Context, ref: str, prefix: str = "", *, after: str = "", amount: int | None = None, depth: int | None = None
) -> Iterator[Written]:
    """The objects under a prefix by path, each with the commit that wrote it. They are traced while you iterate.

    Uncommitted changes are not looked at. The same contents put again are no new object.

    Args:
        prefix: what the paths begin with.
        after: the last path of an earlier call. Only what follows it in byte order is listed.
        depth: how many commits are looked at at most for a page of objects. The others are shown with the oldest
            commit that was looked at and has them, and ``boundary`` is set.
    """
    check_prefix(prefix)
    check_prefix(after)
    deepest = _deepest(depth)
    most = sys.maxsize if amount is None else check_amount(amount, "the amount of objects")
    start = resolve_commit(ctx, ref)
    get = history_of(ctx)

    def found() -> Iterator[Written]:
        batches = ctx.reader.scan(ctx.metarange(start), prefix, after, columns=_COLUMNS)
        for page in _pages(batches, most):
            sets, (commits, boundaries) = _trace(ctx, get, start, page.column("path").chunk(0), deepest)
            for part in range(0, page.num_rows, _AT_ONCE):
                columns = (column.to_pylist() for column in page.slice(part, _AT_ONCE).columns)
                numbers = sets[part : part + _AT_ONCE].tolist()
                known = (map(of_set.__getitem__, numbers) for of_set in (commits, boundaries))
                yield from map(_written, *columns, *known)
            del page, sets  # the next page is read before these names get another value

    return watched(ctx, (start,), found() if most else iter(()))


def _pages(batches: Iterable[pa.Table], most: int) -> Iterator[pa.Table]:
    """The first rows in pages of one chunk: ``PAGE`` rows or ``PAGE_BYTES``, or more by less than one batch."""
    held: list[pa.Table] = []
    rows = size = 0
    for batch in batches:
        held.append(batch.slice(0, most))
        most -= held[-1].num_rows
        rows, size = rows + held[-1].num_rows, size + held[-1].nbytes
        if rows >= PAGE or size >= PAGE_BYTES or not most:
            table = pa.concat_tables(held)
            held.clear()  # so that nobody keeps its memory
            yield table.combine_chunks()
            rows = size = 0
        if not most:
            break
    if held:
        yield pa.concat_tables(held).combine_chunks()


@dataclass(frozen=True)
class _Waiting:
    """The numbers of the path sets that have been traced to one commit, and how many paths they hold."""

    sets: list[int]
    count: int

    def among(self, sets: Sets) -> Positions:
        """The positions in ``sets`` at which one of these set numbers stands."""
        return np.flatnonzero(sets == self.sets[0] if len(self.sets) == 1 else np.isin(sets, self.sets))


def _trace(
    ctx: Context, get: CommitSource, start: Commit, paths: pa.Array, deepest: int
) -> tuple[Sets, tuple[list[Commit], list[bool]]]:
    """Trace paths: returns each path's set, and for each set the writing commit, and whether an earlier one may be it.

    A set is with one commit at a time, and goes to a parent as it is. Objects that the parent lacks are a set of their
    own from then on. So a commit costs what it changed, however many objects are traced. ``paths`` are in order, and
    ``start`` has an object at each. ``deepest`` is how many commits are compared with their parents.
    """
    sets = np.zeros(len(paths), np.int32)
    ends: list[tuple[Commit, bool]] = [(start, False)]
    # By commit id: the sets whose objects are equal at that commit and at ``start``.
    waiting = {start.id: _Waiting([0], len(paths))}
    walk, looked = Walk(get, [(start.id, 1)]), 0
    while walk.marks:
        commit, _ = walk.pop()
        rest = waiting.pop(commit.id)
        deepest -= 1
        looked += 1
        ctx.progress("looking at commits", looked, 0)
        parents = dict.fromkeys(commit.parents if deepest >= 0 else ())
        unknown = len(parents) == 0 < len(commit.parents)
        for parent in parents:
            if not rest.count:
                break
            before = get(parent)
            try:
                changed = _changed(ctx, before, commit, paths, sets, rest)
            except CommitExpired:
                unknown = True
                continue
            if len(changed) == rest.count:
                continue
            walk.reach(parent, 1)
            other = waiting.get(parent, _Waiting([], 0))
            waiting[parent] = _Waiting(other.sets + rest.sets, other.count + rest.count - len(changed))
            rest = _Waiting([len(ends)] if len(changed) else [], len(changed))
            if len(changed):
                sets[changed] = len(ends)
                ends.append((commit, False))
        for number in rest.sets:
            ends[number] = (commit, unknown)
    commits, boundaries = zip(*ends, strict=True)
    return sets, (list(commits), list(boundaries))


def _changed(ctx: Context, before: Commit, after: Commit, paths: pa.Array, sets: Sets, which: _Waiting) -> Positions:
    """Indices of the paths whose object in ``after`` is not the one in ``before``.

    Only ranges that the commits do not share and that hold one of these paths are opened.
    """
    with explain_expired(ctx, (before, after)):
        old, new = ctx.metaranges(before, after)
        new = new.only(new.without(old))
        first = pc.search_sorted(paths, new.table["first_path"]).to_numpy().astype(np.int64)
        last = pc.search_sorted(paths, new.table["last_path"], side="right").to_numpy().astype(np.int64)
        inside = [which.among(sets[begin:end]) + begin for begin, end in zip(first, last, strict=True)]
        hit = np.flatnonzero([len(rows) for rows in inside])
        if not len(hit):
            return hit
        new = new.only(hit)
        old = old.only(old.without(new))
        old = old.only(np.flatnonzero(old.meets(new)))
        met = new.meets(old)
        # Where the earlier commit has no range beside, everything is new, and nothing need be read.
        found = [inside[number] for number in hit[~met]]
        for some in written(ctx.reader, old, new.only(np.flatnonzero(met))):
            places = pc.search_sorted(paths, some).to_numpy().astype(np.int64)
            places = np.minimum(places, len(paths) - 1)
            places = places[pc.equal(paths.take(pa.array(places)), some).to_numpy(zero_copy_only=False)]
            found.append(places[which.among(sets[places])])
    return np.concatenate([np.zeros(0, np.int64), *found])


def history(
    ctx: Context, ref: str, path: str, *, amount: int | None = None, depth: int | None = None
) -> Iterator[Version]:
    """The commits that wrote or removed an object, children before parents. They are found while you iterate.

    A merge is one of them when it has another object than each of its parents. Uncommitted changes are not looked at.

    Args:
        path: the object's path. There need not be an object at the ref.
        depth: how many commits are looked at at most. The last version is then that of the oldest of them, and
            ``boundary`` is set.

    Raises:
        ObjectNotFound: none of the commits that the ref leads to has an object at the path.
    """
    check_path(path)
    deepest = _deepest(depth)
    most = None if amount is None else min(check_amount(amount, "the amount of commits"), sys.maxsize)
    start = resolve_commit(ctx, ref)
    get = history_of(ctx)

    def found() -> Iterator[Version]:
        known, left = False, deepest
        with explain_expired(ctx, (start,)):
            seen = {start.id: ctx.reader.stat(ctx.metarange(start), path)}
        walk = Walk(get, [(start.id, 1)])
        while walk.marks:
            commit, _ = walk.pop()
            here = seen.pop(commit.id)
            left -= 1
            ctx.progress("looking at commits", deepest - left, 0)
            if left < 0 and commit.parents:
                known = True  # an earlier commit may have it
                if here is not None:
                    yield Version(path, here.size_bytes, commit, True, ChangeType.ADDED, here.checksum)
                continue
            version, follow = _step(ctx, commit, here, [get(parent) for parent in dict.fromkeys(commit.parents)], path)
            known = known or version is not None
            if version is not None:
                yield version
            for parent, there in follow:
                walk.reach(parent.id, 1)
                seen[parent.id] = there
        if not known:
            raise ObjectNotFound(f"no commit that {ref!r} of repository {ctx.repository_id!r} leads to has {path!r}")

    return islice(found(), most)


def _deepest(depth: int | None) -> int:
    return sys.maxsize if depth is None else check_amount(depth, "the depth")


def _step(
    ctx: Context, commit: Commit, here: Entry | None, parents: list[Commit], path: str
) -> tuple[Version | None, list[tuple[Commit, Entry | None]]]:
    """The version of an object that a commit made, and the parents to go on at, each with its entry."""
    others: list[tuple[Commit, Entry | None]] = []
    unknown = False
    for parent in parents:
        try:
            with explain_expired(ctx, (parent,)):
                there = ctx.reader.stat(ctx.metarange(parent), path)
        except CommitExpired:
            unknown = True
            continue
        if (there and there.identity) == (here and here.identity):
            return None, [(parent, there)]
        others.append((parent, there))
    before = others[0][1] if others else None
    shown = here or before
    if shown is None:
        return None, others
    kind = ChangeType.REMOVED if here is None else ChangeType.ADDED if before is None else ChangeType.CHANGED
    return Version(path, shown.size_bytes, commit, unknown, kind, shown.checksum), others
